//! Shutdown state of a session; pure.
//!
//! ```text
//!          close               nothing runs
//!  Running ─────▶ Closing ─────────────────▶ Closed     (its objects may be stored now)
//!     │              │ end                     │ end
//!     └──── end ─────┴──────────▶ Ending ◀─────┘        (ends as soon as nothing is left)
//! ```

use crate::companion::kernel::KernelMessage;
use crate::companion::kernel::connection::KernelQuery;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelShutdownState {
    /// The session has no shutdown request.
    Running,
    /// Refuses new requests. Current runs may finish until `deadline`; `None` after they were stopped.
    Closing { deadline: Option<Instant> },
    /// Nothing runs any more; only stores are accepted.
    Closed,
    /// Like `Closing`, and the owner ends with the last job.
    Ending { deadline: Option<Instant> },
}

impl KernelShutdownState {
    pub(super) fn start_closing(self, deadline: Instant) -> Self {
        match self {
            Self::Running => Self::Closing {
                deadline: Some(deadline),
            },
            other => other,
        }
    }

    /// Nothing runs any more.
    pub(super) fn mark_quiescent(self) -> Self {
        match self {
            Self::Closing { .. } => Self::Closed,
            other => other,
        }
    }

    /// Starts the end. A time limit that was set before is not extended.
    pub(super) fn start_ending(self, deadline: Instant) -> Self {
        match self {
            Self::Running => Self::Ending {
                deadline: Some(deadline),
            },
            Self::Closing { deadline } | Self::Ending { deadline } => Self::Ending { deadline },
            // Only a store can run in this state; its time is over.
            Self::Closed => Self::Ending {
                deadline: Some(Instant::now()),
            },
        }
    }

    /// Records that the time limit is over and the runs were stopped.
    pub(super) fn mark_overdue(self) -> Self {
        match self {
            Self::Closing { .. } => Self::Closing { deadline: None },
            Self::Ending { .. } => Self::Ending { deadline: None },
            other => other,
        }
    }

    /// Time limit of current runs.
    pub(super) fn run_deadline(self) -> Option<Instant> {
        match self {
            Self::Closing { deadline } | Self::Ending { deadline } => deadline,
            Self::Running | Self::Closed => None,
        }
    }

    pub(super) fn is_ending(self) -> bool {
        matches!(self, Self::Ending { .. })
    }

    /// Whether the owner accepts the message in this state.
    pub(super) fn accepts_message(self, message: &KernelMessage) -> bool {
        match message {
            _ if self == Self::Running => true,
            KernelMessage::Interrupt { .. }
            | KernelMessage::DrainRuns { .. }
            | KernelMessage::Shutdown { .. } => true,
            KernelMessage::Query { query, .. } => {
                self == Self::Closed && matches!(query, KernelQuery::CryoStore { .. })
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KernelMessage, KernelQuery, KernelShutdownState};
    use std::path::PathBuf;
    use std::time::Duration;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    fn ask(query: KernelQuery) -> KernelMessage {
        let (done, _) = oneshot::channel();
        KernelMessage::Query {
            query,
            quiet: false,
            done,
        }
    }

    fn store() -> KernelMessage {
        ask(KernelQuery::CryoStore {
            folder: PathBuf::new(),
            name: String::new(),
            generation: 1,
            reason: "stop",
            session: String::new(),
            strict: false,
            dry_run: false,
            files: false,
            compress: false,
            runs: 0,
            seen: None,
        })
    }

    #[test]
    fn only_a_closed_session_is_stored_and_other_requests_are_refused() {
        let deadline = Instant::now() + Duration::from_secs(10);
        let closing = KernelShutdownState::Running.start_closing(deadline);
        assert_eq!(
            closing,
            KernelShutdownState::Closing {
                deadline: Some(deadline)
            }
        );
        assert!(
            KernelShutdownState::Running.accepts_message(&store())
                && !closing.accepts_message(&store())
        );
        assert!(KernelShutdownState::Closed.accepts_message(&store()));
        assert!(!KernelShutdownState::Closed.accepts_message(&ask(KernelQuery::Reset)));
        assert!(!closing.start_ending(deadline).accepts_message(&store()));
    }

    #[test]
    fn an_end_does_not_extend_an_earlier_time_limit() {
        let deadline = Instant::now() + Duration::from_secs(10);
        let later = deadline + Duration::from_secs(10);
        let closing = KernelShutdownState::Running.start_closing(deadline);
        assert_eq!(closing.start_ending(later).run_deadline(), Some(deadline));
        assert_eq!(
            closing.mark_overdue().start_ending(later).run_deadline(),
            None
        );
        assert!(
            KernelShutdownState::Closed
                .start_ending(later)
                .run_deadline()
                < Some(deadline)
        );
        assert_eq!(
            KernelShutdownState::Running
                .start_ending(later)
                .run_deadline(),
            Some(later)
        );
        assert!(closing.start_ending(later).is_ending() && !closing.is_ending());
        // An end that has started is not revoked.
        assert!(closing.start_ending(later).start_closing(later).is_ending());
    }
}
