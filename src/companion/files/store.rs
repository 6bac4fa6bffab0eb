//! Writes of single files (temporary file, sync, rename), and other changes of names.

use super::partial_uploads::{self, PartialUploads};
use super::{ContainerPath, FilesRefusal};
use crate::archive::{
    BackgroundWriter, ChunkReader, EntryStat, Folder, set_mode_and_mtime, temporary_name,
};
use crate::protocol::files::{EntryKind, Mtime};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::PathBuf;

/// The target of an upload.
#[derive(Debug)]
pub(crate) struct UploadTarget {
    pub(crate) path: ContainerPath,
    /// Mode; by default that of the replaced file.
    pub(crate) mode: Option<u32>,
    /// Modification time; by default the current time.
    pub(crate) mtime: Option<Mtime>,
    /// Whether missing parent folders are created.
    pub(crate) create_parents: bool,
    /// Id with which the upload can be resumed.
    pub(crate) upload_id: Option<String>,
    /// Offset in the file at which the stream begins.
    pub(crate) offset: u64,
    /// Length of the whole file, if known.
    pub(crate) total_bytes: Option<u64>,
}

/// How an upload ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadOutcome {
    /// The new file is in its place; its size in bytes.
    Created(u64),
    Replaced(u64),
    /// This many bytes have arrived, and more follow.
    Partial(u64),
}

/// The resolved place of a file.
struct UploadDestination {
    /// Parent folder of the file.
    parent: PathBuf,
    name: OsString,
    /// Metadata of the existing file.
    replaced_metadata: Option<fs::Metadata>,
}

pub(super) fn store_upload(
    uploads: &PartialUploads,
    target: UploadTarget,
    reader: ChunkReader,
) -> Result<UploadOutcome, FilesRefusal> {
    let fresh;
    let id = match &target.upload_id {
        Some(id) => check_upload_id(id)?,
        None => {
            fresh = partial_uploads::generate_one_shot_id()?;
            &fresh
        }
    };
    if target.create_parents
        && let Some(parent) = target.path.path.parent()
    {
        fs::create_dir_all(parent).map_err(FilesRefusal::for_path(parent))?;
    }
    let destination = UploadDestination::resolve(&target.path)?;
    let folder =
        Folder::open(&destination.parent).map_err(FilesRefusal::for_path(&destination.parent))?;
    let temporary = temporary_name(&destination.name, id);
    let active = uploads.begin_upload(id, &destination.parent.join(&temporary))?;
    let failed = FilesRefusal::for_path(&target.path.path);
    let written = open_partial_file(&folder, &temporary, &target)
        .and_then(|mut file| Ok((write_upload(&mut file, &target, reader)?, file)));
    let (end, file) = match written {
        Ok(written) => written,
        // Keep the received bytes for a client that can resume.
        Err(FilesRefusal::Disconnected) if target.upload_id.is_some() => {
            return Err(FilesRefusal::Disconnected);
        }
        Err(FilesRefusal::OffsetMismatch(have @ 1..)) => {
            return Err(FilesRefusal::OffsetMismatch(have));
        }
        Err(refusal) => {
            let _ = folder.remove(&temporary);
            active.remove_record();
            return Err(refusal);
        }
    };
    if target.total_bytes.is_some_and(|total| end < total) {
        return Ok(UploadOutcome::Partial(end));
    }
    let placed = finalize_file(&file, &target, destination.replaced_metadata.as_ref())
        .and_then(|()| folder.rename(&temporary, &destination.name))
        .and_then(|()| folder.sync());
    if placed.is_err() {
        let _ = folder.remove(&temporary);
    }
    active.remove_record();
    placed.map_err(failed)?;
    Ok(match destination.replaced_metadata {
        Some(_) => UploadOutcome::Replaced(end),
        None => UploadOutcome::Created(end),
    })
}

/// Counts the bytes of an upload that have arrived.
pub(super) fn count_uploaded_bytes(place: &ContainerPath, id: &str) -> Result<u64, FilesRefusal> {
    let destination = UploadDestination::resolve(place)?;
    let temporary = destination
        .parent
        .join(temporary_name(&destination.name, check_upload_id(id)?));
    match EntryStat::lstat_path(&temporary) {
        Ok(stat) => Ok(stat.size),
        Err(_) => Err(FilesRefusal::NoUpload(id.into())),
    }
}

pub(super) fn remove_partial_upload(
    uploads: &PartialUploads,
    place: &ContainerPath,
    id: &str,
) -> Result<(), FilesRefusal> {
    let destination = UploadDestination::resolve(place)?;
    let temporary = destination
        .parent
        .join(temporary_name(&destination.name, check_upload_id(id)?));
    let active = uploads.begin_upload(id, &temporary)?;
    let removed = fs::remove_file(&temporary);
    active.remove_record();
    removed.map_err(|_| FilesRefusal::NoUpload(id.into()))
}

/// Creates a folder; `false` when it existed.
pub(super) fn create_folder(place: &ContainerPath, parents: bool) -> Result<bool, FilesRefusal> {
    let path = &place.path;
    let made = DirBuilder::new().recursive(false).create(path);
    match made {
        Ok(()) => Ok(true),
        Err(there) if there.kind() == ErrorKind::AlreadyExists => match path.is_dir() {
            true => Ok(false),
            false => Err(FilesRefusal::NotAFolder(path.clone())),
        },
        Err(gone) if gone.kind() == ErrorKind::NotFound && parents => {
            fs::create_dir_all(path).map_err(FilesRefusal::for_path(path))?;
            Ok(true)
        }
        Err(error) => Err(FilesRefusal::for_path(path.parent().unwrap_or(path))(error)),
    }
}

pub(super) fn check_upload_id(id: &str) -> Result<&str, FilesRefusal> {
    let message =
        || format!("`{id}` is not a valid upload ID: use 8 to 48 letters, digits, `-` and `_`");
    partial_uploads::is_upload_id(id)
        .then_some(id)
        .ok_or_else(|| FilesRefusal::Invalid(message()))
}

impl UploadDestination {
    fn resolve(place: &ContainerPath) -> Result<Self, FilesRefusal> {
        let ContainerPath { path, is_folder } = place;
        let no_file = |kind| FilesRefusal::NotAFile {
            path: path.clone(),
            kind,
        };
        if *is_folder {
            return Err(no_file(EntryKind::Folder));
        }
        // The target of a link is replaced, not the link; a link without a target is itself replaced.
        let canonical_path = match fs::canonicalize(path) {
            Ok(canonical_path) => canonical_path,
            Err(error) if error.kind() == ErrorKind::NotFound => path.clone(),
            Err(error) => return Err(FilesRefusal::for_path(path)(error)),
        };
        let replaced_metadata = match EntryStat::lstat_path(&canonical_path).map(|stat| stat.kind) {
            Ok(EntryKind::File) => {
                Some(fs::metadata(&canonical_path).map_err(FilesRefusal::for_path(path))?)
            }
            Ok(EntryKind::Symlink) | Err(_) => None,
            Ok(kind) => return Err(no_file(kind)),
        };
        match (canonical_path.parent(), canonical_path.file_name()) {
            (Some(parent), Some(name)) => Ok(Self {
                parent: parent.to_owned(),
                name: name.to_owned(),
                replaced_metadata,
            }),
            _ => Err(no_file(EntryKind::Folder)),
        }
    }
}

fn open_partial_file(
    folder: &Folder,
    temporary: &OsString,
    target: &UploadTarget,
) -> Result<File, FilesRefusal> {
    let failed = FilesRefusal::for_path(&target.path.path);
    let mut file = match folder.reopen_file(temporary) {
        Ok(Some(file)) => file,
        Ok(None) => return Err(FilesRefusal::Busy(target.path.path.clone())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            folder.create_file(temporary).map_err(&failed)?
        }
        Err(error) => return Err(failed(error)),
    };
    let have = EntryStat::stat_file(&file).map_err(&failed)?.size;
    if target.offset == 0 {
        file.set_len(0).map_err(&failed)?;
    } else if target.offset != have {
        return Err(FilesRefusal::OffsetMismatch(have));
    }
    file.seek(SeekFrom::Start(target.offset)).map_err(&failed)?;
    Ok(file)
}

/// Returns the offset at which the file ends.
fn write_upload(
    file: &mut File,
    target: &UploadTarget,
    mut reader: ChunkReader,
) -> Result<u64, FilesRefusal> {
    let mut end = target.offset;
    let mut behind = BackgroundWriter::default();
    loop {
        let piece = match reader.next_chunk() {
            Ok(piece) if piece.is_empty() => return Ok(end),
            Ok(piece) => piece,
            Err(_) => return Err(FilesRefusal::Disconnected),
        };
        end += piece.len() as u64;
        if let Some(total) = target.total_bytes.filter(|total| end > *total) {
            let message = format!("the upload is longer than its declared length of {total} bytes");
            return Err(FilesRefusal::Invalid(message));
        }
        file.write_all(&piece)
            .map_err(FilesRefusal::for_path(&target.path.path))?;
        behind.hint_writeback(file, end);
    }
}

fn finalize_file(
    file: &File,
    target: &UploadTarget,
    replaced: Option<&fs::Metadata>,
) -> std::io::Result<()> {
    if let Some(replaced) = replaced {
        // Without the permission to change owners, the file stays with this user.
        let _ = fchown(file, Some(replaced.uid()), Some(replaced.gid()));
    }
    let default_mode = replaced.map_or(0o644, |replaced| replaced.mode() & 0o7777);
    set_mode_and_mtime(file, target.mode.unwrap_or(default_mode), target.mtime)?;
    file.sync_all()
}
