//! Values of the headers that say what a message of MCP says, since the revision of 2026-07-28.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "=?base64?";
const END: &str = "?=";

/// In base64 where it is not plain.
pub(crate) fn encoded(value: &str) -> String {
    let is_plain = value.bytes().all(|b| (b' '..=b'~').contains(&b)) && value.trim() == value;
    match is_plain && !value.starts_with("=?") {
        true => value.into(),
        false => format!("{BEGIN}{}{END}", STANDARD.encode(value)),
    }
}

/// Nothing, when it is in base64 and no text.
pub(crate) fn decoded(value: &str) -> Option<String> {
    let inner = value.strip_prefix(BEGIN);
    match inner.and_then(|rest| rest.strip_suffix(END)) {
        Some(inner) => String::from_utf8(STANDARD.decode(inner).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{decoded, encoded};

    #[test]
    fn whatever_is_said_fits_into_a_header() {
        for (value, header) in [
            ("a-b c", "a-b c"),
            (" a", "=?base64?IGE=?="),
            ("é", "=?base64?w6k=?="),
            ("=?x", "=?base64?PT94?="),
        ] {
            assert_eq!(encoded(value), header);
            assert_eq!(decoded(header).as_deref(), Some(value));
        }
        assert_eq!(decoded("=?base64?!?="), None);
    }
}
