//! Why runs and processes ended, in the words that callers read.

use super::guard::Ended;
use crate::protocol::kernel::Raised;
use nix::sys::signal::Signal;
use std::fs;

/// Why the current job is to end early.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stop {
    Asked,
    Timeout(f64),
    Restart,
    /// The session was ended.
    Deleted,
    /// The session takes more than so many bytes.
    Memory(u64),
    Shutdown,
}

impl Stop {
    /// What a run is told that was interrupted, and whose kernel goes on.
    pub(super) fn kept(self) -> Raised {
        match self {
            Self::Shutdown => self.told("and was interrupted; its process ends with it"),
            _ => self.told("and was interrupted; its state is kept"),
        }
    }

    /// What a run is told whose kernel has ended. `how` it did, unless it was killed because the
    /// code did not stop.
    pub(super) fn lost(self, how: Option<&str>) -> Raised {
        match (self, how) {
            (Self::Restart | Self::Deleted | Self::Memory(_), _) => {
                self.told("and ended with it; its state is lost")
            }
            (_, Some(how)) => self.told(&format!(
                "and was interrupted, and then the kernel ended: {how}; its state is lost"
            )),
            (Self::Asked | Self::Timeout(_) | Self::Shutdown, None) => self.told(
                "and did not stop when interrupted, so the kernel was ended; its state is lost",
            ),
        }
    }

    fn told(self, outcome: &str) -> Raised {
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
        raised(kind, format!("{why} {outcome}"))
    }
}

pub(super) fn raised(kind: &str, message: String) -> Raised {
    Raised {
        kind: kind.into(),
        message,
        traceback: Vec::new(),
    }
}

/// Counts what the system killed for memory, to tell such a kill from others.
#[derive(Debug)]
pub(super) struct Deaths {
    memory_kills: u64,
}

impl Deaths {
    pub(super) fn new() -> Self {
        Self {
            memory_kills: memory_kills(),
        }
    }

    /// How a kernel ended, in words.
    pub(super) fn cause(&mut self, ended: &Ended) -> String {
        let kills = memory_kills();
        let by_memory = kills > self.memory_kills;
        self.memory_kills = kills;
        match ended {
            Ended::Code(137) if by_memory => "it ran out of memory and was killed".into(),
            Ended::Code(code @ 129..) => {
                let signal = Signal::try_from(i32::from(code - 128));
                let name = signal.map_or("an unknown signal", |s| s.as_str());
                format!("it was killed by {name}")
            }
            Ended::Code(code) => format!("it exited with code {code}"),
            Ended::Unguarded => "its guard was killed".into(),
            Ended::NotMade(why) => format!("it could not be made: {why}"),
        }
    }
}

/// How often the system killed for memory in this container, in either version of cgroups.
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
    use super::Stop;

    #[test]
    fn only_code_that_did_not_stop_is_told_that() {
        let stayed = "did not stop when interrupted";
        assert!(Stop::Asked.lost(None).message.contains(stayed));
        let died = Stop::Timeout(1.0).lost(Some("it exited with code 3"));
        assert!(!died.message.contains(stayed), "{}", died.message);
        assert!(died.message.contains("it exited with code 3"));
        assert_eq!(died.kind, "Timeout");
        let memory = Stop::Memory(1).lost(Some("it was ended because that was asked for"));
        assert!(memory.message.ends_with("ended with it; its state is lost"));
    }
}
