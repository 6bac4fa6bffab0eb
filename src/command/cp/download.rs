//! From inside to here.

use super::Copied;
use super::plan::{Landing as Lands, Remote, Source, There, landing};
use crate::archive::{Folder, Tally, native};
use crate::error::{Error, Result};
use crate::host::client::Client;
use crate::host::files::Moved;
use crate::host::landing::{Landing, Settling, failed};
use crate::host::path_resolver::{Found, PathResolver, Place, Unresolved};
use crate::protocol::files::{Entry, EntryKind};
use crate::ui::Meter;
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Smaller files are not worth a map of their holes.
const SPARSE: u64 = 64 << 10;

/// How it lands.
#[derive(Debug)]
pub(super) struct Landed<'a> {
    pub(super) keep_setid: bool,
    pub(super) resolver: &'a PathResolver,
    pub(super) meter: &'a Meter,
    pub(super) moved: &'a Moved,
}

impl Landed<'_> {
    pub(super) async fn run(&self, client: &Client, from: &Remote, to: &Path) -> Result<Copied> {
        let entry = entry(client, from).await?;
        let place = place(from, &entry, to, self.resolver)?;
        let path = from.bare();
        let place = match place {
            Destination::File(place) => place,
            Destination::Folder { folder, is_new } => {
                let landing = Landing::folder(folder, is_new, self.keep_setid)?;
                let brought = client.download_packed(&path, &landing, self.moved).await;
                return Ok(landing.end(brought).await?.into());
            }
        };
        self.meter.total(entry.size);
        if entry.allocated < entry.size && entry.size > SPARSE {
            let landing = Landing::sparse_file(place, self.keep_setid)?;
            let brought = client.download_packed(&path, &landing, self.moved).await;
            return Ok(landing.end(brought).await?.into());
        }
        let landing = Landing::file(place, self.settling(&entry)?)?;
        let brought = client.download(&path, landing.feed()?, self.moved).await;
        Ok(landing.end(brought).await?.into())
    }

    fn settling(&self, entry: &Entry) -> Result<Settling> {
        let odd = || {
            anyhow::anyhow!(
                "the companion told no rights or no time of `{}`",
                entry.path
            )
        };
        let mode = u32::from_str_radix(&entry.mode, 8).map_err(|_| odd())?;
        Ok(Settling {
            mode: match self.keep_setid {
                true => mode,
                false => mode & 0o1777,
            },
            mtime: entry.mtime.parse().map_err(|_| odd())?,
        })
    }
}

/// Bytes of a file, an archive of a folder.
pub(super) async fn stdout(
    client: &Client,
    from: &Remote,
    out: impl Write + Send + 'static,
    moved: &Moved,
) -> Result<Copied> {
    let entry = entry(client, from).await?;
    let landing = Landing::stream(out);
    let path = from.bare();
    let brought = match entry.kind {
        EntryKind::Folder => client.download_archive(&path, &landing, moved).await,
        _ => client.download(&path, landing.feed()?, moved).await,
    };
    Ok(landing.end(brought).await?.into())
}

async fn entry(client: &Client, from: &Remote) -> Result<Entry> {
    client.stat(&from.bare()).await?.ok_or_else(|| {
        let message = format!("there is no `{}`", from.shown());
        Error::usage(message, "`osctl exec '!ls -la /'` shows what there is").into()
    })
}

/// Where the copy is written, by descriptors.
enum Destination {
    File(Place),
    Folder { folder: Folder, is_new: bool },
}

fn place(from: &Remote, entry: &Entry, to: &Path, resolver: &PathResolver) -> Result<Destination> {
    let source = match entry.kind {
        EntryKind::Folder if from.is_contents() => Source::Contents,
        EntryKind::Folder => Source::Folder,
        _ => Source::File,
    };
    let found = resolver.find(to).map_err(|unresolved| {
        let is_missing =
            matches!(&unresolved, Unresolved::Io(e) if e.kind() == ErrorKind::NotFound);
        let parent = to.parent().filter(|_| is_missing);
        unresolved.into_error(|error| failed(parent.unwrap_or(to), error))
    })?;
    let there = match &found {
        Found::Folder(_) => There::Folder,
        Found::Name(place) if place.look.is_some() => There::File,
        Found::Name(_) => There::Nothing,
    };
    let shown = to.display().to_string();
    let is_slashed = shown.ends_with(std::path::is_separator);
    let lands = landing(source, there, is_slashed, &shown)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| failed(&path, error)
    };
    Ok(match (source, found, lands) {
        (Source::File, Found::Folder(folder), _) => {
            // The name is the agent's choice: a link of that name is replaced.
            let name = native(from.name())?;
            let path = to.join(&name);
            Destination::File(Place::new(folder, name, path))
        }
        (Source::File, Found::Name(place), _) => Destination::File(place),
        (_, Found::Folder(folder), Lands::As) => Destination::Folder {
            folder,
            is_new: false,
        },
        (_, Found::Folder(parent), Lands::Within) => {
            let name = native(from.name())?;
            inner(&parent, &name, &to.join(&name))?
        }
        (_, Found::Name(place), _) => {
            let made = place.folder.make(&place.name);
            made.map_err(failed(to))?;
            let opened = place.folder.folder(&place.name);
            Destination::Folder {
                folder: opened.map_err(failed(to))?,
                is_new: true,
            }
        }
    })
}

/// The folder of that name in the one that the user named, which no link may stand for: the name is the
/// agent's choice.
fn inner(parent: &Folder, name: &OsStr, path: &Path) -> Result<Destination> {
    let is_new = match parent.make(name) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
        Err(error) => return Err(failed(path, error)),
    };
    match parent.folder(name) {
        Ok(folder) => Ok(Destination::Folder { folder, is_new }),
        Err(error) if Folder::is_link(&error) => {
            let message = format!("`{}` is a link or a file, not a folder", path.display());
            let hint = format!(
                "remove it, or name the folder that it leads to: `osctl cp os:/PATH/{}/. FOLDER`",
                name.to_string_lossy()
            );
            Err(Error::usage(message, hint).into())
        }
        Err(error) => Err(failed(path, error)),
    }
}

impl From<Tally> for Copied {
    fn from(tally: Tally) -> Self {
        Self {
            files: tally.files,
            folders: tally.folders,
            links: tally.links,
            bytes: tally.bytes,
            ..Self::default()
        }
    }
}
