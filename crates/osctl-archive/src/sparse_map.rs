//! Sparse maps as archives store them.

use super::error::ArchiveError;
use super::member::{DataSegment, MAX_SPARSE_SEGMENTS};
use tar::GnuSparseHeader;

const MAP_BLOCK_BYTES: usize = 512;

/// Encodes the map that precedes the data: decimal lines, padded to a block.
pub(super) fn encode_sparse_map(segments: &[DataSegment], size: u64) -> Vec<u8> {
    let end = segments.last().map_or(0, |last| last.offset + last.length);
    // GNU tar ends a file after its last segment, so a hole at the end needs an empty segment.
    let hole = (end < size).then_some(DataSegment {
        offset: size,
        length: 0,
    });
    let count = segments.len() + usize::from(hole.is_some());
    let mut map = format!("{count}\n").into_bytes();
    for DataSegment { offset, length } in segments.iter().chain(&hole) {
        map.extend(format!("{offset}\n{length}\n").as_bytes());
    }
    map.resize(map.len().next_multiple_of(MAP_BLOCK_BYTES), 0);
    map
}

/// Reads the segments in a header of GNU's old sparse format.
pub(super) fn read_gnu_segments(
    headers: &[GnuSparseHeader],
    segments: &mut Vec<DataSegment>,
) -> Result<(), ArchiveError> {
    for header in headers.iter().filter(|header| !header.is_empty()) {
        if segments.len() == MAX_SPARSE_SEGMENTS {
            return Err(ArchiveError::Damaged(
                "the map of a sparse file is too long",
            ));
        }
        segments.push(DataSegment {
            offset: header
                .offset()
                .map_err(|_| ArchiveError::Damaged("a map"))?,
            length: header
                .length()
                .map_err(|_| ArchiveError::Damaged("a map"))?,
        });
    }
    Ok(())
}

/// Checks that the segments are in order, lie within the file, and add up to the stored data.
pub(super) fn check_segments(
    segments: &[DataSegment],
    size: u64,
    data: u64,
) -> Result<(), ArchiveError> {
    let mut end = 0;
    let mut sum = 0;
    for segment in segments {
        let next = segment.offset.checked_add(segment.length);
        if segment.offset < end || next.is_none_or(|next| next > size) {
            return Err(ArchiveError::Damaged(
                "the map of a sparse file does not match the file",
            ));
        }
        end = next.unwrap_or_default();
        sum += segment.length;
    }
    match sum == data {
        true => Ok(()),
        false => Err(ArchiveError::Damaged(
            "the map of a sparse file does not match the file",
        )),
    }
}
