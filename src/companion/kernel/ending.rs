//! Why runs and processes ended, in the words that callers read.

use super::guard::Ended;
use crate::protocol::kernel::Raised;
use nix::sys::signal::Signal;
use std::fs;

/// Why the current job is to end early.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Stop {
    Asked,
    Timeout(f64),
    Restart,
    Shutdown,
}

impl Stop {
    /// What a run is told that was stopped, with what became of it.
    pub(super) fn told(self, outcome: &str) -> Raised {
        match self {
            Self::Timeout(seconds) => raised(
                "Timeout",
                format!("the code ran longer than {seconds} s {outcome}"),
            ),
            Self::Asked => raised(
                "Interrupted",
                format!("the code was to be stopped {outcome}"),
            ),
            Self::Restart => raised(
                "Interrupted",
                format!("the kernel was restarted while the code ran {outcome}"),
            ),
            Self::Shutdown => raised(
                "Interrupted",
                format!("the companion was stopped while the code ran {outcome}"),
            ),
        }
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
