//! Write-ahead journal of a run: each step is on the disk before the keeper starts it.

use crate::atomic_write::{Durability, atomic_write, sync_folder};
use crate::error::Result;
use crate::protocol::evolve::EvolveRunId;
use crate::protocol::evolve::container_reports::ExpectedState;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// How far a run may have come. A step may be half done; recovery repeats it or undoes it from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RunJournalStep {
    /// An image is built or tested. The current container is not affected.
    Preparing,
    /// The current container may refuse requests.
    #[serde(alias = "freezing")]
    Quiescing,
    /// The old container may be renamed, without a network, and paused; the new one may exist.
    Swapping,
    /// The new container is verified: the keeper removes the old one.
    #[serde(alias = "concluding")]
    Finalizing,
    /// Only the new container exists, in its watch period.
    #[serde(alias = "probation")]
    Watching,
}

/// Everything needed to continue from a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RunJournalEntry {
    pub(super) run: EvolveRunId,
    pub(super) step: RunJournalStep,
    /// The id of the old container; `None` if there was none.
    pub(super) old: Option<String>,
    /// Whether the old container ran.
    pub(super) running: bool,
    /// The id of the old container's image.
    pub(super) previous: Option<String>,
    /// The id of the new image, when it is known.
    pub(super) image: Option<String>,
    #[serde(default)]
    pub(super) expected: ExpectedState,
    /// The id of the last image that passed its watch period, if the old container was in its own watch period.
    #[serde(default)]
    pub(super) proven: Option<String>,
    /// The entry that was in its watch period when the run started: its watch period restarts unless the run
    /// succeeds.
    #[serde(default)]
    pub(super) after: Option<Box<RunJournalEntry>>,
    /// How many rescues from this container have failed.
    #[serde(default)]
    pub(super) rescues: u32,
}

impl RunJournalEntry {
    /// The run, if it has not ended.
    pub(super) fn active_run(&self) -> Option<EvolveRunId> {
        (self.step != RunJournalStep::Watching).then(|| self.run.clone())
    }
}

/// The journal file.
#[derive(Debug, Clone)]
pub(super) struct RunJournal(PathBuf);

impl RunJournal {
    pub(super) fn new(state: &Path) -> Self {
        Self(state.join("journal.json"))
    }

    /// The run that an earlier keeper has not finished.
    ///
    /// # Errors
    /// When the file exists and can't be read.
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
    /// When the file can't be written. The caller must not start the step then.
    pub(super) fn write(&self, entry: &RunJournalEntry) -> Result<()> {
        let text = serde_json::to_vec(entry)?;
        atomic_write(&self.0, &text, Durability::FolderSynced).context("writing the journal")?;
        Ok(())
    }

    /// Restores the earlier entry, because the run of this entry has changed nothing.
    ///
    /// # Errors
    /// When the file can't be written.
    pub(super) fn restore_previous(&self, entry: &RunJournalEntry) -> Result<()> {
        match &entry.after {
            Some(before) => self.write(before),
            None => self.close(),
        }
    }

    /// Removes the journal: nothing is left to do.
    ///
    /// # Errors
    /// When the file can't be removed.
    pub(super) fn close(&self) -> Result<()> {
        match fs::remove_file(&self.0) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context("closing the journal"),
            _ => Ok(self.0.parent().map_or(Ok(()), sync_folder)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RunJournal, RunJournalEntry, RunJournalStep};
    use crate::keeper::test_samples::sample_entry;

    #[test]
    fn a_journal_entry_is_read_by_the_next_keeper() {
        let folder = tempfile::tempdir().unwrap();
        let journal = RunJournal::new(folder.path());
        assert_eq!(journal.read().unwrap(), None);
        let mut entry = sample_entry(RunJournalStep::Preparing);
        entry.old = Some("a".into());
        journal.write(&entry).unwrap();
        let before = RunJournalEntry {
            step: RunJournalStep::Watching,
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
    fn a_journal_of_the_first_version_is_readable() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"run":"20261120-193600","step":"probation","old":"a","running":true,"previous":"b","image":"c","expected":{"healthy_before":[],"sessions":[]},"until":5.0}"#;
        std::fs::write(folder.path().join("journal.json"), text).unwrap();
        let entry = RunJournal::new(folder.path()).read().unwrap().unwrap();
        assert_eq!((entry.step, entry.rescues), (RunJournalStep::Watching, 0));
        assert_eq!((entry.proven, entry.after), (None, None));
        for (former, step) in [
            ("freezing", RunJournalStep::Quiescing),
            ("concluding", RunJournalStep::Finalizing),
        ] {
            let read = serde_json::from_value::<RunJournalStep>(former.into());
            assert_eq!(read.ok(), Some(step));
        }
    }
}
