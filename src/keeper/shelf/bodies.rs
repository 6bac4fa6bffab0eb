//! The bodies that runs were made of, and those that ran when they began.

use super::Shelf;
use crate::error::Result;
use crate::keeper::journal::replace;
use crate::protocol::evolve::{Record, Run, Task, built, is_built};
use anyhow::Context;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The body of a run, in its folder.
const BODY: &str = "body.tar";
/// The one that ran before.
const BEFORE: &str = "before.tar";

impl Shelf {
    /// The body that a run was made of, as an archive.
    pub(in crate::keeper) fn save_body(&self, run: &Run, archive: &[u8]) -> Result<()> {
        replace(&self.place(run).join(BODY), archive).context("keeping the run's body")
    }

    /// Keeps the body that runs now, whichever runs are forgotten before this one.
    pub(in crate::keeper) fn keep_before(&self, record: &Record) -> Result<()> {
        let Some(found) = self.archive_of(record.previous.as_deref())? else {
            return Ok(());
        };
        let place = self.place(&record.run).join(BEFORE);
        if place.exists() {
            return Ok(());
        }
        // It is never written again, so that it need not be there twice.
        fs::hard_link(&found, &place)
            .or_else(|_| fs::copy(&found, &place).map(drop))
            .context("keeping the body that ran before")
    }

    /// The body that ran when the run began, as an archive.
    pub(in crate::keeper) fn body_before(&self, record: &Record) -> Result<Option<Vec<u8>>> {
        let own = self.place(&record.run).join(BEFORE);
        match own.exists() {
            true => read(Some(own)),
            false => read(self.archive_of(record.previous.as_deref())?),
        }
    }

    /// The body that the run was made of, or that of the image which it goes back to.
    pub(in crate::keeper) fn body_of(&self, record: &Record) -> Result<Option<Vec<u8>>> {
        match record.task {
            Task::Evolve => read(Some(self.place(&record.run).join(BODY))),
            Task::Rollback | Task::Rescue => read(self.archive_of(record.image.as_deref())?),
        }
    }

    /// Where the body lies that an image was made of. One image has one body: it carries its digest.
    fn archive_of(&self, image: Option<&str>) -> Result<Option<PathBuf>> {
        let Some(image) = image else {
            return Ok(None);
        };
        let laid_down = self.state.join(built(image));
        if laid_down.exists() {
            return Ok(Some(laid_down));
        }
        for record in self.records()? {
            let place = self.place(&record.run);
            let of = [(&record.image, BODY), (&record.previous, BEFORE)];
            let named = of
                .into_iter()
                .filter(|(id, _)| id.as_deref() == Some(image));
            let found = named.map(|(_, name)| place.join(name)).find(|p| p.exists());
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Removes the bodies that the host has laid down, but that of `image`; runs have their own.
    pub(in crate::keeper) fn clear(&self, image: &str) -> Result<()> {
        for entry in fs::read_dir(&self.state)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            if is_built(&name) && name != built(image) {
                fs::remove_file(self.state.join(&*name))?;
            }
        }
        Ok(())
    }

    /// Forgets all but the newest, and of those the bodies that together are larger than `bodies` bytes.
    pub(in crate::keeper) fn prune(&self, keep: usize, bodies: u64) -> Result<()> {
        let runs = self.runs()?;
        for run in runs.iter().skip(keep) {
            fs::remove_dir_all(self.place(run))?;
        }
        let (mut room, mut known) = (bodies, BTreeSet::new());
        let kept = runs.iter().take(keep).map(|run| self.place(run));
        for place in kept.flat_map(|place| [BODY, BEFORE].map(|name| place.join(name))) {
            let Ok(found) = fs::metadata(&place) else {
                continue;
            };
            // One that several runs have takes room once.
            if known.contains(&found.ino()) {
                continue;
            }
            match room.checked_sub(found.len()) {
                Some(left) => {
                    room = left;
                    known.insert(found.ino());
                }
                None => {
                    room = 0;
                    fs::remove_file(&place)?;
                }
            }
        }
        Ok(())
    }
}

/// What lies there, if anything does.
fn read(archive: Option<PathBuf>) -> Result<Option<Vec<u8>>> {
    match archive.map(fs::read) {
        None => Ok(None),
        Some(Ok(archive)) => Ok(Some(archive)),
        Some(Err(e)) if e.kind() == ErrorKind::NotFound => Ok(None),
        Some(Err(e)) => Err(e).context("reading a run's body"),
    }
}

#[cfg(test)]
mod tests {
    use super::{BEFORE, BODY, Shelf};
    use crate::protocol::evolve::built;

    #[test]
    fn bodies_are_kept_as_far_as_there_is_room() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        let runs: Vec<_> = (0..4).map(|n| shelf.make(f64::from(n)).unwrap()).collect();
        for (run, size) in runs.iter().zip([1, 40, 40, 40]) {
            shelf.save_body(run, &vec![0; size]).unwrap();
        }
        shelf.prune(4, 100).unwrap();
        let kept = runs.iter().map(|run| shelf.place(run).join(BODY).exists());
        assert_eq!(kept.collect::<Vec<_>>(), [false, false, true, true]);
        // What two runs have in common takes room once.
        let shared = shelf.place(&runs[3]).join(BEFORE);
        std::fs::hard_link(shelf.place(&runs[2]).join(BODY), &shared).unwrap();
        shelf.prune(4, 80).unwrap();
        assert!(shared.exists() && shelf.place(&runs[2]).join(BODY).exists());
        shelf.prune(4, 40).unwrap();
        assert!(!shared.exists() && !shelf.place(&runs[2]).join(BODY).exists());
    }

    #[test]
    fn of_what_the_host_lays_down_the_last_stays() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        for name in [built("sha256:a"), built("sha256:b"), "charge.json".into()] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        shelf.clear("sha256:b").unwrap();
        let there = |name: &str| folder.path().join(name).exists();
        assert!(!there("built-a.tar") && there("built-b.tar") && there("charge.json"));
    }
}
