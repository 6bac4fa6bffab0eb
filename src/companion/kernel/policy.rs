//! Next state and actions of the owner task, as a pure function.
//!
//! ```text
//!             Ready          JobStarted        Stop             TimerFired          TimerFired
//!  Starting ──────────▶ Idle ──────────▶ Busy ──────▶ Stopping(1) ──────▶ Stopping(2) ──────▶ Killed
//!   ▲  │                │ ▲ ▲              │               │ Done              │ Done          ▲  │
//!   │  │ Exited         │ │ └──── Done ────┘               ▼                   │               │  │
//!   │  ▼                │ └──────────── Done ─────────── Probing ◀─────────────┘               │  │
//!   │ WaitingToRestart  │                                  └──────────── TimerFired ───────────┘  │
//!   │  │ TimerFired     │                                                                         │
//!   └──┴────────────────┴── every other Exited ──▶ Starting ◀────────────── Exited ───────────────┘
//! ```
//!
//! ```text
//!         Detached             Reattach
//!  Busy ───────────▶ Detached ──────────▶ Starting
//!                        │ Checkpointed       ▲
//!                        ▼   Restore, Restart │   Restore from every state: a restored process replaces the kernel
//!  (start) ───────▶ Checkpointed ─────────────┘   start: the kernel was in a checkpoint when the last companion ended
//! ```
//!
//! After an interrupt, the kernel has to answer a probe before it counts as idle. An idle kernel is probed regularly,
//! too (`Check`); the event contains the time limit for the answer.
//!
//! A kernel that dies before it is ready is restarted immediately twice, then after delays that double
//! ([`KERNEL_RESTART_BACKOFF`]). This module does not decide what callers read.

use crate::backoff::Backoff;
use std::time::Duration;

/// Time between two interrupts, and between the last interrupt and the kill.
pub(super) const KERNEL_INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit of the answer to a probe.
pub(super) const KERNEL_PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit from the spawn to the reply to the first request.
pub(super) const KERNEL_HELLO_TIMEOUT: Duration = Duration::from_secs(60);

const MAX_INTERRUPT_ATTEMPTS: u8 = 2;
const MAX_IMMEDIATE_RESTARTS: u32 = 2;
/// The delays after the immediate restarts.
const KERNEL_RESTART_BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(30),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelPolicyState {
    /// A process was spawned and has not replied to its first request. `failed_starts`: number of consecutive failures
    /// before.
    Starting {
        failed_starts: u32,
    },
    Idle,
    /// A job runs.
    Busy,
    /// Was interrupted `interrupt_attempts` times.
    Stopping {
        interrupt_attempts: u8,
    },
    /// No code runs as far as the owner knows; a probe checks whether the kernel works.
    Probing,
    /// Was sent a kill and has not exited yet.
    Killed {
        failed_starts: u32,
    },
    /// Waits before the next start.
    WaitingToRestart {
        failed_starts: u32,
    },
    /// Has closed its connection, and may be checkpointed at any moment.
    Detached,
    /// Is in a checkpoint; no process runs.
    Checkpointed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelPolicyEvent {
    Ready,
    JobStarted,
    Done,
    Stop,
    /// The kernel was idle for a while and is to be probed. The kernel has this time to answer.
    Check(Duration),
    Exited,
    /// The time of [`KernelPolicyAction::StartTimer`] is over.
    TimerFired,
    /// The connection is useless: end the process.
    Broken,
    /// A new process is requested; the current one works.
    Restart,
    /// The kernel has closed its connection.
    Detached,
    /// The kernel was not checkpointed, or continues after its checkpoint.
    Reattach,
    /// The kernel is in a checkpoint, and its process has ended.
    Checkpointed,
    /// A process restored from a checkpoint replaces this one.
    Restore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelPolicyAction {
    Spawn,
    Interrupt,
    Probe,
    Kill,
    /// Wakes the owner after this time; replaces the previous timer.
    StartTimer(Duration),
    StopTimer,
}

impl KernelPolicyState {
    pub(super) const INITIAL_STATE: Self = Self::Starting { failed_starts: 0 };

    pub(super) fn next_state(self, event: KernelPolicyEvent) -> (Self, Vec<KernelPolicyAction>) {
        use KernelPolicyAction::{Interrupt, Kill, Probe, Spawn, StartTimer, StopTimer};
        match (self, event) {
            (Self::Starting { .. }, KernelPolicyEvent::Ready) => (Self::Idle, vec![StopTimer]),
            (Self::Starting { failed_starts }, KernelPolicyEvent::TimerFired) => (
                Self::Killed {
                    failed_starts: failed_starts + 1,
                },
                vec![Kill, StartTimer(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            (Self::Starting { failed_starts }, KernelPolicyEvent::Exited) => {
                Self::restart_after_failure(failed_starts + 1)
            }
            (Self::Idle, KernelPolicyEvent::JobStarted) => (Self::Busy, vec![]),
            (Self::Idle, KernelPolicyEvent::Check(time)) => {
                (Self::Probing, vec![Probe, StartTimer(time)])
            }
            (Self::Busy, KernelPolicyEvent::Done) => (Self::Idle, vec![]),
            (Self::Busy | Self::Stopping { .. }, KernelPolicyEvent::Detached) => {
                (Self::Detached, vec![StopTimer])
            }
            (Self::Detached, KernelPolicyEvent::Checkpointed) => (Self::Checkpointed, vec![]),
            (Self::Detached, KernelPolicyEvent::Reattach) | (_, KernelPolicyEvent::Restore) => {
                (Self::INITIAL_STATE, vec![StartTimer(KERNEL_HELLO_TIMEOUT)])
            }
            (Self::Checkpointed, KernelPolicyEvent::Restart) => (
                Self::INITIAL_STATE,
                vec![Spawn, StartTimer(KERNEL_HELLO_TIMEOUT)],
            ),
            (Self::Busy, KernelPolicyEvent::Stop) => (
                Self::Stopping {
                    interrupt_attempts: 1,
                },
                vec![Interrupt, StartTimer(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            (Self::Stopping { .. }, KernelPolicyEvent::Done) => {
                (Self::Probing, vec![Probe, StartTimer(KERNEL_PROBE_TIMEOUT)])
            }
            (Self::Probing, KernelPolicyEvent::Done) => (Self::Idle, vec![StopTimer]),
            (Self::Stopping { interrupt_attempts }, KernelPolicyEvent::TimerFired)
                if interrupt_attempts < MAX_INTERRUPT_ATTEMPTS =>
            {
                (
                    Self::Stopping {
                        interrupt_attempts: interrupt_attempts + 1,
                    },
                    vec![Interrupt, StartTimer(KERNEL_INTERRUPT_TIMEOUT)],
                )
            }
            (Self::Stopping { .. } | Self::Probing, KernelPolicyEvent::TimerFired) => (
                Self::Killed { failed_starts: 0 },
                vec![Kill, StartTimer(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            (Self::Killed { .. }, KernelPolicyEvent::TimerFired) => {
                (self, vec![Kill, StartTimer(KERNEL_INTERRUPT_TIMEOUT)])
            }
            (Self::Killed { failed_starts: 0 }, KernelPolicyEvent::Exited) => (
                Self::INITIAL_STATE,
                vec![Spawn, StartTimer(KERNEL_HELLO_TIMEOUT)],
            ),
            (Self::Killed { failed_starts }, KernelPolicyEvent::Exited) => {
                Self::restart_after_failure(failed_starts)
            }
            (Self::WaitingToRestart { failed_starts }, KernelPolicyEvent::TimerFired) => (
                Self::Starting { failed_starts },
                vec![Spawn, StartTimer(KERNEL_HELLO_TIMEOUT)],
            ),
            (
                Self::Idle | Self::Busy | Self::Stopping { .. } | Self::Probing,
                KernelPolicyEvent::Exited,
            ) => (
                Self::INITIAL_STATE,
                vec![Spawn, StartTimer(KERNEL_HELLO_TIMEOUT)],
            ),
            (Self::Starting { failed_starts }, KernelPolicyEvent::Restart) => (
                Self::Killed { failed_starts },
                vec![Kill, StartTimer(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            (
                Self::Idle | Self::Busy | Self::Stopping { .. } | Self::Probing,
                KernelPolicyEvent::Broken | KernelPolicyEvent::Restart,
            ) => (
                Self::Killed { failed_starts: 0 },
                vec![Kill, StartTimer(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            (Self::Starting { failed_starts }, KernelPolicyEvent::Broken) => (
                Self::Killed {
                    failed_starts: failed_starts + 1,
                },
                vec![Kill, StartTimer(KERNEL_INTERRUPT_TIMEOUT)],
            ),
            // Late events, such as the end of a cell whose process was just killed.
            (state, _) => (state, vec![]),
        }
    }

    fn restart_after_failure(failed_starts: u32) -> (Self, Vec<KernelPolicyAction>) {
        if failed_starts <= MAX_IMMEDIATE_RESTARTS {
            return (
                Self::Starting { failed_starts },
                vec![
                    KernelPolicyAction::Spawn,
                    KernelPolicyAction::StartTimer(KERNEL_HELLO_TIMEOUT),
                ],
            );
        }
        let delay = KERNEL_RESTART_BACKOFF.delay_after(failed_starts - MAX_IMMEDIATE_RESTARTS);
        (
            Self::WaitingToRestart { failed_starts },
            vec![KernelPolicyAction::StartTimer(delay)],
        )
    }

    /// Whether code may be inside the process.
    pub(super) fn is_busy(self) -> bool {
        matches!(
            self,
            Self::Busy
                | Self::Stopping { .. }
                | Self::Probing
                | Self::Killed { failed_starts: 0 }
                | Self::Detached
        )
    }

    /// Whether the next start leaves out the packages that users installed.
    pub(super) fn is_next_start_plain(self) -> bool {
        matches!(self, Self::Starting { failed_starts } if failed_starts >= MAX_IMMEDIATE_RESTARTS)
    }

    /// Whether the immediate restarts have failed, too.
    pub(super) fn has_failed_to_start(self) -> bool {
        match self {
            Self::Starting { failed_starts }
            | Self::Killed { failed_starts }
            | Self::WaitingToRestart { failed_starts } => failed_starts > MAX_IMMEDIATE_RESTARTS,
            _ => false,
        }
    }

    /// Whether repeated starts have failed, so that callers get an error instead of waiting.
    pub(super) fn is_waiting_to_restart(self) -> bool {
        matches!(self, Self::WaitingToRestart { .. })
    }
}

#[cfg(test)]
mod tests;
