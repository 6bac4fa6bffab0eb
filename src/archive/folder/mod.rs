//! A folder that is held open: everything in it is reached by one name, through no link.
//!
//! On Unix it is a descriptor, so that a folder that somebody moves or replaces by a link meanwhile
//! is still the same folder. Elsewhere it is a path, and links are never made there.

#[cfg(not(unix))]
mod elsewhere;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use elsewhere::{Folder, settle};
#[cfg(unix)]
pub(crate) use unix::{Folder, settle};

use crate::protocol::files::{EntryKind, Mtime};
use std::ffi::OsString;
use std::io;

/// What a name stands for; a link is a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) kind: EntryKind,
    /// A device of characters, where it is a device.
    pub(crate) is_character: bool,
    pub(crate) size: u64,
    /// Bytes on the disk.
    pub(crate) allocated: u64,
    /// Rights, without the file's type.
    pub(crate) mode: u32,
    pub(crate) mtime: Mtime,
    /// Which file it is, and by how many names.
    pub(crate) identity: (u64, u64),
    pub(crate) names: u64,
}

/// The bytes of an archive as a name of this system.
///
/// # Errors
/// When this system has no such names.
pub(crate) fn native(name: &[u8]) -> io::Result<OsString> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        Ok(OsString::from_vec(name.to_vec()))
    }
    #[cfg(not(unix))]
    {
        let text = std::str::from_utf8(name).map_err(|_| io::ErrorKind::InvalidFilename)?;
        // Here they would be folders, drives, streams and devices.
        if text.contains(['\\', '/', ':', '<', '>', '"', '|', '?', '*']) {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        Ok(text.into())
    }
}

/// A name of this system as the bytes of an archive.
pub(super) fn bytes(name: &std::ffi::OsStr) -> &[u8] {
    name.as_encoded_bytes()
}
