//! Run store: the journal of runs on disk, so that runs are found again after a crash of the companion.
//!
//! A [`RunStore`] is the handle. Each companion generation writes its own journal in its own folder, and starts with a
//! copy of the runs in earlier journals ([`recovery`]). Two companions, of which one waits while the other replaces it,
//! therefore never write to one file. One thread ([`writer`]) writes records ([`record`]) in batches with one sync for
//! all ([`queue`]), as frames that show where a crash has cut them ([`frame`]).
//!
//! Written records survive a crash of the companion and of the container. Synced records survive a power loss. The
//! start of a run is synced before the run is acknowledged. The end of a run, with all journal records up to the end,
//! is synced before the end is published. Text of a running run is written within ten milliseconds and synced within
//! about a second. Text beyond the first half MiB of a stream is in files beside the journal, which no reply waits for:
//! after a power loss their end may be missing.

mod frame;
#[cfg(test)]
mod model;
mod queue;
mod record;
mod recovery;
mod removed_ids;
#[cfg(test)]
mod tests;
mod writer;

pub(super) use queue::{RecordUrgency, RunRecorder};
pub(super) use record::{StoredRunBegin, StoredRunEnd, StoredRunRecord};
pub(super) use removed_ids::RunIdDigest;
pub(super) use writer::create_private_folder;

use super::retained_runs::RetainedRuns;
use parking_lot::Mutex;
use queue::RunStoreShared;
use recovery::RecoverableRun;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use writer::RunStoreWriter;

/// File with the id of the machine's current boot.
const RUN_STORE_BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// A run of an earlier companion, and its recorder in this journal.
#[derive(Debug)]
pub(super) struct RecoveredRun {
    pub(super) run: RecoverableRun,
    pub(super) recorder: Arc<RunRecorder>,
}

/// The handle of the journal; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct RunStore(Option<Arc<RunStoreInner>>);

#[derive(Debug)]
struct RunStoreInner {
    shared: Arc<RunStoreShared>,
    retained_runs: RetainedRuns,
    boot_id: String,
    recovered: Mutex<Vec<RecoveredRun>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl RunStore {
    /// The synced bytes of each segment of this companion.
    #[cfg(test)]
    fn synced_bytes(&self) -> std::collections::BTreeMap<std::path::PathBuf, u64> {
        let inner = self.0.as_ref();
        inner
            .map(|inner| inner.shared.synced_bytes.lock().clone())
            .unwrap_or_default()
    }

    /// Starts this companion's journal with the runs of earlier journals. If the disk can't be written, runs are not
    /// durable; this is not an error.
    pub(crate) fn open(retained_runs: &RetainedRuns) -> Self {
        let shared = Arc::new(RunStoreShared::new(retained_runs.own_folder()));
        let writer = RunStoreWriter::new(Arc::clone(&shared));
        let writer = thread::Builder::new()
            .name("runs".into())
            .spawn(|| writer.run());
        let writer = match writer {
            Ok(writer) => writer,
            Err(error) => {
                tracing::error!(%error, "runs are not recorded on disk");
                return Self::disabled();
            }
        };
        let store = Self(Some(Arc::new(RunStoreInner {
            shared,
            retained_runs: retained_runs.clone(),
            boot_id: fs::read_to_string(RUN_STORE_BOOT_ID_PATH)
                .unwrap_or_default()
                .trim()
                .into(),
            recovered: Mutex::default(),
            writer: Mutex::new(Some(writer)),
        })));
        store.recover_runs();
        store
    }

    /// A store without a journal: no run is durable.
    pub(crate) fn disabled() -> Self {
        Self(None)
    }

    /// Reads the journals of other companions. Blocks.
    pub(crate) fn recover_runs(&self) {
        let Some(inner) = &self.0 else { return };
        let own = inner.retained_runs.own_folder();
        let folders = inner.retained_runs.other_folders();
        let found = recovery::read_journals(&folders, &mut inner.shared.removed_ids.lock());
        if let Err(error) = inner.shared.save_removed_ids() {
            tracing::error!(%error, "the IDs of removed runs can't be recorded");
            // The earlier journals stay.
            inner.shared.note_failure();
        }
        for mut run in found {
            link_run_files(&mut run, &own);
            let first = StoredRunRecord::Begin(run.begin.clone());
            // The copied records are complete: private output was left out of them before.
            let recorder = inner.shared.begin_run(&first, false);
            for record in &run.records {
                recorder.push_record(record, RecordUrgency::Later);
            }
            // Keep the number of queued records below its limit.
            inner.shared.wait_queue_space();
            inner.recovered.lock().push(RecoveredRun { run, recorder });
        }
    }

    /// Takes the recovered runs of one kind, each once.
    pub(super) fn take_recovered(&self, path: &str) -> Vec<RecoveredRun> {
        let Some(inner) = &self.0 else {
            return Vec::new();
        };
        let mut recovered = inner.recovered.lock();
        let (own, others) = std::mem::take(&mut *recovered)
            .into_iter()
            .partition(|one| one.run.begin.api_path == path);
        *recovered = others;
        own
    }

    /// Path of a file that the journal names.
    pub(super) fn file_path(&self, name: &str) -> Option<PathBuf> {
        let inner = self.0.as_ref()?;
        Some(inner.shared.folder.join(name))
    }

    /// Whether `boot` is an earlier boot of the machine.
    pub(super) fn is_other_boot(&self, boot: &str) -> bool {
        let own = self.0.as_ref().map_or("", |inner| &inner.boot_id);
        !own.is_empty() && !boot.is_empty() && own != boot
    }

    pub(super) fn boot_id(&self) -> String {
        self.0
            .as_ref()
            .map(|inner| inner.boot_id.clone())
            .unwrap_or_default()
    }

    /// Queues the record of a run's start.
    pub(super) fn record_begin(
        &self,
        begin: StoredRunBegin,
        is_private: bool,
    ) -> Option<Arc<RunRecorder>> {
        let inner = self.0.as_ref()?;
        Some(
            inner
                .shared
                .begin_run(&StoredRunRecord::Begin(begin), is_private),
        )
    }

    /// Notes that the run of this ID is removed, so that later requests with this ID are refused. Returns what the
    /// journal records.
    pub(super) fn remove_id(&self, api_path: &str, id: &str) -> Option<RunIdDigest> {
        let inner = self.0.as_ref()?;
        let digest = removed_ids::run_id_digest(api_path, id);
        inner.shared.removed_ids.lock().add(digest);
        Some(digest)
    }

    /// Whether a run of this ID was removed.
    pub(super) fn is_removed_id(&self, api_path: &str, id: &str) -> bool {
        let digest = removed_ids::run_id_digest(api_path, id);
        let removed = self.0.as_ref().map(|inner| inner.shared.removed_ids.lock());
        removed.is_some_and(|removed| removed.contains(&digest))
    }

    /// Waits until all records up to now are written. Returns whether they and all earlier records are synced.
    pub(crate) async fn wait_synced(&self) -> bool {
        let Some(inner) = &self.0 else { return false };
        inner.shared.wait_synced().await;
        !inner.shared.has_failed()
    }

    /// Writes all queued records and closes the journal. Blocks until then.
    pub(crate) fn close(&self) {
        let Some(inner) = &self.0 else { return };
        inner.shared.close_queue();
        let writer = inner.writer.lock().take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the last records of the run journal were not written");
        }
    }
}

/// Links the files of a run into this companion's folder. The files of a waiting companion stay in its folder, too.
fn link_run_files(found: &mut RecoverableRun, own: &Path) {
    let (folder, begin) = (found.folder.clone(), found.begin.clone());
    found.records.retain_mut(|record| {
        let StoredRunRecord::File { stream, name } = record else {
            return true;
        };
        let from = folder.join(&*name);
        let kind = begin.api_path.trim_start_matches('/');
        let to = format!("{kind}.{}.{stream:?}.{}", begin.id, begin.created).to_lowercase();
        let brought = create_private_folder(own).and_then(|()| link_or_copy(&from, &own.join(&to)));
        if let Err(error) = &brought {
            tracing::warn!(run = %begin.id, path = %from.display(), %error, "output of a run is lost");
        }
        *name = to;
        brought.is_ok()
    });
}

fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Some file systems do not support links.
        Err(error) if error.kind() != io::ErrorKind::NotFound => fs::copy(from, to).map(drop),
        linked => linked,
    }
}
