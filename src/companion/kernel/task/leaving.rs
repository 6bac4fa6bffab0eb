//! How far a session's end has come; pure.
//!
//! ```text
//!          close               nothing runs
//!  Staying ─────▶ Closing ─────────────────▶ Closed     (its objects may be stored now)
//!     │              │ end                     │ end
//!     └──── end ─────┴──────────▶ Ending ◀─────┘        (over as soon as nothing is left)
//! ```

use crate::companion::kernel::Message;
use crate::companion::kernel::wire::Question;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Nobody has asked for its end.
    Staying,
    /// Takes no more requests. What runs may finish until then; it was stopped when that is missing.
    Closing { until: Option<Instant> },
    /// Nothing runs any more, and nothing will.
    Closed,
    /// The same as closing, and over with the last that is left.
    Ending { until: Option<Instant> },
}

impl Leaving {
    pub(super) fn close(self, until: Instant) -> Self {
        match self {
            Self::Staying => Self::Closing { until: Some(until) },
            other => other,
        }
    }

    /// Nothing runs any more.
    pub(super) fn rested(self) -> Self {
        match self {
            Self::Closing { .. } => Self::Closed,
            other => other,
        }
    }

    /// What is left may not take longer than was said before.
    pub(super) fn end(self, until: Instant) -> Self {
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
    pub(super) fn overdue(self) -> Self {
        match self {
            Self::Closing { .. } => Self::Closing { until: None },
            Self::Ending { .. } => Self::Ending { until: None },
            other => other,
        }
    }

    /// Until when what runs may finish.
    pub(super) fn until(self) -> Option<Instant> {
        match self {
            Self::Closing { until } | Self::Ending { until } => until,
            Self::Staying | Self::Closed => None,
        }
    }

    pub(super) fn is_ending(self) -> bool {
        matches!(self, Self::Ending { .. })
    }

    /// Whether a message is still for this owner.
    pub(super) fn takes(self, message: &Message) -> bool {
        match message {
            _ if self == Self::Staying => true,
            Message::Interrupt { .. } | Message::Close { .. } | Message::Shutdown { .. } => true,
            Message::Ask { question, .. } => {
                self == Self::Closed && matches!(question, Question::CryoStore { .. })
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Leaving, Message, Question};
    use std::path::PathBuf;
    use std::time::Duration;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    fn ask(question: Question) -> Message {
        let (done, _) = oneshot::channel();
        Message::Ask {
            question,
            quiet: false,
            done,
        }
    }

    fn store() -> Message {
        ask(Question::CryoStore {
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
        let closing = Leaving::Staying.close(until);
        assert_eq!(closing, Leaving::Closing { until: Some(until) });
        assert!(Leaving::Staying.takes(&store()) && !closing.takes(&store()));
        assert!(Leaving::Closed.takes(&store()));
        assert!(!Leaving::Closed.takes(&ask(Question::Reset)));
        assert!(!closing.end(until).takes(&store()));
    }

    #[test]
    fn an_end_gives_no_time_that_was_not_given_before() {
        let until = Instant::now() + Duration::from_secs(10);
        let later = until + Duration::from_secs(10);
        let closing = Leaving::Staying.close(until);
        assert_eq!(closing.end(later).until(), Some(until));
        assert_eq!(closing.overdue().end(later).until(), None);
        assert!(Leaving::Closed.end(later).until() < Some(until));
        assert_eq!(Leaving::Staying.end(later).until(), Some(later));
        assert!(closing.end(later).is_ending() && !closing.is_ending());
        // What has begun to end is not taken back.
        assert!(closing.end(later).close(later).is_ending());
    }
}
