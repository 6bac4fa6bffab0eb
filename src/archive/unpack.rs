//! An archive to a tree, beneath a folder that it can't leave.
//!
//! Every folder on the way to a member is opened from its parent by one name that may be no link, so
//! neither a link that the archive planted nor one that was there before leads out. Links are made as
//! they stand, wherever they lead, and never followed. What is there already is replaced by a rename
//! once its successor is whole; folders are kept. Nothing that is written here is synced.

use super::PIECE;
use super::entry::{Member, MemberKind, Segment};
use super::fault::Fault;
use super::folder::{Folder, bytes, native, settle};
use super::mark::Traced;
use super::pack::DEPTH;
use super::reader::Reader;
use super::temporary::temporary;
use crate::protocol::files::{EntryKind, Mtime};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What is done with what an archive says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policy {
    /// Whether files may run with their owner's rights.
    pub(crate) keep_setid: bool,
    /// Whether the archive's own folder gives its rights and time to the one that is unpacked into.
    pub(crate) owns_root: bool,
    /// The archive is of one file, and this is its name here.
    pub(crate) only: Option<OsString>,
    /// Marks what is not whole.
    pub(crate) id: String,
}

/// What came out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) folders: u64,
    pub(crate) links: u64,
    /// Of files.
    pub(crate) bytes: u64,
}

/// Unpacks everything. `beside` hears, before it is there, of what is not whole: its path from the root.
///
/// # Errors
/// At the first member that can't or may not be unpacked; those before it stay.
pub(crate) fn unpack(
    from: Traced<impl Read>,
    root: Folder,
    policy: Policy,
    beside: &mut dyn FnMut(&Path) -> io::Result<()>,
) -> Result<Tally, Fault> {
    let mut reader = Reader::new(from);
    let mut unpacker = Unpacker {
        way: vec![Level {
            name: OsString::new(),
            folder: root,
            settling: None,
        }],
        is_single: policy.only.is_some(),
        policy,
        tally: Tally::default(),
        buffer: vec![0; PIECE],
        beside,
    };
    while let Some(member) = reader.next()? {
        unpacker.member(&mut reader, member)?;
    }
    unpacker.leave(0)?;
    Ok(unpacker.tally)
}

struct Unpacker<'a> {
    /// From the root to the folder that the last member lies in, each held open.
    way: Vec<Level>,
    policy: Policy,
    is_single: bool,
    tally: Tally,
    buffer: Vec<u8>,
    beside: &'a mut dyn FnMut(&Path) -> io::Result<()>,
}

struct Level {
    name: OsString,
    folder: Folder,
    /// Its rights and time, given when everything in it is there.
    settling: Option<(u32, Option<Mtime>)>,
}

impl Unpacker<'_> {
    fn member<R: Read>(&mut self, reader: &mut Reader<R>, member: Member) -> Result<(), Fault> {
        let names = match self.policy.only.take() {
            Some(name) => vec![name],
            None if self.is_single => return Err(Fault::Damaged("it holds more than one file")),
            None => names(&member.path)?,
        };
        let mode = match self.policy.keep_setid {
            true => member.mode,
            false => member.mode & 0o1777,
        };
        if let MemberKind::Special(what) = member.kind {
            let name = member.name();
            return Err(Fault::Special { name, what });
        }
        if self.is_single && !matches!(member.kind, MemberKind::File { .. }) {
            return Err(Fault::Damaged("it holds no file"));
        }
        if member.kind == MemberKind::Folder {
            self.enter(&names)?;
            self.tally.folders += u64::from(!names.is_empty());
            if !names.is_empty() || self.policy.owns_root {
                let last = self.way.last_mut();
                last.into_iter()
                    .for_each(|last| last.settling = Some((mode, Some(member.mtime))));
            }
            return Ok(());
        }
        let Some((name, way)) = names.split_last() else {
            return Err(Fault::Escapes(member.name()));
        };
        self.enter(way)?;
        let beside = temporary(name, &self.policy.id);
        let path: PathBuf = way.iter().chain([&beside]).collect();
        (self.beside)(&path).map_err(Fault::file(&member.path))?;
        let made = self.make(reader, &member, &beside, mode);
        let made = made.and_then(|()| self.replace(&member, &beside, name));
        if made.is_err() {
            // Perhaps it was never made.
            let _ = self.here().remove(&beside);
        }
        made
    }

    /// The folder that the member lies in.
    fn here(&self) -> &Folder {
        // The root is never left.
        &self.way[self.way.len() - 1].folder
    }

    fn make<R: Read>(
        &mut self,
        reader: &mut Reader<R>,
        member: &Member,
        beside: &OsStr,
        mode: u32,
    ) -> Result<(), Fault> {
        let failed = Fault::file(&member.path);
        match &member.kind {
            MemberKind::File { size, segments } => {
                let mut file = self.here().create(beside).map_err(&failed)?;
                self.fill(reader, &mut file, member, *size, segments.as_deref())?;
                settle(&file, mode, Some(member.mtime)).map_err(&failed)?;
                self.tally.files += 1;
            }
            MemberKind::Symlink(target) => {
                let made = self.here().symlink(beside, target, member.mtime);
                made.map_err(&failed)?;
                self.tally.links += 1;
            }
            MemberKind::HardLink(target) => {
                self.hard_link(member, target, beside)?;
                self.tally.links += 1;
            }
            MemberKind::Folder | MemberKind::Special(_) => {}
        }
        Ok(())
    }

    fn replace(&self, member: &Member, beside: &OsStr, name: &OsStr) -> Result<(), Fault> {
        let here = self.here();
        if let Err(cause) = here.rename(beside, name) {
            return Err(match here.look(name) {
                Ok(look) if look.kind == EntryKind::Folder => Fault::Occupied {
                    name: member.name(),
                    what: look.kind.words(),
                },
                _ => Fault::file(&member.path)(cause),
            });
        }
        if matches!(member.kind, MemberKind::HardLink(_)) {
            // Two names of one file are not renamed onto each other.
            let _ = here.remove(beside);
        }
        Ok(())
    }

    /// The file's data, each stretch to its place; what lies between stays a hole.
    fn fill<R: Read>(
        &mut self,
        reader: &mut Reader<R>,
        file: &mut File,
        member: &Member,
        size: u64,
        segments: Option<&[Segment]>,
    ) -> Result<(), Fault> {
        let failed = Fault::file(&member.path);
        let whole = [Segment {
            offset: 0,
            length: size,
        }];
        for Segment { offset, length } in segments.unwrap_or(&whole) {
            if *offset > 0 {
                file.seek(SeekFrom::Start(*offset)).map_err(&failed)?;
            }
            let mut left = *length;
            while left > 0 {
                let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                let read = reader.data(&mut self.buffer[..most])?;
                if read == 0 {
                    return Err(Fault::Stream(ErrorKind::UnexpectedEof.into()));
                }
                file.write_all(&self.buffer[..read]).map_err(&failed)?;
                left -= read as u64;
                self.tally.bytes += read as u64;
            }
        }
        if segments.is_some() {
            file.set_len(size).map_err(&failed)?;
        }
        Ok(())
    }

    fn hard_link(&mut self, member: &Member, target: &[u8], beside: &OsStr) -> Result<(), Fault> {
        let names = names(target)?;
        let no_target = || Fault::NoTarget(String::from_utf8_lossy(target).into_owned());
        let (name, way) = names.split_last().ok_or_else(no_target)?;
        let mut folder: Option<Folder> = None;
        for step in way {
            let parent = folder.as_ref().unwrap_or(&self.way[0].folder);
            let next = parent.folder(step);
            folder = Some(next.map_err(|e| through(e, &member.path, step))?);
        }
        let from = folder.as_ref().unwrap_or(&self.way[0].folder);
        // A name of a device would be the device.
        match from.look(name) {
            Ok(look) if look.kind == EntryKind::File || look.kind == EntryKind::Symlink => {}
            _ => return Err(no_target()),
        }
        let made = self.here().hard_link(beside, from, name);
        made.map_err(Fault::file(&member.path))
    }

    /// Goes to that folder, and makes what is missing on the way.
    fn enter(&mut self, names: &[OsString]) -> Result<(), Fault> {
        let on_way = self.way[1..].iter().zip(names);
        let shared = on_way.take_while(|(l, name)| l.name == **name).count();
        self.leave(shared + 1)?;
        for name in &names[shared..] {
            let path = || bytes(&names.join(OsStr::new("/"))).to_vec();
            if self.way.len() > DEPTH {
                let cause = std::io::Error::other("folders nest too deep");
                return Err(Fault::file(&path())(cause));
            }
            let here = self.here();
            let mut settling = None;
            let opened = match here.folder(name) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    // Unless a member says something else; what was there keeps its rights.
                    settling = Some((0o755, None));
                    here.make(name).and_then(|()| here.folder(name))
                }
                opened => opened,
            };
            let folder = match opened {
                Ok(folder) => folder,
                Err(error) => return Err(self.obstacle(error, &path(), name)),
            };
            let name = name.clone();
            self.way.push(Level {
                name,
                folder,
                settling,
            });
        }
        Ok(())
    }

    /// What stands where a folder was expected.
    fn obstacle(&self, error: std::io::Error, path: &[u8], name: &OsStr) -> Fault {
        match self.here().look(name) {
            Ok(look) if look.kind == EntryKind::Symlink => through(error, path, name),
            Ok(look) if look.kind != EntryKind::Folder => Fault::Occupied {
                name: String::from_utf8_lossy(path).into_owned(),
                what: look.kind.words(),
            },
            _ => Fault::file(path)(error),
        }
    }

    /// Leaves all folders but so many, each with its rights and time.
    fn leave(&mut self, depth: usize) -> Result<(), Fault> {
        while self.way.len() > depth {
            let Some(level) = self.way.pop() else { break };
            if let Some((mode, mtime)) = level.settling {
                let settled = level.folder.settle(mode, mtime);
                settled.map_err(Fault::file(bytes(&level.name)))?;
            }
        }
        Ok(())
    }
}

fn through(error: std::io::Error, path: &[u8], link: &OsStr) -> Fault {
    let name = String::from_utf8_lossy(path).into_owned();
    if !Folder::is_link(&error) {
        return Fault::File { name, cause: error };
    }
    let link = link.to_string_lossy().into_owned();
    Fault::ThroughLink { name, link }
}

/// The names on the way to a member.
fn names(path: &[u8]) -> Result<Vec<OsString>, Fault> {
    let escapes = || Fault::Escapes(String::from_utf8_lossy(path).into_owned());
    if path.starts_with(b"/") {
        return Err(escapes());
    }
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(escapes()),
            name => names.push(native(name).map_err(Fault::file(path))?),
        }
    }
    Ok(names)
}
