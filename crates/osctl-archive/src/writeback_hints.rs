//! Writeback hints for a file that is written sequentially.
//!
//! The kernel starts to write pages to the disk while more data arrive, so the final sync has little left to wait for.

use std::fs::File;

/// Bytes between two hints.
#[cfg(target_os = "linux")]
const WRITEBACK_STEP_BYTES: u64 = 8 << 20;

/// How much of a sequentially written file has been passed to writeback.
#[derive(Debug, Default)]
pub struct BackgroundWriter {
    #[cfg(target_os = "linux")]
    hinted_bytes: u64,
}

impl BackgroundWriter {
    /// Reports that the file now ends at `end`.
    #[cfg(target_os = "linux")]
    pub fn hint_writeback(&mut self, file: &File, end: u64) {
        use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
        if end < self.hinted_bytes + WRITEBACK_STEP_BYTES {
            return;
        }
        let range = [self.hinted_bytes, end - self.hinted_bytes].map(i64::try_from);
        if let [Ok(offset), Ok(length)] = range {
            // `posix_fadvise` starts to write dirty pages and evicts none of them, because they are not clean yet.
            // Overlay file systems pass this call on; they do not pass on `sync_file_range`. It is a hint: a file
            // system that ignores it is only slower.
            let _ = posix_fadvise(
                file,
                offset,
                length,
                PosixFadviseAdvice::POSIX_FADV_DONTNEED,
            );
        }
        self.hinted_bytes = end;
    }

    #[cfg(not(target_os = "linux"))]
    pub fn hint_writeback(&mut self, _: &File, _: u64) {}
}
