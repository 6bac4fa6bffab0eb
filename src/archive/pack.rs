//! A tree to an archive.
//!
//! Folders are walked by descriptors, so that somebody who swaps one for a link meanwhile shows
//! nothing that lies elsewhere. Sockets have no form in archives and are left out. What changes
//! while it is read is read as it is met; a file that becomes shorter ends the archive with an error.
//! Names are sorted, so that the same tree is the same archive, and can be packed from a mark on.

use super::PIECE;
use super::entry::{Member, MemberKind, Segment};
use super::fault::Fault;
use super::folder::{Folder, Look, bytes};
use super::mark::Mark;
use super::pipe::{Outlet, Pieces, outlet};
use super::sparse::segments;
use super::writer::Writer;
use crate::protocol::files::EntryKind;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use tokio::sync::oneshot;

/// More files with several names than that, and further names are files of their own.
const LINKED: usize = 100_000;
/// Each folder on the way is held open.
pub(super) const DEPTH: usize = 512;

/// What is packed.
#[derive(Debug)]
pub(crate) enum Pack {
    /// All that is in it; its own member is called `.`.
    Folder(Folder),
    /// One file of a folder, by its own name or another one.
    File {
        folder: Folder,
        name: OsString,
        called: OsString,
    },
}

/// Where it is told that something can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Telling {
    /// In the archive, as far as that can be, to who unpacks it here or in a companion.
    Archive,
    /// By the stream, which is cut.
    Stream,
}

/// The archive from a mark on, written by a thread. `moved` hears of the bytes of files, those before
/// the mark too, and is kept as long as the thread lives.
///
/// # Errors
/// When what lies before the mark is not what it was.
pub(crate) async fn packed(
    what: Pack,
    from: Mark,
    telling: Telling,
    mut moved: impl FnMut(u64) + Send + 'static,
) -> Result<Pieces, Fault> {
    let (mut outlet, pieces) = outlet();
    let (begins, begun) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let to = Told {
            to: &mut outlet,
            begins: Some(begins),
        };
        let packed = pack(what, to, &from, telling, &mut moved);
        let failed = packed.err().map(|fault| {
            tracing::info!("an archive ended early: {fault}");
            io::Error::other(fault)
        });
        // Nobody is left to tell when the other side has gone.
        let _ = outlet.end(failed);
    });
    // Up to the mark nothing is written.
    begun.await.map(|()| pieces).map_err(|_| Fault::Changed)
}

/// What tells that it is written to.
struct Told<'a> {
    to: &'a mut Outlet,
    begins: Option<oneshot::Sender<()>>,
}

impl Told<'_> {
    fn tell(&mut self) {
        if let Some(begins) = self.begins.take() {
            // Whoever asked may have gone.
            let _ = begins.send(());
        }
    }
}

impl Write for Told<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tell();
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tell();
        self.to.flush()
    }
}

/// Writes the archive from a mark on. When something can't be read, the archive says so in the place
/// of its end, which whoever unpacks it takes for a failure.
///
/// # Errors
/// When it can't be said there, nobody takes the stream (it must be cut then), or the mark lies in
/// another stream.
fn pack(
    what: Pack,
    to: impl Write,
    from: &Mark,
    telling: Telling,
    moved: &mut dyn FnMut(u64),
) -> Result<(), Fault> {
    let mut packer = Packer {
        writer: Writer::new(to, from),
        path: Vec::new(),
        linked: HashMap::new(),
        buffer: vec![0; PIECE],
        passed: 0,
        moved,
    };
    let packed = match what {
        Pack::Folder(folder) => packer.tree(folder),
        Pack::File {
            folder,
            name,
            called,
        } => packer.single(&folder, &name, &called),
    };
    let packed = packed.and_then(|()| Ok(packer.writer.end()?));
    match packed {
        Ok(()) => Ok(()),
        Err(_) if packer.writer.is_other() || packer.writer.is_before() => Err(Fault::Changed),
        // Within a file's data nothing can be said: the stream has to be cut.
        Err(cut @ (Fault::Stream(_) | Fault::Shrank(_))) => Err(cut),
        Err(cut) if telling == Telling::Stream => Err(cut),
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
    /// Data before the mark of which nobody has heard.
    passed: u64,
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
        if self.writer.is_before() {
            let passed = self.writer.pass(left)?;
            self.passed += passed;
            left -= passed;
            let ahead = i64::try_from(passed).unwrap_or(i64::MAX);
            file.seek(SeekFrom::Current(ahead))
                .map_err(Fault::file(&self.path))?;
        }
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
            (self.moved)(read as u64 + std::mem::take(&mut self.passed));
        }
        Ok(())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::{Pack, Telling, pack};
    use crate::archive::mark::{Mark, Traced};
    use crate::archive::{Fault, Folder, Policy, unpack};
    use std::fs;
    use std::os::unix::fs::{FileExt, symlink};
    use std::path::Path;

    fn grow(root: &Path) {
        fs::create_dir(root.join("folder")).unwrap();
        fs::write(root.join("folder/small"), "small").unwrap();
        fs::write(root.join("folder/none"), "").unwrap();
        fs::write(root.join("large"), vec![b'l'; 70_000]).unwrap();
        fs::hard_link(root.join("large"), root.join("twin")).unwrap();
        symlink("large", root.join("link")).unwrap();
        let sparse = fs::File::create(root.join("sparse")).unwrap();
        sparse.set_len(4 << 20).unwrap();
        for offset in [0, 1 << 20, 3 << 20] {
            sparse.write_all_at(b"data", offset).unwrap();
        }
    }

    fn from(root: &Path, mark: &Mark) -> Result<(Vec<u8>, u64), Fault> {
        let (mut stream, mut moved) = (Vec::new(), 0);
        let folder = Folder::open(root).unwrap();
        let mut count = |bytes| moved += bytes;
        pack(
            Pack::Folder(folder),
            &mut stream,
            mark,
            Telling::Archive,
            &mut count,
        )?;
        Ok((stream, moved))
    }

    /// The mark of whoever has read so much and no more.
    fn cut(stream: &[u8], at: usize) -> Mark {
        let landed = tempfile::tempdir().unwrap();
        let (traced, seen) = Traced::new(&stream[..at]);
        let folder = Folder::open(landed.path()).unwrap();
        // It ends early nearly everywhere, and has read all that there is.
        let _ = unpack(traced, folder, Policy::default(), &mut |_| Ok(()));
        let mark = seen.borrow().mark(at as u64);
        mark.unwrap()
    }

    #[test]
    fn a_stream_goes_on_at_any_byte() {
        let folder = tempfile::tempdir().unwrap();
        grow(folder.path());
        let (whole, moved) = from(folder.path(), &Mark::default()).unwrap();
        // Every place within a block, sooner or later.
        for at in (0..whole.len()).step_by(509).chain([whole.len()]) {
            let (rest, again) = from(folder.path(), &cut(&whole, at)).unwrap();
            assert!(rest == whole[at..], "{at}");
            // Who comes behind the last byte of data has nothing to show.
            assert!(again == moved || again == 0, "{at}: {again}");
        }
    }

    #[test]
    fn a_tree_that_was_changed_before_the_mark_does_not_go_on() {
        let folder = tempfile::tempdir().unwrap();
        grow(folder.path());
        let (whole, _) = from(folder.path(), &Mark::default()).unwrap();
        let marks = [60_000, whole.len()].map(|at| cut(&whole, at));
        fs::write(folder.path().join("folder/small"), "other").unwrap();
        for mark in &marks {
            assert!(matches!(from(folder.path(), mark), Err(Fault::Changed)));
        }
        fs::remove_file(folder.path().join("large")).unwrap();
        assert!(matches!(
            from(folder.path(), &marks[1]),
            Err(Fault::Changed)
        ));
    }

    #[test]
    fn a_tree_that_was_changed_behind_the_mark_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        grow(folder.path());
        let (whole, _) = from(folder.path(), &Mark::default()).unwrap();
        let mark = cut(&whole, 60_000);
        let sparse = fs::OpenOptions::new()
            .write(true)
            .open(folder.path().join("sparse"));
        sparse.unwrap().set_len(5 << 20).unwrap();
        let (rest, _) = from(folder.path(), &mark).unwrap();
        let (now, _) = from(folder.path(), &Mark::default()).unwrap();
        assert!(now != whole && rest == now[60_000..]);
    }
}
