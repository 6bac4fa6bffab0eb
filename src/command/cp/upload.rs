//! From here to inside.

use super::Copied;
use super::plan::{Landing, Remote, Source, There, landing, local_name};
use crate::archive::{Folder, Look, Pack, Pieces, outlet, segments};
use crate::error::{Error, Result};
use crate::host::client::Client;
use crate::host::files::{Moved, Upload};
use crate::protocol::files::{Changed, Entry, EntryKind};
use crate::ui::Meter;
use std::fs::File;
use std::io::{self, Read, Seek};
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
        let pack = || Ok(Pack::Folder(Folder::open(from).map_err(unreadable)?));
        return Ok(client
            .upload_packed(&place.url(), pack, moved)
            .await?
            .into());
    }
    let file = File::open(from).map_err(unreadable)?;
    meter.total(look.size);
    let mut file = file;
    if is_endless(&mut file, look.size).map_err(unreadable)? {
        let path = format!("{}?mode={:o}", place.url(), look.mode);
        return Ok(client
            .upload_stream(&path, piped(file, moved))
            .await?
            .into());
    }
    if segments(&file, look.size, look.allocated).is_some() {
        let real = std::fs::canonicalize(from).map_err(unreadable)?;
        let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(unreadable(io::ErrorKind::NotFound.into()));
        };
        // Unpacking would replace a link, and not what it leads to.
        let place = place.followed(client.stat(&place.bare()).await?.as_ref());
        // It would make the folder, too, and a file's folder has to be there.
        client.list(&place.parent().url()).await?;
        let called = crate::archive::native(place.name())?;
        let pack = || {
            Ok(Pack::File {
                folder: Folder::open(parent).map_err(unreadable)?,
                name: name.to_owned(),
                called: called.clone(),
            })
        };
        let place = place.parent().url();
        return Ok(client.upload_packed(&place, pack, moved).await?.into());
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
    let pieces = piped(io::stdin(), moved);
    if is_folder || to.is_folder() {
        return Ok(client.upload_archive(&to.url(), pieces).await?.into());
    }
    Ok(client.upload_stream(&to.url(), pieces).await?.into())
}

/// Whether a file has content and does not know how much, as those of `/proc` do.
fn is_endless(file: &mut File, size: u64) -> io::Result<bool> {
    let is_endless = size == 0 && file.read(&mut [0])? == 1;
    file.rewind()?;
    Ok(is_endless)
}

fn piped(mut from: impl Read + Send + 'static, moved: &Moved) -> Pieces {
    let (mut outlet, pieces) = outlet();
    let moved = Arc::clone(moved);
    tokio::task::spawn_blocking(move || {
        let sent = (|| -> io::Result<()> {
            loop {
                let mut piece = vec![0; crate::archive::PIECE];
                let read = from.read(&mut piece)?;
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::is_endless;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn a_file_of_proc_is_read_to_its_end_and_an_empty_one_is_empty() {
        let mut told = File::open("/proc/self/status").unwrap();
        assert!(is_endless(&mut told, 0).unwrap());
        let mut text = String::new();
        told.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("Name:"), "{text}");
        let mut empty = tempfile::tempfile().unwrap();
        assert!(!is_endless(&mut empty, 0).unwrap());
    }
}
