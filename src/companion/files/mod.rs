//! The files of the container, streamed in and out.
//!
//! [`Files`] is the handle: it takes paths and streams and knows no HTTP. All work on files is done
//! by blocking threads, which meet the companion's one thread in channels that hold a few pieces
//! ([`archive`]): who reads slowly is waited for, and memory does not grow with a file.
//!
//! ```text
//! upload:  none ─begin─▶ beside, noted ─all there─▶ synced ─rename─▶ in its place
//!                         │        ▲ └─no room─▶ none: the old file was never touched
//!                        cut       │ the same id goes on where it was
//!                         ▼        │
//!                        kept for a day (without an id: removed at once)
//! ```
//!
//! Whoever asks may do here what the container's user may: links on the way to a path are followed.
//! It keeps no versions, watches nothing, and copies nothing within the container.

mod begun;
mod path;
mod read;
mod refusal;
mod store;

pub(crate) use path::Place;
pub(crate) use read::{Found, Open, Page};
pub(crate) use refusal::Refusal;
pub(crate) use store::{Stored, Target};

use crate::archive::{self, Folder, Inlet, Pack, Policy, Tally};
use begun::Begun;
use bytes::Bytes;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Streams at once: each holds a thread while it goes on.
const STREAMS: usize = 64;

/// What comes out, piece by piece; an error is a stream that is cut.
pub(crate) type Pieces = Receiver<io::Result<Bytes>>;

#[derive(Debug, Clone)]
pub(crate) struct Files {
    begun: Arc<Begun>,
    streams: Arc<Semaphore>,
}

impl Files {
    /// `data`: where it is noted which uploads were begun. What an earlier companion left is
    /// removed in the background.
    pub(crate) fn start(data: PathBuf) -> Self {
        let begun = Arc::new(Begun::new(data.join("uploads")));
        tokio::spawn(begun::sweep(Arc::clone(&begun)));
        let streams = Arc::new(Semaphore::new(STREAMS));
        Self { begun, streams }
    }

    /// What is at a place.
    pub(crate) async fn find(&self, place: Place) -> Result<Found, Refusal> {
        blocking(move || Found::at(place)).await
    }

    /// A folder's entries.
    pub(crate) async fn list(
        &self,
        found: Found,
        page: Page,
    ) -> Result<crate::protocol::files::Listing, Refusal> {
        blocking(move || found.list(page)).await
    }

    /// A file, opened; nothing is read yet.
    pub(crate) async fn open(&self, found: Found) -> Result<Open, Refusal> {
        blocking(move || found.open()).await
    }

    /// `length` bytes of a file from `start` on; all to its end when it does not know its length.
    pub(crate) fn read(
        &self,
        open: Open,
        start: u64,
        length: Option<u64>,
    ) -> Result<Pieces, Refusal> {
        let permit = self.permit()?;
        let (outlet, pieces) = archive::outlet();
        tokio::task::spawn_blocking(move || {
            open.stream(start, length, outlet);
            drop(permit);
        });
        Ok(pieces)
    }

    /// A folder with all that is in it, or one file, as a tar archive.
    pub(crate) async fn pack(&self, found: Found) -> Result<Pieces, Refusal> {
        let permit = self.permit()?;
        let (mut outlet, pieces) = archive::outlet();
        let (folder, name) = blocking(move || found.into_pack()).await?;
        tokio::task::spawn_blocking(move || {
            let what = match &name {
                None => Pack::Folder(folder),
                Some(name) => Pack::File {
                    folder,
                    name,
                    called: name,
                },
            };
            let packed = archive::pack(what, &mut outlet, &mut |_| {});
            let failed = packed.err().map(|fault| {
                tracing::info!("an archive ended early: {fault}");
                io::Error::other(fault)
            });
            // Nobody is left to tell when the client has gone.
            let _ = outlet.end(failed);
            drop(permit);
        });
        Ok(pieces)
    }

    /// A file, beside its place first.
    pub(crate) async fn store(&self, target: Target, inlet: Inlet) -> Result<Stored, Refusal> {
        let (begun, permit) = (Arc::clone(&self.begun), self.permit()?);
        blocking(move || hold(permit, || store::store(&begun, target, inlet))).await
    }

    /// How much of an upload has arrived.
    pub(crate) async fn arrived(&self, place: Place, id: String) -> Result<u64, Refusal> {
        blocking(move || store::arrived(&place, &id)).await
    }

    /// Forgets an upload that was begun.
    pub(crate) async fn forget(&self, place: Place, id: String) -> Result<(), Refusal> {
        let begun = Arc::clone(&self.begun);
        blocking(move || store::forget(&begun, &place, &id)).await
    }

    /// An archive, beneath a folder that is made when it is missing.
    pub(crate) async fn unpack(
        &self,
        place: Place,
        parents: bool,
        inlet: Inlet,
    ) -> Result<Tally, Refusal> {
        let permit = self.permit()?;
        let id = begun::fresh()?;
        blocking(move || {
            hold(permit, || {
                let owns_root = store::make_folder(&place, parents)?;
                let folder = Folder::open(&place.path).map_err(Refusal::of(&place.path))?;
                let policy = Policy {
                    keep_setid: true,
                    owns_root,
                    only: None,
                    id,
                };
                Ok(archive::unpack(inlet, folder, policy, &mut |_| {})?)
            })
        })
        .await
    }

    /// Makes a folder; `false` when it was there.
    pub(crate) async fn make_folder(&self, place: Place, parents: bool) -> Result<bool, Refusal> {
        blocking(move || store::make_folder(&place, parents)).await
    }

    /// Removes a name, with `recursive` also a folder that is not empty. A link is a link.
    pub(crate) async fn remove(&self, place: Place, recursive: bool) -> Result<(), Refusal> {
        blocking(move || {
            let path = &place.path;
            let failed = Refusal::of(path);
            if path.parent().is_none() {
                return Err(Refusal::Invalid("the root can't be removed".into()));
            }
            let is_folder = fs::symlink_metadata(path).map_err(&failed)?.is_dir();
            let removed = match (is_folder, recursive) {
                (false, _) if place.is_folder => return Err(Refusal::NoFolder(path.clone())),
                (false, _) => fs::remove_file(path),
                (true, false) => fs::remove_dir(path),
                (true, true) => fs::remove_dir_all(path),
            };
            removed.map_err(failed)
        })
        .await
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        permit.map_err(|_| Refusal::TooMany(STREAMS))
    }
}

fn hold<T>(permit: OwnedSemaphorePermit, work: impl FnOnce() -> T) -> T {
    let done = work();
    drop(permit);
    done
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|ended| Err(Refusal::Failed(format!("the work ended: {ended}"))))
}
