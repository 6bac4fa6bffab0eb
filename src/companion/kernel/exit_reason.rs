//! Reasons why runs and processes ended, in the wording that callers read.

use crate::protocol::kernel::RunError;
use crate::supervise::SupervisedExit;
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};

/// Why the current job is ended early.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StopReason {
    Requested,
    Timeout(f64),
    Restart,
    /// The session was deleted.
    Deleted,
    /// The session exceeds this memory limit in bytes.
    MemoryLimit(u64),
    Shutdown,
}

impl StopReason {
    /// Error of a run that was interrupted while its kernel survived.
    pub(super) fn interrupted_error(self) -> RunError {
        match self {
            Self::Shutdown => self.stop_error(" was interrupted, and its kernel ends"),
            _ => self.stop_error(" was interrupted; variables are kept"),
        }
    }

    /// Error of a run whose kernel has ended. `how` describes the exit; `None` if the kernel was killed because the
    /// code did not stop.
    pub(super) fn kernel_lost_error(self, how: Option<&str>) -> RunError {
        match (self, how) {
            (Self::Restart | Self::Deleted | Self::MemoryLimit(_), _) => {
                self.stop_error("; variables are lost")
            }
            (_, Some(how)) => self.stop_error(&format!(
                " was interrupted, and then {how}; variables are lost"
            )),
            (Self::Requested | Self::Timeout(_) | Self::Shutdown, None) => self
                .stop_error(" ignored the interrupt, so the kernel was killed; variables are lost"),
        }
    }

    fn stop_error(self, outcome: &str) -> RunError {
        let (kind, why) = match self {
            Self::Requested => ("Interrupted", "the code".into()),
            Self::Timeout(seconds) => (
                "Timeout",
                format!("the code ran longer than {seconds} s and"),
            ),
            Self::Restart => (
                "Interrupted",
                "the kernel was restarted while the code ran".into(),
            ),
            Self::Deleted => (
                "Interrupted",
                "the session was deleted while the code ran".into(),
            ),
            Self::MemoryLimit(limit) => (
                "OutOfMemory",
                format!(
                    "the session exceeded its memory limit of {limit} bytes while the code ran"
                ),
            ),
            Self::Shutdown => (
                "Interrupted",
                "the companion was stopped while the code ran; the code".into(),
            ),
        };
        new_run_error(kind, format!("{why}{outcome}"))
    }
}

pub(super) fn new_run_error(kind: &str, message: String) -> RunError {
    RunError {
        kind: kind.into(),
        message,
        traceback: Vec::new(),
    }
}

/// Counts the system's out-of-memory kills, to distinguish them from other kills.
#[derive(Debug)]
pub(super) struct ExitHistory {
    cgroup_folder: PathBuf,
    oom_kills: u64,
}

impl ExitHistory {
    pub(super) fn new(cgroup_folder: &Path) -> Self {
        Self {
            cgroup_folder: cgroup_folder.to_owned(),
            oom_kills: count_oom_kills(cgroup_folder),
        }
    }

    /// Describes how a kernel ended, as a clause with the kernel as its subject.
    pub(super) fn describe_exit(&mut self, ended: &SupervisedExit) -> String {
        let kills = count_oom_kills(&self.cgroup_folder);
        let by_memory = kills > self.oom_kills;
        self.oom_kills = kills;
        match ended {
            SupervisedExit::Code(137) if by_memory => {
                "the kernel ran out of memory and was killed".into()
            }
            SupervisedExit::Code(code @ 129..) => {
                let signal = Signal::try_from(i32::from(code - 128));
                let name = signal.map_or("an unknown signal", |s| s.as_str());
                format!("the kernel was killed by {name}")
            }
            SupervisedExit::Code(code) => format!("the kernel exited with code {code}"),
            SupervisedExit::SupervisorKilled => "the kernel's supervisor was killed".into(),
            SupervisedExit::NotStarted(why) => format!("no kernel process was created: {why}"),
        }
    }
}

/// Number of out-of-memory kills in this container, with cgroups v1 or v2.
fn count_oom_kills(cgroup_folder: &Path) -> u64 {
    let files = ["memory.events", "memory/memory.oom_control"];
    let count = |file| {
        let text = fs::read_to_string(cgroup_folder.join(file)).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    };
    files.into_iter().find_map(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::StopReason;

    #[test]
    fn only_code_that_ignored_the_interrupt_is_reported_so() {
        let ignored = "ignored the interrupt";
        assert!(
            StopReason::Requested
                .kernel_lost_error(None)
                .message
                .contains(ignored)
        );
        let error =
            StopReason::Timeout(1.0).kernel_lost_error(Some("the kernel exited with code 3"));
        assert!(!error.message.contains(ignored), "{}", error.message);
        assert!(error.message.contains("the kernel exited with code 3"));
        assert_eq!(error.kind, "Timeout");
        let memory =
            StopReason::MemoryLimit(1).kernel_lost_error(Some("the kernel exited with code 1"));
        assert!(
            memory
                .message
                .ends_with("while the code ran; variables are lost")
        );
    }
}
