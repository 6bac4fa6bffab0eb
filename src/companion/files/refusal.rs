//! The reasons why an operation on a file was refused or failed.

use crate::archive::ArchiveError;
use crate::protocol::files::EntryKind;
use nix::errno::Errno;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) enum FilesRefusal {
    /// An invalid path or field.
    Invalid(String),
    Missing(PathBuf),
    Denied {
        path: PathBuf,
        why: String,
    },
    /// The path is not a file, but the operation needs one.
    NoFile {
        path: PathBuf,
        kind: EntryKind,
    },
    NoFolder(PathBuf),
    NotEmpty(PathBuf),
    /// A mount or a running program uses the path.
    Busy(PathBuf),
    /// The disk or the user's quota is full. The old file is unchanged.
    Full,
    /// This many bytes of the upload have arrived, and the request does not continue there.
    Elsewhere(u64),
    /// Another request is sending the same upload.
    InProgress(String),
    NoUpload(String),
    /// The content before the resume point differs from the sent content.
    Changed,
    /// The client disconnected before the end.
    Cut,
    /// The limit of concurrent streams.
    TooMany(usize),
    Archive(ArchiveError),
    Failed(String),
}

impl FilesRefusal {
    /// Maps an I/O error on `path` to a refusal.
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
                    Self::Invalid(format!("`{}` is not a valid path: {error}", path.display()))
                }
                _ => Self::Failed(format!("`{}`: {error}", path.display())),
            }
        }
    }
}

/// Whether a name is too long or links form a loop.
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
