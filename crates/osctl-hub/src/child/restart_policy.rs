//! The restart policy of a server: when it starts and ends, and how long the restart delay is. Pure: the owner task
//! turns timers into events.
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

/// A call waits for a restart delay up to this long; before a longer delay it is refused.
const RESTART_WAIT_TIMEOUT: Duration = Duration::from_secs(3);

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

/// What the server runs for. Times count from the start of the owner task.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ServerDemand {
    pub(super) has_open_calls: bool,
    /// Whether calls or clients wait for the handshake.
    pub(super) is_awaited: bool,
    pub(super) has_subscriptions: bool,
    /// Whether the task ends after the open calls.
    pub(super) is_draining: bool,
    /// The end of the idle time, if the server ends when idle.
    pub(super) idle_until: Option<Duration>,
}

impl ServerDemand {
    pub(super) fn is_drained(self) -> bool {
        self.is_draining && !self.has_open_calls
    }
}

/// How a call that needs the server proceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartDecision {
    Start,
    /// The server runs, starts, or will start soon.
    Wait,
    /// The rest of the restart delay is too long.
    Refuse(Duration),
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

    pub(super) fn decide_start(self, now: Duration) -> StartDecision {
        match self.phase {
            ServerPhase::Backoff { until } if until > now + RESTART_WAIT_TIMEOUT => {
                StartDecision::Refuse(until - now)
            }
            ServerPhase::Backoff { until } if until > now => StartDecision::Wait,
            ServerPhase::Starting | ServerPhase::Up => StartDecision::Wait,
            ServerPhase::Down | ServerPhase::Backoff { .. } => StartDecision::Start,
        }
    }

    /// The event that occurs without a command, and its time.
    pub(super) fn next_event(self, demand: ServerDemand) -> Option<(Duration, ServerEvent)> {
        let is_subscribed = demand.has_subscriptions && !demand.is_draining;
        match self.phase {
            ServerPhase::Backoff { until } => Some((until, ServerEvent::BackoffElapsed)),
            // A server with subscriptions is restarted without a request. A draining task still answers the calls
            // that wait.
            ServerPhase::Down if demand.is_awaited || is_subscribed => {
                Some((Duration::ZERO, ServerEvent::Needed))
            }
            ServerPhase::Up if !demand.has_open_calls && !demand.has_subscriptions => {
                Some((demand.idle_until?, ServerEvent::Idle))
            }
            ServerPhase::Down | ServerPhase::Starting | ServerPhase::Up => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ServerDemand, ServerEvent, ServerLifecycle, ServerPhase, StartDecision};
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

    #[test]
    fn a_call_waits_for_a_short_delay_and_not_for_a_long_one() {
        let seconds = Duration::from_secs;
        let backoff = ServerPhase::Backoff { until: seconds(10) };
        for (phase, now, expected) in [
            (ServerPhase::Down, 0, StartDecision::Start),
            (ServerPhase::Starting, 0, StartDecision::Wait),
            (ServerPhase::Up, 0, StartDecision::Wait),
            (backoff, 6, StartDecision::Refuse(seconds(4))),
            (backoff, 7, StartDecision::Wait),
            (backoff, 10, StartDecision::Start),
        ] {
            let lifecycle = ServerLifecycle { phase, failures: 1 };
            assert_eq!(
                lifecycle.decide_start(seconds(now)),
                expected,
                "{phase:?} {now}"
            );
            let after = lifecycle.after_event(ServerEvent::Needed, seconds(now));
            let starts = phase != ServerPhase::Starting && after.phase == ServerPhase::Starting;
            assert_eq!(starts, expected == StartDecision::Start, "{phase:?} {now}");
        }
    }

    #[test]
    fn the_next_event_follows_from_the_demand() {
        let (none, idle_until) = (ServerDemand::default(), Duration::from_secs(60));
        let idle = ServerDemand {
            idle_until: Some(idle_until),
            ..none
        };
        let called = ServerDemand {
            has_open_calls: true,
            ..idle
        };
        let awaited = ServerDemand {
            is_awaited: true,
            ..called
        };
        let subscribed = ServerDemand {
            has_subscriptions: true,
            ..idle
        };
        let draining = |demand| ServerDemand {
            is_draining: true,
            ..demand
        };
        let (down, up) = (ServerPhase::Down, ServerPhase::Up);
        let until = Duration::from_secs(5);
        let needed = Some((Duration::ZERO, ServerEvent::Needed));
        for (phase, demand, expected) in [
            (down, none, None),
            (down, called, None),
            (down, awaited, needed),
            (down, draining(awaited), needed),
            (down, subscribed, needed),
            (down, draining(subscribed), None),
            (ServerPhase::Starting, awaited, None),
            (ServerPhase::Starting, idle, None),
            (up, none, None),
            (up, idle, Some((idle_until, ServerEvent::Idle))),
            (up, called, None),
            (up, subscribed, None),
            (
                ServerPhase::Backoff { until },
                none,
                Some((until, ServerEvent::BackoffElapsed)),
            ),
        ] {
            let lifecycle = ServerLifecycle { phase, failures: 1 };
            assert_eq!(
                lifecycle.next_event(demand),
                expected,
                "{phase:?} {demand:?}"
            );
        }
        assert!(
            draining(idle).is_drained() && !draining(called).is_drained() && !idle.is_drained()
        );
    }
}
