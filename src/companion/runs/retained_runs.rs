//! Files of the runs of one companion generation: the journal, and output that memory does not hold. A companion takes
//! over the files of earlier companions and removes them. It keeps the files of a companion that only waits: a paused
//! container that may continue when its replacement fails.

use super::store::create_private_folder;
use crate::atomic_write::{Durability, atomic_write};
use crate::error::Result;
use crate::protocol::hex::hex;
use anyhow::Context;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// File that names the waiting companion, in the folder of all companions.
const WAITING_MARKER_FILE: &str = "waiting";

/// Time after which a waiting companion counts as gone.
const WAITING_MARKER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The folders of all companions, and the name of this companion's folder.
#[derive(Debug, Clone)]
pub(crate) struct RetainedRuns {
    folder: PathBuf,
    own_name: String,
}

impl RetainedRuns {
    pub(crate) fn new(folder: PathBuf, own_name: String) -> Self {
        Self { folder, own_name }
    }

    /// Gives this companion an ID that no other companion process has, as the name of its folder.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub(crate) fn with_random_id(folder: PathBuf) -> Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).context("generating an ID")?;
        Ok(Self::new(folder, hex(random)))
    }

    /// Folder of this companion.
    pub(crate) fn own_folder(&self) -> PathBuf {
        self.folder.join(&self.own_name)
    }

    /// Folders of the other companions.
    pub(super) fn other_folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let others = entries.filter(|entry| {
            let is_own = entry.file_name().to_str() == Some(&self.own_name);
            !is_own && entry.file_type().is_ok_and(|kind| kind.is_dir())
        });
        others.map(|entry| entry.path()).collect()
    }

    /// Removes the folders of earlier companions, except the one that waits.
    pub(crate) fn remove_stale(&self) {
        let waiting = self.waiting_companion().map(|name| self.folder.join(name));
        for folder in self.other_folders() {
            if waiting.as_ref() != Some(&folder) {
                remove_folder(&folder);
            }
        }
    }

    /// Marks this companion as waiting.
    ///
    /// # Errors
    /// When the mark can't be written.
    pub(crate) fn mark_waiting(&self) -> io::Result<()> {
        create_private_folder(&self.folder)?;
        let marker = self.folder.join(WAITING_MARKER_FILE);
        atomic_write(&marker, self.own_name.as_bytes(), Durability::Renamed).map(drop)
    }

    /// Removes the mark: this companion continues, or has replaced the waiting one. If their runs were `taken`, removes
    /// the folders of the others.
    pub(crate) fn clear_waiting(&self, taken: bool) {
        if let Err(error) = fs::remove_file(self.folder.join(WAITING_MARKER_FILE))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "the mark of the waiting companion can't be removed");
        }
        if taken {
            self.remove_stale();
        }
    }

    fn waiting_companion(&self) -> Option<String> {
        let path = self.folder.join(WAITING_MARKER_FILE);
        let age = fs::metadata(&path).ok()?.modified().ok()?.elapsed();
        let is_forgotten = age.is_ok_and(|age| age > WAITING_MARKER_TIMEOUT);
        let name = fs::read_to_string(path).ok()?;
        (!is_forgotten).then_some(name)
    }
}

fn remove_folder(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(%error, "output of an earlier companion can't be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::RetainedRuns;
    use std::fs;

    #[test]
    fn a_waiting_companion_keeps_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let opened = RetainedRuns::new(folder.path().join("runs"), name.into());
            opened.remove_stale();
            fs::create_dir_all(opened.own_folder()).unwrap();
            opened
        };
        let first = open("1");
        let waiting = open("2");
        assert!(!first.own_folder().exists());
        waiting.mark_waiting().unwrap();
        let crashes = open("3");
        let verified = open("4");
        assert!(waiting.own_folder().exists() && !crashes.own_folder().exists());
        verified.clear_waiting(true);
        assert!(!waiting.own_folder().exists() && verified.own_folder().exists());
    }
}
