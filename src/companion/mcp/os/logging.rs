//! Messages beside the answers, for clients that have asked for them by a level. The newest revision has none,
//! and so rmcp calls them deprecated; older clients have nothing else.
#![expect(
    deprecated,
    reason = "clients of the revisions before 2026-07-28 are told by nothing else"
)]

use rmcp::RoleServer;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, SetLevelRequestParams};
use rmcp::service::RequestContext;
use std::sync::atomic::{AtomicU8, Ordering};

/// Nobody has asked for messages.
const SILENT: u8 = u8::MAX;

/// The lowest level that a client wants to hear.
#[derive(Debug)]
pub(super) struct Level(AtomicU8);

impl Default for Level {
    fn default() -> Self {
        Self(AtomicU8::new(SILENT))
    }
}

/// What this server has to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    Info,
    Notice,
    Warning,
}

impl Weight {
    fn level(self) -> LoggingLevel {
        match self {
            Self::Info => LoggingLevel::Info,
            Self::Notice => LoggingLevel::Notice,
            Self::Warning => LoggingLevel::Warning,
        }
    }
}

impl Level {
    pub(super) fn set(&self, request: &SetLevelRequestParams) {
        self.0.store(request.level as u8, Ordering::Relaxed);
    }

    pub(super) fn admits(&self, weight: Weight) -> bool {
        self.0.load(Ordering::Relaxed) <= weight.level() as u8
    }
}

/// Tells a client that wants to hear it.
pub(super) async fn log(
    cx: &RequestContext<RoleServer>,
    weight: Weight,
    logger: &str,
    text: String,
) {
    let message = LoggingMessageNotificationParam::new(weight.level(), text.into());
    let told = cx.peer.notify_logging_message(message.with_logger(logger));
    // A client that is gone hears nothing.
    let _ = told.await;
}

#[cfg(test)]
mod tests {
    use super::{Level, LoggingLevel, SetLevelRequestParams, Weight};

    #[test]
    fn a_client_hears_what_weighs_as_much_as_it_asks_for() {
        let level = Level::default();
        assert!(!level.admits(Weight::Warning));
        level.set(&SetLevelRequestParams::new(LoggingLevel::Notice));
        assert!(level.admits(Weight::Warning) && level.admits(Weight::Notice));
        assert!(!level.admits(Weight::Info));
    }
}
