//! The policy that decides when a service runs: a pure function of events.
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
//! The restart delay doubles with every run that ends, up to a maximum. The delay is longer after runs that never
//! became ready. A ready run that lasted [`MIN_STABLE_SERVICE_UPTIME`] resets the delay.

use std::time::Duration;

/// A run that became ready and lasted this long resets the restart delay.
const MIN_STABLE_SERVICE_UPTIME: Duration = Duration::from_secs(5);

/// The first and the longest restart delay: after runs that became ready, and after runs that did not.
const READY_RESTART_DELAY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
const UNREADY_RESTART_DELAY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceState {
    /// No client needs the service.
    Off,
    /// A dependency is not ready.
    Waiting {
        failures: u32,
    },
    /// The service runs, but does not answer its probe yet.
    Starting {
        failures: u32,
    },
    Ready {
        failures: u32,
    },
    /// The service has ended and restarts after a delay.
    Resting {
        failures: u32,
    },
    /// The service was ordered to end; `again` says whether it is needed afterwards.
    Leaving {
        again: bool,
    },
    /// A user has ended the service; it stays off until no client needs it any more.
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceEvent {
    Needed,
    NotNeeded,
    GroundReady,
    GroundLost,
    /// The service answered its probe.
    Probed,
    /// The service did not answer its probe or a client in time.
    TooLate,
    /// The service and all its descendants have ended.
    Ended {
        lasted: Duration,
        /// Whether the service exited with code 0 and its restart policy respects this as a user's decision.
        is_wish: bool,
    },
    Rested,
}

/// What the owning task must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceAction {
    Nothing,
    Start,
    /// Order the service to exit.
    Leave,
    /// Kill the service now.
    Kill,
    Rest(Duration),
}

impl ServiceState {
    pub(super) fn on_event(self, event: ServiceEvent) -> (Self, ServiceAction) {
        use {ServiceAction as A, ServiceEvent as E, ServiceState as S};
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
            // The dependency is gone, so the service can't save anything.
            (S::Starting { .. } | S::Ready { .. }, E::GroundLost) => {
                (S::Leaving { again: true }, A::Kill)
            }
            (S::Starting { .. } | S::Ready { .. }, E::TooLate) => (self, A::Kill),
            (S::Ready { .. }, E::Ended { is_wish: true, .. }) => (S::Finished, A::Nothing),
            (S::Starting { failures }, E::Ended { .. }) => {
                back_off(failures, UNREADY_RESTART_DELAY)
            }
            (S::Ready { failures }, E::Ended { lasted, .. }) => {
                match lasted >= MIN_STABLE_SERVICE_UPTIME {
                    true => back_off(0, READY_RESTART_DELAY),
                    false => back_off(failures, READY_RESTART_DELAY),
                }
            }
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

fn back_off(failures: u32, [first, most]: [Duration; 2]) -> (ServiceState, ServiceAction) {
    let pause = first.saturating_mul(1 << failures.min(10)).min(most);
    let failures = failures.saturating_add(1);
    (
        ServiceState::Resting { failures },
        ServiceAction::Rest(pause),
    )
}

#[cfg(test)]
mod tests {
    use super::{
        READY_RESTART_DELAY, ServiceAction, ServiceEvent, ServiceState, UNREADY_RESTART_DELAY,
    };
    use std::time::Duration;

    const NEVER_READY: ServiceEvent = ServiceEvent::Ended {
        lasted: Duration::ZERO,
        is_wish: false,
    };

    /// The state after all events, and the last action.
    fn after(state: ServiceState, events: &[ServiceEvent]) -> (ServiceState, ServiceAction) {
        events
            .iter()
            .fold((state, ServiceAction::Nothing), |(state, _), event| {
                state.on_event(*event)
            })
    }

    #[test]
    fn a_service_starts_when_it_is_needed_and_its_ground_is_ready() {
        use ServiceEvent as E;
        assert_eq!(
            after(ServiceState::Off, &[E::Needed, E::GroundReady]),
            (ServiceState::Starting { failures: 0 }, ServiceAction::Start)
        );
        assert_eq!(
            after(ServiceState::Off, &[E::GroundReady]).0,
            ServiceState::Off
        );
    }

    #[test]
    fn lives_that_fail_cost_more_and_more_rest() {
        let mut state = ServiceState::Starting { failures: 0 };
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            let (rested, action) = state.on_event(NEVER_READY);
            let ServiceAction::Rest(pause) = action else {
                panic!("{action:?}")
            };
            assert!(pause >= last && pause <= UNREADY_RESTART_DELAY[1]);
            last = pause;
            state = after(rested, &[ServiceEvent::Rested, ServiceEvent::GroundReady]).0;
        }
        assert_eq!(last, UNREADY_RESTART_DELAY[1]);
    }

    #[test]
    fn a_lasting_life_forgives() {
        let ended = |lasted| ServiceEvent::Ended {
            lasted,
            is_wish: false,
        };
        let state = ServiceState::Ready { failures: 9 };
        assert_eq!(
            state.on_event(ended(Duration::from_secs(60))).1,
            ServiceAction::Rest(READY_RESTART_DELAY[0])
        );
        assert_eq!(
            state.on_event(ended(Duration::ZERO)).1,
            ServiceAction::Rest(READY_RESTART_DELAY[1])
        );
    }

    #[test]
    fn who_loses_their_ground_is_ended_and_comes_back() {
        use ServiceEvent as E;
        let (state, action) = ServiceState::Ready { failures: 0 }.on_event(E::GroundLost);
        assert_eq!(action, ServiceAction::Kill);
        assert_eq!(
            after(state, &[NEVER_READY, E::GroundReady]).1,
            ServiceAction::Start
        );
        assert_eq!(
            after(state, &[E::NotNeeded, NEVER_READY]).0,
            ServiceState::Off
        );
    }

    #[test]
    fn a_closed_service_stays_closed_until_a_new_need() {
        use ServiceEvent as E;
        let wish = E::Ended {
            lasted: Duration::ZERO,
            is_wish: true,
        };
        let (state, _) = ServiceState::Ready { failures: 0 }.on_event(wish);
        assert_eq!(after(state, &[E::GroundReady, E::Rested]).0, state);
        assert_eq!(
            after(state, &[E::NotNeeded, E::Needed, E::GroundReady]).1,
            ServiceAction::Start
        );
    }

    #[test]
    fn a_service_that_is_needed_again_while_it_leaves_comes_back() {
        use ServiceEvent as E;
        let (state, action) = ServiceState::Ready { failures: 0 }.on_event(E::NotNeeded);
        assert_eq!(action, ServiceAction::Leave);
        assert_eq!(
            after(state, &[E::Needed, NEVER_READY]).0,
            ServiceState::Waiting { failures: 0 }
        );
    }
}
