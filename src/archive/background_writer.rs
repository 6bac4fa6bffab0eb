//! Writing behind: what was written goes to the disk while more of it comes, so that the sync in the
//! end has little left to wait for.

use std::fs::File;

/// Bytes between two hints.
#[cfg(target_os = "linux")]
const WRITEBACK_STEP_BYTES: u64 = 8 << 20;

/// How far a file that is written from its begin to its end has been handed to the disk.
#[derive(Debug, Default)]
pub(crate) struct BackgroundWriter {
    #[cfg(target_os = "linux")]
    done: u64,
}

impl BackgroundWriter {
    /// The file ends at `end` now.
    #[cfg(target_os = "linux")]
    pub(crate) fn hint_writeback(&mut self, file: &File, end: u64) {
        use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
        if end < self.done + WRITEBACK_STEP_BYTES {
            return;
        }
        let range = [self.done, end - self.done].map(i64::try_from);
        if let [Ok(offset), Ok(length)] = range {
            // It begins to write dirty pages, and forgets none of them, because they are not clean
            // yet. Overlay file systems pass it on, which they do not do with `sync_file_range`. It
            // is a hint: a file system that does not take it is only slower.
            let _ = posix_fadvise(
                file,
                offset,
                length,
                PosixFadviseAdvice::POSIX_FADV_DONTNEED,
            );
        }
        self.done = end;
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn hint_writeback(&mut self, _: &File, _: u64) {}
}
