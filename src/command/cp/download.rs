//! From inside to here.

use super::Copied;
use super::plan::{Landing as Lands, Remote, Source, There, landing};
use crate::archive::{Tally, native};
use crate::error::{Error, Result};
use crate::host::client::Client;
use crate::host::files::Moved;
use crate::host::landing::{Landing, Settling};
use crate::protocol::files::{Entry, EntryKind};
use crate::ui::Meter;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Smaller files are not worth a map of their holes.
const SPARSE: u64 = 64 << 10;

/// How it lands.
#[derive(Debug)]
pub(super) struct Landed<'a> {
    pub(super) keep_setid: bool,
    pub(super) meter: &'a Meter,
    pub(super) moved: &'a Moved,
}

impl Landed<'_> {
    pub(super) async fn run(&self, client: &Client, from: &Remote, to: &Path) -> Result<Copied> {
        let entry = entry(client, from).await?;
        let place = place(from, &entry, to)?;
        let path = from.bare();
        if entry.kind == EntryKind::Folder {
            let landing = Landing::folder(&place, self.keep_setid)?;
            let brought = client.download_packed(&path, &landing, self.moved).await;
            return Ok(landing.end(brought).await?.into());
        }
        self.meter.total(entry.size);
        if entry.allocated < entry.size && entry.size > SPARSE {
            let landing = Landing::sparse_file(&place, self.keep_setid)?;
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

fn place(from: &Remote, entry: &Entry, to: &Path) -> Result<PathBuf> {
    let source = match entry.kind {
        EntryKind::Folder if from.is_contents() => Source::Contents,
        EntryKind::Folder => Source::Folder,
        _ => Source::File,
    };
    let there = match std::fs::metadata(to) {
        Ok(found) if found.is_dir() => There::Folder,
        Ok(_) => There::File,
        Err(_) => There::Nothing,
    };
    let shown = to.display().to_string();
    let is_slashed = shown.ends_with(std::path::is_separator);
    Ok(match landing(source, there, is_slashed, &shown)? {
        Lands::As => to.to_owned(),
        Lands::Within => to.join(native(from.name())?),
    })
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
