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
//! A stream that is cut can be taken up where it was ([`Mark`]). Owners and extended attributes do not
//! travel.

mod behind;
mod entry;
mod fault;
mod folder;
mod map;
mod mark;
mod pack;
mod pipe;
mod reader;
mod records;
mod sparse;
mod temporary;
mod unpack;
mod writer;

pub(crate) use behind::Behind;
pub(crate) use fault::Fault;
pub(crate) use folder::{Folder, Look, native, settle};
pub(crate) use mark::{Mark, Seen, Traced};
pub(crate) use pack::{Pack, Telling, packed};
pub(crate) use pipe::{Feed, Inlet, Outlet, Pieces, inlet, outlet};
pub(crate) use sparse::segments;
pub(crate) use temporary::{fresh, temporary};
pub(crate) use unpack::{Policy, Tally, unpack};

/// Bytes that are moved at once.
pub(crate) const PIECE: usize = 256 << 10;
