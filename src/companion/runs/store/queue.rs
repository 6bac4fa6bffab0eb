//! Queue of records for the writer, and the tasks that wait for these records.

use super::record::{RECORD_KIND_FORGET, RECORD_KIND_TEXT, StoredRunRecord};
use super::removed_ids::{REMOVED_IDS_FILE, RemovedIds, RunIdDigest};
use super::writer::create_private_folder;
use crate::companion::runs::run::RunSignal;
use crate::protocol::kernel::RunStatus;
use osctl_support::atomic_write::{Durability, atomic_write};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Time that a text record waits for more text, which is then written with it.
const TEXT_RECORD_DELAY: Duration = Duration::from_millis(10);

/// Maximum bytes of queued records; beyond it, the runs are not durable.
const MAX_QUEUED_RECORD_BYTES: usize = 64 << 20;

/// Maximum bytes of queued copies of earlier records.
const MAX_COPIED_RECORD_BYTES: usize = 8 << 20;

/// Maximum bytes of a text record.
const MAX_TEXT_RECORD_BYTES: usize = 64 << 10;

/// Bytes of a text record before the text.
const TEXT_PREFIX_BYTES: usize = 9;

/// How long a record may wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::companion::runs) enum RecordUrgency {
    /// Until the next record is written.
    #[default]
    Later,
    /// For some milliseconds.
    Soon,
    /// Not at all, and the record is synced.
    Synced,
}

/// State that the handles and the writer share.
#[derive(Debug)]
pub(super) struct RunStoreShared {
    /// Folder of the journal and, beneath it, of the runs' files.
    pub(super) folder: PathBuf,
    queue: Mutex<RecordQueue>,
    record_queued: Condvar,
    /// Notified after each batch.
    batch_completed: Condvar,
    has_failed: AtomicBool,
    pub(super) removed_ids: Mutex<RemovedIds>,
    /// Number of records that are on the disk or have failed.
    settled_position: watch::Sender<u64>,
    /// Synced bytes of each segment: what a loss of power leaves.
    #[cfg(test)]
    pub(super) synced_bytes: Mutex<std::collections::BTreeMap<PathBuf, u64>>,
}

#[derive(Debug, Default)]
struct RecordQueue {
    pending: Vec<PendingRecord>,
    pending_ends: Vec<PendingRunEnd>,
    bytes: usize,
    /// Number of records up to now.
    position: u64,
    urgency: RecordUrgency,
    /// When the oldest waiting text was queued.
    text_queued_at: Option<Instant>,
    run_count: u64,
    is_closed: bool,
}

/// A queued record.
#[derive(Debug)]
pub(super) struct PendingRecord {
    pub(super) recorder: Arc<RunRecorder>,
    pub(super) index: u32,
    pub(super) kind: u8,
    pub(super) content: Vec<u8>,
}

/// A run whose end is published after the sync.
#[derive(Debug)]
struct PendingRunEnd {
    recorder: Arc<RunRecorder>,
    signal: watch::Sender<RunSignal>,
    status: RunStatus,
}

/// Records that are written together.
#[derive(Debug)]
pub(super) struct RecordBatch {
    pub(super) pending: Vec<PendingRecord>,
    pending_ends: Vec<PendingRunEnd>,
    position: u64,
    pub(super) is_synced: bool,
    /// Whether no batch follows.
    pub(super) is_last: bool,
}

/// A run's recorder in the journal.
#[derive(Debug)]
pub(in crate::companion::runs) struct RunRecorder {
    shared: Arc<RunStoreShared>,
    pub(super) run_number: u64,
    next_index: AtomicU32,
    /// The position after the first record.
    begin_position: u64,
    /// Whether a record of the run is missing.
    is_incomplete: AtomicBool,
    is_forgotten: AtomicBool,
    /// Whether the code and its output are not recorded.
    pub(in crate::companion::runs) is_private: bool,
}

impl RunStoreShared {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            queue: Mutex::default(),
            record_queued: Condvar::new(),
            batch_completed: Condvar::new(),
            has_failed: AtomicBool::new(false),
            removed_ids: Mutex::default(),
            settled_position: watch::Sender::new(0),
            #[cfg(test)]
            synced_bytes: Mutex::default(),
        }
    }

    /// Queues the start of a run.
    pub(super) fn begin_run(
        self: &Arc<Self>,
        first: &StoredRunRecord,
        is_private: bool,
    ) -> Arc<RunRecorder> {
        let mut queue = self.queue.lock();
        queue.run_count += 1;
        let recorder = Arc::new(RunRecorder {
            shared: Arc::clone(self),
            run_number: queue.run_count,
            next_index: AtomicU32::new(0),
            begin_position: queue.position + 1,
            is_incomplete: AtomicBool::new(false),
            is_forgotten: AtomicBool::new(false),
            is_private,
        });
        let (kind, content) = first.encode();
        recorder.enqueue_record(&mut queue, kind, content);
        recorder
    }

    /// Waits, blocking, while too many records are queued.
    pub(super) fn wait_queue_space(&self) {
        let mut queue = self.queue.lock();
        if queue.bytes <= MAX_COPIED_RECORD_BYTES {
            return;
        }
        let position = queue.position;
        self.request_sync(&mut queue);
        let is_unsettled = |_: &mut RecordQueue| *self.settled_position.borrow() < position;
        self.batch_completed.wait_while(&mut queue, is_unsettled);
    }

    /// Whether a record could not be written since the journal was opened.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    pub(super) fn note_failure(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Writes the IDs of removed runs to their file, and syncs it.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub(super) fn save_removed_ids(&self) -> io::Result<()> {
        let content = self.removed_ids.lock().to_bytes();
        if content.is_empty() {
            return Ok(());
        }
        create_private_folder(&self.folder)?;
        let path = self.folder.join(REMOVED_IDS_FILE);
        atomic_write(&path, &content, Durability::FolderSynced).map(drop)
    }

    /// Waits until all records up to now are on the disk, or can't be.
    pub(super) async fn wait_synced(&self) {
        let position = {
            let mut queue = self.queue.lock();
            self.request_sync(&mut queue);
            queue.position
        };
        self.wait_position(position).await;
    }

    async fn wait_position(&self, position: u64) {
        let mut progress = self.settled_position.subscribe();
        // The channel stays open, because `self` holds the sender.
        let _ = progress.wait_for(|reached| *reached >= position).await;
    }

    fn request_sync(&self, queue: &mut RecordQueue) {
        queue.urgency = RecordUrgency::Synced;
        self.record_queued.notify_one();
    }

    /// Tells the writer to end after the last record.
    pub(super) fn close_queue(&self) {
        self.queue.lock().is_closed = true;
        self.record_queued.notify_one();
    }

    /// Waits for records; earlier records are synced at `due`.
    pub(super) fn next_batch(&self, due: Option<Instant>) -> RecordBatch {
        let mut queue = self.queue.lock();
        loop {
            let now = Instant::now();
            let ripe = queue.text_queued_at.map(|since| since + TEXT_RECORD_DELAY);
            let is_due = due.is_some_and(|due| due <= now);
            let is_synced = queue.urgency == RecordUrgency::Synced || is_due;
            if is_synced || queue.is_closed || ripe.is_some_and(|ripe| ripe <= now) {
                (queue.urgency, queue.text_queued_at, queue.bytes) =
                    (RecordUrgency::Later, None, 0);
                return RecordBatch {
                    pending: std::mem::take(&mut queue.pending),
                    pending_ends: std::mem::take(&mut queue.pending_ends),
                    position: queue.position,
                    is_synced: is_synced || queue.is_closed,
                    is_last: queue.is_closed,
                };
            }
            let until = [ripe, due].into_iter().flatten().min();
            match until {
                Some(until) => _ = self.record_queued.wait_for(&mut queue, until - now),
                None => self.record_queued.wait(&mut queue),
            }
        }
    }

    /// Records the result of a batch and wakes the tasks that wait for it.
    pub(super) fn complete_batch(&self, batch: RecordBatch, is_written: bool) {
        if !is_written {
            self.note_failure();
            batch
                .pending
                .iter()
                .for_each(|one| one.recorder.mark_incomplete());
            batch
                .pending_ends
                .iter()
                .for_each(|one| one.recorder.mark_incomplete());
        }
        // A task that waits for the disk then finds the ends of the runs.
        for one in batch.pending_ends {
            one.signal.send_modify(|signal| signal.status = one.status);
        }
        if batch.is_synced {
            self.settled_position.send_replace(batch.position);
            // A waiting thread reads the progress under the lock.
            drop(self.queue.lock());
            self.batch_completed.notify_all();
        }
    }
}

impl RunRecorder {
    pub(in crate::companion::runs) fn push_record(
        self: &Arc<Self>,
        record: &StoredRunRecord,
        urgency: RecordUrgency,
    ) {
        let (kind, content) = record.encode();
        let mut queue = self.shared.queue.lock();
        self.enqueue_record(&mut queue, kind, content);
        if urgency == RecordUrgency::Soon {
            queue.text_queued_at.get_or_insert_with(Instant::now);
        }
        let is_news = urgency > queue.urgency;
        queue.urgency = queue.urgency.max(urgency);
        drop(queue);
        if is_news {
            self.shared.record_queued.notify_one();
        }
    }

    /// Records the end, and publishes it after the sync.
    pub(in crate::companion::runs) fn push_end(
        self: &Arc<Self>,
        record: &StoredRunRecord,
        signal: watch::Sender<RunSignal>,
        status: RunStatus,
    ) {
        let (kind, content) = record.encode();
        let mut queue = self.shared.queue.lock();
        self.enqueue_record(&mut queue, kind, content);
        let is_closed = queue.is_closed;
        if !is_closed {
            let recorder = Arc::clone(self);
            queue.pending_ends.push(PendingRunEnd {
                recorder,
                signal: signal.clone(),
                status,
            });
            self.shared.request_sync(&mut queue);
        }
        drop(queue);
        if is_closed {
            self.mark_incomplete();
            signal.send_modify(|signal| signal.status = status);
        }
    }

    fn enqueue_record(self: &Arc<Self>, queue: &mut RecordQueue, kind: u8, content: Vec<u8>) {
        if queue.is_closed {
            return self.mark_incomplete();
        }
        queue.position += 1;
        let is_bulk = content.len() > TEXT_PREFIX_BYTES && kind != RECORD_KIND_FORGET;
        if is_bulk && queue.bytes + content.len() > MAX_QUEUED_RECORD_BYTES {
            return self.mark_incomplete();
        }
        queue.bytes += content.len();
        if kind == RECORD_KIND_TEXT
            && let Some(last) = queue.pending.last_mut()
            && last.kind == RECORD_KIND_TEXT
            && Arc::ptr_eq(&last.recorder, self)
            && last.content[..TEXT_PREFIX_BYTES] == content[..TEXT_PREFIX_BYTES]
            && last.content.len() < MAX_TEXT_RECORD_BYTES
        {
            return last
                .content
                .extend_from_slice(&content[TEXT_PREFIX_BYTES..]);
        }
        queue.pending.push(PendingRecord {
            recorder: Arc::clone(self),
            index: self.next_index.fetch_add(1, Ordering::Relaxed),
            kind,
            content,
        });
    }

    /// Waits until the start of the run is synced, or can't be.
    pub(in crate::companion::runs) async fn wait_begin_synced(&self) {
        if *self.shared.settled_position.borrow() >= self.begin_position {
            return;
        }
        self.shared.request_sync(&mut self.shared.queue.lock());
        self.shared.wait_position(self.begin_position).await;
    }

    /// Whether all records of the run are, or will be, on the disk, as far as is known.
    pub(in crate::companion::runs) fn is_complete(&self) -> bool {
        !self.is_incomplete.load(Ordering::Relaxed)
    }

    fn mark_incomplete(&self) {
        self.is_incomplete.store(true, Ordering::Relaxed);
    }

    /// Name of a file beneath the journal's folder, as the journal records it.
    pub(in crate::companion::runs) fn relative_name(&self, file: &Path) -> String {
        let beneath = file.strip_prefix(&self.shared.folder).unwrap_or(file);
        beneath.display().to_string()
    }

    /// Records that the run is removed. With the digest of its ID, later requests with this ID are refused.
    pub(in crate::companion::runs) fn mark_forgotten(self: &Arc<Self>, id: Option<RunIdDigest>) {
        if !self.is_forgotten.swap(true, Ordering::Relaxed) {
            self.push_record(&StoredRunRecord::Forget(id), RecordUrgency::Soon);
        }
    }

    pub(in crate::companion::runs) fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::Relaxed)
    }
}
