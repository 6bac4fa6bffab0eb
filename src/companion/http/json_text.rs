//! A fast JSON string writer for large outputs: it checks eight bytes at a time and copies runs that need no escape as
//! a whole.
//!
//! serde_json checks each byte separately, which took a quarter of the time of sending a large output to a follower.
//! The result is the same.

/// In each byte of a word: one, and the highest bit.
const BYTE_ONES: u64 = u64::from_ne_bytes([0x01; 8]);
const BYTE_HIGH_BITS: u64 = u64::from_ne_bytes([0x80; 8]);

/// Appends a string with its quotes.
pub(super) fn write_json_string(text: &str, to: &mut Vec<u8>) {
    to.push(b'"');
    let mut rest = text.as_bytes();
    loop {
        let (plain, marked) = rest.split_at(unescaped_length(rest));
        to.extend_from_slice(plain);
        let Some((byte, behind)) = marked.split_first() else {
            break;
        };
        write_escape(*byte, to);
        rest = behind;
    }
    to.push(b'"');
}

/// The number of leading bytes that need no escape.
fn unescaped_length(bytes: &[u8]) -> usize {
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (at, word) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let is_quote = mark_zero_bytes(word ^ (BYTE_ONES * u64::from(b'"')));
        let is_backslash = mark_zero_bytes(word ^ (BYTE_ONES * u64::from(b'\\')));
        let is_control = word.wrapping_sub(BYTE_ONES * 0x20) & !word;
        let found = (is_quote | is_backslash | is_control) & BYTE_HIGH_BITS;
        if found != 0 {
            // A borrow from a higher byte may mark that byte falsely, but never the first marked byte.
            return at * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let is_marked = |byte: &u8| matches!(byte, 0..0x20 | b'"' | b'\\');
    let at = rest.iter().position(is_marked);
    bytes.len() - rest.len() + at.unwrap_or(rest.len())
}

/// Sets the highest bit of each byte that is zero, and other, meaningless bits.
fn mark_zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(BYTE_ONES) & !word
}

fn write_escape(byte: u8, to: &mut Vec<u8>) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        0x0c => b'f',
        b'\r' => b'r',
        _ => {
            let hex = |digit: u8| b"0123456789abcdef"[usize::from(digit)];
            to.extend_from_slice(b"\\u00");
            to.extend_from_slice(&[hex(byte >> 4), hex(byte & 0xf)]);
            return;
        }
    };
    to.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use super::write_json_string;
    use proptest::prelude::*;

    fn written(text: &str) -> String {
        let mut bytes = b"before ".to_vec();
        write_json_string(text, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn each_byte_at_each_place_is_written_as_serde_json_writes_it() {
        for character in (0..=0x100).filter_map(char::from_u32) {
            for at in 0..17 {
                let mut text = "x".repeat(at);
                text.push(character);
                text.push_str("y!\u{20}\"z");
                let expected = serde_json::to_string(&text).unwrap();
                assert_eq!(written(&text), format!("before {expected}"));
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_written_as_serde_json_writes_it(text in any::<String>()) {
            let expected = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(written(&text), format!("before {expected}"));
        }
    }
}
