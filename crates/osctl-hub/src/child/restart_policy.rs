//! The restart policy of a server: when it starts, and how long the restart delay is. Pure: the owner task turns
//! timers into events.
//!
//! ```text
//!         Needed               Ready
//!   Down ────────▶ Starting ──────────▶ Up ── Idle ──▶ Down
//!    ▲              │ Ended              │ Ended
//!    │              ▼                    │
//!    └──────────── Backoff ◀─────────────┘
//!    BackoffElapsed │
//!                   └ Needed, after the delay ──▶ Starting
//! ```
//!
//! The first end in a row has no delay: the server is `Down`, and the next call starts it again.

use osctl_support::backoff::Backoff;
use std::time::Duration;

/// The delays from the second end in a row.
const MCP_RESTART_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    max: Duration::from_secs(30),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerPhase {
    Down,
    Starting,
    Up,
    /// The server does not start before `until`, counted from the start of the owner task.
    Backoff {
        until: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerEvent {
    /// A command needs the server.
    Needed,
    /// The handshake is complete.
    Ready,
    /// The server has answered a call.
    Answered,
    /// The server ended, or failed to start.
    Ended,
    BackoffElapsed,
    /// The idle time is over.
    Idle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ServerLifecycle {
    pub(super) phase: ServerPhase,
    /// Consecutive ends without an answer in between.
    failures: u32,
}

impl ServerLifecycle {
    pub(super) const INITIAL_LIFECYCLE: Self = Self {
        phase: ServerPhase::Down,
        failures: 0,
    };

    pub(super) fn after_event(self, event: ServerEvent, now: Duration) -> Self {
        let to = |phase| Self { phase, ..self };
        match (self.phase, event) {
            (ServerPhase::Down, ServerEvent::Needed) => to(ServerPhase::Starting),
            (ServerPhase::Starting, ServerEvent::Ready) => to(ServerPhase::Up),
            (ServerPhase::Up, ServerEvent::Answered) => Self {
                failures: 0,
                ..self
            },
            (ServerPhase::Up, ServerEvent::Idle) => to(ServerPhase::Down),
            (ServerPhase::Starting | ServerPhase::Up, ServerEvent::Ended) => {
                let failures = self.failures.saturating_add(1);
                let phase = match MCP_RESTART_BACKOFF.delay_after(self.failures) {
                    Duration::ZERO => ServerPhase::Down,
                    delay => ServerPhase::Backoff { until: now + delay },
                };
                Self { phase, failures }
            }
            (ServerPhase::Backoff { until }, ServerEvent::BackoffElapsed | ServerEvent::Needed)
                if until <= now =>
            {
                let phase = match event {
                    ServerEvent::Needed => ServerPhase::Starting,
                    _ => ServerPhase::Down,
                };
                to(phase)
            }
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ServerEvent, ServerLifecycle, ServerPhase};
    use std::time::Duration;

    fn after(lifecycle: ServerLifecycle, events: &[ServerEvent]) -> ServerLifecycle {
        events.iter().fold(lifecycle, |lifecycle, event| {
            lifecycle.after_event(*event, Duration::ZERO)
        })
    }

    #[test]
    fn a_server_starts_when_needed_and_ends_when_idle() {
        let lifecycle = after(ServerLifecycle::INITIAL_LIFECYCLE, &[ServerEvent::Needed]);
        assert_eq!(lifecycle.phase, ServerPhase::Starting);
        let lifecycle = after(lifecycle, &[ServerEvent::Needed, ServerEvent::Ready]);
        assert_eq!(lifecycle.phase, ServerPhase::Up);
        assert_eq!(
            after(lifecycle, &[ServerEvent::Idle]).phase,
            ServerPhase::Down
        );
    }

    #[test]
    fn working_server_restarts_immediately() {
        let worked = [
            ServerEvent::Needed,
            ServerEvent::Ready,
            ServerEvent::Answered,
            ServerEvent::Ended,
        ];
        let mut lifecycle = ServerLifecycle::INITIAL_LIFECYCLE;
        for _ in 0..5 {
            lifecycle = after(lifecycle, &worked);
            assert_eq!(lifecycle.phase, ServerPhase::Down);
        }
    }

    #[test]
    fn failing_server_backs_off_longer() {
        let mut lifecycle = after(
            ServerLifecycle::INITIAL_LIFECYCLE,
            &[ServerEvent::Needed, ServerEvent::Ended],
        );
        assert_eq!(lifecycle.phase, ServerPhase::Down);
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            lifecycle = after(lifecycle, &[ServerEvent::Needed, ServerEvent::Ended]);
            let ServerPhase::Backoff { until } = lifecycle.phase else {
                panic!("{lifecycle:?}");
            };
            assert!(until >= last && until <= Duration::from_secs(30));
            assert_eq!(
                after(
                    lifecycle,
                    &[ServerEvent::Needed, ServerEvent::BackoffElapsed]
                ),
                lifecycle
            );
            last = until;
            lifecycle = lifecycle.after_event(ServerEvent::BackoffElapsed, until);
        }
        assert_eq!(last, Duration::from_secs(30));
    }
}
