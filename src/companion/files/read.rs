//! Looking at files, and reading them.

use super::{Place, Refusal};
use crate::archive::{Folder, Look, Outlet, PIECE};
use crate::protocol::files::{Entry, EntryKind, Listing, encode};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What a place holds, through links.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    path: PathBuf,
    pub(crate) look: Look,
    /// Where it leads, when the place itself is a link.
    target: Option<PathBuf>,
    /// Where it leads in the end, then.
    real: Option<PathBuf>,
}

/// Which of a folder's entries.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    /// Those behind this name.
    pub(crate) after: Option<Vec<u8>>,
    pub(crate) limit: usize,
}

/// A file that is open.
#[derive(Debug)]
pub(crate) struct Open {
    file: File,
    pub(crate) look: Look,
    /// What files of `/proc` are: they have content and do not know how much.
    pub(crate) is_endless: bool,
}

impl Found {
    pub(super) fn at(place: Place) -> Result<Self, Refusal> {
        let Place { path, is_folder } = place;
        let look = Look::through(&path).map_err(Refusal::of(&path))?;
        if is_folder && look.kind != EntryKind::Folder {
            return Err(Refusal::NoFolder(path));
        }
        let target = fs::read_link(&path).ok();
        let real = target.as_ref().and_then(|_| fs::canonicalize(&path).ok());
        Ok(Self {
            path,
            look,
            target,
            real,
        })
    }

    pub(crate) fn entry(&self) -> Entry {
        let name = self.path.file_name().unwrap_or(OsStr::new("/"));
        let target = self.target.as_ref();
        let target = target.map(|target| target.to_string_lossy().into_owned());
        let real = self.real.as_ref();
        Entry {
            real: real.map(|real| encode(real.as_os_str().as_bytes())),
            ..entry(name, self.path.as_os_str().as_bytes(), &self.look, target)
        }
    }

    pub(super) fn list(self, page: Page) -> Result<Listing, Refusal> {
        let failed = Refusal::of(&self.path);
        let folder = Folder::open(&self.path).map_err(&failed)?;
        let names = folder.names().map_err(&failed)?;
        let first = page.after.map_or(0, |after| {
            names.partition_point(|name| name.as_bytes() <= after.as_slice())
        });
        let mut entries = Vec::new();
        for name in names[first..].iter().take(page.limit) {
            // It may be gone by now.
            let Ok(look) = folder.look(name) else {
                continue;
            };
            let target = match look.kind {
                EntryKind::Symlink => folder.target(name).ok(),
                _ => None,
            };
            let target = target.map(|target| String::from_utf8_lossy(&target).into_owned());
            let path = self.path.join(name);
            entries.push(entry(name, path.as_os_str().as_bytes(), &look, target));
        }
        Ok(Listing {
            path: encode(self.path.as_os_str().as_bytes()),
            entries,
            more: names.len() - first > page.limit,
        })
    }

    pub(super) fn open(self) -> Result<Open, Refusal> {
        let failed = Refusal::of(&self.path);
        // Opening a device or a pipe does something, so it is looked at before, and again after.
        let mut file = match self.look.kind {
            EntryKind::File => opened(&self.path).map_err(&failed)?,
            kind => return Err(no_file(self.path.clone(), kind)),
        };
        let look = Look::of(&file).map_err(&failed)?;
        if look.kind != EntryKind::File {
            return Err(no_file(self.path.clone(), look.kind));
        }
        let is_endless = look.size == 0 && {
            let is_some = file.read(&mut [0]).map_err(&failed)? == 1;
            file.rewind().map_err(&failed)?;
            is_some
        };
        Ok(Open {
            file,
            look,
            is_endless,
        })
    }

    /// The folder to pack, or the one where a file lies, and its name.
    pub(super) fn into_pack(self) -> Result<(Folder, Option<OsString>), Refusal> {
        let failed = Refusal::of(&self.path);
        if self.look.kind == EntryKind::Folder {
            return Ok((Folder::open(&self.path).map_err(failed)?, None));
        }
        if self.look.kind != EntryKind::File {
            return Err(no_file(self.path.clone(), self.look.kind));
        }
        let real = fs::canonicalize(&self.path).map_err(&failed)?;
        let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(Refusal::Missing(self.path.clone()));
        };
        let folder = Folder::open(parent).map_err(failed)?;
        Ok((folder, Some(name.to_owned())))
    }
}

impl Open {
    /// Runs on a thread of its own until all is read or nobody takes it.
    pub(super) fn stream(mut self, start: u64, length: Option<u64>, mut outlet: Outlet) {
        let mut left = length.unwrap_or(u64::MAX);
        let sent = (|| -> io::Result<()> {
            self.file.seek(SeekFrom::Start(start))?;
            while left > 0 {
                let most = left.min(PIECE as u64);
                let mut piece = Vec::with_capacity(usize::try_from(most).unwrap_or(PIECE));
                (&mut self.file).take(most).read_to_end(&mut piece)?;
                if piece.is_empty() {
                    return match length {
                        None => Ok(()),
                        // It was promised more.
                        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                    };
                }
                left -= piece.len() as u64;
                outlet.piece(piece.into())?;
            }
            Ok(())
        })();
        // Nobody is left to tell when the client has gone.
        let _ = outlet.end(sent.err());
    }
}

fn opened(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(nix::libc::O_NONBLOCK);
    options.open(path)
}

fn no_file(path: PathBuf, kind: EntryKind) -> Refusal {
    Refusal::NoFile { path, kind }
}

fn entry(name: &OsStr, path: &[u8], look: &Look, target: Option<String>) -> Entry {
    Entry {
        name: name.to_string_lossy().into_owned(),
        path: encode(path),
        kind: look.kind,
        size: look.size,
        allocated: look.allocated,
        mode: format!("{:04o}", look.mode),
        mtime: look.mtime.to_string(),
        target,
        real: None,
    }
}
