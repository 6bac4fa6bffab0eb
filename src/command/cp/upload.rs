//! From here to inside.

use super::Copied;
use super::plan::{Landing, Remote, Source, There, landing, local_name};
use crate::archive::{Folder, Look, Pack, outlet, pack, segments};
use crate::error::{Error, Result};
use crate::host::client::Client;
use crate::host::files::{Moved, Pieces, Upload};
use crate::protocol::files::{Changed, Entry, EntryKind};
use crate::ui::Meter;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) async fn run(
    client: &Client,
    from: &Path,
    to: &Remote,
    meter: &Meter,
    moved: &Moved,
) -> Result<Copied> {
    let unreadable = |error: io::Error| unreadable(from, &error);
    let look = Look::through(from).map_err(unreadable)?;
    let name = local_name(from);
    let source = match (look.kind, name) {
        (EntryKind::File, _) => Source::File,
        (EntryKind::Folder, Some(_)) => Source::Folder,
        (EntryKind::Folder, None) => Source::Contents,
        (kind, _) => {
            let message = format!("`{}` is {}, not a file", from.display(), kind.words());
            return Err(Error::usage(message, "copy files and folders").into());
        }
    };
    let there = there(client.stat(&to.bare()).await?.as_ref());
    let name = name.unwrap_or_default();
    let place = match landing(source, there, to.is_folder(), &to.shown())? {
        Landing::As => to.clone(),
        Landing::Within => to.join(name.as_encoded_bytes()),
    };
    if source != Source::File {
        let folder = Folder::open(from).map_err(unreadable)?;
        let pieces = packed(folder, None, moved);
        return archive(client, &place, pieces).await;
    }
    let file = File::open(from).map_err(unreadable)?;
    meter.total(look.size);
    if segments(&file, look.size, look.allocated).is_some() {
        let real = std::fs::canonicalize(from).map_err(unreadable)?;
        let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(unreadable(io::ErrorKind::NotFound.into()));
        };
        let parent = Folder::open(parent).map_err(unreadable)?;
        let called = crate::archive::native(place.name())?;
        // Unpacking would make the folder, and a file's folder has to be there.
        client.list(&place.parent().url()).await?;
        let pieces = packed(parent, Some((name.to_owned(), called)), moved);
        return archive(client, &place.parent(), pieces).await;
    }
    let upload = Upload {
        path: &place.url(),
        file: &file,
        size: look.size,
        mode: look.mode,
        mtime: look.mtime,
    };
    Ok(client.upload(&upload, moved).await?.into())
}

/// Bytes of a file; into a folder, an archive.
pub(super) async fn stdin(client: &Client, to: &Remote, moved: &Moved) -> Result<Copied> {
    let is_folder = there(client.stat(&to.bare()).await?.as_ref()) == There::Folder;
    let pieces = piped(moved);
    if is_folder || to.is_folder() {
        return archive(client, to, pieces).await;
    }
    Ok(client.upload_stream(&to.url(), pieces).await?.into())
}

async fn archive(client: &Client, place: &Remote, pieces: Pieces) -> Result<Copied> {
    Ok(client.upload_archive(&place.url(), pieces).await?.into())
}

/// A thread reads the tree while the archive is sent; what it can't read is told by the archive.
fn packed(folder: Folder, file: Option<(OsString, OsString)>, moved: &Moved) -> Pieces {
    let (mut outlet, pieces) = outlet();
    let moved = Arc::clone(moved);
    tokio::task::spawn_blocking(move || {
        let what = match &file {
            None => Pack::Folder(folder),
            Some((name, called)) => Pack::File {
                folder,
                name: OsStr::new(name),
                called: OsStr::new(called),
            },
        };
        let packed = pack(what, &mut outlet, &mut |bytes| {
            moved.fetch_add(bytes, Ordering::Relaxed);
        });
        // Nobody takes it when the connection is lost.
        let _ = outlet.end(packed.err().map(io::Error::other));
    });
    pieces
}

fn piped(moved: &Moved) -> Pieces {
    let (mut outlet, pieces) = outlet();
    let moved = Arc::clone(moved);
    tokio::task::spawn_blocking(move || {
        let mut stdin = io::stdin().lock();
        let sent = (|| -> io::Result<()> {
            loop {
                let mut piece = vec![0; crate::archive::PIECE];
                let read = stdin.read(&mut piece)?;
                if read == 0 {
                    return Ok(());
                }
                piece.truncate(read);
                outlet.piece(piece.into())?;
                moved.fetch_add(read as u64, Ordering::Relaxed);
            }
        })();
        let _ = outlet.end(sent.err());
    });
    pieces
}

fn there(entry: Option<&Entry>) -> There {
    match entry.map(|entry| entry.kind) {
        None => There::Nothing,
        Some(EntryKind::Folder) => There::Folder,
        Some(_) => There::File,
    }
}

fn unreadable(path: &Path, error: &io::Error) -> anyhow::Error {
    let message = format!("`{}` can't be read: {error}", path.display());
    Error::usage(message, "`osctl cp SRC os:/PATH` copies SRC from here").into()
}

impl From<Changed> for Copied {
    fn from(changed: Changed) -> Self {
        Self {
            files: changed.files,
            folders: changed.folders,
            links: changed.links,
            bytes: changed.bytes,
            ..Self::default()
        }
    }
}
