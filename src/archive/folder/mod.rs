//! A folder that is held open: everything in it is reached by one name, through no link.
//!
//! On Unix it is a descriptor, so that a folder that somebody moves or replaces by a link meanwhile
//! is still the same folder. Elsewhere it is a path, and links are never made there.

#[cfg(not(unix))]
mod path_based;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use path_based::{Folder, set_mode_and_mtime};
#[cfg(unix)]
pub(crate) use unix::{Folder, set_mode_and_mtime};

use super::temporary::{random_id, temporary_name};
use crate::protocol::files::{EntryKind, Mtime};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};

impl Folder {
    /// Opens the folder of that name; creates it, with the rights that the umask leaves, if the name
    /// is free.
    ///
    /// # Errors
    /// When the name is a link or a file, which [`Folder::is_link`] recognizes.
    pub(crate) fn ensure_folder(&self, name: &OsStr) -> io::Result<Self> {
        match self.open_folder(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match self.make_with_umask(name) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.open_folder(name),
        }
    }

    /// Writes a file of that content and mode. A temporary file takes the place of the name by a
    /// rename, so that a link of that name is replaced and not followed.
    pub(crate) fn replace_file(&self, name: &OsStr, mode: u32, content: &[u8]) -> io::Result<()> {
        let beside = temporary_name(name, &random_id()?);
        let write = || {
            let mut file = self.create_file(&beside)?;
            file.write_all(content)?;
            set_mode_and_mtime(&file, mode, None)?;
            file.sync_all()?;
            self.rename(&beside, name)
        };
        write().inspect_err(|_| {
            // The temporary file may not exist.
            let _ = self.remove(&beside);
        })
    }

    /// The content of a regular file of at most `limit` bytes; nothing if the name is something else.
    ///
    /// # Errors
    /// When the file is larger, or can't be read.
    pub(crate) fn read_file(&self, name: &OsStr, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match self.stat(name)?.kind {
            EntryKind::File => self.open_file(name)?,
            _ => return Ok(None),
        };
        // Another process may have exchanged the file since it was looked at.
        if EntryStat::stat_file(&file)?.kind != EntryKind::File {
            return Ok(None);
        }
        let mut content = Vec::new();
        file.take(limit + 1).read_to_end(&mut content)?;
        match content.len() as u64 > limit {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(Some(content)),
        }
    }
}

/// What a name stands for; a link is a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryStat {
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
pub(crate) fn native_name(name: &[u8]) -> io::Result<OsString> {
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
pub(super) fn name_bytes(name: &std::ffi::OsStr) -> &[u8] {
    name.as_encoded_bytes()
}
