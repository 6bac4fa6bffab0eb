//! `cargo bench -- hub`: the hub of MCP servers against mcp-proxy and against a direct connection.
//!
//! | row | osctl | peer |
//! |---|---|---|
//! | latency added | `tools/call` through the hub, less the same over stdio | through mcp-proxy, less the same |
//! | 64 clients | calls a second through the hub | through mcp-proxy |
//! | `tools/call` from the host | through the published port | supergateway on the host, without a container |
//! | `tools/list`, cold | from the cache, no server runs | |
//! | memory | the companion's resident set with three servers that were not started | |
//!
//! All use the same filesystem server and the same client, in one container except for the row from the host. The
//! contestants take turns within one run, because only ratios are comparable. A missed target makes the exit code 1.

mod peers;
mod session;

use crate::http::Connection;
use crate::instance::{self, Instance};
use crate::memory;
use crate::report::{Report, say};
use crate::samples::{Samples, rounds};
use anyhow::{Context, Result};
use peers::Peers;

/// Calls of each contestant in one round of twenty.
const CALLS: usize = 100;
/// Calls of the 64 concurrent clients.
const CONCURRENT_CALLS: usize = 4000;
/// Calls of each contestant from the host, and the rounds in which they take turns.
const HOST_CALLS: usize = 100;
const HOST_ROUNDS: usize = 20;
/// The largest resident set of the companion.
const MAX_MEMORY_BYTES: f64 = 20.0 * 1024.0 * 1024.0;
/// The longest time of a list that needs no server.
const MAX_COLD_SECONDS: f64 = 0.020;

/// Adds the hub's rows.
///
/// # Errors
/// When the instance cannot be brought up, or a contestant does not answer.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let instance = Instance::up(peers::FILES)?;
    let api = instance.api()?;
    let fresh = memory(&mut Connection::open(&api)?)?;
    report.bytes(
        "companion's RSS, three servers not started",
        fresh.rss,
        Some(MAX_MEMORY_BYTES),
    );
    say("installing mcp-proxy");
    let peers = Peers::start(&instance, &api.1)?;
    say("timing calls");
    let [stdio, hub, proxy] = rounds(
        20,
        [
            &mut || peers.time("stdio", CALLS),
            &mut || peers.time("hub", CALLS),
            &mut || peers.time("proxy", CALLS),
        ],
    )?;
    report.note("tools/call over stdio, p50", stdio.p50());
    report.contest("tools/call, against mcp-proxy", [&hub, &proxy], [0.0, 0.0]);
    let added = [hub.p50() - stdio.p50(), proxy.p50() - stdio.p50()];
    report.faster("  latency added, p50", added, 5.0);
    say("timing concurrent clients");
    let [hub, proxy] = rounds(
        3,
        [
            &mut || peers.time("hub-crowd", CONCURRENT_CALLS),
            &mut || peers.time("proxy-crowd", CONCURRENT_CALLS / 4),
        ],
    )?;
    // The clients report calls per second; the inverse is seconds per call.
    let seconds = [1.0 / hub.p50(), 1.0 / proxy.p50()];
    report.faster("64 concurrent clients, time per call", seconds, 5.0);
    report.rate("  calls answered through the hub", "calls/s", hub.p50());
    report.rate("  calls answered through mcp-proxy", "calls/s", proxy.p50());
    say("installing supergateway");
    let address = session::hub_address(&instance)?;
    let (_, port) = address.rsplit_once(':').context("no port")?;
    let host = Peers::start_on_host(&instance, port.parse()?, &api.1)?;
    say("timing calls from the host");
    let [hub, gateway] = rounds(
        HOST_ROUNDS,
        [
            &mut || host.time("hub", HOST_CALLS / HOST_ROUNDS),
            &mut || host.time("gateway", HOST_CALLS / HOST_ROUNDS),
        ],
    )?;
    let what = "tools/call from the host, against supergateway";
    report.contest(what, [&hub, &gateway], [1.0, 0.0]);
    drop((host, peers));
    say("timing lists");
    let mut lists = Vec::new();
    for _ in 0..5 {
        instance::finish(instance.osctl(&["restart"]))?;
        lists.push(session::list(&instance)?);
    }
    let cold = Samples::from(lists).p50();
    report.within("tools/list, cold from the cache", cold, MAX_COLD_SECONDS);
    Ok(())
}
