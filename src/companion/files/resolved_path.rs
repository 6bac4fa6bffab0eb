//! Metadata and content of files and folders.

use super::{ContainerPath, FilesRefusal};
use crate::archive::{ARCHIVE_CHUNK_BYTES, ChunkWriter, EntryStat, Folder};
use crate::protocol::files::{EntryKind, FileEntry, FileListing, percent_encode};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What a path leads to, after following links.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedFilePath {
    path: PathBuf,
    pub(crate) stat: EntryStat,
    /// The link's target, when the path itself is a link.
    link_target: Option<PathBuf>,
    /// The path that the chain of links ends at, when the path itself is a link.
    canonical_path: Option<PathBuf>,
}

/// The part of a folder's entries to list.
#[derive(Debug, Clone)]
pub(crate) struct ListingPage {
    /// Lists the entries after this name.
    pub(crate) after: Option<Vec<u8>>,
    pub(crate) limit: usize,
}

/// A file that is open.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    file: File,
    pub(crate) stat: EntryStat,
    /// Whether the file has content but reports no size, as files of `/proc` do.
    pub(crate) has_unknown_size: bool,
}

impl ResolvedFilePath {
    pub(super) fn resolve(place: ContainerPath) -> Result<Self, FilesRefusal> {
        let ContainerPath { path, is_folder } = place;
        let stat = EntryStat::stat_path(&path).map_err(FilesRefusal::for_path(&path))?;
        if is_folder && stat.kind != EntryKind::Folder {
            return Err(FilesRefusal::NotAFolder(path));
        }
        let link_target = fs::read_link(&path).ok();
        let canonical_path = link_target
            .as_ref()
            .and_then(|_| fs::canonicalize(&path).ok());
        Ok(Self {
            path,
            stat,
            link_target,
            canonical_path,
        })
    }

    pub(crate) fn to_entry(&self) -> FileEntry {
        let name = self.path.file_name().unwrap_or(OsStr::new("/"));
        let target = self.link_target.as_ref();
        let target = target.map(|target| target.to_string_lossy().into_owned());
        let canonical_path = self.canonical_path.as_ref();
        FileEntry {
            real: canonical_path
                .map(|canonical_path| percent_encode(canonical_path.as_os_str().as_bytes())),
            ..build_entry(name, self.path.as_os_str().as_bytes(), &self.stat, target)
        }
    }

    pub(super) fn list_entries(self, page: ListingPage) -> Result<FileListing, FilesRefusal> {
        let failed = FilesRefusal::for_path(&self.path);
        let folder = Folder::open(&self.path).map_err(&failed)?;
        let names = folder.names().map_err(&failed)?;
        let first = page.after.map_or(0, |after| {
            names.partition_point(|name| name.as_bytes() <= after.as_slice())
        });
        let mut entries = Vec::new();
        for name in names[first..].iter().take(page.limit) {
            // The entry may have been removed since.
            let Ok(stat) = folder.stat(name) else {
                continue;
            };
            let target = match stat.kind {
                EntryKind::Symlink => folder.read_link(name).ok(),
                _ => None,
            };
            let target = target.map(|target| String::from_utf8_lossy(&target).into_owned());
            let path = self.path.join(name);
            entries.push(build_entry(
                name,
                path.as_os_str().as_bytes(),
                &stat,
                target,
            ));
        }
        Ok(FileListing {
            path: percent_encode(self.path.as_os_str().as_bytes()),
            entries,
            more: names.len() - first > page.limit,
        })
    }

    pub(super) fn open_file(self) -> Result<OpenedFile, FilesRefusal> {
        let failed = FilesRefusal::for_path(&self.path);
        // Opening a device or a pipe has side effects, so the kind is checked before the open, and again after it.
        let mut file = match self.stat.kind {
            EntryKind::File => open_nonblocking(&self.path).map_err(&failed)?,
            kind => return Err(not_a_file(self.path.clone(), kind)),
        };
        let stat = EntryStat::stat_file(&file).map_err(&failed)?;
        if stat.kind != EntryKind::File {
            return Err(not_a_file(self.path.clone(), stat.kind));
        }
        let has_unknown_size = stat.size == 0 && {
            let is_some = file.read(&mut [0]).map_err(&failed)? == 1;
            file.rewind().map_err(&failed)?;
            is_some
        };
        Ok(OpenedFile {
            file,
            stat,
            has_unknown_size,
        })
    }

    /// The folder to pack, or the parent folder and the name of a file.
    pub(super) fn into_archive_source(self) -> Result<(Folder, Option<OsString>), FilesRefusal> {
        let failed = FilesRefusal::for_path(&self.path);
        if self.stat.kind == EntryKind::Folder {
            return Ok((Folder::open(&self.path).map_err(failed)?, None));
        }
        if self.stat.kind != EntryKind::File {
            return Err(not_a_file(self.path.clone(), self.stat.kind));
        }
        let canonical_path = fs::canonicalize(&self.path).map_err(&failed)?;
        let (Some(parent), Some(name)) = (canonical_path.parent(), canonical_path.file_name())
        else {
            return Err(FilesRefusal::NotFound(self.path.clone()));
        };
        let folder = Folder::open(parent).map_err(failed)?;
        Ok((folder, Some(name.to_owned())))
    }
}

impl OpenedFile {
    /// Runs on its own thread until all is read or the reader is dropped.
    pub(super) fn stream_to(mut self, start: u64, length: Option<u64>, mut writer: ChunkWriter) {
        let mut left = length.unwrap_or(u64::MAX);
        let sent = (|| -> io::Result<()> {
            self.file.seek(SeekFrom::Start(start))?;
            while left > 0 {
                let max_bytes = left.min(ARCHIVE_CHUNK_BYTES as u64);
                let mut piece =
                    Vec::with_capacity(usize::try_from(max_bytes).unwrap_or(ARCHIVE_CHUNK_BYTES));
                (&mut self.file).take(max_bytes).read_to_end(&mut piece)?;
                if piece.is_empty() {
                    return match length {
                        None => Ok(()),
                        // The file is shorter than the promised length.
                        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                    };
                }
                left -= piece.len() as u64;
                writer.write_chunk(piece.into())?;
            }
            Ok(())
        })();
        // The send fails when the client has disconnected.
        let _ = writer.finish(sent.err());
    }
}

fn open_nonblocking(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(nix::libc::O_NONBLOCK);
    options.open(path)
}

fn not_a_file(path: PathBuf, kind: EntryKind) -> FilesRefusal {
    FilesRefusal::NotAFile { path, kind }
}

fn build_entry(name: &OsStr, path: &[u8], stat: &EntryStat, target: Option<String>) -> FileEntry {
    FileEntry {
        name: name.to_string_lossy().into_owned(),
        path: percent_encode(path),
        kind: stat.kind,
        size: stat.size,
        allocated: stat.allocated,
        mode: format!("{:04o}", stat.mode),
        mtime: stat.mtime.to_string(),
        target,
        real: None,
    }
}
