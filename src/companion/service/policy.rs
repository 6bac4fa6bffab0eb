//! When a service runs: a pure function of what happened.
//!
//! ```text
//!            Needed            GroundReady             Probed
//!   Off ───────────► Waiting ─────────────► Starting ─────────► Ready
//!    ▲                 ▲   ▲                   │ Ended,            │ Ended
//!    │ Ended           │   │ Rested            │ TooLate           │
//!  Leaving             │ Resting ◄─────────────┴───────────────────┘
//!    ▲                 │
//!    └── NotNeeded, GroundLost (then Waiting again, if still needed)
//! ```
//!
//! A life that never became ready costs more and more rest. One that did costs little, and nothing
//! is remembered once it lasted.

use std::time::Duration;

/// A life that lasted so long says that all is well.
const LASTING: Duration = Duration::from_secs(5);

/// Rests after lives that became ready, and after those that did not.
const SHORT: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
const LONG: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody needs it.
    Off,
    /// What it stands on is not ready.
    Waiting {
        failures: u32,
    },
    /// It runs, and does not answer yet.
    Starting {
        failures: u32,
    },
    Ready {
        failures: u32,
    },
    /// It ended, and is started again in a while.
    Resting {
        failures: u32,
    },
    /// It is told to end; whether it is needed again afterwards.
    Leaving {
        again: bool,
    },
    /// It ended by somebody's wish, and waits until nobody needs it any more.
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Needed,
    NotNeeded,
    GroundReady,
    GroundLost,
    /// It answered.
    Probed,
    /// It did not answer in time.
    TooLate,
    /// It is gone, with all below it, after so long a life.
    Ended {
        lasted: Duration,
        /// By itself, with exit code 0, and that is to be respected.
        is_wish: bool,
    },
    Rested,
}

/// What the owner does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Start,
    /// Tell it to end.
    Leave,
    /// End it now.
    Kill,
    Rest(Duration),
}

impl State {
    pub(super) fn after(self, event: Event) -> (Self, Action) {
        use {Action as A, Event as E, State as S};
        match (self, event) {
            (S::Off, E::Needed) => (S::Waiting { failures: 0 }, A::Nothing),
            (S::Waiting { .. } | S::Resting { .. } | S::Finished, E::NotNeeded) => {
                (S::Off, A::Nothing)
            }
            (S::Waiting { failures }, E::GroundReady) => (S::Starting { failures }, A::Start),
            (S::Starting { failures }, E::Probed) => (S::Ready { failures }, A::Nothing),
            (S::Starting { .. } | S::Ready { .. }, E::NotNeeded) => {
                (S::Leaving { again: false }, A::Leave)
            }
            // What it stood on is gone, so nothing it holds can be saved.
            (S::Starting { .. } | S::Ready { .. }, E::GroundLost) => {
                (S::Leaving { again: true }, A::Kill)
            }
            (S::Starting { .. }, E::TooLate) => (self, A::Kill),
            (S::Ready { .. }, E::Ended { is_wish: true, .. }) => (S::Finished, A::Nothing),
            (S::Starting { failures }, E::Ended { .. }) => rest(failures, LONG),
            (S::Ready { failures }, E::Ended { lasted, .. }) => match lasted >= LASTING {
                true => rest(0, SHORT),
                false => rest(failures, SHORT),
            },
            (S::Resting { failures }, E::Rested) => (S::Waiting { failures }, A::Nothing),
            (S::Leaving { again: true }, E::Ended { .. }) => {
                (S::Waiting { failures: 0 }, A::Nothing)
            }
            (S::Leaving { .. }, E::Ended { .. }) => (S::Off, A::Nothing),
            (S::Leaving { .. }, E::Needed) => (S::Leaving { again: true }, A::Nothing),
            (S::Leaving { .. }, E::NotNeeded) => (S::Leaving { again: false }, A::Nothing),
            (state, _) => (state, A::Nothing),
        }
    }
}

fn rest(failures: u32, [first, most]: [Duration; 2]) -> (State, Action) {
    let pause = first.saturating_mul(1 << failures.min(10)).min(most);
    let failures = failures.saturating_add(1);
    (State::Resting { failures }, Action::Rest(pause))
}

#[cfg(test)]
mod tests {
    use super::{Action, Event, LONG, SHORT, State};
    use std::time::Duration;

    const NEVER_READY: Event = Event::Ended {
        lasted: Duration::ZERO,
        is_wish: false,
    };

    /// The state after all of it, and the last action.
    fn after(state: State, events: &[Event]) -> (State, Action) {
        events
            .iter()
            .fold((state, Action::Nothing), |(state, _), event| {
                state.after(*event)
            })
    }

    #[test]
    fn a_service_starts_when_it_is_needed_and_its_ground_is_ready() {
        use Event as E;
        assert_eq!(
            after(State::Off, &[E::Needed, E::GroundReady]),
            (State::Starting { failures: 0 }, Action::Start)
        );
        assert_eq!(after(State::Off, &[E::GroundReady]).0, State::Off);
    }

    #[test]
    fn lives_that_fail_cost_more_and_more_rest() {
        let mut state = State::Starting { failures: 0 };
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            let (rested, action) = state.after(NEVER_READY);
            let Action::Rest(pause) = action else {
                panic!("{action:?}")
            };
            assert!(pause >= last && pause <= LONG[1]);
            last = pause;
            state = after(rested, &[Event::Rested, Event::GroundReady]).0;
        }
        assert_eq!(last, LONG[1]);
    }

    #[test]
    fn a_lasting_life_forgives() {
        let ended = |lasted| Event::Ended {
            lasted,
            is_wish: false,
        };
        let state = State::Ready { failures: 9 };
        assert_eq!(
            state.after(ended(Duration::from_secs(60))).1,
            Action::Rest(SHORT[0])
        );
        assert_eq!(state.after(ended(Duration::ZERO)).1, Action::Rest(SHORT[1]));
    }

    #[test]
    fn who_loses_their_ground_is_ended_and_comes_back() {
        use Event as E;
        let (state, action) = State::Ready { failures: 0 }.after(E::GroundLost);
        assert_eq!(action, Action::Kill);
        assert_eq!(
            after(state, &[NEVER_READY, E::GroundReady]).1,
            Action::Start
        );
        assert_eq!(after(state, &[E::NotNeeded, NEVER_READY]).0, State::Off);
    }

    #[test]
    fn what_somebody_closed_stays_closed_until_it_is_needed_anew() {
        use Event as E;
        let wish = E::Ended {
            lasted: Duration::ZERO,
            is_wish: true,
        };
        let (state, _) = State::Ready { failures: 0 }.after(wish);
        assert_eq!(after(state, &[E::GroundReady, E::Rested]).0, state);
        assert_eq!(
            after(state, &[E::NotNeeded, E::Needed, E::GroundReady]).1,
            Action::Start
        );
    }

    #[test]
    fn a_service_that_is_needed_again_while_it_leaves_comes_back() {
        use Event as E;
        let (state, action) = State::Ready { failures: 0 }.after(E::NotNeeded);
        assert_eq!(action, Action::Leave);
        assert_eq!(
            after(state, &[E::Needed, NEVER_READY]).0,
            State::Waiting { failures: 0 }
        );
    }
}
