//! When a server is started, and when it must rest first. Pure: the owner turns wake-ups into events.
//!
//! ```text
//!            Needed              Ready
//!   ┌─ Down ────────▶ Starting ────────▶ Up ─┐
//!   │   ▲ ▲              │ Ended         │   │ Idle
//!   │   │ └── Rested ─ Resting ◀── Ended ┘   │
//!   │   └────────────────────────────────────┘
//!   └ the first end in a row costs no rest: the next call starts it again
//! ```

use std::time::Duration;

/// The rest after the second end in a row; each further one doubles it.
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::companion::mcp) enum Phase {
    Down,
    Starting,
    Up,
    /// Nothing is started before that time, counted from the owner's begin.
    Resting {
        until: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Somebody asked.
    Needed,
    /// It has shaken hands.
    Ready,
    /// It has answered a call.
    Answered,
    /// It ended, or could not be started.
    Ended,
    Rested,
    /// Nobody has asked for long.
    Idle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) phase: Phase,
    /// Ends in a row without an answer in between.
    failures: u32,
}

impl Life {
    pub(super) const NEW: Self = Self {
        phase: Phase::Down,
        failures: 0,
    };

    pub(super) fn after(self, event: Event, now: Duration) -> Self {
        let to = |phase| Self { phase, ..self };
        match (self.phase, event) {
            (Phase::Down, Event::Needed) => to(Phase::Starting),
            (Phase::Starting, Event::Ready) => to(Phase::Up),
            (Phase::Up, Event::Answered) => Self {
                failures: 0,
                ..self
            },
            (Phase::Up, Event::Idle) => to(Phase::Down),
            (Phase::Starting | Phase::Up, Event::Ended) => {
                let failures = self.failures.saturating_add(1);
                let phase = match rest(failures) {
                    Duration::ZERO => Phase::Down,
                    rest => Phase::Resting { until: now + rest },
                };
                Self { phase, failures }
            }
            (Phase::Resting { until }, Event::Rested | Event::Needed) if until <= now => {
                let phase = match event {
                    Event::Needed => Phase::Starting,
                    _ => Phase::Down,
                };
                to(phase)
            }
            _ => self,
        }
    }
}

fn rest(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        n => LONGEST_REST.min(FIRST_REST.saturating_mul(1 << (n - 2).min(16))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, Life, Phase};
    use std::time::Duration;

    fn after(life: Life, events: &[Event]) -> Life {
        events
            .iter()
            .fold(life, |life, event| life.after(*event, Duration::ZERO))
    }

    #[test]
    fn it_starts_when_it_is_needed_and_ends_when_nobody_asks() {
        let life = after(Life::NEW, &[Event::Needed]);
        assert_eq!(life.phase, Phase::Starting);
        let life = after(life, &[Event::Needed, Event::Ready]);
        assert_eq!(life.phase, Phase::Up);
        assert_eq!(after(life, &[Event::Idle]).phase, Phase::Down);
    }

    #[test]
    fn one_that_worked_is_started_again_at_once() {
        let worked = [Event::Needed, Event::Ready, Event::Answered, Event::Ended];
        let mut life = Life::NEW;
        for _ in 0..5 {
            life = after(life, &worked);
            assert_eq!(life.phase, Phase::Down);
        }
    }

    #[test]
    fn one_that_never_works_rests_longer_and_longer() {
        let mut life = after(Life::NEW, &[Event::Needed, Event::Ended]);
        assert_eq!(life.phase, Phase::Down);
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            life = after(life, &[Event::Needed, Event::Ended]);
            let Phase::Resting { until } = life.phase else {
                panic!("{life:?}");
            };
            assert!(until >= last && until <= Duration::from_secs(30));
            assert_eq!(after(life, &[Event::Needed, Event::Rested]), life);
            last = until;
            life = life.after(Event::Rested, until);
        }
        assert_eq!(last, Duration::from_secs(30));
    }
}
