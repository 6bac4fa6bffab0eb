//! What may be asked again after a connection was lost in the middle.

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

pub(super) fn next(method: &str, lost: Lost) -> Next {
    let is_harmless = HARMLESS.contains(&method);
    match lost {
        Lost::Telling(event) => Next::GoOn(event),
        Lost::Unsent => Next::Again,
        Lost::Silent if is_harmless => Next::Again,
        Lost::Silent => Next::GiveUp,
    }
}

/// The same, once it is known that the server has forgotten the stream.
pub(super) fn without_stream(method: &str) -> Next {
    next(method, Lost::Silent)
}

#[cfg(test)]
mod tests {
    use super::{Lost, Next, next, without_stream};

    #[test]
    fn only_what_does_no_harm_is_asked_twice() {
        assert_eq!(next("tools/list", Lost::Silent), Next::Again);
        assert_eq!(next("tools/call", Lost::Silent), Next::GiveUp);
        assert_eq!(next("an/unknown", Lost::Silent), Next::GiveUp);
        // What nobody has seen was not done.
        assert_eq!(next("tools/call", Lost::Unsent), Next::Again);
    }

    #[test]
    fn a_stream_is_gone_on_with_before_anything_else() {
        let place = Lost::Telling("1.2".into());
        assert_eq!(next("tools/call", place), Next::GoOn("1.2".into()));
        assert_eq!(without_stream("tools/call"), Next::GiveUp);
        assert_eq!(without_stream("resources/read"), Next::Again);
    }
}
