//! Run store: a folder per run, with its record, its log and the body that it was made of.

mod bodies;

use super::run_log::{RunChangeNotifier, RunLog};
use crate::atomic_write::{Durability, atomic_write};
use crate::error::Result;
use crate::protocol::evolve::{EvolveRecord, EvolveRunId, EvolveStage, EvolveStatus};
use anyhow::Context;
use chrono::{DateTime, Datelike, NaiveDateTime, Timelike};
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;

/// Bytes of a log that are read at a time.
const RUN_LOG_CHUNK_BYTES: u64 = 32 << 10;
/// Why a run failed whose end no keeper recorded.
pub(super) const KEEPER_ENDED_REASON: &str = "the keeper ended during the evolve";

#[derive(Debug, Clone)]
pub(super) struct KeeperRunStore {
    state_folder: PathBuf,
    runs_folder: PathBuf,
    changes: RunChangeNotifier,
    /// The active run.
    active_run: Arc<Mutex<Option<EvolveRunId>>>,
}

impl KeeperRunStore {
    pub(super) fn open(state: &Path) -> Result<Self> {
        let folder = state.join("runs");
        fs::create_dir_all(&folder)?;
        Ok(Self {
            state_folder: state.to_owned(),
            runs_folder: folder,
            changes: RunChangeNotifier::default(),
            active_run: Arc::default(),
        })
    }

    /// Sets the active run, if there is one. Every other run has ended, whether or not that could be recorded.
    pub(super) fn set_active_run(&self, run: Option<EvolveRunId>) {
        *self.active_run.lock() = run;
        self.changes.notify_followers();
    }

    /// The active run, if there is one.
    pub(super) fn active_run(&self) -> Option<EvolveRunId> {
        self.active_run.lock().clone()
    }

    fn is_active(&self, run: &EvolveRunId) -> bool {
        self.active_run().as_ref() == Some(run)
    }

    /// Notifies the receiver whenever a record or a log has grown.
    pub(super) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn folder_of_run(&self, run: &EvolveRunId) -> PathBuf {
        self.runs_folder.join(run.as_str())
    }

    /// Creates a run with a unique name, starting at `now`. Names sort by time, even if the clock was set back.
    pub(super) fn create_run(&self, now: f64) -> Result<EvolveRunId> {
        let runs = self.list_runs()?;
        let newest = runs.iter().find_map(parse_run_second);
        let mut second = newest.map_or(now as i64, |newest| {
            newest.saturating_add(1).max(now as i64)
        });
        loop {
            let run = run_name_at(second)?;
            match fs::create_dir(self.folder_of_run(&run)) {
                Ok(()) => return Ok(run),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => second += 1,
                Err(e) => return Err(e).context("creating the run's folder"),
            }
        }
    }

    /// Removes the files of a run that does not start.
    pub(super) fn discard_run(&self, run: &EvolveRunId) {
        if let Err(error) = fs::remove_dir_all(self.folder_of_run(run)) {
            tracing::warn!(%run, %error, "the folder of a run that did not start can't be removed");
        }
    }

    pub(super) fn open_log(&self, run: &EvolveRunId, limit: u64) -> Result<RunLog> {
        let place = self.folder_of_run(run);
        fs::create_dir_all(&place)?;
        RunLog::open(&place.join("log"), limit, self.changes.clone())
    }

    pub(super) fn save_record(&self, record: &EvolveRecord) -> Result<()> {
        let place = self.folder_of_run(&record.run).join("record.json");
        let text = serde_json::to_vec(record)?;
        atomic_write(&place, &text, Durability::FolderSynced)
            .context("writing the run's record")?;
        self.changes.notify_followers();
        Ok(())
    }

    pub(super) fn read_record(&self, run: &EvolveRunId) -> Result<Option<EvolveRecord>> {
        let record = self.read_stored_record(run)?;
        Ok(record.map(|record| match self.is_active(run) {
            true => record,
            false => with_ended_status(record),
        }))
    }

    fn read_stored_record(&self, run: &EvolveRunId) -> Result<Option<EvolveRecord>> {
        match fs::read(self.folder_of_run(run).join("record.json")) {
            Ok(text) => {
                let record = serde_json::from_slice(&text).context("reading the run's record")?;
                Ok(Some(record))
            }
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).context("reading the run's record"),
        }
    }

    /// Records the end of every run that is not active. If a record can't be written, readers see the end
    /// nevertheless.
    pub(super) fn mark_ended_runs(&self) -> Result<()> {
        for run in self.list_runs()? {
            match self.read_stored_record(&run) {
                Ok(Some(record)) if !record.status.has_ended() && !self.is_active(&run) => {
                    self.save_record(&with_ended_status(record))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The names of all runs, the newest first.
    fn list_runs(&self) -> Result<Vec<EvolveRunId>> {
        let mut runs = Vec::new();
        for entry in fs::read_dir(&self.runs_folder)? {
            runs.extend(entry?.file_name().to_string_lossy().parse::<EvolveRunId>());
        }
        runs.sort_unstable_by(|a, b| b.cmp(a));
        Ok(runs)
    }

    /// All readable records, the newest first.
    pub(super) fn list_records(&self) -> Result<Vec<EvolveRecord>> {
        let runs = self.list_runs()?.into_iter();
        Ok(runs
            .filter_map(|run| self.read_record(&run).ok().flatten())
            .collect())
    }

    pub(super) fn read_status(&self) -> Result<EvolveStatus> {
        let runs = self.list_runs()?;
        let mut latest = runs
            .iter()
            .filter_map(|r| self.read_record(r).ok().flatten());
        let Some(latest) = latest.next() else {
            return Ok(EvolveStatus::default());
        };
        let on = !latest.status.has_ended();
        Ok(EvolveStatus {
            evolve_in_progress: on,
            restart_pending: matches!(
                latest.status,
                EvolveStage::Swapping | EvolveStage::Verifying
            ),
            stage: on.then_some(latest.status),
            latest_run: Some(latest.run),
            latest_status: Some(latest.status),
            reason: latest.reason,
            why: latest.why,
        })
    }

    /// A chunk of a log from this byte on; if the log is text, in whole characters.
    pub(super) fn read_log(&self, run: &EvolveRunId, offset: u64) -> Result<Vec<u8>> {
        let mut file = match File::open(self.folder_of_run(run).join("log")) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e).context("reading the run's log"),
        };
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(RUN_LOG_CHUNK_BYTES).read_to_end(&mut bytes)?;
        // A character that is cut in two comes with the next chunk.
        if let Err(e) = std::str::from_utf8(&bytes)
            && e.error_len().is_none()
            && e.valid_up_to() > 0
        {
            bytes.truncate(e.valid_up_to());
        }
        Ok(bytes)
    }
}

/// The record of a run that is not active, with its end.
fn with_ended_status(record: EvolveRecord) -> EvolveRecord {
    if record.status.has_ended() {
        return record;
    }
    EvolveRecord {
        failed_stage: record.failed_stage.or(Some(record.status)),
        why: record.why.or_else(|| Some(KEEPER_ENDED_REASON.into())),
        status: EvolveStage::Failed,
        ..record
    }
}

/// Seconds since 1970.
pub(super) fn unix_seconds() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |d| d.as_secs_f64())
}

/// The second that is the name of a run.
fn parse_run_second(run: &EvolveRunId) -> Option<i64> {
    let time = NaiveDateTime::parse_from_str(run.as_str(), "%Y%m%d-%H%M%S");
    Some(time.ok()?.and_utc().timestamp())
}

/// The name of a run that starts at this second.
fn run_name_at(second: i64) -> Result<EvolveRunId> {
    let time = DateTime::from_timestamp(second, 0).context("the clock is out of range")?;
    let (date, time) = (time.date_naive(), time.time());
    let date = format!("{:04}{:02}{:02}", date.year(), date.month(), date.day());
    let text = format!(
        "{date}-{:02}{:02}{:02}",
        time.hour(),
        time.minute(),
        time.second()
    );
    text.parse().map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use super::{KEEPER_ENDED_REASON, KeeperRunStore, parse_run_second, run_name_at};
    use crate::protocol::evolve::{EvolveCaller, EvolveRecord, EvolveStage};

    fn record(run_store: &KeeperRunStore, now: f64, status: EvolveStage) -> EvolveRecord {
        let run = run_store.create_run(now).unwrap();
        EvolveRecord {
            reason: Some("x".into()),
            requested_by: EvolveCaller::Agent,
            ..EvolveRecord::empty(run, status, now)
        }
    }

    #[test]
    fn a_run_is_named_by_its_second() {
        for (second, run) in [
            (0, "19700101-000000"),
            (951_782_399, "20000228-235959"),
            (951_782_400, "20000229-000000"),
            (1_795_203_360, "20261120-193600"),
            (4_102_444_800, "21000101-000000"),
        ] {
            assert_eq!(run_name_at(second).unwrap().as_str(), run);
            assert_eq!(super::parse_run_second(&run.parse().unwrap()), Some(second));
        }
        assert_eq!(parse_run_second(&"99999999-999999".parse().unwrap()), None);
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_run_names_unique_and_sorted() {
        let folder = tempfile::tempdir().unwrap();
        let run_store = KeeperRunStore::open(folder.path()).unwrap();
        let runs: Vec<_> = [9000.0, 5.0, 5.0, 9000.0, 10_000.0]
            .map(|now| run_store.create_run(now).unwrap())
            .into();
        assert!(runs.is_sorted(), "{runs:?}");
        assert_eq!(runs[4].as_str(), "19700101-024640");
        assert_eq!(run_store.list_runs().unwrap().len(), 5);
    }

    #[test]
    fn a_recorded_run_that_is_not_active_is_read_as_ended() {
        let folder = tempfile::tempdir().unwrap();
        let run_store = KeeperRunStore::open(folder.path()).unwrap();
        let started = record(&run_store, 1000.0, EvolveStage::Testing);
        run_store.save_record(&started).unwrap();
        run_store.set_active_run(Some(started.run.clone()));
        run_store.mark_ended_runs().unwrap();
        assert!(run_store.read_status().unwrap().evolve_in_progress);
        run_store.set_active_run(None);
        assert!(!run_store.read_status().unwrap().evolve_in_progress);
        let ended = run_store.read_record(&started.run).unwrap().unwrap();
        assert_eq!(
            (ended.status, ended.failed_stage),
            (EvolveStage::Failed, Some(EvolveStage::Testing))
        );
        assert_eq!(ended.why.as_deref(), Some(KEEPER_ENDED_REASON));
        assert_eq!(
            run_store.read_stored_record(&started.run).unwrap().unwrap(),
            started
        );
        run_store.mark_ended_runs().unwrap();
        assert_eq!(
            run_store.read_stored_record(&started.run).unwrap().unwrap(),
            ended
        );
    }

    #[test]
    fn the_status_is_of_the_newest_run_and_old_runs_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let run_store = KeeperRunStore::open(folder.path()).unwrap();
        assert_eq!(run_store.read_status().unwrap().latest_run, None);
        let first = record(&run_store, 1000.0, EvolveStage::Succeeded);
        let second = record(&run_store, 1000.5, EvolveStage::Verifying);
        assert_ne!(first.run, second.run);
        run_store.save_record(&first).unwrap();
        run_store.save_record(&second).unwrap();
        run_store.set_active_run(Some(second.run.clone()));
        let status = run_store.read_status().unwrap();
        assert!(status.evolve_in_progress && status.restart_pending);
        assert_eq!(status.latest_run.as_ref(), Some(&second.run));
        assert_eq!(
            run_store.list_records().unwrap(),
            [second.clone(), first.clone()]
        );
        run_store.prune_runs(1, 0).unwrap();
        assert_eq!(run_store.list_records().unwrap(), [second]);
        assert_eq!(run_store.read_record(&first.run).unwrap(), None);
    }

    #[test]
    fn a_log_is_read_in_whole_characters() {
        let folder = tempfile::tempdir().unwrap();
        let run_store = KeeperRunStore::open(folder.path()).unwrap();
        let run = run_store.create_run(5.0).unwrap();
        let text = "ä".repeat(20_000);
        std::fs::write(
            run_store.folder_of_run(&run).join("log"),
            format!("x{text}"),
        )
        .unwrap();
        let first = run_store.read_log(&run, 0).unwrap();
        let second = run_store.read_log(&run, first.len() as u64).unwrap();
        let whole = [first, second].concat();
        assert_eq!(String::from_utf8(whole).unwrap(), format!("x{text}"));
    }
}
