//! A run's log: the output of all stages, for people, of bounded size.

use crate::engine::EngineProgress;
use crate::error::Result;
use crate::protocol::evolve::RunLogLine;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use tokio::sync::watch;

/// Log lines that the record of a failed run includes.
const MAX_RUN_LOG_TAIL_LINES: usize = 20;
/// Characters of such a line.
const MAX_RUN_LOG_LINE_CHARS: usize = 400;

/// Notifies followers that a record or log has grown.
#[derive(Debug, Clone)]
pub(super) struct RunChangeNotifier(watch::Sender<u64>);

impl Default for RunChangeNotifier {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl RunChangeNotifier {
    pub(super) fn notify_followers(&self) {
        self.0.send_modify(|n| *n += 1);
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

#[derive(Debug)]
pub(super) struct RunLog {
    inner: Mutex<RunLogInner>,
    changes: RunChangeNotifier,
}

#[derive(Debug)]
struct RunLogInner {
    file: File,
    /// Bytes that may still be written.
    remaining_bytes: u64,
    /// Whether the log says that it is full.
    is_full: bool,
    tail: VecDeque<String>,
    step: String,
}

impl RunLog {
    /// Opens the log to append, so that a recovered run continues its log.
    pub(super) fn open(path: &Path, limit: u64, changes: RunChangeNotifier) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let written = file.metadata()?.len();
        let inner = RunLogInner {
            file,
            remaining_bytes: limit.saturating_sub(written),
            is_full: written >= limit,
            tail: VecDeque::new(),
            step: String::new(),
        };
        Ok(Self {
            inner: Mutex::new(inner),
            changes,
        })
    }

    /// The last lines of the current stage.
    pub(super) fn tail_lines(&self) -> Vec<String> {
        self.inner.lock().tail.iter().cloned().collect()
    }

    /// Starts a stage: the tail contains only lines of this stage.
    pub(super) fn begin_stage(&self, stage: &str) {
        self.inner.lock().tail.clear();
        self.write_line(RunLogLine::Stage(stage));
    }

    fn write_line(&self, line: RunLogLine<'_>) {
        let text = line.to_text();
        let mut inner = self.inner.lock();
        if matches!(line, RunLogLine::Output(_)) {
            if inner.tail.len() == MAX_RUN_LOG_TAIL_LINES {
                inner.tail.pop_front();
            }
            inner
                .tail
                .push_back(text.chars().take(MAX_RUN_LOG_LINE_CHARS).collect());
        }
        let size = text.len() as u64 + 1;
        match inner.remaining_bytes.checked_sub(size) {
            Some(remaining) => {
                inner.remaining_bytes = remaining;
                // A log that can't be written stops nothing.
                let _ = inner.file.write_all(format!("{text}\n").as_bytes());
            }
            None if !inner.is_full => {
                (inner.remaining_bytes, inner.is_full) = (0, true);
                let _ = inner.file.write_all(b"[the log is full]\n");
            }
            None => {}
        }
        drop(inner);
        self.changes.notify_followers();
    }
}

impl EngineProgress for RunLog {
    fn report_step(&self, what: &str) {
        let mut inner = self.inner.lock();
        if inner.step == what {
            return;
        }
        what.clone_into(&mut inner.step);
        drop(inner);
        self.write_line(RunLogLine::Step(what));
    }

    fn report_amount(&self, _: &str, _: u64, _: Option<u64>) {}

    fn log(&self, line: &str) {
        self.write_line(RunLogLine::Output(line));
    }
}

#[cfg(test)]
mod tests {
    use super::{RunChangeNotifier, RunLog};
    use crate::engine::EngineProgress;

    #[test]
    fn a_full_log_is_marked_and_its_last_lines_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = RunLog::open(&path, 40, RunChangeNotifier::default()).unwrap();
        log.begin_stage("building");
        for n in 0..30 {
            log.log(&format!("line {n}"));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("== building\nline 0\nline 1\n"), "{text}");
        assert!(
            text.ends_with("[the log is full]\n") && text.len() < 80,
            "{text}"
        );
        assert_eq!(log.tail_lines().len(), 20);
        assert_eq!(log.tail_lines().last().unwrap(), "line 29");
    }
}
