//! Policy for sending a request again after its connection was lost.

use crate::protocol::mcp::READ_ONLY_TOOLS;

/// The progress of a request when its connection was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestLoss {
    /// The request was not delivered.
    Unsent,
    /// The server may have received the request, and has sent nothing.
    Silent,
    /// The server has sent messages, up to this event.
    Telling(String),
}

/// The action after the loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RetryDecision {
    Again,
    /// Resume after this event, if the server still knows it.
    GoOn(String),
    GiveUp,
}

/// Requests that only read, or that have the same effect when repeated.
const RETRYABLE_METHODS: [&str; 14] = [
    "initialize",
    "ping",
    "server/discover",
    "tools/list",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "completion/complete",
    "logging/setLevel",
    "subscriptions/listen",
];

/// Whether a request may be repeated; `server` is the server of the bridge, `None` for all servers combined.
pub(super) fn is_harmless(method: &str, name: Option<&str>, server: Option<&str>) -> bool {
    let looks = |name: &str| {
        let own = match server {
            Some("os") => Some(name),
            Some(_) => None,
            None => name.strip_prefix("os__"),
        };
        own.is_some_and(|name| READ_ONLY_TOOLS.contains(&name))
    };
    RETRYABLE_METHODS.contains(&method) || method == "tools/call" && name.is_some_and(looks)
}

pub(super) fn decide_resend(is_harmless: bool, lost: RequestLoss) -> RetryDecision {
    match lost {
        RequestLoss::Telling(event) => RetryDecision::GoOn(event),
        RequestLoss::Unsent => RetryDecision::Again,
        RequestLoss::Silent if is_harmless => RetryDecision::Again,
        RequestLoss::Silent => RetryDecision::GiveUp,
    }
}

/// The same, after the server has forgotten the stream.
pub(super) fn without_stream(is_harmless: bool) -> RetryDecision {
    decide_resend(is_harmless, RequestLoss::Silent)
}

#[cfg(test)]
mod tests {
    use super::{RequestLoss, RetryDecision, decide_resend, is_harmless, without_stream};

    #[test]
    fn only_what_does_no_harm_is_asked_twice() {
        assert!(is_harmless("tools/list", None, None));
        assert!(!is_harmless("an/unknown", None, None));
        let call = |name, server| is_harmless("tools/call", Some(name), server);
        assert!(call("read_file", Some("os")) && call("os__read_file", None));
        // A tool of this name on another server may do anything.
        assert!(!call("read_file", Some("filesystem")) && !call("read_file", None));
        assert!(!call("run_shell", Some("os")));
        assert_eq!(
            decide_resend(true, RequestLoss::Silent),
            RetryDecision::Again
        );
        assert_eq!(
            decide_resend(false, RequestLoss::Silent),
            RetryDecision::GiveUp
        );
        // An undelivered request was not executed.
        assert_eq!(
            decide_resend(false, RequestLoss::Unsent),
            RetryDecision::Again
        );
    }

    #[test]
    fn a_stream_is_gone_on_with_before_anything_else() {
        let place = RequestLoss::Telling("1.2".into());
        assert_eq!(
            decide_resend(false, place),
            RetryDecision::GoOn("1.2".into())
        );
        assert_eq!(without_stream(false), RetryDecision::GiveUp);
        assert_eq!(without_stream(true), RetryDecision::Again);
    }
}
