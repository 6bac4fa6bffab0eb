//! Detection of the detach keys in typed input.

use crate::error::{Error, Result};

/// A sequence of keys, such as `ctrl-],ctrl-]`.
#[derive(Debug)]
pub(super) struct DetachKeys {
    sequence: Vec<u8>,
    /// How many keys of the sequence were typed and are held back.
    held: usize,
}

impl DetachKeys {
    /// # Errors
    /// When the text is not a valid key sequence.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let sequence: Option<Vec<u8>> = text.split(',').map(parse_key).collect();
        let sequence = sequence.ok_or_else(|| {
            Error::usage(
                format!("`{text}` are not valid detach keys"),
                "use single characters, or `ctrl-` with a letter, `@`, `[`, `\\`, `]`, `^` or `_`, for example `--detach-keys ctrl-p,ctrl-q`",
            )
        })?;
        Ok(Self { sequence, held: 0 })
    }

    /// Returns the bytes to send, and whether the sequence is complete; after a complete sequence the rest of `typed`
    /// is ignored.
    pub(super) fn filter_typed(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(typed.len());
        for byte in typed {
            // Bytes that were held back and turn out not to be the sequence are sent, except for a suffix that may
            // start the sequence again.
            while self.held > 0 && self.sequence[self.held] != *byte {
                let held = self.held;
                self.held = (0..held)
                    .rev()
                    .find(|left| self.sequence[held - left..held] == self.sequence[..*left])
                    .unwrap_or(0);
                passed.extend_from_slice(&self.sequence[..held - self.held]);
            }
            if self.sequence[self.held] != *byte {
                passed.push(*byte);
                continue;
            }
            self.held += 1;
            if self.held == self.sequence.len() {
                self.held = 0;
                return (passed, true);
            }
        }
        (passed, false)
    }
}

fn parse_key(name: &str) -> Option<u8> {
    let single = |text: &str| match text.as_bytes() {
        [byte @ 0x21..=0x7e] => Some(*byte),
        _ => None,
    };
    match name.strip_prefix("ctrl-") {
        Some(with) => single(with)
            .map(|byte| byte.to_ascii_uppercase())
            .filter(|byte| (b'@'..=b'_').contains(byte))
            .map(|byte| byte & 0x1f),
        None => single(name),
    }
}

#[cfg(test)]
mod tests {
    use super::DetachKeys;

    fn keys(text: &str) -> DetachKeys {
        DetachKeys::parse(text).unwrap()
    }

    #[test]
    fn key_names_follow_docker() {
        assert_eq!(keys("ctrl-p,ctrl-q").sequence, [0x10, 0x11]);
        assert_eq!(keys("ctrl-],ctrl-]").sequence, [0x1d, 0x1d]);
        assert_eq!(keys("a,ctrl-@").sequence, [b'a', 0]);
        for text in ["", "ctrl-", "ctrl-1", "ctrl-a,", "ab", "ctrl-ä"] {
            assert!(DetachKeys::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_the_whole_key_sequence_detaches() {
        let mut keys = keys("ctrl-p,ctrl-q");
        assert_eq!(keys.filter_typed(b"ls\r"), (b"ls\r".to_vec(), false));
        assert_eq!(keys.filter_typed(b"a\x10"), (b"a".to_vec(), false));
        assert_eq!(keys.filter_typed(b"b"), (b"\x10b".to_vec(), false));
        assert_eq!(keys.filter_typed(b"\x10\x10"), (b"\x10".to_vec(), false));
        assert_eq!(keys.filter_typed(b"\x11rest"), (Vec::new(), true));
    }

    #[test]
    fn a_repetitive_key_sequence_is_found_at_any_start() {
        let mut keys = keys("a,a,b");
        assert_eq!(keys.filter_typed(b"aaaab"), (b"aa".to_vec(), true));
        assert_eq!(keys.filter_typed(b"aac"), (b"aac".to_vec(), false));
    }
}
