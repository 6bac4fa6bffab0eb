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
    NotFound(PathBuf),
    Denied {
        path: PathBuf,
        why: String,
    },
    /// The path is not a file, but the operation needs one.
    NotAFile {
        path: PathBuf,
        kind: EntryKind,
    },
    NotAFolder(PathBuf),
    NotEmpty(PathBuf),
    /// A mount or a running program uses the path.
    Busy(PathBuf),
    /// The disk or the user's quota is full. The old file is unchanged.
    StorageFull,
    /// This many bytes of the upload have arrived, and the request does not continue there.
    OffsetMismatch(u64),
    /// Another request is sending the same upload.
    InProgress(String),
    NoUpload(String),
    /// The content before the resume point differs from the sent content.
    ContentChanged,
    /// The client disconnected before the end.
    Disconnected,
    /// The limit of concurrent streams.
    TooManyStreams(usize),
    Archive(ArchiveError),
    Failed(String),
}

impl FilesRefusal {
    /// Maps an I/O error on `path` to a refusal.
    pub(super) fn for_path(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        |error| {
            let path = path.to_owned();
            match error.kind() {
                ErrorKind::NotFound => Self::NotFound(path),
                ErrorKind::NotADirectory => Self::NotAFolder(path),
                ErrorKind::IsADirectory => Self::NotAFile {
                    path,
                    kind: EntryKind::Folder,
                },
                ErrorKind::DirectoryNotEmpty => Self::NotEmpty(path),
                ErrorKind::ResourceBusy | ErrorKind::ExecutableFileBusy => Self::Busy(path),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::StorageFull,
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::Denied {
                    path,
                    why: error.to_string(),
                },
                _ if is_invalid_path_error(&error) => {
                    Self::Invalid(format!("`{}` is not a valid path: {error}", path.display()))
                }
                _ => Self::Failed(format!("`{}`: {error}", path.display())),
            }
        }
    }
}

/// Whether a name is too long or links form a loop.
fn is_invalid_path_error(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::ENAMETOOLONG | Errno::ELOOP))
}

impl From<ArchiveError> for FilesRefusal {
    fn from(error: ArchiveError) -> Self {
        match error {
            error if error.is_full() => Self::StorageFull,
            ArchiveError::Stream(_) => Self::Disconnected,
            ArchiveError::SourceChanged => Self::ContentChanged,
            error => Self::Archive(error),
        }
    }
}
