//! The bytes that a server has written and that are not a complete line yet.

use bytes::{Buf, Bytes, BytesMut};
use std::io;
use tokio::net::unix::pipe::Receiver;

/// Bytes of one read.
const STDIO_READ_BYTES: usize = 64 << 10;

/// The allocation of a longer line is not used again, so that its memory is free with the line.
const MAX_REUSED_LINE_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct StdioLineBuffer {
    unread: BytesMut,
    /// The number of bytes at the start of `unread` that contain no line break.
    scanned_bytes: usize,
}

impl StdioLineBuffer {
    pub(super) fn len(&self) -> usize {
        self.unread.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Reads once, without waiting.
    ///
    /// # Errors
    /// As `read`; also when there is nothing to read now.
    pub(super) fn read_from(&mut self, pipe: &Receiver) -> io::Result<usize> {
        self.unread.reserve(STDIO_READ_BYTES);
        pipe.try_read_buf(&mut self.unread)
    }

    /// Removes the next line that is not blank.
    pub(super) fn next_line(&mut self) -> Option<Bytes> {
        loop {
            let fresh = &self.unread[self.scanned_bytes..];
            // `contains` searches bytes faster than `position`.
            if !fresh.contains(&b'\n') {
                self.scanned_bytes = self.unread.len();
                return None;
            }
            let end = self.scanned_bytes + fresh.iter().position(|byte| *byte == b'\n')?;
            let line = self.unread.split_to(end).freeze();
            self.unread.advance(1);
            self.scanned_bytes = 0;
            if line.len() > MAX_REUSED_LINE_BYTES {
                self.unread = BytesMut::from(&self.unread[..]);
            }
            if !line.trim_ascii().is_empty() {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_REUSED_LINE_BYTES, STDIO_READ_BYTES, StdioLineBuffer};

    #[test]
    fn lines_are_split_and_blank_lines_are_skipped() {
        let mut buffer = StdioLineBuffer::default();
        buffer.unread.extend_from_slice(b"a\n \r\nb\nc");
        assert_eq!(buffer.next_line().unwrap(), "a");
        assert_eq!(buffer.next_line().unwrap(), "b");
        assert_eq!(buffer.next_line(), None);
        buffer.unread.extend_from_slice(b"d\n");
        assert_eq!(buffer.next_line().unwrap(), "cd");
    }

    #[test]
    fn the_memory_of_a_large_line_is_not_kept() {
        let mut buffer = StdioLineBuffer::default();
        let large = vec![b'x'; 8 * MAX_REUSED_LINE_BYTES];
        buffer.unread.extend_from_slice(&large);
        assert_eq!(buffer.next_line(), None);
        buffer.unread.extend_from_slice(b"\nsmall\n");
        let line = buffer.next_line().unwrap();
        assert_eq!(line.len(), large.len());
        // The only owner of the allocation is the line.
        assert!(line.is_unique());
        drop(line);
        buffer.unread.reserve(STDIO_READ_BYTES);
        assert!(buffer.unread.capacity() < MAX_REUSED_LINE_BYTES);
        assert_eq!(buffer.next_line().unwrap(), "small");
    }
}
