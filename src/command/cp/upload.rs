//! The upload of `osctl cp`: from the host to inside.

use super::CopyReport;
use super::plan::{
    CopyPlacement, CopySource, DestinationKind, RemotePath, choose_placement, local_name,
};
use crate::archive::{ChunkReceiver, EntryStat, Folder, PackSource, chunk_writer, data_segments};
use crate::error::{Error, Result};
use crate::host::client::CompanionClient;
use crate::host::files::{self, TransferredBytes};
use crate::host::path_resolver::{PathResolver, ResolvedName, ResolvedPath};
use crate::protocol::files::{EntryKind, FileChangeReply, FileEntry};
use crate::ui::ByteMeter;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Options of an upload.
#[derive(Debug)]
pub(super) struct CpUpload<'a> {
    pub(super) resolver: &'a PathResolver,
    pub(super) meter: &'a ByteMeter,
    pub(super) moved: &'a TransferredBytes,
}

/// The open source of an upload.
enum OpenedSource {
    Folder(Folder),
    File {
        place: ResolvedName,
        file: File,
        stat: EntryStat,
    },
}

impl CpUpload<'_> {
    pub(super) async fn run(
        &self,
        client: &CompanionClient,
        from: &Path,
        to: &RemotePath,
    ) -> Result<CopyReport> {
        let moved = self.moved;
        let unreadable = |error: io::Error| unreadable_source(from, &error);
        let opened = open_source(self.resolver, from)?;
        let name = local_name(from);
        let source = match (&opened, name) {
            (OpenedSource::File { .. }, _) => CopySource::File,
            (OpenedSource::Folder(_), Some(_)) => CopySource::Folder,
            (OpenedSource::Folder(_), None) => CopySource::Contents,
        };
        let destination = destination_kind(client.stat(&to.url_without_slash()).await?.as_ref());
        let name = name.unwrap_or_default();
        let place = match choose_placement(source, destination, to.is_folder(), &to.to_display())? {
            CopyPlacement::As => to.clone(),
            CopyPlacement::Within => to.join(name.as_encoded_bytes()),
        };
        let (local, mut file, stat) = match opened {
            OpenedSource::File { place, file, stat } => (place, file, stat),
            OpenedSource::Folder(folder) => {
                let pack = || Ok(PackSource::Folder(folder.try_clone().map_err(unreadable)?));
                let changed = client.upload_packed(&place.to_url(), pack, moved).await?;
                return Ok(changed.into());
            }
        };
        self.meter.set_total(stat.size);
        if is_endless(&mut file, stat.size).map_err(unreadable)? {
            let path = format!("{}?mode={:o}", place.to_url(), stat.mode);
            return Ok(client
                .upload_stream(&path, stream_chunks(file, moved))
                .await?
                .into());
        }
        let is_named = local.stat.is_some_and(|stat| stat.kind == EntryKind::File);
        if is_named && data_segments(&file, stat.size, stat.allocated).is_some() {
            // Unpacking would replace a link instead of writing to its target.
            let place = place.follow_link(client.stat(&place.url_without_slash()).await?.as_ref());
            // Unpacking would create the folder, but the folder of a file must exist.
            client.list_folder(&place.parent().to_url()).await?;
            let called = crate::archive::native_name(place.file_name())?;
            let pack = || {
                Ok(PackSource::File {
                    folder: local.folder.try_clone().map_err(unreadable)?,
                    name: local.name.clone(),
                    archive_name: called.clone(),
                })
            };
            let place = place.parent().to_url();
            return Ok(client.upload_packed(&place, pack, moved).await?.into());
        }
        let upload = files::FileUpload {
            path: &place.to_url(),
            file: &file,
            size: stat.size,
            mode: stat.mode,
            mtime: stat.mtime,
        };
        Ok(client.upload_file(&upload, moved).await?.into())
    }
}

/// Opens the target of the path if it is a file or a folder.
fn open_source(resolver: &PathResolver, from: &Path) -> Result<OpenedSource> {
    let unsupported_error = |kind: EntryKind| {
        let message = format!(
            "`{}` is {}, not a file",
            from.display(),
            kind.with_article()
        );
        Error::usage(message, "only files and folders can be copied").into()
    };
    let unreadable = |error: io::Error| unreadable_source(from, &error);
    let found = resolver.resolve(from);
    let place = match found.map_err(|unresolved| unresolved.into_error(unreadable))? {
        ResolvedPath::Folder(folder) => return Ok(OpenedSource::Folder(folder)),
        ResolvedPath::Name(place) => place,
    };
    match place.stat.map(|stat| stat.kind) {
        None | Some(EntryKind::File | EntryKind::Symlink) => {}
        // Opening a pipe would block until it has a writer.
        Some(kind) => return Err(unsupported_error(kind)),
    }
    let (file, stat) = place.open().map_err(unreadable)?;
    match stat.kind {
        EntryKind::File => Ok(OpenedSource::File { place, file, stat }),
        kind => Err(unsupported_error(kind)),
    }
}

/// Uploads stdin: as a file, or into a folder as an archive.
pub(super) async fn upload_stdin(
    client: &CompanionClient,
    to: &RemotePath,
    moved: &TransferredBytes,
) -> Result<CopyReport> {
    let is_folder = destination_kind(client.stat(&to.url_without_slash()).await?.as_ref())
        == DestinationKind::Folder;
    let chunks = stream_chunks(io::stdin(), moved);
    if is_folder || to.is_folder() {
        return Ok(client.upload_archive(&to.to_url(), chunks).await?.into());
    }
    Ok(client.upload_stream(&to.to_url(), chunks).await?.into())
}

/// Whether a file has content although its size is 0, as files of `/proc` do.
fn is_endless(file: &mut File, size: u64) -> io::Result<bool> {
    let is_endless = size == 0 && file.read(&mut [0])? == 1;
    file.rewind()?;
    Ok(is_endless)
}

fn stream_chunks(mut from: impl Read + Send + 'static, moved: &TransferredBytes) -> ChunkReceiver {
    let (mut writer, chunks) = chunk_writer();
    let moved = Arc::clone(moved);
    tokio::task::spawn_blocking(move || {
        let sent = (|| -> io::Result<()> {
            loop {
                let mut piece = vec![0; crate::archive::ARCHIVE_CHUNK_BYTES];
                let read = from.read(&mut piece)?;
                if read == 0 {
                    return Ok(());
                }
                piece.truncate(read);
                writer.write_chunk(piece.into())?;
                moved.fetch_add(read as u64, Ordering::Relaxed);
            }
        })();
        let _ = writer.finish(sent.err());
    });
    chunks
}

fn destination_kind(entry: Option<&FileEntry>) -> DestinationKind {
    match entry.map(|entry| entry.kind) {
        None => DestinationKind::Nothing,
        Some(EntryKind::Folder) => DestinationKind::Folder,
        Some(_) => DestinationKind::File,
    }
}

fn unreadable_source(path: &Path, error: &io::Error) -> anyhow::Error {
    let message = format!("cannot read `{}`: {error}", path.display());
    Error::usage(message, "`osctl cp SRC os:/PATH` copies SRC from here").into()
}

impl From<FileChangeReply> for CopyReport {
    fn from(changed: FileChangeReply) -> Self {
        Self {
            files: changed.files,
            folders: changed.folders,
            links: changed.links,
            bytes: changed.bytes,
            ..Self::default()
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::is_endless;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn a_file_of_proc_is_read_to_its_end_and_an_empty_one_is_empty() {
        let mut source = File::open("/proc/self/status").unwrap();
        assert!(is_endless(&mut source, 0).unwrap());
        let mut text = String::new();
        source.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("Name:"), "{text}");
        let mut empty = tempfile::tempfile().unwrap();
        assert!(!is_endless(&mut empty, 0).unwrap());
    }
}
