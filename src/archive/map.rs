//! Maps of files that have holes, as archives carry them.

use super::entry::{SEGMENTS, Segment};
use super::fault::Fault;
use tar::GnuSparseHeader;

const BLOCK: usize = 512;

/// A map of data as it stands before them: numbers in lines, to the end of a block.
pub(super) fn written(segments: &[Segment], size: u64) -> Vec<u8> {
    let end = segments.last().map_or(0, |last| last.offset + last.length);
    // GNU's tar ends a file with its last stretch, so a hole there needs an empty one behind it.
    let hole = (end < size).then_some(Segment {
        offset: size,
        length: 0,
    });
    let count = segments.len() + usize::from(hole.is_some());
    let mut map = format!("{count}\n").into_bytes();
    for Segment { offset, length } in segments.iter().chain(&hole) {
        map.extend(format!("{offset}\n{length}\n").as_bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

/// What a header of GNU's older form tells.
pub(super) fn gather(
    headers: &[GnuSparseHeader],
    segments: &mut Vec<Segment>,
) -> Result<(), Fault> {
    for header in headers.iter().filter(|header| !header.is_empty()) {
        if segments.len() == SEGMENTS {
            return Err(Fault::Damaged("the map of a file is too long"));
        }
        segments.push(Segment {
            offset: header.offset().map_err(|_| Fault::Damaged("a map"))?,
            length: header.length().map_err(|_| Fault::Damaged("a map"))?,
        });
    }
    Ok(())
}

/// Whether the segments follow each other, lie within the file, and are all that there is of it.
pub(super) fn fits(segments: &[Segment], size: u64, data: u64) -> Result<(), Fault> {
    let mut end = 0;
    let mut sum = 0;
    for segment in segments {
        let next = segment.offset.checked_add(segment.length);
        if segment.offset < end || next.is_none_or(|next| next > size) {
            return Err(Fault::Damaged("the map of a file does not fit"));
        }
        end = next.unwrap_or_default();
        sum += segment.length;
    }
    match sum == data {
        true => Ok(()),
        false => Err(Fault::Damaged("the map of a file does not fit")),
    }
}
