//! Unpacker: an archive to a file tree, never outside of the target folder.
//!
//! Every folder on the path to a member is opened from its parent by one name, which may not be a link. So neither a
//! link from the archive nor an existing link leads outside. Links are created as the archive states them, whatever
//! their target, and never followed. An existing entry is replaced by a rename once its replacement is complete;
//! existing folders are kept. Nothing is synced here.

use super::ARCHIVE_CHUNK_BYTES;
use super::error::ArchiveError;
use super::folder::{Folder, name_bytes, native_name, set_mode_and_mtime};
use super::member::{ArchiveMember, DataSegment, MemberKind};
use super::pack::MAX_FOLDER_DEPTH;
use super::reader::TarReader;
use super::resume_point::VerifiedReader;
use super::temporary_name::temporary_name;
use osctl_protocol::files::{EntryKind, Mtime};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Rules for names and metadata of an archive.
#[derive(Debug, Clone, Default)]
pub struct UnpackPolicy {
    /// Whether files keep the setuid and setgid bits.
    pub keep_setid: bool,
    /// Whether the archive's root member sets the mode and time of the target folder.
    pub sets_root_attributes: bool,
    /// The local name, if the archive holds a single file.
    pub single_name: Option<OsString>,
    /// The id in the names of incomplete files.
    pub temporary_id: String,
}

/// Counts of unpacked entries and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnpackTotals {
    pub files: u64,
    pub folders: u64,
    pub links: u64,
    /// Bytes of file data.
    pub bytes: u64,
}

/// Unpacks the whole archive. Before an incomplete file is created, `on_temporary` is called with its path from the
/// root.
///
/// # Errors
/// At the first member that can't or may not be unpacked; the members before it stay.
pub fn unpack_archive(
    from: VerifiedReader<impl Read>,
    root: Folder,
    policy: UnpackPolicy,
    on_temporary: &mut dyn FnMut(&Path) -> io::Result<()>,
) -> Result<UnpackTotals, ArchiveError> {
    let mut reader = TarReader::new(from);
    let mut unpacker = Unpacker {
        open_levels: vec![UnpackLevel {
            name: OsString::new(),
            folder: root,
            final_attributes: None,
        }],
        is_single: policy.single_name.is_some(),
        policy,
        totals: UnpackTotals::default(),
        buffer: vec![0; ARCHIVE_CHUNK_BYTES],
        on_temporary,
    };
    while let Some(member) = reader.next_member()? {
        unpacker.unpack_member(&mut reader, member)?;
    }
    unpacker.close_folders(0)?;
    Ok(unpacker.totals)
}

struct Unpacker<'a> {
    /// The open folders from the root to the folder of the last member.
    open_levels: Vec<UnpackLevel>,
    policy: UnpackPolicy,
    is_single: bool,
    totals: UnpackTotals,
    buffer: Vec<u8>,
    on_temporary: &'a mut dyn FnMut(&Path) -> io::Result<()>,
}

struct UnpackLevel {
    name: OsString,
    folder: Folder,
    /// Mode and time of the folder, set after its content is complete.
    final_attributes: Option<(u32, Option<Mtime>)>,
}

impl Unpacker<'_> {
    fn unpack_member<R: Read>(
        &mut self,
        reader: &mut TarReader<R>,
        member: ArchiveMember,
    ) -> Result<(), ArchiveError> {
        let names = match self.policy.single_name.take() {
            Some(name) => vec![name],
            None if self.is_single => {
                return Err(ArchiveError::Damaged("it contains more than one file"));
            }
            None => split_names(&member.path)?,
        };
        let mode = match self.policy.keep_setid {
            true => member.mode,
            false => member.mode & 0o1777,
        };
        if let MemberKind::Special(what) = member.kind {
            let name = member.display_name();
            return Err(ArchiveError::UnsupportedKind { name, what });
        }
        if self.is_single && !matches!(member.kind, MemberKind::File { .. }) {
            return Err(ArchiveError::Damaged("it contains no file"));
        }
        if member.kind == MemberKind::Folder {
            self.enter_folder(&names)?;
            self.totals.folders += u64::from(!names.is_empty());
            if !names.is_empty() || self.policy.sets_root_attributes {
                let last = self.open_levels.last_mut();
                last.into_iter()
                    .for_each(|last| last.final_attributes = Some((mode, Some(member.mtime))));
            }
            return Ok(());
        }
        let Some((name, parents)) = names.split_last() else {
            return Err(ArchiveError::OutsideFolder(member.display_name()));
        };
        self.enter_folder(parents)?;
        let temporary = temporary_name(name, &self.policy.temporary_id);
        let path: PathBuf = parents.iter().chain([&temporary]).collect();
        (self.on_temporary)(&path).map_err(ArchiveError::for_file(&member.path))?;
        let made = self.create_member(reader, &member, &temporary, mode);
        let made = made.and_then(|()| self.move_into_place(&member, &temporary, name));
        if made.is_err() {
            // The temporary file may not exist.
            let _ = self.current_folder().remove(&temporary);
        }
        made
    }

    /// The folder of the current member.
    fn current_folder(&self) -> &Folder {
        // The root is never removed from `open_levels`.
        &self.open_levels[self.open_levels.len() - 1].folder
    }

    fn create_member<R: Read>(
        &mut self,
        reader: &mut TarReader<R>,
        member: &ArchiveMember,
        temporary: &OsStr,
        mode: u32,
    ) -> Result<(), ArchiveError> {
        let failed = ArchiveError::for_file(&member.path);
        match &member.kind {
            MemberKind::File { size, segments } => {
                let mut file = self
                    .current_folder()
                    .create_file(temporary)
                    .map_err(&failed)?;
                self.write_file_data(reader, &mut file, member, *size, segments.as_deref())?;
                set_mode_and_mtime(&file, mode, Some(member.mtime)).map_err(&failed)?;
                self.totals.files += 1;
            }
            MemberKind::Symlink(target) => {
                let made = self
                    .current_folder()
                    .symlink(temporary, target, member.mtime);
                made.map_err(&failed)?;
                self.totals.links += 1;
            }
            MemberKind::HardLink(target) => {
                self.hard_link(member, target, temporary)?;
                self.totals.links += 1;
            }
            MemberKind::Folder | MemberKind::Special(_) => {}
        }
        Ok(())
    }

    fn move_into_place(
        &self,
        member: &ArchiveMember,
        temporary: &OsStr,
        name: &OsStr,
    ) -> Result<(), ArchiveError> {
        let here = self.current_folder();
        if let Err(cause) = here.rename(temporary, name) {
            return Err(match here.stat(name) {
                Ok(stat) if stat.kind == EntryKind::Folder => ArchiveError::Occupied {
                    name: member.display_name(),
                    what: stat.kind.with_article(),
                },
                _ => ArchiveError::for_file(&member.path)(cause),
            });
        }
        if matches!(member.kind, MemberKind::HardLink(_)) {
            // A rename between two hard links of one file does nothing, so the temporary name would stay.
            let _ = here.remove(temporary);
        }
        Ok(())
    }

    /// Writes the data segments of a file; the ranges between them stay holes.
    fn write_file_data<R: Read>(
        &mut self,
        reader: &mut TarReader<R>,
        file: &mut File,
        member: &ArchiveMember,
        size: u64,
        segments: Option<&[DataSegment]>,
    ) -> Result<(), ArchiveError> {
        let failed = ArchiveError::for_file(&member.path);
        let whole = [DataSegment {
            offset: 0,
            length: size,
        }];
        for DataSegment { offset, length } in segments.unwrap_or(&whole) {
            if *offset > 0 {
                file.seek(SeekFrom::Start(*offset)).map_err(&failed)?;
            }
            let mut left = *length;
            while left > 0 {
                let most = usize::try_from(left)
                    .unwrap_or(ARCHIVE_CHUNK_BYTES)
                    .min(ARCHIVE_CHUNK_BYTES);
                let read = reader.read_data(&mut self.buffer[..most])?;
                if read == 0 {
                    return Err(ArchiveError::Stream(ErrorKind::UnexpectedEof.into()));
                }
                file.write_all(&self.buffer[..read]).map_err(&failed)?;
                left -= read as u64;
                self.totals.bytes += read as u64;
            }
        }
        if segments.is_some() {
            file.set_len(size).map_err(&failed)?;
        }
        Ok(())
    }

    fn hard_link(
        &mut self,
        member: &ArchiveMember,
        target: &[u8],
        temporary: &OsStr,
    ) -> Result<(), ArchiveError> {
        let names = split_names(target)?;
        let no_target =
            || ArchiveError::MissingLinkTarget(String::from_utf8_lossy(target).into_owned());
        let (name, parents) = names.split_last().ok_or_else(no_target)?;
        let mut folder: Option<Folder> = None;
        for step in parents {
            let parent = folder.as_ref().unwrap_or(&self.open_levels[0].folder);
            let next = parent.open_folder(step);
            folder = Some(next.map_err(|e| link_error(e, &member.path, step))?);
        }
        let from = folder.as_ref().unwrap_or(&self.open_levels[0].folder);
        // A hard link to a device would give access to the device.
        match from.stat(name) {
            Ok(stat) if stat.kind == EntryKind::File || stat.kind == EntryKind::Symlink => {}
            _ => return Err(no_target()),
        }
        let made = self.current_folder().hard_link(temporary, from, name);
        made.map_err(ArchiveError::for_file(&member.path))
    }

    /// Enters a folder and creates the missing ones on the path.
    fn enter_folder(&mut self, names: &[OsString]) -> Result<(), ArchiveError> {
        let on_way = self.open_levels[1..].iter().zip(names);
        let shared = on_way.take_while(|(l, name)| l.name == **name).count();
        self.close_folders(shared + 1)?;
        for name in &names[shared..] {
            let path = || name_bytes(&names.join(OsStr::new("/"))).to_vec();
            if self.open_levels.len() > MAX_FOLDER_DEPTH {
                let cause = std::io::Error::other("the folders are nested too deeply");
                return Err(ArchiveError::for_file(&path())(cause));
            }
            let here = self.current_folder();
            let mut final_attributes = None;
            let opened = match here.open_folder(name) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    // The default for a folder without its own member; an existing folder keeps its mode.
                    final_attributes = Some((0o755, None));
                    here.create_folder(name)
                        .and_then(|()| here.open_folder(name))
                }
                opened => opened,
            };
            let folder = match opened {
                Ok(folder) => folder,
                Err(error) => return Err(self.obstacle_error(error, &path(), name)),
            };
            let name = name.clone();
            self.open_levels.push(UnpackLevel {
                name,
                folder,
                final_attributes,
            });
        }
        Ok(())
    }

    /// The error for an entry that exists where a folder was expected.
    fn obstacle_error(&self, error: std::io::Error, path: &[u8], name: &OsStr) -> ArchiveError {
        match self.current_folder().stat(name) {
            Ok(stat) if stat.kind == EntryKind::Symlink => link_error(error, path, name),
            Ok(stat) if stat.kind != EntryKind::Folder => ArchiveError::Occupied {
                name: String::from_utf8_lossy(path).into_owned(),
                what: stat.kind.with_article(),
            },
            _ => ArchiveError::for_file(path)(error),
        }
    }

    /// Leaves all folders deeper than `depth` and sets the mode and time of each.
    fn close_folders(&mut self, depth: usize) -> Result<(), ArchiveError> {
        while self.open_levels.len() > depth {
            let Some(level) = self.open_levels.pop() else {
                break;
            };
            if let Some((mode, mtime)) = level.final_attributes {
                let settled = level.folder.set_mode_and_mtime(mode, mtime);
                settled.map_err(ArchiveError::for_file(name_bytes(&level.name)))?;
            }
        }
        Ok(())
    }
}

fn link_error(error: std::io::Error, path: &[u8], link: &OsStr) -> ArchiveError {
    let name = String::from_utf8_lossy(path).into_owned();
    if !Folder::is_link(&error) {
        return ArchiveError::File { name, cause: error };
    }
    let link = link.to_string_lossy().into_owned();
    ArchiveError::ThroughLink { name, link }
}

/// Splits the path of a member into names.
fn split_names(path: &[u8]) -> Result<Vec<OsString>, ArchiveError> {
    let escapes = || ArchiveError::OutsideFolder(String::from_utf8_lossy(path).into_owned());
    if path.starts_with(b"/") {
        return Err(escapes());
    }
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(escapes()),
            name => names.push(native_name(name).map_err(ArchiveError::for_file(path))?),
        }
    }
    Ok(names)
}
