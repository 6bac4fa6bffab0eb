//! `osctl up` of a running instance: without changes, and after a changed line of the kernel.

use crate::instance::Instance;
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Instant;

const ROUNDS: u32 = 3;
/// The longest time without changes.
const MAX_UNCHANGED_SECONDS: f64 = 2.0;
/// The longest time after a changed line.
const MAX_CHANGED_SECONDS: f64 = 30.0;

pub(crate) fn measure(report: &mut Report, own: &Instance) -> Result<()> {
    let up = || -> Result<f64> {
        let begin = Instant::now();
        let output = own.osctl(&["up"]).output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(begin.elapsed().as_secs_f64())
    };
    let mut slowest = 0.0_f64;
    for _ in 0..ROUNDS {
        slowest = slowest.max(up()?);
    }
    report.within(
        "a second osctl up, the slowest",
        slowest,
        MAX_UNCHANGED_SECONDS,
    );
    let init = own.osctl(&["init"]).output()?;
    ensure!(init.status.success(), "{init:?}");
    let path = own.project().join("body/kernel/main.py");
    let mut file = OpenOptions::new().append(true).open(path)?;
    slowest = 0.0;
    for round in 0..ROUNDS {
        writeln!(file, "# round {round}").context("changing a line")?;
        slowest = slowest.max(up()?);
    }
    report.within(
        "osctl up after a changed line in body/kernel, the slowest",
        slowest,
        MAX_CHANGED_SECONDS,
    );
    Ok(())
}
