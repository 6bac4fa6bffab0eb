//! Generation store: the current generation of the namespace, and the last generation that was reported to a caller.
//!
//! Generations are stored on disk, because their numbers only rise, also across containers. A reply waits until the
//! file is replaced, so that a crash of the companion can't lose a reported generation. The reply does not wait for a
//! sync to disk, which takes milliseconds and matters only after a power loss.

use crate::atomic_write::{Durability, atomic_write, sync_folder};
use crate::protocol::kernel::{KernelReport, KernelState};
use crate::protocol::restored::RestoredFrom;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct GenerationStore {
    path: PathBuf,
    record: GenerationRecord,
    /// The stored generation that this generation was reloaded from. Never applies to a later generation.
    origin: Option<Arc<RestoredFrom>>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct GenerationRecord {
    generation: u64,
    reported: Option<u64>,
    /// Whether this generation started with the state of an earlier generation.
    #[serde(default)]
    restored: bool,
    /// Whether the state of this generation is stored and the next start reloads it.
    #[serde(default)]
    stored: bool,
    /// Consecutive starts that tried to reload the state and did not report success.
    #[serde(default)]
    attempts: u8,
}

/// Limit of reload attempts for a state that can't be reloaded.
const MAX_RESTORE_ATTEMPTS: u8 = 3;

impl GenerationRecord {
    fn is_restorable(self) -> bool {
        self.stored || (1..MAX_RESTORE_ATTEMPTS).contains(&self.attempts)
    }
}

impl GenerationStore {
    /// Reads the record. If the record can't be read, the store logs this and starts again at generation 1.
    pub(super) fn open(folder: &Path, session: &str) -> Self {
        let path = record_path(folder, session);
        let record = Self::read_record(&path);
        Self {
            path,
            record,
            origin: None,
        }
    }

    fn read_record(path: &Path) -> GenerationRecord {
        let Ok(text) = fs::read(path) else {
            return GenerationRecord::default();
        };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::error!(
                path = %path.display(),
                %error,
                "the generation record can't be read; generations start again at 1"
            );
            GenerationRecord::default()
        })
    }

    pub(super) fn generation(&self) -> u64 {
        self.record.generation
    }

    /// Starts a generation with an empty namespace.
    pub(super) fn begin_empty_generation(&mut self) {
        self.advance_generation(false);
    }

    /// Starts a generation with the namespace of an earlier generation.
    pub(super) fn begin_restored_generation(&mut self) {
        self.advance_generation(true);
    }

    fn advance_generation(&mut self, restored: bool) {
        self.record.generation += 1;
        self.record.attempts = match self.record.is_restorable() && !restored {
            true => self.record.attempts + 1,
            false => 0,
        };
        (self.record.restored, self.record.stored) = (restored, false);
        self.origin = None;
        self.save_record();
    }

    /// Whether the next start reloads the stored state of this generation.
    pub(super) fn is_stored(&self) -> bool {
        self.record.is_restorable()
    }

    /// Whether no reload is outstanding.
    pub(super) fn is_restore_settled(&self) -> bool {
        self.record.attempts == 0
    }

    pub(super) fn set_stored(&mut self, stored: bool) {
        if (self.record.stored, self.record.attempts) != (stored, 0) {
            (self.record.stored, self.record.attempts) = (stored, 0);
            self.save_record();
        }
    }

    /// Records that this generation holds the state of an earlier one, stored as `origin`.
    pub(super) fn set_restored(&mut self, origin: Option<RestoredFrom>) {
        self.origin = origin.map(Arc::new);
        (self.record.restored, self.record.stored) = (true, true);
        self.record.attempts = 0;
        self.save_record();
    }

    /// Reads the record again: another process may have advanced the generation. If so, this store continues with the
    /// next higher generation.
    pub(super) fn adopt_newer_generation(&mut self) {
        let theirs = Self::read_record(&self.path).generation;
        if theirs > self.record.generation {
            let stored = self.record.stored;
            self.record.generation = theirs;
            self.begin_restored_generation();
            self.set_stored(stored);
        }
    }

    /// Builds the report for a caller that last saw `seen` or, without `seen`, relative to the last reported
    /// generation.
    pub(super) fn peek_report(&self, generation: u64, seen: Option<u64>) -> KernelReport {
        let known = seen.or(self.record.reported).unwrap_or(generation);
        let restored = self.record.restored && generation == self.record.generation;
        let report = KernelReport {
            generation,
            state: KernelState::Kept,
            restored_from: None,
            restored,
            origin: self.origin.clone().filter(|_| restored),
        };
        report.relative_to(Some(known))
    }

    /// Like [`GenerationStore::peek_report`], and records the generation as reported.
    pub(super) fn record_report(&mut self, generation: u64, seen: Option<u64>) -> KernelReport {
        let report = self.peek_report(generation, seen);
        if self.record.reported != Some(generation) {
            self.record.reported = Some(generation);
            self.save_record();
        }
        report
    }

    fn save_record(&self) {
        // A full disk must not stop the kernel. The log says that the record may be outdated.
        if let Err(error) = self.write_record() {
            tracing::error!(path = %self.path.display(), %error, "the generation record can't be written");
        }
    }

    fn write_record(&self) -> io::Result<()> {
        let file = replace_session_file(&self.path, &serde_json::to_vec(&self.record)?)?;
        let sync = move || {
            if let Err(error) = file.sync_all() {
                tracing::error!(%error, "a generation record may be lost after a power loss");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(sync)),
            Err(_) => sync(),
        }
        Ok(())
    }
}

/// Replaces a file of a session, without waiting for the disk. Creates the folder if it is missing.
pub(super) fn replace_session_file(path: &Path, content: &[u8]) -> io::Result<File> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    atomic_write(path, content, Durability::Renamed)
}

/// Syncs a session's record to disk: a stored state is a durable state from here on.
pub(super) fn sync_record(folder: &Path, session: &str) -> io::Result<()> {
    File::open(record_path(folder, session))?.sync_all()?;
    sync_folder(folder)
}

fn record_path(folder: &Path, session: &str) -> PathBuf {
    folder.join(format!("{session}.json"))
}

/// Lists the sessions in a folder of records whose next start reloads a stored state.
pub(crate) fn stored_sessions(folder: &Path) -> Vec<String> {
    let records = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = records.filter_map(|record| {
        let path = record.path();
        let name = path.file_stem()?.to_str()?.to_owned();
        let is_record = path.extension().is_some_and(|e| e == "json");
        (is_record && GenerationStore::read_record(&path).is_restorable()).then_some(name)
    });
    let mut sessions: Vec<String> = named.collect();
    sessions.sort();
    sessions
}

#[cfg(test)]
mod tests {
    use super::GenerationStore;
    use crate::protocol::kernel::KernelState;

    #[test]
    fn a_caller_that_saw_an_earlier_generation_reads_a_loss() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = GenerationStore::open(folder.path(), "default");
        store.begin_empty_generation();
        assert_eq!(store.record_report(1, None).state, KernelState::Kept);

        let mut store = GenerationStore::open(folder.path(), "default");
        store.begin_empty_generation();
        let report = store.record_report(2, None);
        assert_eq!((report.generation, report.state), (2, KernelState::Lost));
        assert_eq!(store.record_report(2, None).state, KernelState::Kept);
        assert_eq!(store.record_report(2, Some(1)).state, KernelState::Lost);
        assert_eq!(store.record_report(2, Some(2)).state, KernelState::Kept);
    }

    #[test]
    fn a_caller_that_saw_an_earlier_generation_reads_the_restore() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = GenerationStore::open(folder.path(), "default");
        store.begin_empty_generation();
        store.record_report(1, None);
        store.set_stored(true);

        let mut store = GenerationStore::open(folder.path(), "default");
        assert!(store.is_stored());
        store.begin_empty_generation();
        store.set_restored(None);
        let report = store.record_report(2, None);
        assert_eq!(report.state, KernelState::Restored);
        assert_eq!(store.record_report(2, None).state, KernelState::Kept);
        assert_eq!(report.relative_to(Some(1)).state, KernelState::Restored);
        store.begin_empty_generation();
        assert_eq!(store.record_report(3, Some(2)).state, KernelState::Lost);
    }

    #[test]
    fn a_reload_that_does_not_finish_is_tried_three_times() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = GenerationStore::open(folder.path(), "default");
        store.begin_empty_generation();
        store.set_stored(true);
        let reloads = (0..5).map(|_| {
            let mut store = GenerationStore::open(folder.path(), "default");
            let comes_back = store.is_stored();
            store.begin_empty_generation();
            comes_back
        });
        assert_eq!(
            reloads.collect::<Vec<_>>(),
            [true, true, true, false, false]
        );
        // A state that could not be reloaded is not tried again, and a new state starts a new count.
        store.set_stored(true);
        let mut store = GenerationStore::open(folder.path(), "default");
        store.begin_empty_generation();
        store.set_stored(false);
        assert!(!GenerationStore::open(folder.path(), "default").is_stored());
        store.set_stored(true);
        assert!(GenerationStore::open(folder.path(), "default").is_stored());
    }

    #[test]
    fn a_generation_that_was_not_reported_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        GenerationStore::open(folder.path(), "default").begin_empty_generation();
        let mut store = GenerationStore::open(folder.path(), "default");
        store.begin_empty_generation();
        assert_eq!(store.record_report(2, None).state, KernelState::Kept);
    }

    #[test]
    fn a_restored_generation_is_a_new_one_and_no_loss() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = GenerationStore::open(folder.path(), "default");
        store.begin_empty_generation();
        store.record_report(1, None);
        store.begin_empty_generation();
        store.begin_restored_generation();
        let mut store = GenerationStore::open(folder.path(), "default");
        let report = store.record_report(3, None);
        assert_eq!(
            (report.generation, report.state),
            (3, KernelState::Restored)
        );
        assert_eq!(store.record_report(3, None).state, KernelState::Kept);
        store.begin_empty_generation();
        assert_eq!(store.record_report(4, None).state, KernelState::Lost);
    }

    #[test]
    fn a_damaged_record_does_not_stop_the_kernel() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("default.json"), "{").unwrap();
        assert_eq!(
            GenerationStore::open(folder.path(), "default").generation(),
            0
        );
    }

    #[test]
    fn foreign_reports_are_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let mut waiting = GenerationStore::open(folder.path(), "default");
        waiting.begin_empty_generation();
        waiting.record_report(1, None);
        // No other process changed the state in between.
        waiting.adopt_newer_generation();
        assert_eq!(waiting.record_report(1, None).state, KernelState::Kept);

        let mut other = GenerationStore::open(folder.path(), "default");
        other.begin_restored_generation();
        other.record_report(2, None);
        waiting.adopt_newer_generation();
        assert_eq!(waiting.generation(), 3);
        assert_eq!(
            waiting.record_report(3, Some(2)).state,
            KernelState::Restored
        );
        assert_eq!(
            waiting.record_report(3, Some(1)).state,
            KernelState::Restored
        );
    }
}
