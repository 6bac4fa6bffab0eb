//! From here to inside.

use super::Copied;
use super::plan::{Landing, Remote, Source, There, landing, local_name};
use crate::archive::{Folder, Look, Pack, Pieces, outlet, segments};
use crate::error::{Error, Result};
use crate::host::client::Client;
use crate::host::files::{self, Moved};
use crate::host::path_resolver::{Found, PathResolver, Place};
use crate::protocol::files::{Changed, Entry, EntryKind};
use crate::ui::Meter;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How it is sent.
#[derive(Debug)]
pub(super) struct Upload<'a> {
    pub(super) resolver: &'a PathResolver,
    pub(super) meter: &'a Meter,
    pub(super) moved: &'a Moved,
}

/// What is sent, held open.
enum Opened {
    Folder(Folder),
    File {
        place: Place,
        file: File,
        look: Look,
    },
}

impl Upload<'_> {
    pub(super) async fn run(&self, client: &Client, from: &Path, to: &Remote) -> Result<Copied> {
        let moved = self.moved;
        let unreadable = |error: io::Error| unreadable(from, &error);
        let opened = open(self.resolver, from)?;
        let name = local_name(from);
        let source = match (&opened, name) {
            (Opened::File { .. }, _) => Source::File,
            (Opened::Folder(_), Some(_)) => Source::Folder,
            (Opened::Folder(_), None) => Source::Contents,
        };
        let there = there(client.stat(&to.bare()).await?.as_ref());
        let name = name.unwrap_or_default();
        let place = match landing(source, there, to.is_folder(), &to.shown())? {
            Landing::As => to.clone(),
            Landing::Within => to.join(name.as_encoded_bytes()),
        };
        let (local, mut file, look) = match opened {
            Opened::File { place, file, look } => (place, file, look),
            Opened::Folder(folder) => {
                let pack = || Ok(Pack::Folder(folder.try_clone().map_err(unreadable)?));
                let changed = client.upload_packed(&place.url(), pack, moved).await?;
                return Ok(changed.into());
            }
        };
        self.meter.total(look.size);
        if is_endless(&mut file, look.size).map_err(unreadable)? {
            let path = format!("{}?mode={:o}", place.url(), look.mode);
            return Ok(client
                .upload_stream(&path, piped(file, moved))
                .await?
                .into());
        }
        let is_named = local.look.is_some_and(|look| look.kind == EntryKind::File);
        if is_named && segments(&file, look.size, look.allocated).is_some() {
            // Unpacking would replace a link, and not what it leads to.
            let place = place.followed(client.stat(&place.bare()).await?.as_ref());
            // It would make the folder, too, and a file's folder has to be there.
            client.list(&place.parent().url()).await?;
            let called = crate::archive::native(place.name())?;
            let pack = || {
                Ok(Pack::File {
                    folder: local.folder.try_clone().map_err(unreadable)?,
                    name: local.name.clone(),
                    called: called.clone(),
                })
            };
            let place = place.parent().url();
            return Ok(client.upload_packed(&place, pack, moved).await?.into());
        }
        let upload = files::Upload {
            path: &place.url(),
            file: &file,
            size: look.size,
            mode: look.mode,
            mtime: look.mtime,
        };
        Ok(client.upload(&upload, moved).await?.into())
    }
}

/// Opens what the path leads to, if it is a file or a folder.
fn open(resolver: &PathResolver, from: &Path) -> Result<Opened> {
    let odd = |kind: EntryKind| {
        let message = format!("`{}` is {}, not a file", from.display(), kind.words());
        Error::usage(message, "copy files and folders").into()
    };
    let unreadable = |error: io::Error| unreadable(from, &error);
    let found = resolver.find(from);
    let place = match found.map_err(|unresolved| unresolved.into_error(unreadable))? {
        Found::Folder(folder) => return Ok(Opened::Folder(folder)),
        Found::Name(place) => place,
    };
    match place.look.map(|look| look.kind) {
        None | Some(EntryKind::File | EntryKind::Symlink) => {}
        // A pipe that is opened waits for its writer.
        Some(kind) => return Err(odd(kind)),
    }
    let (file, look) = place.open().map_err(unreadable)?;
    match look.kind {
        EntryKind::File => Ok(Opened::File { place, file, look }),
        kind => Err(odd(kind)),
    }
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
