//! One member of an archive.

use crate::protocol::files::Mtime;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArchiveMember {
    /// As it stands in the archive: bytes, `/` between names, not yet trusted.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: MemberKind,
    /// Rights, without the file's type.
    pub(crate) mode: u32,
    pub(crate) mtime: Mtime,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberKind {
    File {
        size: u64,
        /// Where its data are, in order; `None` when it has no holes.
        segments: Option<Vec<DataSegment>>,
    },
    Folder,
    Symlink(Vec<u8>),
    /// To an earlier member.
    HardLink(Vec<u8>),
    /// What no tree of ours holds; the words for it.
    Special(&'static str),
}

/// A stretch of data in a file that has holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataSegment {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// More of them than that, and a map would be longer than it is worth.
pub(super) const MAX_SPARSE_SEGMENTS: usize = 1 << 17;

impl ArchiveMember {
    /// For people.
    pub(crate) fn display_name(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }
}
