//! The texts of a record: names of clients, and one short line without the user's secrets. Pure.

use crate::environment::UserEnvironment;
use crate::files::percent_decode;
use crate::text_sanitizer::sanitize_line;

const MAX_RECORD_TEXT_CHARS: usize = 160;
const MAX_CALLER_NAME_CHARS: usize = 64;

/// Shorter values are not hidden: they may be any part of a text.
const MIN_HIDDEN_BYTES: usize = 6;

/// What replaces a value.
const HIDDEN_TEXT: &str = "***";

/// The first line with content, shortened, in which the values of variables are hidden.
pub fn record_text(text: &str, variables: &UserEnvironment) -> String {
    // A value that is cut off by the shortening would not be found, so it is hidden first.
    let mut line = bounded_line(text);
    for value in variables.0.values() {
        let value = value.lines().next().unwrap_or_default().trim();
        if value.len() >= MIN_HIDDEN_BYTES && line.contains(value) {
            line = line.replace(value, HIDDEN_TEXT);
        }
    }
    line.trim_end()
        .chars()
        .take(MAX_RECORD_TEXT_CHARS)
        .collect()
}

/// The first line with content, in a length in which values are hidden.
pub fn bounded_line(text: &str) -> String {
    let line = text.trim_start().lines().next().unwrap_or_default();
    line.chars().take(16 * MAX_RECORD_TEXT_CHARS).collect()
}

/// The name of a client: printable and short.
pub fn client_name(name: &str) -> String {
    let name: String = name.chars().take(MAX_CALLER_NAME_CHARS).collect();
    let name = sanitize_line(name.trim());
    match name.is_empty() {
        true => "unknown".into(),
        false => name,
    }
}

/// A percent-encoded path as text.
pub fn path_text(path: &str) -> String {
    let bytes = percent_decode(path);
    bytes.map_or_else(
        || path.to_owned(),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    )
}

/// A URL without its user, query and fragment, which may contain secrets.
pub fn url_text(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let url = &url[..end];
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let authority = rest.find('/').unwrap_or(rest.len());
            let host = rest[..authority].rfind('@').map_or(0, |at| at + 1);
            format!("{scheme}://{}", &rest[host..])
        }
        None => url.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_RECORD_TEXT_CHARS, client_name, path_text, record_text, url_text};
    use crate::environment::UserEnvironment;

    #[test]
    fn a_text_is_one_short_line_without_the_users_values() {
        let variables = [("KEY", "hunter2-secret"), ("MODE", "test"), ("NONE", "")];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let variables = UserEnvironment(variables.into());
        for (text, expected) in [
            ("", ""),
            ("\n\n  x = 1\ny = 2", "x = 1"),
            ("curl -u hunter2-secret:hunter2-secret", "curl -u ***:***"),
            ("run test", "run test"),
        ] {
            assert_eq!(record_text(text, &variables), expected, "{text:?}");
        }
        let long = format!("{}hunter2-secret", "x".repeat(MAX_RECORD_TEXT_CHARS - 4));
        let shown = record_text(&long, &variables);
        assert!(!shown.contains("hunt") && shown.chars().count() <= MAX_RECORD_TEXT_CHARS);
        assert_eq!(
            record_text(&"ä".repeat(99_999), &variables).chars().count(),
            160
        );
    }

    #[test]
    fn names_of_clients_are_printable() {
        assert_eq!(client_name("claude-code"), "claude-code");
        assert_eq!(client_name(" \n"), "unknown");
        assert_eq!(client_name("a\x1b[2J\nb\u{202e}"), "a\\u{1b}[2J b\\u{202e}");
        assert_eq!(client_name(&"x".repeat(99)).len(), 64);
    }

    #[test]
    fn urls_lose_what_may_be_secret() {
        for (url, expected) in [
            (
                "https://u:p@example.org/a?token=1#x",
                "https://example.org/a",
            ),
            ("https://example.org/a@b", "https://example.org/a@b"),
            ("about:blank", "about:blank"),
            ("https://u:p@example.org", "https://example.org"),
        ] {
            assert_eq!(url_text(url), expected);
        }
        assert_eq!(path_text("/a%20b%ff"), "/a b\u{fffd}");
    }
}
