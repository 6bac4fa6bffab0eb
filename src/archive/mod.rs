//! Trees of files as one stream of bytes: tar, both ways, on both sides.
//!
//! ```text
//! Folder ─ pack ─▶ Writer ─▶ Outlet ~~ channel ~~▶ HTTP      (and the other way: Inlet ─▶ Reader)
//!                            blocking thread │ async           unpack ─▶ Folder
//! ```
//!
//! The format is POSIX's (pax), read with GNU's extensions, too. Blocks are taken apart by the `tar`
//! crate; the stream is ours, because that crate reads a name of any length into memory, hides
//! where a file's holes are, and opens by path. Here nothing grows with the archive or its files,
//! names hold any byte, holes stay holes, and every name is opened beneath a [`Folder`] that is held open, so that no
//! link leads out, whoever planted it and when.
//!
//! A stream that is cut can be taken up where it was ([`ResumePoint`]). Owners and extended attributes do not
//! travel.

mod background_writer;
mod error;
mod folder;
mod member;
mod pack;
mod pax_records;
mod pipe;
mod reader;
mod resume_point;
mod sparse;
mod sparse_map;
mod temporary;
mod unpack;
mod writer;

pub(crate) use background_writer::BackgroundWriter;
pub(crate) use error::ArchiveError;
pub(crate) use folder::{EntryStat, Folder, native_name, set_mode_and_mtime};
pub(crate) use pack::{ErrorReporting, PackSource, pack_stream};
pub(crate) use pipe::{
    ChunkReader, ChunkReceiver, ChunkSender, ChunkWriter, chunk_reader, chunk_writer,
};
pub(crate) use resume_point::{ReadProgress, ResumePoint, VerifiedReader};
pub(crate) use sparse::data_segments;
pub(crate) use temporary::{random_id, temporary_name};
pub(crate) use unpack::{UnpackPolicy, UnpackTotals, unpack_archive};

/// Bytes that are moved at once.
pub(crate) const ARCHIVE_CHUNK_BYTES: usize = 256 << 10;
