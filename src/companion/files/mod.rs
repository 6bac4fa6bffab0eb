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
mod unpacking;

pub(crate) use path::Place;
pub(crate) use read::{Found, Open, Page};
pub(crate) use refusal::Refusal;
pub(crate) use store::{Stored, Target};
pub(crate) use unpacking::Unpacking;

use crate::archive::{self, Folder, Inlet, Mark, Pack, Pieces, Policy, Tally, Telling, Traced};
use begun::Begun;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use unpacking::Kept;

/// Streams at once: each holds a thread while it goes on.
const STREAMS: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct Files {
    begun: Arc<Begun>,
    kept: Kept,
    streams: Arc<Semaphore>,
}

impl Files {
    /// `data`: where it is noted which uploads were begun. What an earlier companion left is
    /// removed in the background.
    pub(crate) fn start(data: PathBuf) -> Self {
        let begun = Arc::new(Begun::new(data.join("uploads")));
        tokio::spawn(begun::sweep(Arc::clone(&begun)));
        let streams = Arc::new(Semaphore::new(STREAMS));
        Self {
            begun,
            kept: Kept::default(),
            streams,
        }
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

    /// A folder with all that is in it, or one file, as a tar archive from a mark on.
    pub(crate) async fn pack(&self, found: Found, from: Mark) -> Result<Pieces, Refusal> {
        let permit = self.permit()?;
        let (folder, name) = blocking(move || found.into_pack()).await?;
        let what = match name {
            None => Pack::Folder(folder),
            Some(name) => Pack::File {
                folder,
                called: name.clone(),
                name,
            },
        };
        let held = move |_| {
            let _held = &permit;
        };
        Ok(archive::packed(what, from, Telling::Archive, held).await?)
    }

    /// A file, beside its place first.
    pub(crate) async fn store(&self, target: Target, inlet: Inlet) -> Result<Stored, Refusal> {
        let (begun, permit) = (Arc::clone(&self.begun), self.permit()?);
        blocking(move || hold(permit, || store::store(&begun, target, inlet))).await
    }

    /// How much of an upload has arrived; of an archive, with its form.
    pub(crate) async fn arrived(&self, place: Place, id: String) -> Result<Mark, Refusal> {
        if let Some(mark) = self.kept.mark(&id, &place).await? {
            return Ok(mark);
        }
        blocking(move || {
            Ok(Mark {
                bytes: store::arrived(&place, &id)?,
                ..Mark::default()
            })
        })
        .await
    }

    /// Forgets an upload that was begun.
    pub(crate) async fn forget(&self, place: Place, id: String) -> Result<(), Refusal> {
        if self.kept.forget(&id, &place) {
            return Ok(());
        }
        let begun = Arc::clone(&self.begun);
        blocking(move || store::forget(&begun, &place, &id)).await
    }

    /// Unpacks an archive beneath a folder that is made when it is missing. With an id, it goes on at
    /// `offset` where another connection has left it.
    pub(crate) fn unpack(
        &self,
        place: Place,
        parents: bool,
        id: Option<&str>,
        offset: u64,
    ) -> Result<Unpacking, Refusal> {
        let permit = self.permit();
        let begun = Arc::clone(&self.begun);
        let to = place.clone();
        let unpack =
            move |inlet: Traced<Inlet>| hold(permit?, || unpack(&begun, to, parents, inlet));
        match id {
            None => Ok(Unpacking::once(unpack)),
            Some(id) => self.kept.take(store::valid(id)?, &place, offset, unpack),
        }
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

fn unpack(
    begun: &Begun,
    place: Place,
    parents: bool,
    inlet: Traced<Inlet>,
) -> Result<Tally, Refusal> {
    let id = begun::fresh()?;
    let owns_root = store::make_folder(&place, parents)?;
    let folder = Folder::open(&place.path).map_err(Refusal::of(&place.path))?;
    let policy = Policy {
        keep_setid: true,
        owns_root,
        only: None,
        id: id.clone(),
    };
    let active = begun.begin(&id, &place.path)?;
    let unpacked = archive::unpack(inlet, folder, policy, &mut |beside| {
        active.writes(&place.path.join(beside))
    });
    active.end();
    Ok(unpacked?)
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

#[cfg(test)]
mod tests {
    use super::{Begun, Files, Place};
    use std::fs;
    use std::path::Path;
    use tar::{EntryType, Header};

    /// The names in a folder, when there are so many.
    async fn names(folder: &Path, count: usize) -> Vec<String> {
        loop {
            // It may be made first.
            let entries = fs::read_dir(folder).into_iter().flatten();
            let names = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
            let mut names: Vec<String> = names.collect();
            if names.len() == count {
                names.sort();
                return names;
            }
            tokio::task::yield_now().await;
        }
    }

    fn header(name: &str, size: u64) -> Vec<u8> {
        let mut header = Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    }

    #[tokio::test]
    async fn what_a_killed_companion_was_unpacking_is_removed_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let (data, to) = (folder.path().join("data"), folder.path().join("to"));
        let files = Files::start(data.clone());
        let place = Place::parse(to.to_str().unwrap()).unwrap();
        let mut unpacking = files.unpack(place, false, None, 0).unwrap();
        let whole = [header("whole", 512), vec![b'w'; 512], header("half", 5000)].concat();
        assert!(unpacking.give(whole.into()).await);
        let there = names(&to, 2).await;
        assert!(
            there[0].starts_with(".half.osctl-once-") && there[1] == "whole",
            "{there:?}"
        );
        // Nobody else's, whatever it is called.
        fs::write(to.join(".other.osctl-once-1"), "").unwrap();
        // The next one finds the notes of the one before, of which nothing is active any more.
        Begun::new(data.join("uploads")).clean(true).unwrap();
        assert_eq!(names(&to, 2).await, [".other.osctl-once-1", "whole"]);
    }
}
