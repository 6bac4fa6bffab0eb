//! Folders as paths, for systems that have no descriptor-relative file operations.

use super::EntryStat;
use osctl_protocol::files::{EntryKind, Mtime};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        match fs::metadata(&path)?.is_dir() {
            true => Ok(Self(path)),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub fn open_folder(&self, name: &OsStr) -> io::Result<Self> {
        let path = self.0.join(name);
        match fs::symlink_metadata(&path)?.is_dir() {
            true => Ok(Self(path)),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    pub fn names(&self) -> io::Result<Vec<OsString>> {
        self.names_up_to(usize::MAX)
    }

    pub fn names_up_to(&self, most: usize) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(&self.0)?.take(most);
        let names = entries.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    pub fn stat(&self, name: &OsStr) -> io::Result<EntryStat> {
        Ok(EntryStat::from(&fs::symlink_metadata(self.0.join(name))?))
    }

    pub fn stat_self(&self) -> io::Result<EntryStat> {
        Ok(EntryStat::from(&fs::metadata(&self.0)?))
    }

    pub fn read_link(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        let target = fs::read_link(self.0.join(name))?;
        Ok(target.to_string_lossy().replace('\\', "/").into_bytes())
    }

    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let path = self.0.join(name);
        match fs::symlink_metadata(&path)?.is_symlink() {
            true => Err(io::ErrorKind::NotADirectory.into()),
            false => File::open(path),
        }
    }

    pub fn create_file(&self, name: &OsStr) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).open(self.0.join(name))
    }

    pub fn reopen_file(&self, name: &OsStr) -> io::Result<Option<File>> {
        let file = OpenOptions::new().write(true).open(self.0.join(name))?;
        Ok(Some(file))
    }

    pub fn create_folder(&self, name: &OsStr) -> io::Result<()> {
        fs::create_dir(self.0.join(name))
    }

    pub fn create_with_umask(&self, name: &OsStr) -> io::Result<()> {
        self.create_folder(name)
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.clone()))
    }

    /// Always fails: on these systems users rarely have the privilege to create links.
    pub fn symlink(&self, _: &OsStr, _: &[u8], _: Mtime) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn hard_link(&self, name: &OsStr, from: &Self, of: &OsStr) -> io::Result<()> {
        fs::hard_link(from.0.join(of), self.0.join(name))
    }

    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    pub fn set_mode_and_mtime(&self, _: u32, _: Option<Mtime>) -> io::Result<()> {
        Ok(())
    }

    /// No operation: on these systems names are written with their files.
    pub fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    pub fn is_link(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::NotADirectory
    }
}

/// Sets the modification time of a file; the permission bits of Unix do not apply here.
pub fn set_mode_and_mtime(file: &File, _: u32, mtime: Option<Mtime>) -> io::Result<()> {
    let Some(mtime) = mtime else { return Ok(()) };
    let seconds = Duration::from_secs(mtime.seconds.unsigned_abs());
    let second = match mtime.seconds < 0 {
        true => UNIX_EPOCH - seconds,
        false => UNIX_EPOCH + seconds,
    };
    file.set_modified(second + Duration::from_nanos(mtime.nanos.into()))
}

impl From<&Metadata> for EntryStat {
    fn from(found: &Metadata) -> Self {
        let kind = match found.file_type() {
            t if t.is_dir() => EntryKind::Folder,
            t if t.is_symlink() => EntryKind::Symlink,
            _ => EntryKind::File,
        };
        let since = found.modified().ok().and_then(|t| {
            let since = t.duration_since(UNIX_EPOCH).ok()?;
            Some((i64::try_from(since.as_secs()).ok()?, since.subsec_nanos()))
        });
        let (seconds, nanos) = since.unwrap_or_default();
        Self {
            kind,
            is_character: false,
            size: found.len(),
            allocated: found.len(),
            mode: match kind {
                EntryKind::Folder => 0o755,
                _ => 0o644,
            },
            mtime: Mtime { seconds, nanos },
            identity: (0, 0),
            link_count: 1,
        }
    }
}

impl EntryStat {
    pub fn stat_path(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&fs::metadata(path)?))
    }

    pub fn lstat_path(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&fs::symlink_metadata(path)?))
    }

    /// The metadata of an open file.
    pub fn stat_file(file: &File) -> io::Result<Self> {
        Ok(Self::from(&file.metadata()?))
    }
}
