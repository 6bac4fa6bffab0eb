//! Next state and actions of the owner task, as a pure function.
//!
//! ```text
//!             Ready          Work            Stop             TimeUp
//!  Starting ────────▶ Idle ────────▶ Busy ────────▶ Stopping(1) ───────▶ Stopping(2) ──▶ Killed
//!   ▲  │              ▲ ▲ │            │               │ Done               │ Done   TimeUp │
//!   │  │ Died         │ │ └─── Done ───┘               ▼                    ▼               │
//!   │  ▼              │ └──────────── Done ──────── Probing ◀───────────────┘    TimeUp ──▶ │
//!   │ Resting         │                                                                     │
//!   └──┴──────────────┴── every other Died ──▶ Starting ◀────────────────────── Died ───────┘
//! ```
//!
//! ```text
//!         Part           Rejoin
//!  Busy ───────▶ Apart ─────────▶ Starting
//!                  │ Freeze          ▲
//!                  ▼   Thaw, Restart │       Thaw from every state: a restored process replaces the kernel
//!  (start) ────▶ Frozen ─────────────┘       start: the kernel was in a checkpoint when the last companion ended
//! ```
//!
//! After an interrupt, the kernel has to answer a probe before it counts as idle. An idle kernel is probed regularly,
//! too (`Check`); the event contains the time limit for the answer.
//!
//! A kernel that dies before it is ready is restarted immediately twice, then after delays that double up to
//! [`MAX_KERNEL_RESTART_DELAY`]. This module does not decide what callers read.

use std::time::Duration;

/// Time between two interrupts, and between the last interrupt and the kill.
pub(super) const KERNEL_INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit of the answer to a probe.
pub(super) const KERNEL_PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit from the spawn to the hello frame.
pub(super) const KERNEL_HELLO_TIMEOUT: Duration = Duration::from_secs(60);

const MAX_INTERRUPT_ATTEMPTS: u8 = 2;
const MAX_QUICK_STARTS: u32 = 2;
const MIN_KERNEL_RESTART_DELAY: Duration = Duration::from_secs(1);
const MAX_KERNEL_RESTART_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelPolicyState {
    /// A process was spawned and has not sent its hello frame. `failed`: number of consecutive deaths before.
    Starting {
        failed: u32,
    },
    Idle,
    /// Executes a cell or resets.
    Busy,
    /// Was interrupted `strikes` times.
    Stopping {
        strikes: u8,
    },
    /// No code runs as far as the owner knows; a probe checks whether the kernel works.
    Probing,
    /// Was sent a kill and has not exited yet.
    Killed {
        failed: u32,
    },
    /// Waits before the next start.
    Resting {
        failed: u32,
    },
    /// Has closed its connection, and may be checkpointed at any moment.
    Apart,
    /// Is in a checkpoint; no process runs.
    Frozen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelPolicyEvent {
    Ready,
    Work,
    Done,
    Stop,
    /// The kernel was idle for a while and is to be probed. The kernel has this time to answer.
    Check(Duration),
    Died,
    /// The time of [`KernelPolicyAction::Arm`] is over.
    TimeUp,
    /// The connection is useless: end the process.
    Broken,
    /// A new process is requested; the current one works.
    Restart,
    /// The kernel has closed its connection.
    Part,
    /// The kernel was not checkpointed, or continues after its checkpoint.
    Rejoin,
    /// The kernel is in a checkpoint, and its process has ended.
    Freeze,
    /// A process restored from a checkpoint replaces this one.
    Thaw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelPolicyAction {
    Spawn,
    Interrupt,
    Probe,
    Kill,
    /// Wakes the owner after this time; replaces the previous timer.
    Arm(Duration),
    Disarm,
}

impl KernelPolicyState {
    pub(super) const INITIAL_STATE: Self = Self::Starting { failed: 0 };

    pub(super) fn next_state(self, event: KernelPolicyEvent) -> (Self, Vec<KernelPolicyAction>) {
        use KernelPolicyAction::{Arm, Disarm, Interrupt, Kill, Probe, Spawn};
        match (self, event) {
            (Self::Starting { .. }, KernelPolicyEvent::Ready) => (Self::Idle, vec![Disarm]),
            (Self::Starting { failed }, KernelPolicyEvent::TimeUp) => (
                Self::Killed { failed: failed + 1 },
                vec![Kill, Arm(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            (Self::Starting { failed }, KernelPolicyEvent::Died) => Self::start_again(failed + 1),
            (Self::Idle, KernelPolicyEvent::Work) => (Self::Busy, vec![]),
            (Self::Idle, KernelPolicyEvent::Check(time)) => (Self::Probing, vec![Probe, Arm(time)]),
            (Self::Busy, KernelPolicyEvent::Done) => (Self::Idle, vec![]),
            (Self::Busy | Self::Stopping { .. }, KernelPolicyEvent::Part) => {
                (Self::Apart, vec![Disarm])
            }
            (Self::Apart, KernelPolicyEvent::Freeze) => (Self::Frozen, vec![]),
            (Self::Apart, KernelPolicyEvent::Rejoin) | (_, KernelPolicyEvent::Thaw) => {
                (Self::INITIAL_STATE, vec![Arm(KERNEL_HELLO_TIMEOUT)])
            }
            (Self::Frozen, KernelPolicyEvent::Restart) => {
                (Self::INITIAL_STATE, vec![Spawn, Arm(KERNEL_HELLO_TIMEOUT)])
            }
            (Self::Busy, KernelPolicyEvent::Stop) => (
                Self::Stopping { strikes: 1 },
                vec![Interrupt, Arm(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            (Self::Stopping { .. }, KernelPolicyEvent::Done) => {
                (Self::Probing, vec![Probe, Arm(KERNEL_PROBE_TIMEOUT)])
            }
            (Self::Probing, KernelPolicyEvent::Done) => (Self::Idle, vec![Disarm]),
            (Self::Stopping { strikes }, KernelPolicyEvent::TimeUp)
                if strikes < MAX_INTERRUPT_ATTEMPTS =>
            {
                (
                    Self::Stopping {
                        strikes: strikes + 1,
                    },
                    vec![Interrupt, Arm(KERNEL_INTERRUPT_TIMEOUT)],
                )
            }
            (Self::Stopping { .. } | Self::Probing, KernelPolicyEvent::TimeUp) => (
                Self::Killed { failed: 0 },
                vec![Kill, Arm(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            (Self::Killed { .. }, KernelPolicyEvent::TimeUp) => {
                (self, vec![Kill, Arm(KERNEL_INTERRUPT_TIMEOUT)])
            }
            (Self::Killed { failed: 0 }, KernelPolicyEvent::Died) => {
                (Self::INITIAL_STATE, vec![Spawn, Arm(KERNEL_HELLO_TIMEOUT)])
            }
            (Self::Killed { failed }, KernelPolicyEvent::Died) => Self::start_again(failed),
            (Self::Resting { failed }, KernelPolicyEvent::TimeUp) => (
                Self::Starting { failed },
                vec![Spawn, Arm(KERNEL_HELLO_TIMEOUT)],
            ),
            (
                Self::Idle | Self::Busy | Self::Stopping { .. } | Self::Probing,
                KernelPolicyEvent::Died,
            ) => (Self::INITIAL_STATE, vec![Spawn, Arm(KERNEL_HELLO_TIMEOUT)]),
            (Self::Starting { failed }, KernelPolicyEvent::Restart) => (
                Self::Killed { failed },
                vec![Kill, Arm(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            (
                Self::Idle | Self::Busy | Self::Stopping { .. } | Self::Probing,
                KernelPolicyEvent::Broken | KernelPolicyEvent::Restart,
            ) => (
                Self::Killed { failed: 0 },
                vec![Kill, Arm(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            (Self::Starting { failed }, KernelPolicyEvent::Broken) => (
                Self::Killed { failed: failed + 1 },
                vec![Kill, Arm(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            // Late events, such as the end of a cell whose process was just killed.
            (state, _) => (state, vec![]),
        }
    }

    fn start_again(failed: u32) -> (Self, Vec<KernelPolicyAction>) {
        if failed <= MAX_QUICK_STARTS {
            return (
                Self::Starting { failed },
                vec![
                    KernelPolicyAction::Spawn,
                    KernelPolicyAction::Arm(KERNEL_HELLO_TIMEOUT),
                ],
            );
        }
        let doubled =
            MIN_KERNEL_RESTART_DELAY.saturating_mul(1 << (failed - MAX_QUICK_STARTS - 1).min(16));
        (
            Self::Resting { failed },
            vec![KernelPolicyAction::Arm(
                doubled.min(MAX_KERNEL_RESTART_DELAY),
            )],
        )
    }

    /// Whether code may be inside the process.
    pub(super) fn is_busy(self) -> bool {
        matches!(
            self,
            Self::Busy
                | Self::Stopping { .. }
                | Self::Probing
                | Self::Killed { failed: 0 }
                | Self::Apart
        )
    }

    /// Whether the next start leaves out the packages that users installed.
    pub(super) fn should_start_plain(self) -> bool {
        matches!(self, Self::Starting { failed } if failed >= MAX_QUICK_STARTS)
    }

    /// Whether repeated starts have failed, so that callers get an error instead of waiting.
    pub(super) fn is_waiting_to_restart(self) -> bool {
        matches!(self, Self::Resting { .. })
    }
}

#[cfg(test)]
mod tests;
