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
//! ([`KERNEL_RESTART_BACKOFF`]). The state also holds what callers read after the next event: the namespace of a process
//! that becomes ready, and the reason for a kill. The replies are in [`super::run_end`].

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
    /// before. `namespace`: what the process contains.
    Starting {
        failed_starts: u32,
        namespace: StartNamespace,
    },
    Idle,
    /// A job runs.
    Busy,
    /// Was interrupted `interrupt_attempts` times.
    Stopping {
        interrupt_attempts: u8,
    },
    /// No code runs as far as the owner knows; a probe checks whether the kernel works.
    Probing(ProbeCause),
    /// Was sent a kill and has not exited yet.
    Killed {
        failed_starts: u32,
        why: KillReason,
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

/// The namespace of a process that becomes ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartNamespace {
    /// An empty namespace.
    Empty,
    /// The namespace from before.
    Same,
    /// The namespace of an earlier generation.
    Restored,
}

/// Why a kernel is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeCause {
    /// The kernel was idle for a while.
    Idle,
    /// Code has stopped after an interrupt.
    StoppedCode,
}

/// Why the companion kills a kernel. A later reason does not replace the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KillReason {
    IgnoredInterrupt,
    NoProbeAnswer(ProbeCause),
    NotStarted,
    /// A restart or a shutdown was requested.
    Requested,
    /// The connection is useless. The owner knows the reason.
    Broken,
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
    pub(super) const INITIAL_STATE: Self = Self::starting(0, StartNamespace::Empty);

    const fn starting(failed_starts: u32, namespace: StartNamespace) -> Self {
        Self::Starting {
            failed_starts,
            namespace,
        }
    }

    pub(super) fn next_state(self, event: KernelPolicyEvent) -> (Self, Vec<KernelPolicyAction>) {
        use KernelPolicyAction::{Probe, StartTimer, StopTimer};
        use KernelPolicyEvent as Event;
        match (self, event) {
            (Self::Starting { .. }, Event::Ready) => (Self::Idle, vec![StopTimer]),
            (Self::Starting { failed_starts, .. }, Event::TimerFired) => {
                Self::kill(failed_starts + 1, KillReason::NotStarted)
            }
            (Self::Starting { failed_starts, .. }, Event::Broken) => {
                Self::kill(failed_starts + 1, KillReason::Broken)
            }
            (Self::Starting { failed_starts, .. }, Event::Restart) => {
                Self::kill(failed_starts, KillReason::Requested)
            }
            (Self::Starting { failed_starts, .. }, Event::Exited) => {
                Self::restart_after_failure(failed_starts + 1)
            }
            (Self::Idle, Event::JobStarted) => (Self::Busy, vec![]),
            (Self::Idle, Event::Check(time)) => (
                Self::Probing(ProbeCause::Idle),
                vec![Probe, StartTimer(time)],
            ),
            (Self::Busy, Event::Done) => (Self::Idle, vec![]),
            (Self::Busy | Self::Stopping { .. }, Event::Detached) => {
                (Self::Detached, vec![StopTimer])
            }
            (Self::Detached, Event::Checkpointed) => (Self::Checkpointed, vec![]),
            (Self::Detached, Event::Reattach) => Self::await_ready(StartNamespace::Same),
            (_, Event::Restore) => Self::await_ready(StartNamespace::Restored),
            (Self::Checkpointed, Event::Restart) => Self::spawn(0),
            (Self::Busy, Event::Stop) => Self::interrupt(1),
            (Self::Stopping { .. }, Event::Done) => (
                Self::Probing(ProbeCause::StoppedCode),
                vec![Probe, StartTimer(KERNEL_PROBE_TIMEOUT)],
            ),
            (Self::Probing(_), Event::Done) => (Self::Idle, vec![StopTimer]),
            (Self::Stopping { interrupt_attempts }, Event::TimerFired)
                if interrupt_attempts < MAX_INTERRUPT_ATTEMPTS =>
            {
                Self::interrupt(interrupt_attempts + 1)
            }
            (Self::Stopping { .. }, Event::TimerFired) => {
                Self::kill(0, KillReason::IgnoredInterrupt)
            }
            (Self::Probing(cause), Event::TimerFired) => {
                Self::kill(0, KillReason::NoProbeAnswer(cause))
            }
            (Self::Killed { failed_starts, why }, Event::TimerFired) => {
                Self::kill(failed_starts, why)
            }
            (
                Self::Killed {
                    failed_starts: failed_starts @ 1..,
                    ..
                },
                Event::Exited,
            ) => Self::restart_after_failure(failed_starts),
            (Self::WaitingToRestart { failed_starts }, Event::TimerFired | Event::Restart) => {
                Self::spawn(failed_starts)
            }
            (
                Self::Idle
                | Self::Busy
                | Self::Stopping { .. }
                | Self::Probing(_)
                | Self::Killed { .. },
                Event::Exited,
            ) => Self::spawn(0),
            (Self::Idle | Self::Busy | Self::Stopping { .. } | Self::Probing(_), Event::Broken) => {
                Self::kill(0, KillReason::Broken)
            }
            (
                Self::Idle | Self::Busy | Self::Stopping { .. } | Self::Probing(_),
                Event::Restart,
            ) => Self::kill(0, KillReason::Requested),
            // Late events, such as the end of a cell whose process was just killed.
            (state, _) => (state, vec![]),
        }
    }

    fn spawn(failed_starts: u32) -> (Self, Vec<KernelPolicyAction>) {
        let actions = vec![
            KernelPolicyAction::Spawn,
            KernelPolicyAction::StartTimer(KERNEL_HELLO_TIMEOUT),
        ];
        (
            Self::starting(failed_starts, StartNamespace::Empty),
            actions,
        )
    }

    /// Waits until an existing process is ready.
    fn await_ready(namespace: StartNamespace) -> (Self, Vec<KernelPolicyAction>) {
        let actions = vec![KernelPolicyAction::StartTimer(KERNEL_HELLO_TIMEOUT)];
        (Self::starting(0, namespace), actions)
    }

    fn interrupt(interrupt_attempts: u8) -> (Self, Vec<KernelPolicyAction>) {
        let actions = vec![
            KernelPolicyAction::Interrupt,
            KernelPolicyAction::StartTimer(KERNEL_INTERRUPT_TIMEOUT),
        ];
        (Self::Stopping { interrupt_attempts }, actions)
    }

    fn kill(failed_starts: u32, why: KillReason) -> (Self, Vec<KernelPolicyAction>) {
        let actions = vec![
            KernelPolicyAction::Kill,
            KernelPolicyAction::StartTimer(KERNEL_INTERRUPT_TIMEOUT),
        ];
        (Self::Killed { failed_starts, why }, actions)
    }

    fn restart_after_failure(failed_starts: u32) -> (Self, Vec<KernelPolicyAction>) {
        if failed_starts <= MAX_IMMEDIATE_RESTARTS {
            return Self::spawn(failed_starts);
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
                | Self::Probing(ProbeCause::StoppedCode)
                | Self::Killed {
                    failed_starts: 0,
                    ..
                }
                | Self::Detached
        )
    }

    /// Whether the kernel executes nothing and answers, as far as the owner knows.
    pub(super) fn is_idle(self) -> bool {
        matches!(self, Self::Idle | Self::Probing(ProbeCause::Idle))
    }

    /// Whether a process that ends now was never ready.
    pub(super) fn has_failed_to_start(self) -> bool {
        matches!(
            self,
            Self::Starting { .. }
                | Self::Killed {
                    failed_starts: 1..,
                    ..
                }
        )
    }

    /// Whether the next start leaves out the packages that users installed.
    pub(super) fn is_next_start_plain(self) -> bool {
        matches!(self, Self::Starting { failed_starts, .. } if failed_starts >= MAX_IMMEDIATE_RESTARTS)
    }

    /// Whether the immediate restarts have failed, too.
    pub(super) fn has_failed_restarts(self) -> bool {
        match self {
            Self::Starting { failed_starts, .. }
            | Self::Killed { failed_starts, .. }
            | Self::WaitingToRestart { failed_starts } => failed_starts > MAX_IMMEDIATE_RESTARTS,
            _ => false,
        }
    }

    /// Whether repeated starts have failed, so that callers get an error instead of waiting.
    pub(super) fn is_waiting_to_restart(self) -> bool {
        matches!(self, Self::WaitingToRestart { .. })
    }

    /// Why the companion kills the kernel; `None` when the kernel ends for another reason.
    pub(super) fn kill_reason(self) -> Option<KillReason> {
        match self {
            Self::Killed { why, .. } => Some(why),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
