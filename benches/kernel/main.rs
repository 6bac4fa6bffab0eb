//! `cargo bench`: the kernel against ipykernel and `docker exec`, and the hub of MCP servers against mcp-proxy.
//! `cargo bench -- kernel` or `-- hub` measures one of the two.
//!
//! | row | osctl | peer |
//! |---|---|---|
//! | `1+1`, value | `POST /exec` with `durable: false` on a keep-alive connection | ipykernel through jupyter_client, until reply and idle |
//! | the same | recorded on disk before the reply | with `durable: false` |
//! | a whole process | `osctl exec '1+1'` | `docker exec … python3 -c 'print(1+1)'` |
//! | a command | `osctl shell true` | `docker exec … true` |
//! | kernel start | template, fork, packages, as the companion does it | jupyter_client's `start_kernel` to `wait_for_ready` |
//! | new session, eight concurrent ones | `POST /sessions` and a value | a kernel's start; eight with a value |
//! | 1,000 prints | streamed as NDJSON: first and last byte | iopub: first and last stream message |
//! | 10 MB of output | the reply; and all of it streamed as NDJSON, to a client inside and from the host | all of it on iopub |
//! | 5 MB figure | the reply with it | the reply and idle, with it on iopub |
//! | files | `osctl cp` of 1 GiB, of 20,000 small files, in and out | `docker cp` |
//! | cryo | `POST /cryo/store` of 1 GiB and of a million dicts, synced | dill.dump_module, pickle, raw write |
//! | a checkpointed kernel | `osctl criu checkpoint` and `restore`, with 100 MB | |
//! | up | `osctl up` with nothing changed, and after a changed line of the kernel | |
//! | memory | the companion's resident set, idle after its start and after 15,000 requests | |
//!
//! The benchmark brings up its own instance (which provisions the machine as `osctl up --yes` does) and installs the
//! peers from a lock file with hashes into that container: same Python, same limits. All contestants of a row take
//! turns within one run, so that noise affects them equally; only ratios are comparable. The peers are measured inside
//! the container, osctl inside and from the host. A missed target makes the exit code 1. The instance is always removed
//! at the end; the next run removes the instance of a killed one.
//!
//! `cargo bench --bench kernel -- cryo` measures only the rows of cryo, `-- output` only those of large outputs, and
//! `-- durable` only the cost of recorded runs.
//!
//! Rows without a target are for information. So is the memory after concurrent clients and large outputs: the
//! companion then retains the last runs, up to 32 MiB, which is not idle memory.
//!
//! The benchmark does not compare other hosts or remote engines.

mod again;
mod checkpoint;
mod cryo;
mod durable;
mod files;
mod follow;
mod http;
#[path = "../hub/mod.rs"]
mod hub;
mod instance;
mod peers;
mod report;
mod samples;

use anyhow::{Result, ensure};
use follow::Inside;
use http::Connection;
use instance::Instance;
use peers::Peers;
use report::{Report, say};
use samples::{Samples, Turn, heed_interrupts, rounds};
use serde::Deserialize;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

/// Requests of each contestant in one round of twenty: 5,000 in all.
const REQUESTS: usize = 250;
/// Requests at the start of each turn that do not count, because the caches are those of the previous contestant.
const WARM_UP: usize = 5;
/// The largest resident set of the companion.
const MAX_MEMORY_BYTES: f64 = 15.0 * 1024.0 * 1024.0;
/// Megabytes of output in one run.
const OUTPUT_MEGABYTES: f64 = 10.0;

/// The time without requests before a measurement of idle memory.
const IDLE_TIME: Duration = Duration::from_secs(25);

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(follow::FOLLOW_ARGUMENT) {
        return match follow::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                say(format!("following failed: {why:#}"));
                ExitCode::FAILURE
            }
        };
    }
    heed_interrupts();
    match measure().map(|report| report.print()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            say(format!("the benchmark failed: {why:#}"));
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<Report> {
    let mut report = Report::new();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| {
        let mut names = words
            .iter()
            .filter(|word| !word.starts_with('-'))
            .peekable();
        names.peek().is_none() || names.any(|word| word == name)
    };
    if ["kernel", "cryo", "output", "durable"]
        .into_iter()
        .any(is_wanted)
    {
        kernel(&mut report)?;
    }
    if is_wanted("hub") {
        hub::measure(&mut report)?;
    }
    Ok(report)
}

fn kernel(report: &mut Report) -> Result<()> {
    let instance = Instance::up(peers::FILES)?;
    let api = instance.api()?;
    if std::env::args().any(|word| word == "cryo") {
        say("timing cryo");
        cryo::measure(report, &instance, &api.1)?;
        return Ok(());
    }
    if std::env::args().any(|word| word == "durable") {
        say("timing durability");
        return durable::measure(report, &api);
    }
    let mut host = Connection::open(&api)?;
    if std::env::args().any(|word| word == "output") {
        let peers = Peers::start(&instance, &api.1)?;
        say("timing output");
        let inside = Inside::new(&instance, &api.1)?;
        return output(report, &mut host, &inside, &peers);
    }
    thread::sleep(IDLE_TIME);
    let fresh = memory(&mut host)?;
    say("installing the peers");
    let peers = Peers::start(&instance, &api.1)?;
    say("timing requests");
    requests(report, &mut host, &peers)?;
    thread::sleep(IDLE_TIME);
    let idle = memory(&mut host)?;
    say("timing processes");
    processes(report, &instance)?;
    say("timing durability");
    durable::measure(report, &api)?;
    say("timing kernel starts");
    starts(report, &peers)?;
    report.bytes("companion's RSS, idle", fresh.rss, Some(MAX_MEMORY_BYTES));
    report.bytes("  its proportional share (PSS)", fresh.pss, None);
    report.bytes("  the whole container's working set", fresh.container, None);
    report.bytes(
        "companion's RSS, after 15,000 requests",
        idle.rss,
        Some(MAX_MEMORY_BYTES),
    );
    report.bytes("  its proportional share (PSS)", idle.pss, None);
    say("timing sessions");
    sessions(report, &peers)?;
    say("timing streams");
    streams(report, &peers)?;
    say("timing concurrent clients and output");
    let rate = http::throughput(&api, 64, REQUESTS)?;
    report.rate("64 concurrent clients, queueing", "requests/s", rate);
    let crowded = memory(&mut host)?;
    report.bytes("  companion's RSS then", crowded.rss, None);
    let inside = Inside::new(&instance, &api.1)?;
    output(report, &mut host, &inside, &peers)?;
    let full = memory(&mut host)?;
    report.bytes(
        "  companion's RSS then, with the retained runs",
        full.rss,
        None,
    );
    say("timing files");
    files::measure(report, &mut host, &instance)?;
    say("timing cryo");
    cryo::measure(report, &instance, &api.1)?;
    say("timing checkpoints");
    checkpoint::measure(report, &instance)?;
    // This row is the last, because it replaces the container.
    say("timing osctl up");
    again::measure(report, &instance)
}

fn requests(report: &mut Report, host: &mut Connection, peers: &Peers) -> Result<()> {
    let mut inner = Vec::new();
    let warm = |sampler| {
        peers.time(sampler, WARM_UP)?;
        peers.time(sampler, REQUESTS)
    };
    let [outside, inside, bare, jupyter] = rounds(
        20,
        [
            &mut || {
                host.time(http::VALUE, WARM_UP)?;
                let (whole, run) = host.time(http::VALUE, REQUESTS)?;
                inner.extend(run);
                Ok(whole)
            },
            &mut || warm("osctl"),
            &mut || warm("osctl-bare"),
            &mut || warm("jupyter"),
        ],
    )?;
    let mut contest = |what: &str, ours: &Samples, targets| {
        report.contest(what, [ours, &jupyter], targets);
        let tails = [ours.p999(), jupyter.p999()];
        report.faster("  p99.9", tails, 0.0);
    };
    let targets = [8.0, 8.0];
    contest(
        "POST /exec from the host, against ipykernel",
        &outside,
        targets,
    );
    contest("POST /exec from inside, against ipykernel", &bare, targets);
    contest(
        "  the same through Python's http.client",
        &inside,
        [0.0, 0.0],
    );
    report.note(
        "  from the host, of it the time in the kernel, p50",
        Samples::from(inner).p50(),
    );
    Ok(())
}

fn processes(report: &mut Report, instance: &Instance) -> Result<()> {
    let [ours, theirs] = rounds(
        40,
        [
            &mut || time(instance.osctl(&["exec", "1+1"]), "2\n"),
            &mut || {
                time(
                    instance.docker_exec(&[], &["python3", "-c", "print(1+1)"]),
                    "2\n",
                )
            },
        ],
    )?;
    report.contest(
        "osctl exec, against docker exec python3",
        [&ours, &theirs],
        [5.0, 0.0],
    );
    let [ours, theirs] = rounds(
        40,
        [
            &mut || time(instance.osctl(&["shell", "true"]), ""),
            &mut || time(instance.docker_exec(&[], &["true"]), ""),
        ],
    )?;
    report.contest(
        "osctl shell true, against docker exec true",
        [&ours, &theirs],
        [1.0, 0.0],
    );
    Ok(())
}

fn starts(report: &mut Report, peers: &Peers) -> Result<()> {
    let [ours, theirs] = rounds(
        20,
        [&mut || peers.time("osctl-start", 1), &mut || {
            peers.time("jupyter-start", 1)
        }],
    )?;
    report.contest(
        "kernel start, against ipykernel",
        [&ours, &theirs],
        [2.0, 0.0],
    );
    Ok(())
}

/// New sessions: one at a time, and eight concurrent ones.
fn sessions(report: &mut Report, peers: &Peers) -> Result<()> {
    let [ours, theirs] = rounds(
        20,
        [&mut || peers.time("osctl-session", 1), &mut || {
            peers.time("jupyter-start", 1)
        }],
    )?;
    report.contest(
        "new session, with a value, against ipykernel's start",
        [&ours, &theirs],
        [50.0, 0.0],
    );
    let [ours, theirs] = rounds(
        3,
        [&mut || peers.time("osctl-crowd", 3), &mut || {
            peers.time("jupyter-crowd", 1)
        }],
    )?;
    report.faster(
        "eight concurrent new sessions, against ipykernels",
        [ours.p50(), theirs.p50()],
        0.0,
    );
    Ok(())
}

/// Streamed prints and a large figure.
fn streams(report: &mut Report, peers: &Peers) -> Result<()> {
    let mut lasts = [Vec::new(), Vec::new()];
    let mut firsts = |sampler: &str, whose: usize| {
        let samples: Vec<(f64, f64)> = peers.sample(sampler, 5)?;
        let (first, last): (Vec<f64>, Vec<f64>) = samples.into_iter().unzip();
        lasts[whose].extend(last);
        Ok(first)
    };
    let firsts = std::cell::RefCell::new(&mut firsts);
    let [ours, theirs] = rounds(
        20,
        [&mut || firsts.borrow_mut()("osctl-prints", 0), &mut || {
            firsts.borrow_mut()("jupyter-prints", 1)
        }],
    )?;
    report.contest(
        "1,000 prints, first byte, against ipykernel",
        [&ours, &theirs],
        [0.0, 0.0],
    );
    let [ours, theirs] = lasts.map(Samples::from);
    report.contest(
        "1,000 prints, last byte, against ipykernel",
        [&ours, &theirs],
        [0.0, 0.0],
    );
    let [ours, theirs] = rounds(
        10,
        [&mut || peers.time("osctl-figure", 1), &mut || {
            peers.time("jupyter-figure", 1)
        }],
    )?;
    report.contest(
        "a figure of 5 MB, against ipykernel",
        [&ours, &theirs],
        [0.0, 0.0],
    );
    Ok(())
}

/// A reply of osctl contains a tenth of the output, and the rest can be read by pages; ipykernel sends all of it, as
/// osctl does for a follower. Python's http.client reads more slowly than osctl sends, so the target is for a fast
/// client.
fn output(
    report: &mut Report,
    host: &mut Connection,
    inside: &Inside<'_>,
    peers: &Peers,
) -> Result<()> {
    let mut row = |name: &str, target: f64, ours: Turn<'_>, theirs: &str| -> Result<()> {
        let theirs: Turn<'_> = &mut || peers.time(theirs, 1);
        let [ours, theirs] = rounds(5, [ours, theirs])?;
        let rates = [
            OUTPUT_MEGABYTES / ours.p50(),
            OUTPUT_MEGABYTES / theirs.p50(),
        ];
        let what = format!("10 MB printed {name}, against ipykernel");
        report.throughput(&what, rates, target);
        Ok(())
    };
    row(
        "in one write, a reply with its head and tail",
        5.0,
        &mut || peers.time("osctl-at-once", 1),
        "jupyter-at-once",
    )?;
    row(
        "in one write, streamed completely",
        5.0,
        &mut || inside.time(),
        "jupyter-at-once",
    )?;
    row(
        "in one write, streamed completely to the host",
        0.0,
        &mut || Ok(vec![follow::time(host)?]),
        "jupyter-at-once",
    )?;
    row(
        "in one write, streamed completely, read by Python's http.client",
        0.0,
        &mut || peers.time("osctl-streamed", 1),
        "jupyter-at-once",
    )?;
    row(
        "line by line, a reply with its head and tail",
        0.0,
        &mut || peers.time("osctl-lines", 1),
        "jupyter-lines",
    )
}

/// The seconds from the start to the end of a command that must print `shown`.
fn time(mut command: Command, shown: &str) -> Result<Vec<f64>> {
    let begin = Instant::now();
    let output = command.output()?;
    let took = begin.elapsed().as_secs_f64();
    ensure!(
        output.stdout == shown.as_bytes() && output.status.success(),
        "{command:?}: {output:?}"
    );
    Ok(vec![took])
}

/// Memory in bytes.
#[derive(Debug, Deserialize)]
struct Memory {
    rss: f64,
    pss: f64,
    container: f64,
}

fn memory(host: &mut Connection) -> Result<Memory> {
    let reply = host.execute(include_str!("memory.py"))?;
    let stdout = reply["stdout"].as_str().unwrap_or_default();
    Ok(serde_json::from_str(stdout)?)
}
