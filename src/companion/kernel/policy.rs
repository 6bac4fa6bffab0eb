//! What the owner does next, as a pure function.
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
//!                  ▼   Thaw, Restart │       Thaw comes from everywhere: another process is there
//!  (begin) ────▶ Frozen ─────────────┘       begin: it lay in a checkpoint when the last life ended
//! ```
//!
//! Code that was to be stopped and did is not believed: a probe has to be answered first. An idle
//! kernel is probed now and then, too (`Check`), and has as long for it as that says.
//!
//! A kernel that dies before it was ever ready is started again at once twice, then after rests
//! that double up to [`LONGEST_REST`]. It decides nothing about what callers are told.

use std::time::Duration;

/// Between two interrupts, and between the last one and the kill.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// How long the answer to a probe may take.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// From the spawn to the hello.
pub(super) const START: Duration = Duration::from_secs(60);

const STRIKES: u8 = 2;
const QUICK_STARTS: u32 = 2;
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// A process was made and has not said hello. `failed`: how often in a row it died before.
    Starting {
        failed: u32,
    },
    Idle,
    /// Executes a cell or resets.
    Busy,
    /// Was interrupted so many times.
    Stopping {
        strikes: u8,
    },
    /// No code runs, as far as is known; whether the kernel is of use is being asked.
    Probing,
    /// Will be dead in a moment.
    Killed {
        failed: u32,
    },
    /// Waits until the next start is tried.
    Resting {
        failed: u32,
    },
    /// Has let go of its connection, and may be frozen at any moment.
    Apart,
    /// Lies in a checkpoint; no process is wanted.
    Frozen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Ready,
    Work,
    Done,
    Stop,
    /// Nothing was asked of the kernel for a while: is it well? It has so long to answer.
    Check(Duration),
    Died,
    /// What [`Action::Arm`] armed has run out.
    TimeUp,
    /// The connection is useless: end the process.
    Broken,
    /// Another process is wished for; nothing is wrong with this one.
    Restart,
    /// It has let go.
    Part,
    /// It was not frozen, or goes on.
    Rejoin,
    /// It is frozen and gone.
    Freeze,
    /// Another process has come instead, from a checkpoint.
    Thaw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Spawn,
    Interrupt,
    Probe,
    Kill,
    /// Wakes the owner after that long; replaces what was armed.
    Arm(Duration),
    Disarm,
}

impl State {
    pub(super) const BEGIN: Self = Self::Starting { failed: 0 };

    pub(super) fn after(self, event: Event) -> (Self, Vec<Action>) {
        use Action::{Arm, Disarm, Interrupt, Kill, Probe, Spawn};
        match (self, event) {
            (Self::Starting { .. }, Event::Ready) => (Self::Idle, vec![Disarm]),
            (Self::Starting { failed }, Event::TimeUp) => {
                (Self::Killed { failed: failed + 1 }, vec![Kill, Arm(GRACE)])
            }
            (Self::Starting { failed }, Event::Died) => Self::start_again(failed + 1),
            (Self::Idle, Event::Work) => (Self::Busy, vec![]),
            (Self::Idle, Event::Check(time)) => (Self::Probing, vec![Probe, Arm(time)]),
            (Self::Busy, Event::Done) => (Self::Idle, vec![]),
            (Self::Busy | Self::Stopping { .. }, Event::Part) => (Self::Apart, vec![Disarm]),
            (Self::Apart, Event::Freeze) => (Self::Frozen, vec![]),
            (Self::Apart, Event::Rejoin) | (_, Event::Thaw) => (Self::BEGIN, vec![Arm(START)]),
            (Self::Frozen, Event::Restart) => (Self::BEGIN, vec![Spawn, Arm(START)]),
            (Self::Busy, Event::Stop) => {
                (Self::Stopping { strikes: 1 }, vec![Interrupt, Arm(GRACE)])
            }
            (Self::Stopping { .. }, Event::Done) => (Self::Probing, vec![Probe, Arm(ANSWER)]),
            (Self::Probing, Event::Done) => (Self::Idle, vec![Disarm]),
            (Self::Stopping { strikes }, Event::TimeUp) if strikes < STRIKES => (
                Self::Stopping {
                    strikes: strikes + 1,
                },
                vec![Interrupt, Arm(GRACE)],
            ),
            (Self::Stopping { .. } | Self::Probing, Event::TimeUp) => {
                (Self::Killed { failed: 0 }, vec![Kill, Arm(GRACE)])
            }
            (Self::Killed { .. }, Event::TimeUp) => (self, vec![Kill, Arm(GRACE)]),
            (Self::Killed { failed: 0 }, Event::Died) => (Self::BEGIN, vec![Spawn, Arm(START)]),
            (Self::Killed { failed }, Event::Died) => Self::start_again(failed),
            (Self::Resting { failed }, Event::TimeUp) => {
                (Self::Starting { failed }, vec![Spawn, Arm(START)])
            }
            (Self::Idle | Self::Busy | Self::Stopping { .. } | Self::Probing, Event::Died) => {
                (Self::BEGIN, vec![Spawn, Arm(START)])
            }
            (Self::Starting { failed }, Event::Restart) => {
                (Self::Killed { failed }, vec![Kill, Arm(GRACE)])
            }
            (
                Self::Idle | Self::Busy | Self::Stopping { .. } | Self::Probing,
                Event::Broken | Event::Restart,
            ) => (Self::Killed { failed: 0 }, vec![Kill, Arm(GRACE)]),
            (Self::Starting { failed }, Event::Broken) => {
                (Self::Killed { failed: failed + 1 }, vec![Kill, Arm(GRACE)])
            }
            // Late news, such as the end of a cell whose process was just killed.
            (state, _) => (state, vec![]),
        }
    }

    fn start_again(failed: u32) -> (Self, Vec<Action>) {
        if failed <= QUICK_STARTS {
            return (
                Self::Starting { failed },
                vec![Action::Spawn, Action::Arm(START)],
            );
        }
        let doubled = FIRST_REST.saturating_mul(1 << (failed - QUICK_STARTS - 1).min(16));
        (
            Self::Resting { failed },
            vec![Action::Arm(doubled.min(LONGEST_REST))],
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

    /// Whether the next start had better be without what people installed.
    pub(super) fn is_doubtful(self) -> bool {
        matches!(self, Self::Starting { failed } if failed >= QUICK_STARTS)
    }

    /// Whether no start has succeeded for so long that callers are better told than kept.
    pub(super) fn is_hopeless(self) -> bool {
        matches!(self, Self::Resting { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::{ANSWER, Action, Event, GRACE, LONGEST_REST, START, State};

    fn walk(events: &[Event]) -> (State, Vec<Action>) {
        events
            .iter()
            .fold((State::BEGIN, vec![]), |(state, _), event| {
                state.after(*event)
            })
    }

    #[test]
    fn work_that_ends_leaves_an_idle_kernel() {
        assert_eq!(
            walk(&[Event::Ready, Event::Work, Event::Done]).0,
            State::Idle
        );
    }

    #[test]
    fn an_interrupt_is_repeated_once_and_then_becomes_a_kill() {
        let mut events = vec![Event::Ready, Event::Work, Event::Stop];
        assert_eq!(
            walk(&events),
            (
                State::Stopping { strikes: 1 },
                vec![Action::Interrupt, Action::Arm(GRACE)]
            )
        );
        events.push(Event::TimeUp);
        assert_eq!(
            walk(&events),
            (
                State::Stopping { strikes: 2 },
                vec![Action::Interrupt, Action::Arm(GRACE)]
            )
        );
        events.push(Event::TimeUp);
        assert_eq!(
            walk(&events),
            (
                State::Killed { failed: 0 },
                vec![Action::Kill, Action::Arm(GRACE)]
            )
        );
        events.extend([Event::Done, Event::Died]);
        assert_eq!(
            walk(&events),
            (State::BEGIN, vec![Action::Spawn, Action::Arm(START)])
        );
    }

    #[test]
    fn code_that_stopped_is_believed_when_a_probe_is_answered() {
        let mut events = vec![Event::Ready, Event::Work, Event::Stop, Event::Done];
        assert_eq!(
            walk(&events),
            (
                State::Probing,
                vec![Action::Probe, Action::Arm(super::ANSWER)]
            )
        );
        events.push(Event::TimeUp);
        assert_eq!(walk(&events).0, State::Killed { failed: 0 });
        *events.last_mut().unwrap() = Event::Done;
        assert_eq!(walk(&events), (State::Idle, vec![Action::Disarm]));
    }

    #[test]
    fn an_idle_kernel_that_does_not_answer_is_replaced() {
        let mut events = vec![Event::Ready, Event::Check(ANSWER), Event::Done];
        assert_eq!(walk(&events), (State::Idle, vec![Action::Disarm]));
        *events.last_mut().unwrap() = Event::TimeUp;
        assert_eq!(walk(&events).0, State::Killed { failed: 0 });
        let busy = [Event::Ready, Event::Work, Event::Check(ANSWER)];
        assert_eq!(walk(&busy), (State::Busy, vec![]));
    }

    #[test]
    fn a_frozen_kernel_comes_back_when_it_is_asked_for_and_no_sooner() {
        let parted = [Event::Ready, Event::Work, Event::Part];
        for event in [
            Event::Stop,
            Event::TimeUp,
            Event::Check(ANSWER),
            Event::Restart,
        ] {
            assert_eq!(walk(&[&parted[..], &[event]].concat()).0, State::Apart);
        }
        let rejoined = walk(&[&parted[..], &[Event::Rejoin]].concat());
        assert_eq!(rejoined, (State::BEGIN, vec![Action::Arm(START)]));
        let frozen = [&parted[..], &[Event::Freeze, Event::Check(ANSWER)]].concat();
        assert_eq!(walk(&frozen), (State::Frozen, vec![]));
        let thawed = walk(&[&frozen[..], &[Event::Thaw]].concat());
        assert_eq!(thawed, (State::BEGIN, vec![Action::Arm(START)]));
        let anew = walk(&[&frozen[..], &[Event::Restart]].concat());
        assert_eq!(
            anew,
            (State::BEGIN, vec![Action::Spawn, Action::Arm(START)])
        );
    }

    #[test]
    fn a_second_stop_does_not_restart_the_grace() {
        let events = [Event::Ready, Event::Work, Event::Stop, Event::Stop];
        assert_eq!(walk(&events), (State::Stopping { strikes: 1 }, vec![]));
    }

    #[test]
    fn a_kernel_that_never_starts_is_tried_ever_more_rarely() {
        let mut state = State::BEGIN;
        let mut rests = Vec::new();
        for _ in 0..12 {
            let (next, actions) = state.after(Event::Died);
            state = next;
            if let [Action::Arm(rest)] = actions[..] {
                rests.push(rest);
                state = state.after(Event::TimeUp).0;
            }
        }
        assert!(rests.is_sorted() && rests.len() == 10);
        assert_eq!(rests.last(), Some(&LONGEST_REST));
    }

    #[test]
    fn a_ready_kernel_has_a_clean_slate() {
        let events = [Event::Died, Event::Died, Event::Ready, Event::Died];
        assert_eq!(
            walk(&events),
            (State::BEGIN, vec![Action::Spawn, Action::Arm(START)])
        );
    }

    #[test]
    fn whatever_happens_a_death_leads_to_a_start_or_a_rest() {
        let all = [
            Event::Ready,
            Event::Work,
            Event::Done,
            Event::Stop,
            Event::Check(ANSWER),
            Event::Died,
            Event::TimeUp,
            Event::Broken,
        ];
        for first in all {
            for second in all {
                for third in all {
                    let (state, _) = walk(&[first, second, third]);
                    let (after, actions) = state.after(Event::Died);
                    let resting = matches!(state, State::Resting { .. });
                    assert!(
                        resting
                            || actions
                                .iter()
                                .any(|a| matches!(a, Action::Spawn | Action::Arm(_))),
                        "{state:?}"
                    );
                    assert!(
                        matches!(after, State::Starting { .. } | State::Resting { .. }),
                        "{state:?}"
                    );
                }
            }
        }
    }
}
