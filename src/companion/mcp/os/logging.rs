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
const NO_LOG_LEVEL: u8 = u8::MAX;

/// The lowest level that a client wants to hear.
#[derive(Debug)]
pub(super) struct ClientLogLevel(AtomicU8);

impl Default for ClientLogLevel {
    fn default() -> Self {
        Self(AtomicU8::new(NO_LOG_LEVEL))
    }
}

/// What this server has to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogSeverity {
    Info,
    Notice,
    Warning,
}

impl LogSeverity {
    fn logging_level(self) -> LoggingLevel {
        match self {
            Self::Info => LoggingLevel::Info,
            Self::Notice => LoggingLevel::Notice,
            Self::Warning => LoggingLevel::Warning,
        }
    }
}

impl ClientLogLevel {
    pub(super) fn set(&self, request: &SetLevelRequestParams) {
        self.0.store(request.level as u8, Ordering::Relaxed);
    }

    pub(super) fn admits(&self, weight: LogSeverity) -> bool {
        self.0.load(Ordering::Relaxed) <= weight.logging_level() as u8
    }
}

/// Tells a client that wants to hear it.
pub(super) async fn send_log_message(
    cx: &RequestContext<RoleServer>,
    weight: LogSeverity,
    logger: &str,
    text: String,
) {
    let message = LoggingMessageNotificationParam::new(weight.logging_level(), text.into());
    let told = cx.peer.notify_logging_message(message.with_logger(logger));
    // A client that is gone hears nothing.
    let _ = told.await;
}

#[cfg(test)]
mod tests {
    use super::{ClientLogLevel, LogSeverity, LoggingLevel, SetLevelRequestParams};

    #[test]
    fn a_client_hears_what_weighs_as_much_as_it_asks_for() {
        let level = ClientLogLevel::default();
        assert!(!level.admits(LogSeverity::Warning));
        level.set(&SetLevelRequestParams::new(LoggingLevel::Notice));
        assert!(level.admits(LogSeverity::Warning) && level.admits(LogSeverity::Notice));
        assert!(!level.admits(LogSeverity::Info));
    }
}
