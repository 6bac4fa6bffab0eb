//! The policy that decides when a service runs: a pure function of events.
//!
//! ```text
//!            Needed           DependenciesReady            ProbeSucceeded
//!   Off ───────────► Waiting ───────────────────► Starting ────────────────► Ready
//!    ▲                 ▲  ▲                           │ Exited,                │ Exited,
//!    │ Exited          │  │ BackOffElapsed            │ StartTimedOut          │ StartTimedOut
//!  Stopping ───────────┘  └──── BackingOff ◄──────────┴────────────────────────┘
//!    ▲        Exited, if still needed
//!    └── NotNeeded, DependenciesLost
//! ```
//!
//! The restart delay doubles with every run that ends, up to a maximum. The delay is longer after runs that never
//! became ready. A ready run that lasted [`MIN_STABLE_SERVICE_UPTIME`] resets the delay.

use crate::backoff::Backoff;
use std::time::Duration;

/// A run that became ready and lasted this long resets the restart delay.
const MIN_STABLE_SERVICE_UPTIME: Duration = Duration::from_secs(5);

/// The restart delays after runs that became ready, and after runs that did not.
const READY_RESTART_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_secs(1),
};
const UNREADY_RESTART_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    max: Duration::from_secs(10),
};

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
    BackingOff {
        failures: u32,
    },
    /// The service was ordered to end; `restarts` says whether it is needed afterwards.
    Stopping {
        restarts: bool,
    },
    /// A user has ended the service; it stays off until no client needs it any more.
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceEvent {
    Needed,
    NotNeeded,
    DependenciesReady,
    DependenciesLost,
    /// The service answered its probe.
    ProbeSucceeded,
    /// The service did not answer its probe or a client in time.
    StartTimedOut,
    /// The service and all its descendants have ended.
    Exited {
        uptime: Duration,
        /// Whether the service exited with code 0 and its restart policy respects this as a user's decision.
        is_user_exit: bool,
    },
    BackOffElapsed,
}

/// What the owning task must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceAction {
    NoAction,
    Start,
    /// Order the service to exit.
    Stop,
    /// Kill the service now.
    Kill,
    BackOff(Duration),
}

impl ServiceState {
    pub(super) fn next_state(self, event: ServiceEvent) -> (Self, ServiceAction) {
        use {ServiceAction as A, ServiceEvent as E, ServiceState as S};
        match (self, event) {
            (S::Off, E::Needed) => (S::Waiting { failures: 0 }, A::NoAction),
            (S::Waiting { .. } | S::BackingOff { .. } | S::Finished, E::NotNeeded) => {
                (S::Off, A::NoAction)
            }
            (S::Waiting { failures }, E::DependenciesReady) => (S::Starting { failures }, A::Start),
            (S::Starting { failures }, E::ProbeSucceeded) => (S::Ready { failures }, A::NoAction),
            (S::Starting { .. } | S::Ready { .. }, E::NotNeeded) => {
                (S::Stopping { restarts: false }, A::Stop)
            }
            // The dependency is gone, so the service can't save anything.
            (S::Starting { .. } | S::Ready { .. }, E::DependenciesLost) => {
                (S::Stopping { restarts: true }, A::Kill)
            }
            (S::Starting { .. } | S::Ready { .. }, E::StartTimedOut) => (self, A::Kill),
            (
                S::Ready { .. },
                E::Exited {
                    is_user_exit: true, ..
                },
            ) => (S::Finished, A::NoAction),
            (S::Starting { failures }, E::Exited { .. }) => {
                back_off(failures, UNREADY_RESTART_BACKOFF)
            }
            (S::Ready { failures }, E::Exited { uptime, .. }) => {
                match uptime >= MIN_STABLE_SERVICE_UPTIME {
                    true => back_off(0, READY_RESTART_BACKOFF),
                    false => back_off(failures, READY_RESTART_BACKOFF),
                }
            }
            (S::BackingOff { failures }, E::BackOffElapsed) => {
                (S::Waiting { failures }, A::NoAction)
            }
            (S::Stopping { restarts: true }, E::Exited { .. }) => {
                (S::Waiting { failures: 0 }, A::NoAction)
            }
            (S::Stopping { .. }, E::Exited { .. }) => (S::Off, A::NoAction),
            (S::Stopping { .. }, E::Needed) => (S::Stopping { restarts: true }, A::NoAction),
            (S::Stopping { .. }, E::NotNeeded) => (S::Stopping { restarts: false }, A::NoAction),
            (state, _) => (state, A::NoAction),
        }
    }
}

fn back_off(failures: u32, backoff: Backoff) -> (ServiceState, ServiceAction) {
    let failures = failures.saturating_add(1);
    (
        ServiceState::BackingOff { failures },
        ServiceAction::BackOff(backoff.delay_after(failures)),
    )
}

#[cfg(test)]
mod tests {
    use super::{
        READY_RESTART_BACKOFF, ServiceAction, ServiceEvent, ServiceState, UNREADY_RESTART_BACKOFF,
    };
    use std::time::Duration;

    const NEVER_READY: ServiceEvent = ServiceEvent::Exited {
        uptime: Duration::ZERO,
        is_user_exit: false,
    };

    /// The state after all events, and the last action.
    fn after(state: ServiceState, events: &[ServiceEvent]) -> (ServiceState, ServiceAction) {
        events
            .iter()
            .fold((state, ServiceAction::NoAction), |(state, _), event| {
                state.next_state(*event)
            })
    }

    #[test]
    fn needed_service_waits_for_dependency() {
        use ServiceEvent as E;
        assert_eq!(
            after(ServiceState::Off, &[E::Needed, E::DependenciesReady]),
            (ServiceState::Starting { failures: 0 }, ServiceAction::Start)
        );
        assert_eq!(
            after(ServiceState::Off, &[E::DependenciesReady]).0,
            ServiceState::Off
        );
    }

    #[test]
    fn restart_delay_grows_with_failures() {
        let mut state = ServiceState::Starting { failures: 0 };
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            let (next, action) = state.next_state(NEVER_READY);
            let ServiceAction::BackOff(pause) = action else {
                panic!("{action:?}")
            };
            assert!(pause >= last && pause <= UNREADY_RESTART_BACKOFF.max);
            last = pause;
            state = after(
                next,
                &[
                    ServiceEvent::BackOffElapsed,
                    ServiceEvent::DependenciesReady,
                ],
            )
            .0;
        }
        assert_eq!(last, UNREADY_RESTART_BACKOFF.max);
    }

    #[test]
    fn long_uptime_resets_restart_delay() {
        let ended = |uptime| ServiceEvent::Exited {
            uptime,
            is_user_exit: false,
        };
        let state = ServiceState::Ready { failures: 9 };
        assert_eq!(
            state.next_state(ended(Duration::from_secs(60))).1,
            ServiceAction::BackOff(READY_RESTART_BACKOFF.first)
        );
        assert_eq!(
            state.next_state(ended(Duration::ZERO)).1,
            ServiceAction::BackOff(READY_RESTART_BACKOFF.max)
        );
    }

    #[test]
    fn lost_dependency_restarts_service() {
        use ServiceEvent as E;
        let (state, action) = ServiceState::Ready { failures: 0 }.next_state(E::DependenciesLost);
        assert_eq!(action, ServiceAction::Kill);
        assert_eq!(
            after(state, &[NEVER_READY, E::DependenciesReady]).1,
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
        let user_exit = E::Exited {
            uptime: Duration::ZERO,
            is_user_exit: true,
        };
        let (state, _) = ServiceState::Ready { failures: 0 }.next_state(user_exit);
        assert_eq!(
            after(state, &[E::DependenciesReady, E::BackOffElapsed]).0,
            state
        );
        assert_eq!(
            after(state, &[E::NotNeeded, E::Needed, E::DependenciesReady]).1,
            ServiceAction::Start
        );
    }

    #[test]
    fn stopping_service_restarts_if_needed() {
        use ServiceEvent as E;
        let (state, action) = ServiceState::Ready { failures: 0 }.next_state(E::NotNeeded);
        assert_eq!(action, ServiceAction::Stop);
        assert_eq!(
            after(state, &[E::Needed, NEVER_READY]).0,
            ServiceState::Waiting { failures: 0 }
        );
    }
}
