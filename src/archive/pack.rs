//! A tree to an archive.
//!
//! Folders are walked by descriptors, so that somebody who swaps one for a link meanwhile shows
//! nothing that lies elsewhere. Sockets have no form in archives and are left out. What changes
//! while it is read is read as it is met; a file that becomes shorter ends the archive with an error.

use super::PIECE;
use super::entry::{Member, MemberKind, Segment};
use super::fault::Fault;
use super::folder::{Folder, Look, bytes};
use super::sparse::segments;
use super::writer::Writer;
use crate::protocol::files::EntryKind;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

/// More files with several names than that, and further names are files of their own.
const LINKED: usize = 100_000;
/// Each folder on the way is held open.
pub(super) const DEPTH: usize = 512;

/// What is packed.
#[derive(Debug)]
pub(crate) enum Pack<'a> {
    /// All that is in it; its own member is called `.`.
    Folder(Folder),
    /// One file of a folder, by its own name or another one.
    File {
        folder: Folder,
        name: &'a OsStr,
        called: &'a OsStr,
    },
}

/// Writes the archive; `moved` hears of the bytes of files. When something can't be read, the archive
/// says so in the place of its end, which whoever unpacks it takes for a failure.
///
/// # Errors
/// When it can't be said there, or nobody takes the stream: it must be cut then.
pub(crate) fn pack(
    what: Pack<'_>,
    to: impl Write,
    moved: &mut dyn FnMut(u64),
) -> Result<(), Fault> {
    let mut packer = Packer {
        writer: Writer::new(to),
        path: Vec::new(),
        linked: HashMap::new(),
        buffer: vec![0; PIECE],
        moved,
    };
    let packed = match what {
        Pack::Folder(folder) => packer.tree(folder),
        Pack::File {
            folder,
            name,
            called,
        } => packer.single(&folder, name, called),
    };
    match packed {
        Ok(()) => Ok(packer.writer.end()?),
        // Within a file's data nothing can be said: the stream has to be cut.
        Err(cut @ (Fault::Stream(_) | Fault::Shrank(_))) => Err(cut),
        Err(fault) => Ok(packer.writer.fault(&fault.to_string())?),
    }
}

struct Packer<'a, W> {
    writer: Writer<W>,
    /// Of what is packed now.
    path: Vec<u8>,
    /// The first name of each file that has several.
    linked: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
    moved: &'a mut dyn FnMut(u64),
}

/// A folder on the way.
struct Level {
    folder: Folder,
    names: std::vec::IntoIter<OsString>,
    /// Length of its path.
    path: usize,
}

impl<W: Write> Packer<'_, W> {
    fn tree(&mut self, root: Folder) -> Result<(), Fault> {
        let look = root.look_here().map_err(Fault::file(b"."))?;
        self.path = b".".to_vec();
        self.begin(look, MemberKind::Folder)?;
        self.path.clear();
        let mut levels = vec![self.level(root)?];
        while let Some(level) = levels.last_mut() {
            self.path.truncate(level.path);
            let Some(name) = level.names.next() else {
                levels.pop();
                continue;
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend(bytes(&name));
            let look = match level.folder.look(&name) {
                // It was removed meanwhile.
                Err(gone) if gone.kind() == std::io::ErrorKind::NotFound => continue,
                looked => looked.map_err(Fault::file(&self.path))?,
            };
            if look.kind == EntryKind::Folder {
                let folder = level.folder.folder(&name);
                let folder = folder.map_err(Fault::file(&self.path))?;
                if levels.len() == DEPTH {
                    let cause = std::io::Error::other("folders nest too deep");
                    return Err(Fault::file(&self.path)(cause));
                }
                self.begin(look, MemberKind::Folder)?;
                levels.push(self.level(folder)?);
            } else {
                self.leaf(&level.folder, &name, look)?;
            }
        }
        Ok(())
    }

    fn single(&mut self, folder: &Folder, name: &OsStr, called: &OsStr) -> Result<(), Fault> {
        self.path = bytes(called).to_vec();
        let look = folder.look(name).map_err(Fault::file(bytes(name)))?;
        self.leaf(folder, name, look)
    }

    fn level(&self, folder: Folder) -> Result<Level, Fault> {
        let names = folder.names().map_err(Fault::file(&self.path))?;
        Ok(Level {
            folder,
            names: names.into_iter(),
            path: self.path.len(),
        })
    }

    fn leaf(&mut self, folder: &Folder, name: &OsStr, look: Look) -> Result<(), Fault> {
        let kind = match look.kind {
            EntryKind::Symlink => {
                let target = folder.target(name).map_err(Fault::file(&self.path))?;
                MemberKind::Symlink(target)
            }
            EntryKind::Fifo => MemberKind::Special("a named pipe"),
            EntryKind::Device if look.is_character => MemberKind::Special("a device of characters"),
            EntryKind::Device => MemberKind::Special("a device of blocks"),
            EntryKind::Socket | EntryKind::Folder => return Ok(()),
            EntryKind::File => {
                if look.names > 1 {
                    if let Some(first) = self.linked.get(&look.identity) {
                        let first = first.clone();
                        return self.begin(look, MemberKind::HardLink(first));
                    }
                    if self.linked.len() < LINKED {
                        self.linked.insert(look.identity, self.path.clone());
                    }
                }
                return self.file(folder, name);
            }
        };
        self.begin(look, kind)
    }

    fn begin(&mut self, look: Look, kind: MemberKind) -> Result<(), Fault> {
        let member = Member {
            path: self.path.clone(),
            kind,
            mode: look.mode,
            mtime: look.mtime,
        };
        Ok(self.writer.begin(&member)?)
    }

    fn file(&mut self, folder: &Folder, name: &OsStr) -> Result<(), Fault> {
        let mut file = folder.read(name).map_err(Fault::file(&self.path))?;
        // What is open now is what counts, whatever the name stood for before.
        let look = Look::of(&file).map_err(Fault::file(&self.path))?;
        if look.kind != EntryKind::File {
            return Ok(());
        }
        let size = look.size;
        let segments = segments(&file, size, look.allocated);
        let whole = [Segment {
            offset: 0,
            length: size,
        }];
        let kind = MemberKind::File {
            size,
            segments: segments.clone(),
        };
        self.begin(look, kind)?;
        for Segment { offset, length } in segments.as_deref().unwrap_or(&whole) {
            if *offset > 0 || segments.is_some() {
                file.seek(SeekFrom::Start(*offset))
                    .map_err(Fault::file(&self.path))?;
            }
            self.data(&mut file, *length)?;
        }
        Ok(())
    }

    fn data(&mut self, file: &mut File, mut left: u64) -> Result<(), Fault> {
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            // The header is out: an error here can only cut the stream.
            let read = file.read(&mut self.buffer[..most]);
            let Ok(read @ 1..) = read else {
                let name = String::from_utf8_lossy(&self.path).into_owned();
                return Err(Fault::Shrank(name));
            };
            self.writer.data(&self.buffer[..read])?;
            left -= read as u64;
            (self.moved)(read as u64);
        }
        Ok(())
    }
}
