//! What may be asked again after a connection was lost in the middle.

use crate::protocol::mcp::LOOKS;

/// How far a request had come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lost {
    /// Nobody has seen it.
    Unsent,
    /// The server may have it, and has told nothing.
    Silent,
    /// The server has told something, up to this event.
    Telling(String),
}

/// What is done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    Again,
    /// Behind that event, should the server still know it.
    GoOn(String),
    GiveUp,
}

/// Requests that only look, or that change nothing when they are asked twice.
const HARMLESS: [&str; 14] = [
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

/// Whether a request may be asked twice; `server` is whose the bridge is, none for all as one.
pub(super) fn is_harmless(method: &str, name: Option<&str>, server: Option<&str>) -> bool {
    let looks = |name: &str| {
        let own = match server {
            Some("os") => Some(name),
            Some(_) => None,
            None => name.strip_prefix("os__"),
        };
        own.is_some_and(|name| LOOKS.contains(&name))
    };
    HARMLESS.contains(&method) || method == "tools/call" && name.is_some_and(looks)
}

pub(super) fn next(is_harmless: bool, lost: Lost) -> Next {
    match lost {
        Lost::Telling(event) => Next::GoOn(event),
        Lost::Unsent => Next::Again,
        Lost::Silent if is_harmless => Next::Again,
        Lost::Silent => Next::GiveUp,
    }
}

/// The same, once it is known that the server has forgotten the stream.
pub(super) fn without_stream(is_harmless: bool) -> Next {
    next(is_harmless, Lost::Silent)
}

#[cfg(test)]
mod tests {
    use super::{Lost, Next, is_harmless, next, without_stream};

    #[test]
    fn only_what_does_no_harm_is_asked_twice() {
        assert!(is_harmless("tools/list", None, None));
        assert!(!is_harmless("an/unknown", None, None));
        let call = |name, server| is_harmless("tools/call", Some(name), server);
        assert!(call("read_file", Some("os")) && call("os__read_file", None));
        // What others call so may do anything.
        assert!(!call("read_file", Some("filesystem")) && !call("read_file", None));
        assert!(!call("run_shell", Some("os")));
        assert_eq!(next(true, Lost::Silent), Next::Again);
        assert_eq!(next(false, Lost::Silent), Next::GiveUp);
        // What nobody has seen was not done.
        assert_eq!(next(false, Lost::Unsent), Next::Again);
    }

    #[test]
    fn a_stream_is_gone_on_with_before_anything_else() {
        let place = Lost::Telling("1.2".into());
        assert_eq!(next(false, place), Next::GoOn("1.2".into()));
        assert_eq!(without_stream(false), Next::GiveUp);
        assert_eq!(without_stream(true), Next::Again);
    }
}
