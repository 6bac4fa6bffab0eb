//! A folder that is held open: every entry is opened by a single name, never through a link.
//!
//! On Unix the folder is a descriptor. It stays the same folder even if another process moves it or replaces it with a
//! link. Elsewhere it is a path, and links are never created there.

#[cfg(not(unix))]
mod path_based;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub use path_based::{Folder, set_mode_and_mtime};
#[cfg(unix)]
pub use unix::{Folder, set_mode_and_mtime};

use super::temporary_name::{random_id, temporary_name};
use osctl_protocol::files::{EntryKind, Mtime};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};

impl Folder {
    /// Opens the folder `name`. Creates it with the permissions that the umask leaves if the name is free.
    ///
    /// # Errors
    /// When the name is a link or a file; [`Folder::is_link`] recognizes this error.
    pub fn ensure_folder(&self, name: &OsStr) -> io::Result<Self> {
        match self.open_folder(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match self.create_with_umask(name) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.open_folder(name),
        }
    }

    /// Writes a file with this content and mode. It writes a temporary file and renames it to `name`, so a link of that
    /// name is replaced and not followed.
    pub fn replace_file(&self, name: &OsStr, mode: u32, content: &[u8]) -> io::Result<()> {
        let temporary = temporary_name(name, &random_id()?);
        let write = || {
            let mut file = self.create_file(&temporary)?;
            file.write_all(content)?;
            set_mode_and_mtime(&file, mode, None)?;
            file.sync_all()?;
            self.rename(&temporary, name)
        };
        write().inspect_err(|_| {
            // The temporary file may not exist.
            let _ = self.remove(&temporary);
        })
    }

    /// The content of a regular file of at most `limit` bytes; `None` if the name is not a regular file.
    ///
    /// # Errors
    /// When the file is larger or can't be read.
    pub fn read_file(&self, name: &OsStr, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match self.stat(name)?.kind {
            EntryKind::File => self.open_file(name)?,
            _ => return Ok(None),
        };
        // Another process may have replaced the file between the stat and the open.
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

/// The metadata of a directory entry; links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryStat {
    pub kind: EntryKind,
    /// Whether a device is a character device.
    pub is_character: bool,
    pub size: u64,
    /// Bytes allocated on the disk.
    pub allocated: u64,
    /// Permission bits, without the file type.
    pub mode: u32,
    pub mtime: Mtime,
    /// Device and inode of the file; `link_count` counts its hard links.
    pub identity: (u64, u64),
    pub link_count: u64,
}

/// Converts a name from an archive to a name of this system.
///
/// # Errors
/// When the name is not valid on this system.
pub fn native_name(name: &[u8]) -> io::Result<OsString> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        Ok(OsString::from_vec(name.to_vec()))
    }
    #[cfg(not(unix))]
    {
        let text = std::str::from_utf8(name).map_err(|_| io::ErrorKind::InvalidFilename)?;
        // On this system these characters denote folders, drives, streams or devices.
        if text.contains(['\\', '/', ':', '<', '>', '"', '|', '?', '*']) {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        Ok(text.into())
    }
}

/// Converts a name of this system to the bytes of an archive.
pub(super) fn name_bytes(name: &std::ffi::OsStr) -> &[u8] {
    name.as_encoded_bytes()
}
