//! Folders as file descriptors.

use super::EntryStat;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{
    FileStat, Mode, SFlag, UtimensatFlags, fchmod, fstat, fstatat, futimens, lstat, mkdirat, stat,
    utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{LinkatFlags, UnlinkatFlags, linkat, symlinkat, unlinkat};
use osctl_protocol::files::{EntryKind, Mtime};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

const FOLDER_FLAGS: OFlag = OFlag::O_DIRECTORY
    .union(OFlag::O_RDONLY)
    .union(OFlag::O_CLOEXEC);

#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// Opens the folder at this path and follows links, because the user named the path.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(openat(AT_FDCWD, path, FOLDER_FLAGS, Mode::empty())?))
    }

    pub fn open_folder(&self, name: &OsStr) -> io::Result<Self> {
        let flags = FOLDER_FLAGS | OFlag::O_NOFOLLOW;
        Ok(Self(openat(&self.0, name, flags, Mode::empty())?))
    }

    /// The names in the folder, sorted.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        self.names_up_to(usize::MAX)
    }

    /// At most `most` of the names in the folder, sorted. The limit is there because the agent controls the number of
    /// names.
    pub fn names_up_to(&self, most: usize) -> io::Result<Vec<OsString>> {
        // A new descriptor, so that the read position is not shared.
        let mut folder = Dir::openat(&self.0, ".", FOLDER_FLAGS, Mode::empty())?;
        let mut names = Vec::new();
        for entry in folder.iter() {
            if names.len() == most {
                break;
            }
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    pub fn stat(&self, name: &OsStr) -> io::Result<EntryStat> {
        let found = fstatat(&self.0, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        Ok(EntryStat::from(&found))
    }

    /// The metadata of the folder itself.
    pub fn stat_self(&self) -> io::Result<EntryStat> {
        Ok(EntryStat::from(&fstat(&self.0)?))
    }

    /// The target of a link.
    pub fn read_link(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        Ok(readlinkat(&self.0, name)?.into_vec())
    }

    /// Opens a file for reading. The open never blocks and accepts any type of file, so the caller must check the type.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }

    /// Creates a file that only its owner can access until its final mode is set.
    pub fn create_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        Ok(openat(&self.0, name, flags | OFlag::O_NOFOLLOW, mode)?.into())
    }

    /// Opens a partially written file to continue it; `None` when it is not a regular file.
    pub fn reopen_file(&self, name: &OsStr) -> io::Result<Option<File>> {
        let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.0, name, flags, Mode::empty())?);
        Ok((EntryStat::stat_file(&file)?.kind == EntryKind::File).then_some(file))
    }

    /// Creates a folder that only its owner can access until its final mode is set.
    pub fn create_folder(&self, name: &OsStr) -> io::Result<()> {
        Ok(mkdirat(&self.0, name, Mode::S_IRWXU)?)
    }

    /// Creates a folder with the permissions that the umask leaves.
    pub fn create_with_umask(&self, name: &OsStr) -> io::Result<()> {
        let all = Mode::S_IRWXU | Mode::S_IRWXG | Mode::S_IRWXO;
        Ok(mkdirat(&self.0, name, all)?)
    }

    /// Duplicates the descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    pub fn symlink(&self, name: &OsStr, target: &[u8], mtime: Mtime) -> io::Result<()> {
        symlinkat(OsStr::from_bytes(target), &self.0, name)?;
        let time = to_timespec(mtime);
        utimensat(&self.0, name, &time, &time, UtimensatFlags::NoFollowSymlink)?;
        Ok(())
    }

    /// Adds the hard link `name` to the entry `of` of the folder `from`.
    pub fn hard_link(&self, name: &OsStr, from: &Self, of: &OsStr) -> io::Result<()> {
        Ok(linkat(&from.0, of, &self.0, name, LinkatFlags::empty())?)
    }

    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }

    /// Removes a name that is not a folder.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Sets the mode and modification time of the folder itself.
    pub fn set_mode_and_mtime(&self, mode: u32, mtime: Option<Mtime>) -> io::Result<()> {
        set_descriptor_attributes(&self.0, mode, mtime)
    }

    /// Waits until the names in the folder are on the disk.
    pub fn sync(&self) -> io::Result<()> {
        Ok(nix::unistd::fsync(&self.0)?)
    }

    /// Whether the error says that the name is a link where something else was expected.
    pub fn is_link(error: &io::Error) -> bool {
        // With O_DIRECTORY, Linux reports a link as ENOTDIR.
        matches!(
            error.raw_os_error().map(Errno::from_raw),
            Some(Errno::ELOOP | Errno::ENOTDIR | Errno::EMLINK)
        )
    }
}

/// Sets the mode and modification time of a file.
pub fn set_mode_and_mtime(file: &File, mode: u32, mtime: Option<Mtime>) -> io::Result<()> {
    set_descriptor_attributes(file, mode, mtime)
}

fn set_descriptor_attributes(file: impl AsFd, mode: u32, mtime: Option<Mtime>) -> io::Result<()> {
    let bits = Mode::from_bits_truncate((mode & 0o7777) as nix::libc::mode_t);
    fchmod(file.as_fd(), bits)?;
    if let Some(time) = mtime.map(to_timespec) {
        futimens(file, &time, &time)?;
    }
    Ok(())
}

#[expect(
    clippy::useless_conversion,
    reason = "the C types differ between systems"
)]
fn to_timespec(mtime: Mtime) -> TimeSpec {
    TimeSpec::new(
        mtime.seconds.try_into().unwrap_or_default(),
        mtime.nanos.into(),
    )
}

impl From<&FileStat> for EntryStat {
    #[expect(
        clippy::useless_conversion,
        clippy::unnecessary_cast,
        reason = "the C types differ between systems"
    )]
    fn from(found: &FileStat) -> Self {
        let format = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT;
        let kind = match format {
            SFlag::S_IFREG => EntryKind::File,
            SFlag::S_IFDIR => EntryKind::Folder,
            SFlag::S_IFLNK => EntryKind::Symlink,
            SFlag::S_IFIFO => EntryKind::Fifo,
            SFlag::S_IFSOCK => EntryKind::Socket,
            _ => EntryKind::Device,
        };
        Self {
            kind,
            is_character: format == SFlag::S_IFCHR,
            size: u64::try_from(found.st_size).unwrap_or_default(),
            allocated: u64::try_from(found.st_blocks).unwrap_or_default() * 512,
            mode: u32::from(found.st_mode) & 0o7777,
            mtime: Mtime {
                seconds: found.st_mtime.into(),
                nanos: found.st_mtime_nsec as u32,
            },
            identity: (found.st_dev as u64, found.st_ino.into()),
            link_count: found.st_nlink as u64,
        }
    }
}

impl EntryStat {
    /// The metadata of the entry at this path; follows links.
    pub fn stat_path(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&stat(path)?))
    }

    /// The metadata of the entry at this path; does not follow links.
    pub fn lstat_path(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&lstat(path)?))
    }

    /// The metadata of an open file.
    pub fn stat_file(file: &File) -> io::Result<Self> {
        Ok(Self::from(&fstat(file)?))
    }
}
