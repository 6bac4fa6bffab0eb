//! Bodies of runs: the body that a run was made of, and the body that ran when the run started.

use super::KeeperRunStore;
use crate::atomic_write::{Durability, atomic_write};
use crate::error::Result;
use crate::protocol::evolve::{
    EvolveRecord, EvolveRunId, RunTask, built_body_name, is_built_body_name,
};
use anyhow::Context;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The run's own body, in its folder.
const RUN_BODY_FILE: &str = "body.tar";
/// The body that ran before.
const PREVIOUS_BODY_FILE: &str = "before.tar";

impl KeeperRunStore {
    /// Saves the body that a run was made of, as an archive.
    pub(in crate::keeper) fn save_body(&self, run: &EvolveRunId, archive: &[u8]) -> Result<()> {
        let place = self.folder_of_run(run).join(RUN_BODY_FILE);
        atomic_write(&place, archive, Durability::FolderSynced)
            .context("storing the run's body")?;
        Ok(())
    }

    /// Keeps the body that runs now, so that it remains when earlier runs are deleted.
    pub(in crate::keeper) fn save_previous_body(&self, record: &EvolveRecord) -> Result<()> {
        let Some(found) = self.find_body_archive(record.previous_image.as_deref())? else {
            return Ok(());
        };
        let place = self.folder_of_run(&record.run).join(PREVIOUS_BODY_FILE);
        if place.exists() {
            return Ok(());
        }
        // An archive is never changed, so a hard link saves the space of a copy.
        fs::hard_link(&found, &place)
            .or_else(|_| fs::copy(&found, &place).map(drop))
            .context("storing the body that ran before")
    }

    /// The body that ran when the run started, as an archive.
    pub(in crate::keeper) fn previous_body(
        &self,
        record: &EvolveRecord,
    ) -> Result<Option<Vec<u8>>> {
        let own = self.folder_of_run(&record.run).join(PREVIOUS_BODY_FILE);
        match own.exists() {
            true => read_archive(Some(own)),
            false => read_archive(self.find_body_archive(record.previous_image.as_deref())?),
        }
    }

    /// The body that the run was made of, or that of the image which the run rolls back to.
    pub(in crate::keeper) fn run_body(&self, record: &EvolveRecord) -> Result<Option<Vec<u8>>> {
        match record.task {
            RunTask::Evolve => {
                read_archive(Some(self.folder_of_run(&record.run).join(RUN_BODY_FILE)))
            }
            RunTask::Rollback | RunTask::Rescue => {
                read_archive(self.find_body_archive(record.image.as_deref())?)
            }
        }
    }

    /// The path of the body that an image was made of. An image has exactly one body: the image carries the body's
    /// digest.
    fn find_body_archive(&self, image: Option<&str>) -> Result<Option<PathBuf>> {
        let Some(image) = image else {
            return Ok(None);
        };
        let uploaded = self.state_folder.join(built_body_name(image));
        if uploaded.exists() {
            return Ok(Some(uploaded));
        }
        for record in self.list_records()? {
            let place = self.folder_of_run(&record.run);
            let of = [
                (&record.image, RUN_BODY_FILE),
                (&record.previous_image, PREVIOUS_BODY_FILE),
            ];
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

    /// Removes the bodies that the host has uploaded, except that of `image`; runs have their own copies.
    pub(in crate::keeper) fn remove_uploaded_bodies(&self, image: &str) -> Result<()> {
        for entry in fs::read_dir(&self.state_folder)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            if is_built_body_name(&name) && name != built_body_name(image) {
                fs::remove_file(self.state_folder.join(&*name))?;
            }
        }
        Ok(())
    }

    /// Keeps the newest `keep` runs, and of their bodies the newest that together have at most `bodies` bytes.
    pub(in crate::keeper) fn prune_runs(&self, keep: usize, bodies: u64) -> Result<()> {
        let runs = self.list_runs()?;
        for run in runs.iter().skip(keep) {
            fs::remove_dir_all(self.folder_of_run(run))?;
        }
        let (mut remaining, mut known) = (bodies, BTreeSet::new());
        let retained = runs.iter().take(keep).map(|run| self.folder_of_run(run));
        for place in retained
            .flat_map(|place| [RUN_BODY_FILE, PREVIOUS_BODY_FILE].map(|name| place.join(name)))
        {
            let Ok(found) = fs::metadata(&place) else {
                continue;
            };
            // An archive that several runs share takes space once.
            if known.contains(&found.ino()) {
                continue;
            }
            match remaining.checked_sub(found.len()) {
                Some(left) => {
                    remaining = left;
                    known.insert(found.ino());
                }
                None => {
                    remaining = 0;
                    fs::remove_file(&place)?;
                }
            }
        }
        Ok(())
    }
}

/// Reads the archive, if there is one.
fn read_archive(archive: Option<PathBuf>) -> Result<Option<Vec<u8>>> {
    match archive.map(fs::read) {
        None => Ok(None),
        Some(Ok(archive)) => Ok(Some(archive)),
        Some(Err(e)) if e.kind() == ErrorKind::NotFound => Ok(None),
        Some(Err(e)) => Err(e).context("reading a run's body"),
    }
}

#[cfg(test)]
mod tests {
    use super::{KeeperRunStore, PREVIOUS_BODY_FILE, RUN_BODY_FILE};
    use crate::protocol::evolve::built_body_name;

    #[test]
    fn the_newest_bodies_are_kept_within_the_size_limit() {
        let folder = tempfile::tempdir().unwrap();
        let run_store = KeeperRunStore::open(folder.path()).unwrap();
        let runs: Vec<_> = (0..4)
            .map(|n| run_store.create_run(f64::from(n)).unwrap())
            .collect();
        for (run, size) in runs.iter().zip([1, 40, 40, 40]) {
            run_store.save_body(run, &vec![0; size]).unwrap();
        }
        run_store.prune_runs(4, 100).unwrap();
        let has_body = runs
            .iter()
            .map(|run| run_store.folder_of_run(run).join(RUN_BODY_FILE).exists());
        assert_eq!(has_body.collect::<Vec<_>>(), [false, false, true, true]);
        // An archive that two runs share takes space once.
        let shared = run_store.folder_of_run(&runs[3]).join(PREVIOUS_BODY_FILE);
        std::fs::hard_link(
            run_store.folder_of_run(&runs[2]).join(RUN_BODY_FILE),
            &shared,
        )
        .unwrap();
        run_store.prune_runs(4, 80).unwrap();
        assert!(
            shared.exists()
                && run_store
                    .folder_of_run(&runs[2])
                    .join(RUN_BODY_FILE)
                    .exists()
        );
        run_store.prune_runs(4, 40).unwrap();
        assert!(
            !shared.exists()
                && !run_store
                    .folder_of_run(&runs[2])
                    .join(RUN_BODY_FILE)
                    .exists()
        );
    }

    #[test]
    fn only_the_last_uploaded_body_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let run_store = KeeperRunStore::open(folder.path()).unwrap();
        for name in [
            built_body_name("sha256:a"),
            built_body_name("sha256:b"),
            "deploy-config.json".into(),
        ] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        run_store.remove_uploaded_bodies("sha256:b").unwrap();
        let there = |name: &str| folder.path().join(name).exists();
        assert!(!there("built-a.tar") && there("built-b.tar") && there("deploy-config.json"));
    }
}
