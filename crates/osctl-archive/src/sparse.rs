//! The data segments and holes of a file.

use super::member::{DataSegment, MAX_SPARSE_SEGMENTS};
use std::fs::File;

/// The data segments of a file; `None` when it has no holes, the file system does not report them, or a map would have
/// too many segments.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub fn data_segments(file: &File, size: u64, allocated: u64) -> Option<Vec<DataSegment>> {
    use nix::errno::Errno;
    use nix::unistd::{Whence, lseek};
    if allocated >= size {
        return None;
    }
    let mut found = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match lseek(file, at.try_into().ok()?, Whence::SeekData) {
            Ok(data) => u64::try_from(data).ok()?,
            // The rest of the file is a hole.
            Err(Errno::ENXIO) => break,
            Err(_) => return None,
        };
        if data >= size {
            break;
        }
        let hole = lseek(file, data.try_into().ok()?, Whence::SeekHole).ok()?;
        let end = u64::try_from(hole).ok()?.min(size);
        if end <= data || found.len() == MAX_SPARSE_SEGMENTS {
            return None;
        }
        found.push(DataSegment {
            offset: data,
            length: end - data,
        });
        at = end;
    }
    let is_whole = matches!(found[..], [DataSegment { offset: 0, length }] if length == size);
    (!is_whole).then_some(found)
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub fn data_segments(_: &File, _: u64, _: u64) -> Option<Vec<DataSegment>> {
    None
}
