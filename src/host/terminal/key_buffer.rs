//! Typed bytes that the terminal has not acknowledged: after a lost connection, exactly these are sent again.

use crate::protocol::pty::MAX_TYPE_AHEAD_BYTES;
use bytes::{Buf, Bytes, BytesMut};

/// Limit of waiting bytes; at the limit, input is not read.
const MAX_KEY_BUFFER_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct KeyBuffer {
    /// Offset of the first byte kept; all earlier bytes have arrived.
    start_offset: u64,
    /// Offset after the last byte sent.
    sent_offset: u64,
    bytes: BytesMut,
}

impl KeyBuffer {
    pub(super) fn push(&mut self, keys: &[u8]) {
        self.bytes.extend_from_slice(keys);
    }

    pub(super) fn has_capacity(&self) -> bool {
        self.bytes.len() < MAX_KEY_BUFFER_BYTES
    }

    /// The bytes that may be sent now.
    pub(super) fn take_sendable(&mut self) -> Option<Bytes> {
        let until = (self.start_offset + self.bytes.len() as u64)
            .min(self.start_offset + MAX_TYPE_AHEAD_BYTES);
        let from = self.index(self.sent_offset);
        let due = self.bytes.get(from..self.index(until))?;
        if due.is_empty() {
            return None;
        }
        self.sent_offset = until;
        Some(Bytes::copy_from_slice(due))
    }

    /// Records that the terminal has received all bytes before `offset`.
    pub(super) fn acknowledge(&mut self, offset: u64) {
        // Bytes that were not sent cannot have arrived, and the acknowledged offset never decreases.
        let offset = offset.min(self.sent_offset);
        let fresh = self.index(offset);
        self.bytes.advance(fresh);
        self.start_offset += fresh as u64;
    }

    /// Prepares for a new connection. `arrived` is the number of bytes that the terminal has received, or `None` if the
    /// terminal does not know this client: then the number is unknown, and sent bytes are dropped, because typing text
    /// twice is worse than losing it. Returns the number of dropped bytes.
    pub(super) fn rewind(&mut self, arrived: Option<u64>) -> u64 {
        match arrived {
            Some(offset) => {
                self.acknowledge(offset);
                self.sent_offset = self.start_offset;
                0
            }
            None => {
                let lost = self.sent_offset - self.start_offset;
                let rest = self.bytes.split_off(self.index(self.sent_offset));
                *self = Self {
                    bytes: rest,
                    ..Self::default()
                };
                lost
            }
        }
    }

    fn index(&self, offset: u64) -> usize {
        // The offset is within the kept bytes, whose length is a `usize`.
        offset.saturating_sub(self.start_offset) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::KeyBuffer;
    use crate::protocol::pty::MAX_TYPE_AHEAD_BYTES;
    use proptest::prelude::*;

    #[test]
    fn keys_that_did_not_arrive_are_sent_again_once() {
        let mut typed = KeyBuffer::default();
        typed.push(b"hello");
        assert_eq!(typed.take_sendable().unwrap(), "hello");
        typed.push(b" world");
        assert_eq!(typed.take_sendable().unwrap(), " world");
        assert_eq!(typed.take_sendable(), None);
        typed.acknowledge(3);
        assert_eq!(typed.rewind(Some(7)), 0);
        assert_eq!(typed.take_sendable().unwrap(), "orld");
        typed.acknowledge(5);
        assert_eq!(typed.take_sendable(), None);
    }

    #[test]
    fn unacknowledged_keys_stay_within_the_limit() {
        let mut typed = KeyBuffer::default();
        typed.push(&vec![b'x'; MAX_TYPE_AHEAD_BYTES as usize + 7]);
        assert_eq!(
            typed.take_sendable().unwrap().len() as u64,
            MAX_TYPE_AHEAD_BYTES
        );
        assert_eq!(typed.take_sendable(), None);
        typed.acknowledge(MAX_TYPE_AHEAD_BYTES);
        assert_eq!(typed.take_sendable().unwrap().len(), 7);
    }

    #[test]
    fn an_unknown_client_sends_only_unsent_keys() {
        let mut typed = KeyBuffer::default();
        typed.push(b"gone");
        typed.take_sendable();
        typed.push(b"rest");
        assert_eq!(typed.rewind(None), 4);
        assert_eq!(typed.take_sendable().unwrap(), "rest");
        typed.acknowledge(4);
        assert_eq!(typed.rewind(Some(4)), 0);
        assert_eq!(typed.take_sendable(), None);
    }

    proptest! {
        /// Whenever connections break, the other side receives every byte once and in order.
        #[test]
        fn keys_arrive_once_and_in_order_when_connections_break(
            pieces in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 1..9), any::<u8>()), 1..40),
        ) {
            let (mut typed, mut all, mut got) = (KeyBuffer::default(), Vec::new(), Vec::new());
            for (piece, fate) in &pieces {
                typed.push(piece);
                all.extend_from_slice(piece);
                if let Some(due) = typed.take_sendable() {
                    // All bytes arrive before the connection breaks, or only a part.
                    let arrives = match fate % 3 { 0 => due.len(), _ => usize::from(*fate) % (due.len() + 1) };
                    got.extend_from_slice(&due[..arrives]);
                    if arrives == due.len() && fate % 2 == 0 {
                        typed.acknowledge(got.len() as u64);
                    } else {
                        typed.rewind(Some(got.len() as u64));
                    }
                }
            }
            typed.rewind(Some(got.len() as u64));
            if let Some(due) = typed.take_sendable() {
                got.extend_from_slice(&due);
            }
            prop_assert_eq!(got, all);
        }
    }
}
