//! Errors of reading and writing archives.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("`{0}` is outside the folder")]
    OutsideFolder(String),
    #[error("`{name}` passes through the link `{link}`, which osctl does not follow")]
    ThroughLink { name: String, link: String },
    #[error("`{name}` is {what}, which osctl does not unpack")]
    UnsupportedKind { name: String, what: &'static str },
    #[error("`{name}` can't replace {what}")]
    Occupied { name: String, what: &'static str },
    #[error("the hard link's target `{0}` is not an earlier entry of the archive")]
    MissingLinkTarget(String),
    #[error("the archive is damaged: {0}")]
    Damaged(&'static str),
    #[error("`{0}` became shorter or unreadable while it was read")]
    Truncated(String),
    /// The resume point belongs to another stream, so packing can't continue from it.
    #[error("the packed files were changed")]
    SourceChanged,
    /// The sender stopped and gave this reason.
    #[error("{0}")]
    SenderFailed(String),
    #[error("`{name}`: {cause}")]
    File { name: String, cause: io::Error },
    /// The stream that carries the archive.
    #[error("the stream ended early: {0}")]
    Stream(#[from] io::Error),
}

impl ArchiveError {
    pub(super) fn for_file(name: &[u8]) -> impl Fn(io::Error) -> Self + '_ {
        |cause| Self::File {
            name: String::from_utf8_lossy(name).into_owned(),
            cause,
        }
    }

    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::File { cause, .. } if is_full(cause))
    }
}

/// Whether the disk is full or the user's quota is used up.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}
