//! A ring buffer of the newest bytes of a stream, addressed by their offset in the stream.

use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct ByteRing {
    bytes: VecDeque<u8>,
    capacity: usize,
    /// Offset after the newest byte.
    end: u64,
}

impl ByteRing {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            capacity,
            end: 0,
        }
    }

    pub(super) fn push(&mut self, fresh: &[u8]) {
        self.end += fresh.len() as u64;
        let fresh = &fresh[fresh.len().saturating_sub(self.capacity)..];
        let over = (self.bytes.len() + fresh.len()).saturating_sub(self.capacity);
        self.bytes.drain(..over);
        self.bytes.extend(fresh);
    }

    /// Offset of the oldest retained byte.
    pub(super) fn start_offset(&self) -> u64 {
        self.end - self.bytes.len() as u64
    }

    pub(super) fn end_offset(&self) -> u64 {
        self.end
    }

    /// Up to `most` bytes from `offset` on, which must be retained or the end.
    pub(super) fn read(&self, offset: u64, most: usize) -> Vec<u8> {
        let from = self.index(offset);
        let to = self.bytes.len().min(from + most);
        let (front, back) = self.bytes.as_slices();
        let mut read = Vec::with_capacity(to - from);
        read.extend_from_slice(&front[from.min(front.len())..to.min(front.len())]);
        read.extend_from_slice(
            &back[from.saturating_sub(front.len())..to.saturating_sub(front.len())],
        );
        read
    }

    fn index(&self, offset: u64) -> usize {
        let index = offset.clamp(self.start_offset(), self.end) - self.start_offset();
        // No larger than the capacity, which is a `usize`.
        index as usize
    }
}

#[cfg(test)]
mod tests {
    use super::ByteRing;
    use proptest::prelude::*;

    #[test]
    fn the_oldest_bytes_are_dropped_first_and_offsets_stay() {
        let mut ring = ByteRing::new(8);
        ring.push(b"abc");
        assert_eq!((ring.start_offset(), ring.end_offset()), (0, 3));
        assert_eq!(ring.read(1, 9), b"bc");
        ring.push(b"defghij");
        assert_eq!((ring.start_offset(), ring.end_offset()), (2, 10));
        assert_eq!(ring.read(2, 4), b"cdef");
        assert_eq!(ring.read(10, 4), b"");
        ring.push(&[b'x'; 20]);
        assert_eq!((ring.start_offset(), ring.end_offset()), (22, 30));
    }

    proptest! {
        #[test]
        fn the_ring_holds_the_end_of_the_stream(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20),
            from in 0u64..400,
        ) {
            let mut ring = ByteRing::new(64);
            let mut all = Vec::new();
            for piece in &pieces {
                ring.push(piece);
                all.extend_from_slice(piece);
            }
            let retained = all.len().min(64);
            prop_assert_eq!(ring.start_offset() as usize, all.len() - retained);
            let from = from.clamp(ring.start_offset(), ring.end_offset());
            prop_assert_eq!(ring.read(from, 1000), &all[from as usize..]);
        }
    }
}
