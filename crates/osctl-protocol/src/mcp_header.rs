//! Values of the HTTP headers that repeat parts of an MCP message, since the revision of 2026-07-28.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const BASE64_HEADER_PREFIX: &str = "=?base64?";
const BASE64_HEADER_SUFFIX: &str = "?=";

/// Encodes the value in base64 if it is not plain text.
pub fn encode_header(value: &str) -> String {
    let is_plain = value.bytes().all(|b| (b' '..=b'~').contains(&b)) && value.trim() == value;
    match is_plain && !value.starts_with("=?") {
        true => value.into(),
        false => format!(
            "{BASE64_HEADER_PREFIX}{}{BASE64_HEADER_SUFFIX}",
            STANDARD.encode(value)
        ),
    }
}

/// Decodes the value; `None` if it is base64 but not text.
pub fn decode_header(value: &str) -> Option<String> {
    let inner = value.strip_prefix(BASE64_HEADER_PREFIX);
    match inner.and_then(|rest| rest.strip_suffix(BASE64_HEADER_SUFFIX)) {
        Some(inner) => String::from_utf8(STANDARD.decode(inner).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{decode_header, encode_header};

    #[test]
    fn any_value_can_be_encoded_as_a_header() {
        for (value, header) in [
            ("a-b c", "a-b c"),
            (" a", "=?base64?IGE=?="),
            ("é", "=?base64?w6k=?="),
            ("=?x", "=?base64?PT94?="),
        ] {
            assert_eq!(encode_header(value), header);
            assert_eq!(decode_header(header).as_deref(), Some(value));
        }
        assert_eq!(decode_header("=?base64?!?="), None);
    }
}
