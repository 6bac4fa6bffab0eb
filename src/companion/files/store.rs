//! Writing one file: beside its place, synced, renamed; and what else changes names.

use super::begun::{self, Begun};
use super::{Place, Refusal};
use crate::archive::{Behind, Folder, Inlet, Look, settle, temporary};
use crate::protocol::files::{EntryKind, Mtime};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::PathBuf;

/// What is to be written where.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) place: Place,
    /// By default those of the file that is replaced.
    pub(crate) mode: Option<u32>,
    /// By default now.
    pub(crate) mtime: Option<Mtime>,
    /// Whether missing folders on the way are made.
    pub(crate) parents: bool,
    /// By which the upload can be taken up again.
    pub(crate) id: Option<String>,
    /// Where in the file the stream begins.
    pub(crate) offset: u64,
    /// The whole file's length, where it is known.
    pub(crate) total: Option<u64>,
}

/// How an upload ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It is in its place, of so many bytes.
    Created(u64),
    Replaced(u64),
    /// So many bytes have arrived, more are to come.
    Partial(u64),
}

/// Where a file goes.
struct Spot {
    /// Its folder.
    parent: PathBuf,
    name: OsString,
    /// What is there now.
    old: Option<fs::Metadata>,
}

pub(super) fn store(begun: &Begun, target: Target, inlet: Inlet) -> Result<Stored, Refusal> {
    let fresh;
    let id = match &target.id {
        Some(id) => valid(id)?,
        None => {
            fresh = begun::fresh()?;
            &fresh
        }
    };
    if target.parents
        && let Some(parent) = target.place.path.parent()
    {
        fs::create_dir_all(parent).map_err(Refusal::of(parent))?;
    }
    let spot = Spot::find(&target.place)?;
    let folder = Folder::open(&spot.parent).map_err(Refusal::of(&spot.parent))?;
    let beside = temporary(&spot.name, id);
    let active = begun.begin(id, &spot.parent.join(&beside))?;
    let failed = Refusal::of(&target.place.path);
    let written = open(&folder, &beside, &target)
        .and_then(|mut file| Ok((write(&mut file, &target, inlet)?, file)));
    let (end, file) = match written {
        Ok(written) => written,
        // What has arrived is worth something to whom can go on.
        Err(Refusal::Cut) if target.id.is_some() => return Err(Refusal::Cut),
        Err(Refusal::Elsewhere(have @ 1..)) => return Err(Refusal::Elsewhere(have)),
        Err(refusal) => {
            let _ = folder.remove(&beside);
            active.end();
            return Err(refusal);
        }
    };
    if target.total.is_some_and(|total| end < total) {
        return Ok(Stored::Partial(end));
    }
    let placed = finish(&file, &target, spot.old.as_ref())
        .and_then(|()| folder.rename(&beside, &spot.name))
        .and_then(|()| folder.sync());
    if placed.is_err() {
        let _ = folder.remove(&beside);
    }
    active.end();
    placed.map_err(failed)?;
    Ok(match spot.old {
        Some(_) => Stored::Replaced(end),
        None => Stored::Created(end),
    })
}

/// How much of an upload has arrived.
pub(super) fn arrived(place: &Place, id: &str) -> Result<u64, Refusal> {
    let spot = Spot::find(place)?;
    let beside = spot.parent.join(temporary(&spot.name, valid(id)?));
    match Look::at(&beside) {
        Ok(look) => Ok(look.size),
        Err(_) => Err(Refusal::NoUpload(id.into())),
    }
}

pub(super) fn forget(begun: &Begun, place: &Place, id: &str) -> Result<(), Refusal> {
    let spot = Spot::find(place)?;
    let beside = spot.parent.join(temporary(&spot.name, valid(id)?));
    let active = begun.begin(id, &beside)?;
    let removed = fs::remove_file(&beside);
    active.end();
    removed.map_err(|_| Refusal::NoUpload(id.into()))
}

/// `false` when the folder was there.
pub(super) fn make_folder(place: &Place, parents: bool) -> Result<bool, Refusal> {
    let path = &place.path;
    let made = DirBuilder::new().recursive(false).create(path);
    match made {
        Ok(()) => Ok(true),
        Err(there) if there.kind() == ErrorKind::AlreadyExists => match path.is_dir() {
            true => Ok(false),
            false => Err(Refusal::NoFolder(path.clone())),
        },
        Err(gone) if gone.kind() == ErrorKind::NotFound && parents => {
            fs::create_dir_all(path).map_err(Refusal::of(path))?;
            Ok(true)
        }
        Err(error) => Err(Refusal::of(path.parent().unwrap_or(path))(error)),
    }
}

pub(super) fn valid(id: &str) -> Result<&str, Refusal> {
    let message =
        || format!("`{id}` can't name an upload: use 8 to 48 letters, digits, `-` and `_`");
    begun::is_id(id)
        .then_some(id)
        .ok_or_else(|| Refusal::Invalid(message()))
}

impl Spot {
    fn find(place: &Place) -> Result<Self, Refusal> {
        let Place { path, is_folder } = place;
        let no_file = |kind| Refusal::NoFile {
            path: path.clone(),
            kind,
        };
        if *is_folder {
            return Err(no_file(EntryKind::Folder));
        }
        // What a link leads to is replaced, and not the link; one that leads nowhere is.
        let real = match fs::canonicalize(path) {
            Ok(real) => real,
            Err(error) if error.kind() == ErrorKind::NotFound => path.clone(),
            Err(error) => return Err(Refusal::of(path)(error)),
        };
        let old = match Look::at(&real).map(|look| look.kind) {
            Ok(EntryKind::File) => Some(fs::metadata(&real).map_err(Refusal::of(path))?),
            Ok(EntryKind::Symlink) | Err(_) => None,
            Ok(kind) => return Err(no_file(kind)),
        };
        match (real.parent(), real.file_name()) {
            (Some(parent), Some(name)) => Ok(Self {
                parent: parent.to_owned(),
                name: name.to_owned(),
                old,
            }),
            _ => Err(no_file(EntryKind::Folder)),
        }
    }
}

fn open(folder: &Folder, beside: &OsString, target: &Target) -> Result<File, Refusal> {
    let failed = Refusal::of(&target.place.path);
    let mut file = match folder.resume(beside) {
        Ok(Some(file)) => file,
        Ok(None) => return Err(Refusal::Busy(target.place.path.clone())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            folder.create(beside).map_err(&failed)?
        }
        Err(error) => return Err(failed(error)),
    };
    let have = Look::of(&file).map_err(&failed)?.size;
    if target.offset == 0 {
        file.set_len(0).map_err(&failed)?;
    } else if target.offset != have {
        return Err(Refusal::Elsewhere(have));
    }
    file.seek(SeekFrom::Start(target.offset)).map_err(&failed)?;
    Ok(file)
}

/// Where the file ends then.
fn write(file: &mut File, target: &Target, mut inlet: Inlet) -> Result<u64, Refusal> {
    let mut end = target.offset;
    let mut behind = Behind::default();
    loop {
        let piece = match inlet.piece() {
            Ok(piece) if piece.is_empty() => return Ok(end),
            Ok(piece) => piece,
            Err(_) => return Err(Refusal::Cut),
        };
        end += piece.len() as u64;
        if let Some(total) = target.total.filter(|total| end > *total) {
            let message = format!("the upload is longer than the {total} bytes it was to have");
            return Err(Refusal::Invalid(message));
        }
        file.write_all(&piece)
            .map_err(Refusal::of(&target.place.path))?;
        behind.reached(file, end);
    }
}

fn finish(file: &File, target: &Target, old: Option<&fs::Metadata>) -> std::io::Result<()> {
    if let Some(old) = old {
        // Whoever may not give files away keeps them.
        let _ = fchown(file, Some(old.uid()), Some(old.gid()));
    }
    let kept = old.map_or(0o644, |old| old.mode() & 0o7777);
    settle(file, target.mode.unwrap_or(kept), target.mtime)?;
    file.sync_all()
}
