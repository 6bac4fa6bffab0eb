//! Free disk space for osctl and its engine.

use std::path::Path;

/// Space for building the image: the image itself, and intermediate layers.
pub(crate) const IMAGE_DISK_BYTES: u64 = 3 << 30;
/// Space for the state: figures, and a base image being built.
pub(crate) const STATE_DISK_BYTES: u64 = 1 << 30;

/// Bytes available on the file system of the path, which need not exist; `None` if unknown.
#[cfg(unix)]
pub(crate) fn free_disk_bytes(path: &Path) -> Option<u64> {
    // The types of the fields differ between systems.
    fn wide(number: impl Into<u64>) -> u64 {
        number.into()
    }
    let existing = path.ancestors().find(|at| at.exists())?;
    let found = nix::sys::statvfs::statvfs(existing).ok()?;
    Some(wide(found.blocks_available()).saturating_mul(wide(found.fragment_size())))
}

#[cfg(not(unix))]
pub(crate) fn free_disk_bytes(_path: &Path) -> Option<u64> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::free_disk_bytes;
    use std::path::Path;

    #[test]
    fn a_missing_path_has_the_free_space_of_its_parent() {
        assert!(free_disk_bytes(Path::new("/nonexistent/folder")).is_some_and(|bytes| bytes > 0));
        // The file system accepts no writes.
        assert_eq!(free_disk_bytes(Path::new("/proc/self/nothing")), Some(0));
    }
}
