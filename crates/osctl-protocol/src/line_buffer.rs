//! Splits bytes that arrive in chunks into lines. The caller limits the length of a line.

use bytes::BytesMut;
use std::io::BufRead;

/// The allocation of a longer line is not used again, so that its memory is free with the line.
const MAX_REUSED_LINE_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub struct LineBuffer {
    unread: BytesMut,
    /// Bytes at the start of `unread` without a line feed.
    searched_bytes: usize,
}

impl LineBuffer {
    pub fn push(&mut self, chunk: &[u8]) {
        self.unread.extend_from_slice(chunk);
    }

    /// The buffer, for a caller that reads into it: append only.
    pub fn read_target(&mut self) -> &mut BytesMut {
        &mut self.unread
    }

    /// The next complete line, without its line feed.
    pub fn next_line(&mut self) -> Option<BytesMut> {
        let Some(length) = line_length(&self.unread[self.searched_bytes..]) else {
            self.searched_bytes = self.unread.len();
            return None;
        };
        let mut line = self.unread.split_to(self.searched_bytes + length);
        self.searched_bytes = 0;
        if line.len() > MAX_REUSED_LINE_BYTES {
            self.unread = BytesMut::from(&self.unread[..]);
        }
        line.truncate(line.len() - 1);
        Some(line)
    }

    /// How many bytes were not taken yet; after the last complete line, the length of the unfinished one.
    pub fn unread_bytes(&self) -> usize {
        self.unread.len()
    }

    /// Takes all bytes that were not taken yet.
    pub fn take_unread(&mut self) -> BytesMut {
        self.searched_bytes = 0;
        self.unread.split()
    }
}

/// The length of the first line including its line feed, if the line is complete.
fn line_length(mut bytes: &[u8]) -> Option<usize> {
    let all = bytes;
    // `skip_until` scans many bytes per step, and lines can be long.
    let length = bytes.skip_until(b'\n').ok()?;
    all[..length].ends_with(b"\n").then_some(length)
}

#[cfg(test)]
mod tests {
    use super::{LineBuffer, MAX_REUSED_LINE_BYTES, line_length};
    use proptest::prelude::{any, prop};

    #[test]
    fn only_a_line_with_its_line_feed_has_a_length() {
        assert_eq!(line_length(b"{}\n{"), Some(3));
        assert_eq!(line_length(b"\n"), Some(1));
        assert_eq!(line_length(b"{}"), None);
        assert_eq!(line_length(b""), None);
    }

    #[test]
    fn the_memory_of_a_large_line_is_not_kept() {
        let mut lines = LineBuffer::default();
        let large = vec![b'x'; 8 * MAX_REUSED_LINE_BYTES];
        lines.push(&large);
        assert!(lines.next_line().is_none());
        lines.push(b"\nsmall\n");
        let line = lines.next_line().unwrap().freeze();
        assert_eq!(line.len(), large.len());
        // The only owner of the allocation is the line.
        assert!(line.is_unique());
        lines.read_target().reserve(1);
        assert!(lines.read_target().capacity() < MAX_REUSED_LINE_BYTES);
        assert_eq!(lines.next_line().unwrap(), &b"small"[..]);
    }

    proptest::proptest! {
        #[test]
        fn lines_are_those_that_were_sent(
            sent in prop::collection::vec(prop::sample::select(b"a\xff\r\n".to_vec()), 0..200),
            size in 1..20_usize,
            drops_unfinished in any::<bool>(),
        ) {
            let mut lines = LineBuffer::default();
            let mut found = Vec::new();
            for chunk in sent.chunks(size) {
                lines.push(chunk);
                while let Some(line) = lines.next_line() {
                    found.extend_from_slice(&line);
                    found.push(b'\n');
                }
                if drops_unfinished {
                    let length = lines.unread_bytes();
                    let unfinished = lines.take_unread();
                    assert_eq!(unfinished.len(), length);
                    found.extend_from_slice(&unfinished);
                }
            }
            found.extend_from_slice(&lines.take_unread());
            assert_eq!(found, sent);
        }
    }
}
