//! Storing a session against `dill.dump_module`, plain pickle, and a raw write of the same bytes, each with fsync, on
//! the same disk.

use crate::instance::Instance;
use crate::report::Report;
use crate::samples::Samples;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;

const ROUNDS: usize = 7;

#[derive(Debug, Deserialize)]
struct CryoTimes {
    took: BTreeMap<String, Vec<f64>>,
    /// The peak of memory as a multiple of the data.
    stored: f64,
    reloaded: f64,
    reload: f64,
}

impl CryoTimes {
    fn of(&self, whose: &str) -> Result<f64> {
        let seconds = self.took.get(whose).context("a contestant is missing")?;
        Ok(Samples::from(seconds.clone()).p50())
    }
}

pub(crate) fn measure(report: &mut Report, instance: &Instance, token: &str) -> Result<()> {
    let array = run(instance, token, "array")?;
    let ours = array.of("osctl")?;
    let what = "1 GiB numpy array stored, against";
    report.faster(
        &format!("{what} dill.dump_module"),
        [ours, array.of("dill")?],
        1.6,
    );
    report.faster(&format!("{what} pickle"), [ours, array.of("pickle")?], 0.0);
    report.faster(
        &format!("{what} a raw write"),
        [ours, array.of("raw")?],
        0.7,
    );
    report.note("  and reloaded into a fresh kernel", array.reload);
    report.multiple(
        "  peak memory during the store, of the data",
        array.stored,
        1.2,
    );
    report.multiple(
        "  peak memory during the reload, of the data",
        array.reloaded,
        1.2,
    );
    let dicts = run(instance, token, "dicts")?;
    let ours = dicts.of("osctl")?;
    let what = "1 million small dicts stored, against";
    report.faster(
        &format!("{what} dill.dump_module"),
        [ours, dicts.of("dill")?],
        1.0,
    );
    report.faster(&format!("{what} pickle"), [ours, dicts.of("pickle")?], 0.0);
    report.note("  and reloaded into a fresh kernel", dicts.reload);
    report.multiple(
        "  peak memory during the store, of the data",
        dicts.stored,
        1.2,
    );
    Ok(())
}

fn run(instance: &Instance, token: &str, what: &str) -> Result<CryoTimes> {
    let rounds = ROUNDS.to_string();
    let words = [
        "/opt/osctl/kernel-env/bin/python",
        "/repo/cryo.py",
        what,
        &rounds,
    ];
    let mut process = instance
        .docker_exec(&["-i"], &words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdin = process.stdin.take().context("stdin is a pipe")?;
    writeln!(stdin, "{token}")?;
    drop(stdin);
    let output = process.wait_with_output()?;
    ensure!(
        output.status.success(),
        "storing `{what}`: {}",
        output.status
    );
    serde_json::from_slice(&output.stdout).context("reading the measured times")
}
