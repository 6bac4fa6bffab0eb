//! Why something was not done with a file.

use crate::archive::ArchiveError;
use crate::protocol::files::EntryKind;
use nix::errno::Errno;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) enum FilesRefusal {
    /// A path or a field that does not fit.
    Invalid(String),
    Missing(PathBuf),
    Denied {
        path: PathBuf,
        why: String,
    },
    /// It is no file, and what was asked needs one.
    NoFile {
        path: PathBuf,
        kind: EntryKind,
    },
    NoFolder(PathBuf),
    NotEmpty(PathBuf),
    /// Used by something that keeps it there: a mount, a running program.
    Busy(PathBuf),
    /// The disk, or what this user may have of it. The old file is untouched.
    Full,
    /// So much of the upload has arrived, and the request does not go on there.
    Elsewhere(u64),
    /// Another request brings the same upload.
    InProgress(String),
    NoUpload(String),
    /// What lies before the mark is not what was sent.
    Changed,
    /// The client went away in the middle.
    Cut,
    /// Streams, at once.
    TooMany(usize),
    Archive(ArchiveError),
    Failed(String),
}

impl FilesRefusal {
    /// What an error means that came of using `path`.
    pub(super) fn for_path(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        |error| {
            let path = path.to_owned();
            match error.kind() {
                ErrorKind::NotFound => Self::Missing(path),
                ErrorKind::NotADirectory => Self::NoFolder(path),
                ErrorKind::IsADirectory => Self::NoFile {
                    path,
                    kind: EntryKind::Folder,
                },
                ErrorKind::DirectoryNotEmpty => Self::NotEmpty(path),
                ErrorKind::ResourceBusy | ErrorKind::ExecutableFileBusy => Self::Busy(path),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full,
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::Denied {
                    path,
                    why: error.to_string(),
                },
                _ if is_unfit(&error) => {
                    Self::Invalid(format!("`{}` is no path: {error}", path.display()))
                }
                _ => Self::Failed(format!("`{}`: {error}", path.display())),
            }
        }
    }
}

/// Names that are too long, and links that lead to themselves.
fn is_unfit(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::ENAMETOOLONG | Errno::ELOOP))
}

impl From<ArchiveError> for FilesRefusal {
    fn from(fault: ArchiveError) -> Self {
        match fault {
            fault if fault.is_full() => Self::Full,
            ArchiveError::Stream(_) => Self::Cut,
            ArchiveError::Changed => Self::Changed,
            fault => Self::Archive(fault),
        }
    }
}
