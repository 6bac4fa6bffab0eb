//! Shutdown state of a session; pure.
//!
//! ```text
//!          close               nothing runs
//!  Staying ─────▶ Closing ─────────────────▶ Closed     (its objects may be stored now)
//!     │              │ end                     │ end
//!     └──── end ─────┴──────────▶ Ending ◀─────┘        (over as soon as nothing is left)
//! ```

use crate::companion::kernel::KernelMessage;
use crate::companion::kernel::connection::KernelQuery;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelShutdownState {
    /// The session has no shutdown request.
    Staying,
    /// Takes no more requests. What runs may finish until then; it was stopped when that is missing.
    Closing { until: Option<Instant> },
    /// Nothing runs any more, and nothing will.
    Closed,
    /// The same as closing, and over with the last that is left.
    Ending { until: Option<Instant> },
}

impl KernelShutdownState {
    pub(super) fn start_closing(self, until: Instant) -> Self {
        match self {
            Self::Staying => Self::Closing { until: Some(until) },
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

    /// What is left may not take longer than was said before.
    pub(super) fn start_ending(self, until: Instant) -> Self {
        match self {
            Self::Staying => Self::Ending { until: Some(until) },
            Self::Closing { until } | Self::Ending { until } => Self::Ending { until },
            // Only a store can be on, which had its time.
            Self::Closed => Self::Ending {
                until: Some(Instant::now()),
            },
        }
    }

    /// What ran has had its time, which is said once.
    pub(super) fn mark_overdue(self) -> Self {
        match self {
            Self::Closing { .. } => Self::Closing { until: None },
            Self::Ending { .. } => Self::Ending { until: None },
            other => other,
        }
    }

    /// Until when what runs may finish.
    pub(super) fn run_deadline(self) -> Option<Instant> {
        match self {
            Self::Closing { until } | Self::Ending { until } => until,
            Self::Staying | Self::Closed => None,
        }
    }

    pub(super) fn is_ending(self) -> bool {
        matches!(self, Self::Ending { .. })
    }

    /// Whether a message is still for this owner.
    pub(super) fn accepts_message(self, message: &KernelMessage) -> bool {
        match message {
            _ if self == Self::Staying => true,
            KernelMessage::Interrupt { .. }
            | KernelMessage::Close { .. }
            | KernelMessage::Shutdown { .. } => true,
            KernelMessage::Ask { question, .. } => {
                self == Self::Closed && matches!(question, KernelQuery::CryoStore { .. })
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

    fn ask(question: KernelQuery) -> KernelMessage {
        let (done, _) = oneshot::channel();
        KernelMessage::Ask {
            question,
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
    fn only_what_rests_is_stored_and_nothing_else_is_taken() {
        let until = Instant::now() + Duration::from_secs(10);
        let closing = KernelShutdownState::Staying.start_closing(until);
        assert_eq!(closing, KernelShutdownState::Closing { until: Some(until) });
        assert!(
            KernelShutdownState::Staying.accepts_message(&store())
                && !closing.accepts_message(&store())
        );
        assert!(KernelShutdownState::Closed.accepts_message(&store()));
        assert!(!KernelShutdownState::Closed.accepts_message(&ask(KernelQuery::Reset)));
        assert!(!closing.start_ending(until).accepts_message(&store()));
    }

    #[test]
    fn an_end_gives_no_time_that_was_not_given_before() {
        let until = Instant::now() + Duration::from_secs(10);
        let later = until + Duration::from_secs(10);
        let closing = KernelShutdownState::Staying.start_closing(until);
        assert_eq!(closing.start_ending(later).run_deadline(), Some(until));
        assert_eq!(
            closing.mark_overdue().start_ending(later).run_deadline(),
            None
        );
        assert!(
            KernelShutdownState::Closed
                .start_ending(later)
                .run_deadline()
                < Some(until)
        );
        assert_eq!(
            KernelShutdownState::Staying
                .start_ending(later)
                .run_deadline(),
            Some(later)
        );
        assert!(closing.start_ending(later).is_ending() && !closing.is_ending());
        // What has begun to end is not taken back.
        assert!(closing.start_ending(later).start_closing(later).is_ending());
    }
}
