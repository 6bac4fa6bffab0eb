//! Log messages to clients that have set a log level. The newest revision has no such messages, so rmcp marks them as
//! deprecated; older clients have no alternative.
#![expect(
    deprecated,
    reason = "clients of the revisions before 2026-07-28 receive log messages in no other way"
)]

use rmcp::RoleServer;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, SetLevelRequestParams};
use rmcp::service::RequestContext;
use std::sync::atomic::{AtomicU8, Ordering};

/// The client has set no log level.
const NO_LOG_LEVEL: u8 = u8::MAX;

/// The lowest level of messages that a client wants.
#[derive(Debug)]
pub(super) struct ClientLogLevel(AtomicU8);

impl Default for ClientLogLevel {
    fn default() -> Self {
        Self(AtomicU8::new(NO_LOG_LEVEL))
    }
}

/// The severity of a message of this server.
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
    pub(super) fn set_level(&self, request: &SetLevelRequestParams) {
        self.0.store(request.level as u8, Ordering::Relaxed);
    }

    pub(super) fn is_enabled_for(&self, weight: LogSeverity) -> bool {
        self.0.load(Ordering::Relaxed) <= weight.logging_level() as u8
    }
}

/// Sends a log message to the client.
pub(super) async fn send_log_message(
    cx: &RequestContext<RoleServer>,
    weight: LogSeverity,
    logger: &str,
    text: String,
) {
    let message = LoggingMessageNotificationParam::new(weight.logging_level(), text.into());
    let notification = cx.peer.notify_logging_message(message.with_logger(logger));
    // The client may have disconnected.
    let _ = notification.await;
}

#[cfg(test)]
mod tests {
    use super::{ClientLogLevel, LogSeverity, LoggingLevel, SetLevelRequestParams};

    #[test]
    fn a_client_receives_messages_of_its_level_and_above() {
        let level = ClientLogLevel::default();
        assert!(!level.is_enabled_for(LogSeverity::Warning));
        level.set_level(&SetLevelRequestParams::new(LoggingLevel::Notice));
        assert!(
            level.is_enabled_for(LogSeverity::Warning) && level.is_enabled_for(LogSeverity::Notice)
        );
        assert!(!level.is_enabled_for(LogSeverity::Info));
    }
}
