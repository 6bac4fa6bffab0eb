//! What code wrote: head and tail are kept, so that a flood neither grows memory nor hides its end.

use crate::protocol::kernel::Truncated;
use std::collections::VecDeque;

/// Bytes kept of one stream: the first half and the last half.
pub(super) const KEPT: usize = 1 << 20;
const HALF: usize = KEPT / 2;

#[derive(Debug, Default)]
pub(super) struct Output {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Output {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(HALF - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(HALF)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(HALF);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    pub(super) fn kept(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// As text; bytes that are not UTF-8 become U+FFFD, a cut is marked where it is.
    pub(super) fn text(&self) -> String {
        let left_out = self.total - self.kept() as u64;
        if left_out == 0 {
            let mut all = self.head.clone();
            all.extend(&self.tail);
            return String::from_utf8(all)
                .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        }
        let head = String::from_utf8_lossy(&self.head);
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        format!(
            "{head}\n… {left_out} bytes left out …\n{}",
            String::from_utf8_lossy(&tail)
        )
    }

    pub(super) fn truncated(&self) -> Option<Truncated> {
        let kept = self.kept() as u64;
        (kept < self.total).then_some(Truncated {
            total: self.total,
            kept,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, Output};
    use proptest::prelude::*;

    #[test]
    fn a_flood_keeps_its_beginning_and_its_end() {
        let mut output = Output::default();
        for number in 0..1_000_000 {
            output.push(format!("{number}\n").as_bytes());
        }
        let text = output.text();
        assert!(text.starts_with("0\n1\n") && text.ends_with("999998\n999999\n"));
        let cut = output.truncated().unwrap();
        assert_eq!((cut.total, cut.kept), (6_888_890, KEPT as u64));
        assert!(text.contains(&format!("… {} bytes left out …", cut.total - cut.kept)));
    }

    #[test]
    fn a_character_that_arrives_in_two_pieces_is_whole() {
        let mut output = Output::default();
        output.push(&[b'a', 0xc3]);
        output.push(&[0xa4, 0xff]);
        assert_eq!(output.text(), "aä\u{fffd}");
    }

    proptest! {
        #[test]
        fn what_fits_is_kept_as_it_is(pieces in prop::collection::vec(".{0,40}", 0..40)) {
            let mut output = Output::default();
            for piece in &pieces {
                output.push(piece.as_bytes());
            }
            prop_assert_eq!(output.text(), pieces.concat());
            prop_assert_eq!(output.truncated(), None);
        }
    }
}
