//! What is about to be done, on the disk before it is.

use crate::error::Result;
use crate::protocol::evolve::EvolveRunId;
use crate::protocol::evolve::inside::ExpectedState;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// How far a run may have come. A step may be half done, and is done again or undone from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RunJournalStep {
    /// An image is built or tried; what runs does not know.
    Preparing,
    /// What runs may refuse requests.
    Freezing,
    /// The old container may have another name, no network and no processes that move; the new one may
    /// be there.
    Swapping,
    /// The new container is proved: the old one goes.
    Concluding,
    /// Only the new container is there, and is watched.
    Probation,
}

/// All that is needed to go on from a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RunJournalEntry {
    pub(super) run: EvolveRunId,
    pub(super) step: RunJournalStep,
    /// The id of the old container; there may have been none.
    pub(super) old: Option<String>,
    /// Whether it ran.
    pub(super) running: bool,
    /// The id of the image that it runs.
    pub(super) previous: Option<String>,
    /// The id of the new image, once there is one.
    pub(super) image: Option<String>,
    #[serde(default)]
    pub(super) expected: ExpectedState,
    /// The id of the last image that has lasted, where what ran before was on probation itself.
    #[serde(default)]
    pub(super) proven: Option<String>,
    /// What was on probation when the run began: it is watched again unless the run succeeds.
    #[serde(default)]
    pub(super) after: Option<Box<RunJournalEntry>>,
    /// How often the keeper went back from it in vain.
    #[serde(default)]
    pub(super) rescues: u32,
}

impl RunJournalEntry {
    /// The run, if it has not ended.
    pub(super) fn active_run(&self) -> Option<EvolveRunId> {
        (self.step != RunJournalStep::Probation).then(|| self.run.clone())
    }
}

/// The one file.
#[derive(Debug, Clone)]
pub(super) struct RunJournal(PathBuf);

impl RunJournal {
    pub(super) fn new(state: &Path) -> Self {
        Self(state.join("journal.json"))
    }

    /// What a keeper before has not finished.
    ///
    /// # Errors
    /// When it is there and can't be read.
    pub(super) fn read(&self) -> Result<Option<RunJournalEntry>> {
        match fs::read(&self.0) {
            Ok(text) => Ok(Some(
                serde_json::from_slice(&text).context("reading the journal")?,
            )),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).context("reading the journal"),
        }
    }

    /// # Errors
    /// When it can't be written; nothing may be done then.
    pub(super) fn write(&self, entry: &RunJournalEntry) -> Result<()> {
        replace_file_synced(&self.0, &serde_json::to_vec(entry)?).context("writing the journal")
    }

    /// The run of the entry has changed nothing: what was to do before is to do again.
    ///
    /// # Errors
    /// When it can't be written.
    pub(super) fn restore_previous(&self, entry: &RunJournalEntry) -> Result<()> {
        match &entry.after {
            Some(before) => self.write(before),
            None => self.close(),
        }
    }

    /// There is nothing left to do.
    ///
    /// # Errors
    /// When it can't be removed.
    pub(super) fn close(&self) -> Result<()> {
        match fs::remove_file(&self.0) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context("closing the journal"),
            _ => sync_folder(&self.0),
        }
    }
}

/// Written beside, on the disk, then renamed.
pub(super) fn replace_file_synced(path: &Path, content: &[u8]) -> Result<()> {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_folder(path)
}

fn sync_folder(path: &Path) -> Result<()> {
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{RunJournal, RunJournalEntry, RunJournalStep};
    use crate::keeper::samples::sample_entry;

    #[test]
    fn what_is_written_is_read_by_who_comes_next() {
        let folder = tempfile::tempdir().unwrap();
        let journal = RunJournal::new(folder.path());
        assert_eq!(journal.read().unwrap(), None);
        let mut entry = sample_entry(RunJournalStep::Preparing);
        entry.old = Some("a".into());
        journal.write(&entry).unwrap();
        let before = RunJournalEntry {
            step: RunJournalStep::Probation,
            ..entry.clone()
        };
        entry.step = RunJournalStep::Swapping;
        entry.after = Some(Box::new(before.clone()));
        journal.write(&entry).unwrap();
        let again = RunJournal::new(folder.path());
        assert_eq!(again.read().unwrap().as_ref(), Some(&entry));
        journal.restore_previous(&entry).unwrap();
        assert_eq!(again.read().unwrap().as_ref(), Some(&before));
        journal.restore_previous(&before).unwrap();
        assert_eq!(journal.read().unwrap(), None);
        journal.write(&entry).unwrap();
        journal.close().unwrap();
        journal.close().unwrap();
        assert_eq!(journal.read().unwrap(), None);
    }

    #[test]
    fn what_the_first_version_wrote_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"run":"20261120-193600","step":"probation","old":"a","running":true,"previous":"b","image":"c","expected":{"healthy_before":[],"sessions":[]},"until":5.0}"#;
        std::fs::write(folder.path().join("journal.json"), text).unwrap();
        let entry = RunJournal::new(folder.path()).read().unwrap().unwrap();
        assert_eq!((entry.step, entry.rescues), (RunJournalStep::Probation, 0));
        assert_eq!((entry.proven, entry.after), (None, None));
    }

    #[test]
    fn a_write_that_was_cut_off_leaves_what_was_before() {
        let folder = tempfile::tempdir().unwrap();
        let journal = RunJournal::new(folder.path());
        std::fs::write(folder.path().join("journal.new"), "{\"run\":").unwrap();
        assert_eq!(journal.read().unwrap(), None);
    }
}
