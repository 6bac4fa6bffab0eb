//! Frames of the journal: a length, a checksum and the content.
//!
//! ```text
//! length u32 │ CRC-32 u32 │ run u64 │ index u32 │ kind u8 │ content
//!              of ────────▶└──────────────── length ───────────────┘
//! ```
//!
//! Numbers are little-endian. A frame that a crash has cut is invalid, and so are the zeros of reserved space. The
//! frames of a segment end at the first invalid frame.

/// Bytes of length and checksum.
const FRAME_PREFIX_BYTES: usize = 8;
/// Bytes of a frame's own fields.
const FRAME_FIELDS_BYTES: usize = 13;

/// A record of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunStoreFrame<'a> {
    /// The run's number in this journal.
    pub(super) run: u64,
    /// Position of the frame among the frames of its run, in any segment.
    pub(super) index: u32,
    pub(super) kind: u8,
    pub(super) content: &'a [u8],
}

impl RunStoreFrame<'_> {
    /// Bytes of the encoded frame.
    pub(super) fn length(&self) -> u64 {
        (FRAME_PREFIX_BYTES + FRAME_FIELDS_BYTES + self.content.len()) as u64
    }

    /// Appends the frame to `to`.
    pub(super) fn write_to(&self, to: &mut Vec<u8>) {
        let begin = to.len();
        to.extend([0; FRAME_PREFIX_BYTES]);
        to.extend(self.run.to_le_bytes());
        to.extend(self.index.to_le_bytes());
        to.push(self.kind);
        to.extend_from_slice(self.content);
        let body = begin + FRAME_PREFIX_BYTES;
        let length = (to.len() - body) as u32;
        let checksum = crc32fast::hash(&to[body..]);
        to[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
        to[begin + 4..body].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Parses the valid frames at the start of `bytes`.
pub(super) fn parse_frames(mut bytes: &[u8]) -> impl Iterator<Item = RunStoreFrame<'_>> {
    std::iter::from_fn(move || {
        let (frame, rest) = parse_first(bytes)?;
        bytes = rest;
        Some(frame)
    })
}

fn parse_first(bytes: &[u8]) -> Option<(RunStoreFrame<'_>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (checksum, rest) = rest.split_first_chunk()?;
    let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let (run, body) = body.split_first_chunk()?;
    let (index, body) = body.split_first_chunk()?;
    let (kind, content) = body.split_first()?;
    let frame = RunStoreFrame {
        run: u64::from_le_bytes(*run),
        index: u32::from_le_bytes(*index),
        kind: *kind,
        content,
    };
    Some((frame, rest))
}

#[cfg(test)]
mod tests {
    use super::{RunStoreFrame, parse_frames};
    use proptest::prelude::*;

    fn written(contents: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (index, content) in (0..).zip(contents) {
            let frame = RunStoreFrame {
                run: 7,
                index,
                kind: 3,
                content,
            };
            frame.write_to(&mut bytes);
        }
        bytes
    }

    #[test]
    fn a_tail_that_is_cut_at_any_byte_leaves_the_frames_before_it() {
        let contents: [&[u8]; 4] = [b"one", b"", b"three", &[7; 40]];
        let bytes = written(&contents);
        let lengths = contents.map(|content| 21 + content.len());
        for cut in 0..=bytes.len() {
            let whole = (1..=4).filter(|n| lengths[..*n].iter().sum::<usize>() <= cut);
            let expected = whole.count();
            assert_eq!(parse_frames(&bytes[..cut]).count(), expected, "{cut}");
            // Reserved space, and the remains of an earlier file.
            for filler in [0, 0xff] {
                let mut padded = bytes[..cut].to_vec();
                padded.resize(bytes.len() + 64, filler);
                let found: Vec<_> = parse_frames(&padded).map(|f| f.content.to_vec()).collect();
                assert_eq!(found.len(), expected, "{cut} {filler}");
                assert!(found.iter().zip(contents).all(|(a, b)| a == b));
            }
        }
    }

    proptest! {
        #[test]
        fn a_byte_that_has_changed_ends_the_frames(
            contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..6),
            at in any::<prop::sample::Index>(),
            flip in 1_u8..,
        ) {
            let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
            let bytes = written(&contents);
            let found: Vec<_> = parse_frames(&bytes).map(|frame| frame.content).collect();
            prop_assert_eq!(&found, &contents);
            let mut damaged = bytes.clone();
            let at = at.index(bytes.len());
            damaged[at] ^= flip;
            let mut end = 0;
            let before = contents.iter().take_while(|content| {
                end += 21 + content.len();
                end <= at
            });
            let found: Vec<_> = parse_frames(&damaged).map(|frame| frame.content).collect();
            prop_assert_eq!(found, before.copied().collect::<Vec<_>>());
        }
    }
}
