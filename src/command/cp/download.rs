//! The download of `osctl cp`: from inside to the host.

use super::CopyReport;
use super::plan::{
    CopyPlacement as Lands, CopySource, DestinationKind, RemotePath, choose_placement,
};
use crate::archive::{Folder, UnpackTotals, native_name};
use crate::error::{Error, Result};
use crate::host::client::CompanionClient;
use crate::host::download::{DownloadAttributes, DownloadWriter, write_error};
use crate::host::files::TransferredBytes;
use crate::host::path_resolver::{PathResolveError, PathResolver, ResolvedName, ResolvedPath};
use crate::protocol::files::{EntryKind, FileEntry};
use crate::ui::ByteMeter;
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Smaller files are copied without a sparse map.
const MIN_SPARSE_BYTES: u64 = 64 << 10;

/// Options of a download.
#[derive(Debug)]
pub(super) struct CpDownload<'a> {
    pub(super) keep_setid: bool,
    pub(super) resolver: &'a PathResolver,
    pub(super) meter: &'a ByteMeter,
    pub(super) moved: &'a TransferredBytes,
}

impl CpDownload<'_> {
    pub(super) async fn run(
        &self,
        client: &CompanionClient,
        from: &RemotePath,
        to: &Path,
    ) -> Result<CopyReport> {
        let entry = stat_remote(client, from).await?;
        let place = resolve_destination(from, &entry, to, self.resolver)?;
        let path = from.url_without_slash();
        let place = match place {
            CpDestination::File(place) => place,
            CpDestination::Folder { folder, is_new } => {
                let download = DownloadWriter::to_folder(folder, is_new, self.keep_setid)?;
                let received = client.download_packed(&path, &download, self.moved).await;
                return Ok(download.finish(received).await?.into());
            }
        };
        self.meter.set_total(entry.size);
        if entry.allocated < entry.size && entry.size > MIN_SPARSE_BYTES {
            let download = DownloadWriter::to_sparse_file(place, self.keep_setid)?;
            let received = client.download_packed(&path, &download, self.moved).await;
            return Ok(download.finish(received).await?.into());
        }
        let download = DownloadWriter::to_file(place, self.file_settings(&entry)?)?;
        let received = client
            .download_file(&path, download.chunk_sender()?, self.moved)
            .await;
        Ok(download.finish(received).await?.into())
    }

    fn file_settings(&self, entry: &FileEntry) -> Result<DownloadAttributes> {
        let incomplete_reply = || {
            anyhow::anyhow!(
                "the companion reported no permissions or no time of `{}`",
                entry.path
            )
        };
        let mode = u32::from_str_radix(&entry.mode, 8).map_err(|_| incomplete_reply())?;
        Ok(DownloadAttributes {
            mode: match self.keep_setid {
                true => mode,
                false => mode & 0o1777,
            },
            mtime: entry.mtime.parse().map_err(|_| incomplete_reply())?,
        })
    }
}

/// Writes the bytes of a file or the archive of a folder to stdout.
pub(super) async fn download_to_stdout(
    client: &CompanionClient,
    from: &RemotePath,
    out: impl Write + Send + 'static,
    moved: &TransferredBytes,
) -> Result<CopyReport> {
    let entry = stat_remote(client, from).await?;
    let download = DownloadWriter::to_stream(out);
    let path = from.url_without_slash();
    let received = match entry.kind {
        EntryKind::Folder => client.download_archive(&path, &download, moved).await,
        _ => {
            client
                .download_file(&path, download.chunk_sender()?, moved)
                .await
        }
    };
    let report: CopyReport = download.finish(received).await?.into();
    Ok(match entry.kind {
        EntryKind::Folder => report,
        _ => CopyReport { files: 1, ..report },
    })
}

async fn stat_remote(client: &CompanionClient, from: &RemotePath) -> Result<FileEntry> {
    client
        .stat(&from.url_without_slash())
        .await?
        .ok_or_else(|| {
            let message = format!("`{}` does not exist", from.to_display());
            Error::usage(message, "`osctl shell ls -la /` lists the folder").into()
        })
}

/// The open destination of the copy.
enum CpDestination {
    File(ResolvedName),
    Folder { folder: Folder, is_new: bool },
}

fn resolve_destination(
    from: &RemotePath,
    entry: &FileEntry,
    to: &Path,
    resolver: &PathResolver,
) -> Result<CpDestination> {
    let source = match entry.kind {
        EntryKind::Folder if from.is_contents() => CopySource::Contents,
        EntryKind::Folder => CopySource::Folder,
        _ => CopySource::File,
    };
    let found = resolver.resolve(to).map_err(|unresolved| {
        let is_missing =
            matches!(&unresolved, PathResolveError::Io(e) if e.kind() == ErrorKind::NotFound);
        let parent = to.parent().filter(|_| is_missing);
        unresolved.into_error(|error| write_error(parent.unwrap_or(to), error))
    })?;
    let existing = match &found {
        ResolvedPath::Folder(_) => DestinationKind::Folder,
        ResolvedPath::Name(place) if place.stat.is_some() => DestinationKind::File,
        ResolvedPath::Name(_) => DestinationKind::Nothing,
    };
    let shown = to.display().to_string();
    let is_slashed = shown.ends_with(std::path::is_separator);
    let placement = choose_placement(source, existing, is_slashed, &shown)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| write_error(&path, error)
    };
    Ok(match (source, found, placement) {
        (CopySource::File, ResolvedPath::Folder(folder), _) => {
            // The agent chooses the name, so an existing link of that name is replaced.
            let name = native_name(from.file_name())?;
            let path = to.join(&name);
            CpDestination::File(ResolvedName::new(folder, name, path))
        }
        (CopySource::File, ResolvedPath::Name(place), _) => CpDestination::File(place),
        (_, ResolvedPath::Folder(folder), Lands::As) => CpDestination::Folder {
            folder,
            is_new: false,
        },
        (_, ResolvedPath::Folder(parent), Lands::Within) => {
            let name = native_name(from.file_name())?;
            open_inner_folder(&parent, &name, &to.join(&name))?
        }
        (_, ResolvedPath::Name(place), _) => {
            let made = place.folder.create_folder(&place.name);
            made.map_err(failed(to))?;
            let opened = place.folder.open_folder(&place.name);
            CpDestination::Folder {
                folder: opened.map_err(failed(to))?,
                is_new: true,
            }
        }
    })
}

/// Opens the folder `name` in the folder that the user named, and does not follow links, because the agent chooses the
/// name.
fn open_inner_folder(parent: &Folder, name: &OsStr, path: &Path) -> Result<CpDestination> {
    let is_new = match parent.create_folder(name) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
        Err(error) => return Err(write_error(path, error)),
    };
    match parent.open_folder(name) {
        Ok(folder) => Ok(CpDestination::Folder { folder, is_new }),
        Err(error) if Folder::is_link(&error) => {
            let message = format!("`{}` is a link or a file, not a folder", path.display());
            let hint = format!(
                "remove it, or name the target folder of the link: `osctl cp os:/PATH/{}/. FOLDER`",
                name.to_string_lossy()
            );
            Err(Error::usage(message, hint).into())
        }
        Err(error) => Err(write_error(path, error)),
    }
}

impl From<UnpackTotals> for CopyReport {
    fn from(tally: UnpackTotals) -> Self {
        Self {
            files: tally.files,
            folders: tally.folders,
            links: tally.links,
            bytes: tally.bytes,
            ..Self::default()
        }
    }
}
