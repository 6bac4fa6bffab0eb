//! `cargo bench -- hub`: the hub of MCP servers beside mcp-proxy and beside no one in between.
//!
//! | row | osctl | peer |
//! |---|---|---|
//! | latency added | `tools/call` through the hub, less the same over stdio | through mcp-proxy, less the same |
//! | 64 clients | calls a second through the hub | through mcp-proxy |
//! | `tools/list`, cold | from the cache, no server runs | |
//! | memory | the companion's resident set with three servers that were not started | |
//!
//! The same filesystem server for all, the same client for both who speak HTTP, all inside one container. The
//! ways take turns within one run; ratios count. A target that is missed makes the exit code 1.

mod peers;
mod session;

use crate::http::Connection;
use crate::instance::{self, Instance};
use crate::memory;
use crate::report::{Report, say};
use crate::samples::{Samples, rounds};
use anyhow::Result;
use peers::Peers;

/// Calls of each way in one round of twenty.
const CALLS: usize = 100;
/// Calls of a crowd.
const CROWD: usize = 4000;
/// Bytes that the companion may hold.
const MEMORY: f64 = 20.0 * 1024.0 * 1024.0;
/// Seconds of a list that no server is started for.
const COLD: f64 = 0.020;

/// Adds the hub's rows.
///
/// # Errors
/// When the instance can't be brought up, or somebody does not answer.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let instance = Instance::up(peers::FILES)?;
    let api = instance.api()?;
    let fresh = memory(&mut Connection::open(&api)?)?;
    report.bytes(
        "companion's RSS, three servers not started",
        fresh.rss,
        Some(MEMORY),
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
    report.contest("tools/call, beside mcp-proxy", [&hub, &proxy], [0.0, 0.0]);
    let added = [hub.p50() - stdio.p50(), proxy.p50() - stdio.p50()];
    report.faster("  latency added, p50", added, 5.0);
    say("timing crowds");
    let [hub, proxy] = rounds(
        3,
        [&mut || peers.time("hub-crowd", CROWD), &mut || {
            peers.time("proxy-crowd", CROWD / 4)
        }],
    )?;
    // Calls a second are the inverse of the seconds that one takes.
    let seconds = [1.0 / hub.p50(), 1.0 / proxy.p50()];
    report.faster("64 clients at once, time a call", seconds, 5.0);
    report.rate("  calls answered through the hub", "calls/s", hub.p50());
    report.rate("  calls answered through mcp-proxy", "calls/s", proxy.p50());
    drop(peers);
    say("timing lists");
    let mut lists = Vec::new();
    for _ in 0..5 {
        instance::finish(instance.osctl(&["restart"]))?;
        lists.push(session::list(&instance)?);
    }
    let cold = Samples::from(lists).p50();
    report.within("tools/list, cold from the cache", cold, COLD);
    Ok(())
}
