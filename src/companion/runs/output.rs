//! Output of one stream: head and tail in memory, the middle in a file, so that a flood neither grows memory nor hides
//! the end.
//!
//! ```text
//! 0          HALF                    HALF + spilled        total - tail    total
//! ├── head ───┤├──────── file ────────┤├──── gone ─────────┤├─── tail ───┤
//! ```
//!
//! File and tail overlap while the file has room.

use super::growing_file::GrowingFile;
use crate::protocol::kernel::TruncatedOutput;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of one stream in memory: the first half and the last half.
pub(super) const MAX_OUTPUT_MEMORY_BYTES: usize = 1 << 20;
pub(super) const OUTPUT_HALF_BYTES: usize = MAX_OUTPUT_MEMORY_BYTES / 2;

#[derive(Debug, Default)]
pub(super) struct StreamOutput {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total_bytes: u64,
    file: Option<Arc<GrowingFile>>,
    /// Bytes in the file or on their way to it.
    spilled_bytes: u64,
}

/// A part of the output, by location.
#[derive(Debug)]
pub(super) enum OutputPiece {
    Memory(Vec<u8>),
    File {
        file: Arc<GrowingFile>,
        offset: u64,
        length: u64,
    },
    /// This number of bytes is not kept.
    Dropped(u64),
}

impl OutputPiece {
    /// Number of bytes of the part.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File { length, .. } | Self::Dropped(length) => *length,
        }
    }
}

impl StreamOutput {
    /// Adds output. Returns the number of bytes at its end that the head does not hold and that must be spilled to the
    /// file.
    pub(super) fn push(&mut self, bytes: &[u8]) -> usize {
        self.total_bytes += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(OUTPUT_HALF_BYTES - self.head.len()));
        self.head.extend_from_slice(head);
        let last = &rest[rest.len().saturating_sub(OUTPUT_HALF_BYTES)..];
        let excess = (self.tail.len() + last.len()).saturating_sub(OUTPUT_HALF_BYTES);
        self.tail.drain(..excess);
        self.tail.extend(last);
        rest.len()
    }

    /// Counts bytes that are on their way to the file.
    pub(super) fn record_spill(&mut self, file: &Arc<GrowingFile>, bytes: u64) {
        self.file.get_or_insert_with(|| Arc::clone(file));
        self.spilled_bytes += bytes;
    }

    /// Counts text that exists only in the file of an earlier companion.
    pub(super) fn skip_bytes(&mut self, bytes: u64) {
        self.total_bytes += bytes;
    }

    /// Restores the output of an earlier companion after the head: the file, the tail, and the total number of bytes.
    ///
    /// # Errors
    /// When the file can't be read.
    pub(super) fn restore_recovered(
        &mut self,
        file: Option<GrowingFile>,
        tail: Option<Vec<u8>>,
        total: u64,
    ) -> io::Result<()> {
        self.total_bytes = total;
        let mut last = tail.unwrap_or_default();
        let Some(file) = file else {
            self.tail = last.into();
            return Ok(());
        };
        let length = file.reachable_bytes(u64::MAX);
        if OUTPUT_HALF_BYTES as u64 + length == total {
            let count = length.min(OUTPUT_HALF_BYTES as u64);
            last.clear();
            file.read_at(length - count, count, &mut last)?;
        }
        self.tail = last.into();
        (self.file, self.spilled_bytes) = (Some(Arc::new(file)), length);
        Ok(())
    }

    /// The tail, if the file does not contain it.
    pub(super) fn tail_not_in_file(&self) -> Option<Vec<u8>> {
        let is_reached = self.head.len() as u64 + self.disk_bytes() >= self.total_bytes;
        (!is_reached).then(|| self.tail.iter().copied().collect())
    }

    /// Leaves the file to the next companion.
    pub(super) fn retain_file(&self) {
        self.file.iter().for_each(|file| file.retain_on_drop());
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Bytes on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        let file = self.file.as_ref();
        file.map_or(0, |file| file.reachable_bytes(self.spilled_bytes))
    }

    /// Number of bytes up to the last complete character.
    pub(super) fn complete_character_bytes(&self) -> u64 {
        // A character may begin in the head and end in the tail.
        let last = |back: usize| {
            self.tail
                .iter()
                .rev()
                .chain(self.head.iter().rev())
                .nth(back)
        };
        for back in 0..4 {
            match last(back) {
                // The first byte of a character of `width` bytes.
                Some(byte) if *byte >= 0xc0 => {
                    let width = byte.leading_ones() as usize;
                    let is_cut = width <= 4 && back + 1 < width;
                    return self.total_bytes - if is_cut { back as u64 + 1 } else { 0 };
                }
                Some(byte) if *byte >= 0x80 => {}
                _ => break,
            }
        }
        self.total_bytes
    }

    /// Position of the first kept byte from `offset` on.
    pub(super) fn first_retained_from(&self, offset: u64) -> u64 {
        let tail = self.total_bytes - self.tail.len() as u64;
        let is_kept = offset < self.head.len() as u64
            || (self.file.is_some() && offset < OUTPUT_HALF_BYTES as u64 + self.disk_bytes());
        if is_kept {
            offset
        } else {
            offset.max(tail).min(self.total_bytes)
        }
    }

    /// Locations of the bytes from `from` to `to`.
    pub(super) fn pieces_between(&self, from: u64, to: u64) -> Vec<OutputPiece> {
        let mut pieces = Vec::new();
        let (mut at, to) = (from, to.min(self.total_bytes));
        let (head, tail) = (
            self.head.len() as u64,
            self.total_bytes - self.tail.len() as u64,
        );
        if at < to.min(head) {
            let end = to.min(head);
            pieces.push(OutputPiece::Memory(
                self.head[at as usize..end as usize].to_vec(),
            ));
            at = end;
        }
        if at < to.min(tail) {
            let end = to.min(tail);
            let on_disk = (OUTPUT_HALF_BYTES as u64 + self.disk_bytes()).clamp(at, end);
            if let Some(file) = self.file.as_ref().filter(|_| at < on_disk) {
                pieces.push(OutputPiece::File {
                    file: Arc::clone(file),
                    offset: at - OUTPUT_HALF_BYTES as u64,
                    length: on_disk - at,
                });
                at = on_disk;
            }
            if at < end {
                pieces.push(OutputPiece::Dropped(end - at));
                at = end;
            }
        }
        if at < to {
            let range = (at - tail) as usize..(to - tail) as usize;
            let mut bytes = Vec::with_capacity(range.len());
            self.copy_tail(range, &mut bytes);
            pieces.push(OutputPiece::Memory(bytes));
        }
        pieces
    }

    /// Appends a part of the tail to `to`, in at most two copies.
    fn copy_tail(&self, range: Range<usize>, to: &mut Vec<u8>) {
        let (first, second) = self.tail.as_slices();
        let split = first.len();
        to.extend_from_slice(&first[range.start.min(split)..range.end.min(split)]);
        let after_split = |at: usize| at.saturating_sub(split);
        to.extend_from_slice(&second[after_split(range.start)..after_split(range.end)]);
    }

    /// The output as text. Bytes that are not UTF-8 become U+FFFD; a cut is marked at its place.
    pub(super) fn to_text(&self) -> String {
        let left_out = self.total_bytes - self.memory_bytes() as u64;
        if left_out == 0 {
            let mut all = Vec::with_capacity(self.memory_bytes());
            all.extend_from_slice(&self.head);
            self.copy_tail(0..self.tail.len(), &mut all);
            return decode_lossy(all);
        }
        let head = String::from_utf8_lossy(&self.head);
        let mut tail = Vec::with_capacity(self.tail.len());
        self.copy_tail(0..self.tail.len(), &mut tail);
        format!(
            "{head}{}{}",
            omitted_bytes_marker(left_out),
            String::from_utf8_lossy(&tail)
        )
    }

    pub(super) fn truncated(&self) -> Option<TruncatedOutput> {
        let kept = self.memory_bytes() as u64;
        (kept < self.total_bytes).then(|| TruncatedOutput {
            total: self.total_bytes,
            kept,
            file: self
                .file
                .as_ref()
                .map(|file| file.path().display().to_string()),
        })
    }
}

/// Reads parts that may be on disk. Parts that are gone are marked.
///
/// # Errors
/// When the file can't be read.
pub(super) fn read_pieces(pieces: Vec<OutputPiece>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            // Usually the only part.
            OutputPiece::Memory(only) if bytes.is_empty() => bytes = only,
            OutputPiece::Memory(mut more) => bytes.append(&mut more),
            OutputPiece::Dropped(count) => {
                bytes.extend_from_slice(omitted_bytes_marker(count).as_bytes())
            }
            OutputPiece::File {
                file,
                offset,
                length,
            } => {
                let read = file.read_at(offset, length, &mut bytes)?;
                if read < length {
                    // The disk was full before all bytes were written.
                    bytes.extend_from_slice(omitted_bytes_marker(length - read).as_bytes());
                }
            }
        }
    }
    Ok(bytes)
}

pub(super) fn decode_lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

fn omitted_bytes_marker(count: u64) -> String {
    format!("\n… {count} bytes left out …\n")
}

#[cfg(test)]
mod tests {
    use super::{
        GrowingFile, MAX_OUTPUT_MEMORY_BYTES, OUTPUT_HALF_BYTES, OutputPiece, StreamOutput,
        decode_lossy, read_pieces,
    };
    use proptest::prelude::*;
    use std::sync::Arc;

    #[test]
    fn a_flood_keeps_its_start_and_its_end() {
        let mut output = StreamOutput::default();
        for number in 0..1_000_000 {
            output.push(format!("{number}\n").as_bytes());
        }
        let text = output.to_text();
        assert!(text.starts_with("0\n1\n") && text.ends_with("999998\n999999\n"));
        let cut = output.truncated().unwrap();
        assert_eq!(
            (cut.total, cut.kept),
            (6_888_890, MAX_OUTPUT_MEMORY_BYTES as u64)
        );
        assert!(text.contains(&format!("… {} bytes left out …", cut.total - cut.kept)));
    }

    #[test]
    fn a_character_that_arrives_in_two_pieces_is_whole() {
        let mut output = StreamOutput::default();
        output.push(&[b'a', 0xc3]);
        assert_eq!(output.complete_character_bytes(), 1);
        output.push(&[0xa4, 0xff]);
        assert_eq!(
            (output.complete_character_bytes(), output.to_text()),
            (4, "aä\u{fffd}".into())
        );
        output.push("€".as_bytes());
        assert_eq!(output.complete_character_bytes(), 7);
        output.push(&"€".as_bytes()[..2]);
        assert_eq!(output.complete_character_bytes(), 7);
    }

    #[test]
    fn a_character_that_the_tail_begins_within_is_whole() {
        for within in 1..3 {
            let mut output = StreamOutput::default();
            output.push(&vec![b'a'; OUTPUT_HALF_BYTES - within]);
            // The head contains the first one or two bytes, the tail contains the others.
            output.push(&"€".as_bytes()[..2]);
            assert_eq!(
                output.complete_character_bytes(),
                (OUTPUT_HALF_BYTES - within) as u64
            );
            output.push(&"€".as_bytes()[2..]);
            assert_eq!(output.complete_character_bytes(), output.total_bytes());
        }
    }

    #[test]
    fn spilled_output_is_found_and_missing_output_is_marked() {
        let folder = tempfile::tempdir().unwrap();
        let file = Arc::new(GrowingFile::new(folder.path().join("spill")));
        let mut output = StreamOutput::default();
        let all: Vec<u8> = (0..4 * OUTPUT_HALF_BYTES)
            .map(|n| b'a' + (n % 26) as u8)
            .collect();
        let mut spilled = Vec::new();
        for chunk in all.chunks(1 << 16) {
            let rest = output.push(chunk);
            // The file ends at this size.
            if spilled.len() < OUTPUT_HALF_BYTES {
                spilled.extend_from_slice(&chunk[chunk.len() - rest..]);
                output.record_spill(&file, rest as u64);
            }
        }
        file.fill_from([spilled].into_iter()).unwrap();
        let total = output.total_bytes();
        let found = read_pieces(output.pieces_between(10, OUTPUT_HALF_BYTES as u64 + 100)).unwrap();
        assert_eq!(found, all[10..OUTPUT_HALF_BYTES + 100]);
        let last = read_pieces(output.pieces_between(total - 10, total)).unwrap();
        assert_eq!(last, all[all.len() - 10..]);
        let pieces = output.pieces_between(0, total);
        assert!(
            matches!(&pieces[..], [OutputPiece::Memory(_), OutputPiece::File { .. }, OutputPiece::Dropped(gone), OutputPiece::Memory(_)] if *gone == OUTPUT_HALF_BYTES as u64),
        );
        let (first, half) = (output.first_retained_from(10), OUTPUT_HALF_BYTES as u64);
        assert_eq!(
            (first, output.first_retained_from(half + 1)),
            (10, half + 1)
        );
        assert_eq!(output.first_retained_from(2 * half), total - half);
        let path = file.path().to_owned();
        drop((file, output, pieces));
        assert!(!path.exists());
    }

    proptest! {
        #[test]
        fn output_within_the_limit_is_unchanged(pieces in prop::collection::vec(".{0,40}", 0..40)) {
            let mut output = StreamOutput::default();
            for piece in &pieces {
                output.push(piece.as_bytes());
            }
            prop_assert_eq!(output.to_text(), pieces.concat());
            prop_assert_eq!(output.truncated(), None);
        }

        #[test]
        fn a_cut_between_whole_characters_changes_nothing(all in ".{0,40}", at in 0usize..80) {
            let bytes = all.as_bytes();
            let (first, second) = bytes.split_at(at.min(bytes.len()));
            let mut output = StreamOutput::default();
            output.push(first);
            let cut = output.complete_character_bytes();
            output.push(second);
            let part = |from, to| decode_lossy(read_pieces(output.pieces_between(from, to)).unwrap());
            prop_assert_eq!(part(0, cut) + &part(cut, output.total_bytes()), all);
        }
    }
}
