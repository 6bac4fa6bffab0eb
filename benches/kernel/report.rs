//! The table of measured values, the values of the peers, and the targets.

use crate::samples::Samples;

const HEADINGS: [&str; 6] = ["", "osctl", "peer", "ratio", "target", ""];

#[derive(Debug)]
pub(crate) struct Report {
    rows: Vec<[String; 6]>,
    missed: usize,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            rows: vec![HEADINGS.map(str::to_owned)],
            missed: 0,
        }
    }

    /// Adds times; the peer's must be at least `target` times ours. 0 is no target.
    pub(crate) fn faster(&mut self, what: &str, [ours, theirs]: [f64; 2], target: f64) {
        // A negative difference is noise and counts as 0.
        let ratio = theirs / ours.max(0.0);
        let cells = [time(ours), time(theirs), format!("{ratio:.1}×")];
        let target = (target > 0.0).then(|| (format!("≥ {target}×"), ratio >= target));
        self.row(what, cells, target);
    }

    /// Adds the median and the 99th percentile against those of a peer.
    pub(crate) fn contest(
        &mut self,
        what: &str,
        [ours, theirs]: [&Samples; 2],
        [p50, p99]: [f64; 2],
    ) {
        self.faster(&format!("{what}, p50"), [ours.p50(), theirs.p50()], p50);
        self.faster(&format!("{what}, p99"), [ours.p99(), theirs.p99()], p99);
    }

    /// Adds a size in bytes, with an optional limit.
    pub(crate) fn bytes(&mut self, what: &str, bytes: f64, limit: Option<f64>) {
        let target = limit.map(|limit| (format!("≤ {}", mebibytes(limit)), bytes <= limit));
        self.row(
            what,
            [mebibytes(bytes), String::new(), String::new()],
            target,
        );
    }

    /// Adds megabytes per second; ours must be at least `target` times the peer's. 0 is no target.
    pub(crate) fn throughput(&mut self, what: &str, [ours, theirs]: [f64; 2], target: f64) {
        let show = |rate: f64| format!("{rate:.0} MB/s");
        let ratio = ours / theirs;
        let target = (target > 0.0).then(|| (format!("≥ {target}×"), ratio >= target));
        let cells = [show(ours), show(theirs), format!("{ratio:.1}×")];
        self.row(what, cells, target);
    }

    /// Adds a rate for information.
    pub(crate) fn rate(&mut self, what: &str, unit: &str, rate: f64) {
        let cells = [format!("{rate:.0} {unit}"), String::new(), String::new()];
        self.row(what, cells, None);
    }

    /// Adds a time with a limit, both in seconds.
    pub(crate) fn within(&mut self, what: &str, seconds: f64, limit: f64) {
        let target = Some((format!("≤ {}", time(limit)), seconds <= limit));
        self.row(what, [time(seconds), String::new(), String::new()], target);
    }

    /// Adds a ratio with a limit.
    pub(crate) fn multiple(&mut self, what: &str, share: f64, limit: f64) {
        let cells = [format!("{share:.2}×"), String::new(), String::new()];
        self.row(what, cells, Some((format!("≤ {limit}×"), share <= limit)));
    }

    /// Adds a time for information.
    pub(crate) fn note(&mut self, what: &str, seconds: f64) {
        self.row(what, [time(seconds), String::new(), String::new()], None);
    }

    /// Prints the table; returns whether all targets are met.
    pub(crate) fn print(&self) -> bool {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: [usize; 6] = std::array::from_fn(width);
        for [what, rest @ ..] in &self.rows {
            let mut line = format!("{what:<0$}", widths[0]);
            for (cell, width) in rest.iter().zip(&widths[1..]) {
                line += &format!("  {cell:>width$}");
            }
            print(line.trim_end());
        }
        print(match self.missed {
            0 => "\nall targets are met".into(),
            missed => format!("\n{missed} of the targets are missed"),
        });
        self.missed == 0
    }

    fn row(&mut self, what: &str, cells: [String; 3], target: Option<(String, bool)>) {
        let [ours, theirs, ratio] = cells;
        let (target, verdict) = match target {
            None => (String::new(), ""),
            Some((target, true)) => (target, "PASS"),
            Some((target, false)) => (target, "FAIL"),
        };
        self.missed += usize::from(verdict == "FAIL");
        self.rows.push([
            what.to_owned(),
            ours,
            theirs,
            ratio,
            target,
            verdict.to_owned(),
        ]);
    }
}

fn time(seconds: f64) -> String {
    if seconds < 0.01 {
        format!("{:.0} µs", seconds * 1e6)
    } else {
        format!("{:.0} ms", seconds * 1e3)
    }
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

#[expect(clippy::print_stdout, reason = "the table is the program's output")]
pub(crate) fn print(line: impl std::fmt::Display) {
    println!("{line}");
}

/// Prints progress.
#[expect(clippy::print_stderr, reason = "the program has no other printer")]
pub(crate) fn say(line: impl std::fmt::Display) {
    eprintln!("{line}");
}
