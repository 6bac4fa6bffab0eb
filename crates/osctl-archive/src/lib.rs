//! File trees as one tar stream, packed and unpacked on both sides.
//!
//! ```text
//! Folder ─ pack ─▶ TarWriter ─▶ ChunkWriter ~~ channel ~~▶ HTTP   (and back: ChunkReader ─▶ TarReader)
//!                               blocking thread │ async               unpack ─▶ Folder
//! ```
//!
//! The format is POSIX pax; GNU extensions are read, too. The `tar` crate parses and builds header blocks. The stream
//! is implemented here because that crate reads names of any length into memory, hides the holes of a file, and opens
//! entries by path. In this crate no buffer grows with the archive or its files, names hold any byte, and holes stay
//! holes. Every name is opened beneath a [`Folder`] that is held open, so no link leads outside, no matter who created
//! it or when.
//!
//! An interrupted stream can be continued at a [`ResumePoint`]. Owners and extended attributes are not transferred.

mod chunk_channel;
mod error;
mod folder;
mod member;
mod pack;
mod pax_records;
mod reader;
mod resume_point;
mod sparse;
mod sparse_map;
mod temporary_name;
mod unpack;
mod writeback_hints;
mod writer;

pub use chunk_channel::{
    ChunkReader, ChunkReceiver, ChunkSender, ChunkWriter, chunk_reader, chunk_writer,
};
pub use error::ArchiveError;
pub use folder::{EntryStat, Folder, native_name, set_mode_and_mtime};
pub use pack::{ErrorReporting, PackSource, pack_stream};
pub use resume_point::{ReadProgress, ResumePoint, VerifiedReader};
pub use sparse::data_segments;
pub use temporary_name::{random_id, temporary_name};
pub use unpack::{UnpackPolicy, UnpackTotals, unpack_archive};
pub use writeback_hints::BackgroundWriter;

/// Bytes per read or write.
pub const ARCHIVE_CHUNK_BYTES: usize = 256 << 10;
