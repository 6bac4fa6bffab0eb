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
            Self::Shutdown => self.told("and was interrupted; its state ends with it"),
            _ => self.told("and was interrupted; its state is kept"),
        }
    }

    /// What a run is told whose kernel had to be ended.
    pub(super) fn lost(self) -> Raised {
        match self {
            Self::Restart | Self::Deleted | Self::Memory(_) => {
                self.told("and ended with it; its state is lost")
            }
            Self::Asked | Self::Timeout(_) | Self::Shutdown => self.told(
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
