//! Policy for sending a request again after its connection was lost.

use crate::protocol::mcp::READ_ONLY_TOOLS;

/// The progress of a request when its connection was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestLoss {
    /// The request was not delivered.
    Unsent,
    /// The server may have received the request, and has sent nothing.
    NoResponse,
    /// The server has sent messages, up to this event.
    PartialResponse(String),
}

/// The action after the loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RetryDecision {
    Resend,
    /// Resume after this event, if the server still knows it.
    ResumeAfter(String),
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
pub(super) fn is_retry_safe(method: &str, name: Option<&str>, server: Option<&str>) -> bool {
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
        RequestLoss::PartialResponse(event) => RetryDecision::ResumeAfter(event),
        RequestLoss::Unsent => RetryDecision::Resend,
        RequestLoss::NoResponse if is_harmless => RetryDecision::Resend,
        RequestLoss::NoResponse => RetryDecision::GiveUp,
    }
}

/// The same, after the server has forgotten the stream.
pub(super) fn decide_without_stream(is_harmless: bool) -> RetryDecision {
    decide_resend(is_harmless, RequestLoss::NoResponse)
}

#[cfg(test)]
mod tests {
    use super::{RequestLoss, RetryDecision, decide_resend, decide_without_stream, is_retry_safe};

    #[test]
    fn only_safe_requests_are_sent_again() {
        assert!(is_retry_safe("tools/list", None, None));
        assert!(!is_retry_safe("an/unknown", None, None));
        let call = |name, server| is_retry_safe("tools/call", Some(name), server);
        assert!(call("read_file", Some("os")) && call("os__read_file", None));
        // A tool of this name on another server may do anything.
        assert!(!call("read_file", Some("filesystem")) && !call("read_file", None));
        assert!(!call("run_shell", Some("os")));
        assert_eq!(
            decide_resend(true, RequestLoss::NoResponse),
            RetryDecision::Resend
        );
        assert_eq!(
            decide_resend(false, RequestLoss::NoResponse),
            RetryDecision::GiveUp
        );
        // An undelivered request was not executed.
        assert_eq!(
            decide_resend(false, RequestLoss::Unsent),
            RetryDecision::Resend
        );
    }

    #[test]
    fn a_partial_response_is_resumed() {
        let place = RequestLoss::PartialResponse("1.2".into());
        assert_eq!(
            decide_resend(false, place),
            RetryDecision::ResumeAfter("1.2".into())
        );
        assert_eq!(decide_without_stream(false), RetryDecision::GiveUp);
        assert_eq!(decide_without_stream(true), RetryDecision::Resend);
    }
}
