//! One member of an archive.

use osctl_protocol::files::Mtime;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArchiveMember {
    /// The path as the archive states it: bytes, names separated by `/`, untrusted.
    pub path: Vec<u8>,
    pub kind: MemberKind,
    /// Permission bits, without the file type.
    pub mode: u32,
    pub mtime: Mtime,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberKind {
    File {
        size: u64,
        /// The data segments in order; `None` when the file has no holes.
        segments: Option<Vec<DataSegment>>,
    },
    Folder,
    Symlink(Vec<u8>),
    /// A hard link to an earlier member.
    HardLink(Vec<u8>),
    /// A type that is not packed or unpacked; the text names the type.
    Special(&'static str),
}

/// A range of data in a sparse file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSegment {
    pub offset: u64,
    pub length: u64,
}

/// A file with more segments is stored without a map, because the map would not pay off.
pub(super) const MAX_SPARSE_SEGMENTS: usize = 1 << 17;

impl ArchiveMember {
    /// The path as text for messages.
    pub(crate) fn display_name(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }
}
