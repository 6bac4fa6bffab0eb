//! The cost of recording a run on disk, against a run with `durable: false`, in turns.

use crate::http::{self, Connection};
use crate::report::Report;
use crate::samples::{Samples, rounds};
use anyhow::Result;

const RECORDED: &str = r#"{"code":"1+1"}"#;
/// Requests of each contestant in one round.
const REQUESTS: usize = 100;
const WARM_UP: usize = 5;
/// Concurrent clients whose requests queue: several runs then share a sync.
const CLIENTS: usize = 16;

pub(crate) fn measure(report: &mut Report, api: &(String, String)) -> Result<()> {
    let mut host = Connection::open(api)?;
    let cell = std::cell::RefCell::new((&mut host, 0_u64));
    let time = |body: &str| -> Result<Vec<f64>> {
        let host = &mut *cell.borrow_mut();
        host.0.time(body, WARM_UP)?;
        Ok(host.0.time(body, REQUESTS)?.0)
    };
    // A run with an ID is recorded before its code starts.
    let named = || -> Result<Vec<f64>> {
        let host = &mut *cell.borrow_mut();
        let mut samples = Vec::new();
        for _ in 0..REQUESTS {
            host.1 += 1;
            let body = format!(r#"{{"code":"1+1","id":"bench-{}"}}"#, host.1);
            samples.extend(host.0.time(&body, 1)?.0);
        }
        Ok(samples)
    };
    let [recorded, unrecorded, named] = rounds(
        20,
        [
            &mut || time(RECORDED),
            &mut || time(http::VALUE),
            &mut || named(),
        ],
    )?;
    let mut row = |what: &str, ours: &Samples| {
        report.faster(&format!("{what}, p50"), [ours.p50(), unrecorded.p50()], 0.0);
        report.faster(&format!("{what}, p95"), [ours.p95(), unrecorded.p95()], 0.0);
    };
    row("POST /exec, against `durable: false`", &recorded);
    row("POST /exec with an id, against `durable: false`", &named);
    for (what, body) in [("recorded", RECORDED), ("`durable: false`", http::VALUE)] {
        let queued = body.replace('}', r#","queue":true}"#);
        let rate = http::throughput_of(api, &queued, CLIENTS, REQUESTS)?;
        report.rate(
            &format!("{CLIENTS} concurrent clients, {what}"),
            "requests/s",
            rate,
        );
    }
    Ok(())
}
