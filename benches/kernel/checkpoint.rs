//! Checkpoint and restore of a kernel with a generator, a thread, an open file and 100 MB.

use crate::instance::{Instance, finish};
use crate::report::Report;
use crate::samples::Samples;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

const STATE: &str = "\
import threading, time, numpy as np
numbers = (n for n in range(10**9))
threading.Thread(target=time.sleep, args=(10**6,), daemon=True).start()
file = open('/root/host/kept.txt', 'w'); file.write('kept'); file.flush()
array = np.arange(100_000_000 // 8)
next(numbers)";

/// The number of rounds; each writes and reads the whole checkpoint.
const ROUNDS: usize = 10;
/// The longest time of checkpoint and restore together.
const MAX_TOTAL_SECONDS: f64 = 2.0;

/// Replaces the container by one with the right to checkpoint, so this runs after the other rows.
pub(crate) fn measure(report: &mut Report, instance: &Instance) -> Result<()> {
    finish(instance.osctl(&["up", "--yes", "--auto-ports", "--criu"]))?;
    finish(instance.osctl(&["exec", STATE]))?;
    let (mut dumps, mut restores, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let dump = took(instance, "checkpoint")?;
        let restore = took(instance, "restore")?;
        both.push(dump + restore);
        dumps.push(dump);
        restores.push(restore);
    }
    let output = instance.osctl(&["exec", "next(numbers)"]).output()?;
    ensure!(
        output.stdout == b"1\n",
        "not the restored kernel: {output:?}"
    );
    report.note(
        "checkpoint of a kernel with 100 MB, on disk",
        Samples::from(dumps).p50(),
    );
    report.note("  its restore", Samples::from(restores).p50());
    report.within(
        "  both together, p99",
        Samples::from(both).p99(),
        MAX_TOTAL_SECONDS,
    );
    Ok(())
}

/// The seconds according to the companion.
fn took(instance: &Instance, verb: &str) -> Result<f64> {
    let output = instance.osctl(&["--json", "criu", verb]).output()?;
    let reply: Value = serde_json::from_slice(&output.stdout)?;
    let seconds = reply["duration_seconds"].as_f64();
    seconds.with_context(|| format!("{verb}: {output:?}"))
}
