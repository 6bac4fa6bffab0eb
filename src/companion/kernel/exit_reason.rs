//! Reasons why runs and processes ended, in the wording that callers read.

use super::supervisor::KernelExit;
use crate::protocol::kernel::RunError;
use nix::sys::signal::Signal;
use std::fs;

/// Why the current job is ended early.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StopReason {
    Asked,
    Timeout(f64),
    Restart,
    /// The session was deleted.
    Deleted,
    /// The session exceeds this memory limit in bytes.
    Memory(u64),
    Shutdown,
}

impl StopReason {
    /// Error of a run that was interrupted while its kernel survived.
    pub(super) fn interrupted_error(self) -> RunError {
        match self {
            Self::Shutdown => self.stop_error("and was interrupted; its process ends with it"),
            _ => self.stop_error("and was interrupted; its state is kept"),
        }
    }

    /// Error of a run whose kernel has ended. `how` describes the exit; `None` if the kernel was killed because the
    /// code did not stop.
    pub(super) fn kernel_lost_error(self, how: Option<&str>) -> RunError {
        match (self, how) {
            (Self::Restart | Self::Deleted | Self::Memory(_), _) => {
                self.stop_error("and ended with it; its state is lost")
            }
            (_, Some(how)) => self.stop_error(&format!(
                "and was interrupted, and then the kernel ended: {how}; its state is lost"
            )),
            (Self::Asked | Self::Timeout(_) | Self::Shutdown, None) => self.stop_error(
                "and did not stop when interrupted, so the kernel was ended; its state is lost",
            ),
        }
    }

    fn stop_error(self, outcome: &str) -> RunError {
        let (kind, why) = match self {
            Self::Asked => ("Interrupted", "the code was to be stopped".into()),
            Self::Timeout(seconds) => ("Timeout", format!("the code ran longer than {seconds} s")),
            Self::Restart => (
                "Interrupted",
                "the kernel was restarted while the code ran".into(),
            ),
            Self::Deleted => (
                "Interrupted",
                "the session was ended while the code ran".into(),
            ),
            Self::Memory(limit) => (
                "OutOfMemory",
                format!("the session took more memory than its {limit} bytes while the code ran"),
            ),
            Self::Shutdown => (
                "Interrupted",
                "the companion was stopped while the code ran".into(),
            ),
        };
        raised_error(kind, format!("{why} {outcome}"))
    }
}

pub(super) fn raised_error(kind: &str, message: String) -> RunError {
    RunError {
        kind: kind.into(),
        message,
        traceback: Vec::new(),
    }
}

/// Counts the out-of-memory kills of the system, to tell them from other kills.
#[derive(Debug)]
pub(super) struct ExitHistory {
    memory_kills: u64,
}

impl ExitHistory {
    pub(super) fn new() -> Self {
        Self {
            memory_kills: memory_kills(),
        }
    }

    /// Describes in words how a kernel ended.
    pub(super) fn describe_exit(&mut self, ended: &KernelExit) -> String {
        let kills = memory_kills();
        let by_memory = kills > self.memory_kills;
        self.memory_kills = kills;
        match ended {
            KernelExit::Code(137) if by_memory => "it ran out of memory and was killed".into(),
            KernelExit::Code(code @ 129..) => {
                let signal = Signal::try_from(i32::from(code - 128));
                let name = signal.map_or("an unknown signal", |s| s.as_str());
                format!("it was killed by {name}")
            }
            KernelExit::Code(code) => format!("it exited with code {code}"),
            KernelExit::Unguarded => "its guard was killed".into(),
            KernelExit::NotMade(why) => format!("it could not be made: {why}"),
        }
    }
}

/// Number of out-of-memory kills in this container, with cgroups v1 or v2.
fn memory_kills() -> u64 {
    let files = [
        "/sys/fs/cgroup/memory.events",
        "/sys/fs/cgroup/memory/memory.oom_control",
    ];
    let count = |file| {
        let text = fs::read_to_string(file).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    };
    files.into_iter().find_map(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::StopReason;

    #[test]
    fn only_code_that_did_not_stop_is_told_that() {
        let stayed = "did not stop when interrupted";
        assert!(
            StopReason::Asked
                .kernel_lost_error(None)
                .message
                .contains(stayed)
        );
        let died = StopReason::Timeout(1.0).kernel_lost_error(Some("it exited with code 3"));
        assert!(!died.message.contains(stayed), "{}", died.message);
        assert!(died.message.contains("it exited with code 3"));
        assert_eq!(died.kind, "Timeout");
        let memory = StopReason::Memory(1)
            .kernel_lost_error(Some("it was ended because that was asked for"));
        assert!(memory.message.ends_with("ended with it; its state is lost"));
    }
}
