//! The thread that owns the journal's files.
//!
//! ```text
//! records ─▶ batch ─▶ write ─▶ fdatasync, one for all waiting records ─▶ published
//!                       │
//!                       ▼
//! journal-1  journal-2  journal-3      the oldest is removed when most bytes belong to removed runs;
//! └ oldest             └ current       its records of other runs are written again
//! ```
//!
//! A failed write ends nothing: the runs in the batch are not durable, their replies report this, and the next batch is
//! tried again.

use super::frame::{RunStoreFrame, parse_frames};
use super::queue::{RecordBatch, RunStoreShared};
use super::record::RECORD_KIND_FORGET;
use nix::fcntl::{FallocateFlags, fallocate};
use std::collections::{HashMap, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Prefix of the names of segments.
pub(super) const SEGMENT_FILE_PREFIX: &str = "journal-";

/// Bytes of a segment, reserved at its creation: syncs then need no change of the file size.
const SEGMENT_BYTES: u64 = 1 << 20;

/// Maximum bytes of removed runs before segments are removed, in addition to as many bytes as are needed.
const MAX_FORGOTTEN_RUN_BYTES: u64 = 4 << 20;

/// Maximum time between a write and its sync.
const RUN_STORE_SYNC_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct RunStoreWriter {
    shared: Arc<RunStoreShared>,
    /// Segments, the oldest first, the current one last.
    segments: VecDeque<RunStoreSegment>,
    current_file: Option<File>,
    /// Number of segments up to now.
    segment_count: u64,
    /// Bytes of each run that is not removed.
    live_run_bytes: HashMap<u64, u64>,
    total_live_bytes: u64,
    /// When the oldest bytes were written that are not synced.
    unsynced_since: Option<Instant>,
    is_failing: bool,
}

#[derive(Debug)]
struct RunStoreSegment {
    path: PathBuf,
    bytes: u64,
}

impl RunStoreWriter {
    pub(super) fn new(shared: Arc<RunStoreShared>) -> Self {
        Self {
            shared,
            segments: VecDeque::new(),
            current_file: None,
            segment_count: 0,
            live_run_bytes: HashMap::new(),
            total_live_bytes: 0,
            unsynced_since: None,
            is_failing: false,
        }
    }

    /// Runs until the journal is closed.
    pub(super) fn run(mut self) {
        loop {
            let due = self
                .unsynced_since
                .map(|since| since + RUN_STORE_SYNC_INTERVAL);
            let batch = self.shared.next_batch(due);
            let is_last = batch.is_last;
            let taken = self.write_batch(&batch);
            self.log_failure_change(taken.as_ref().err());
            self.shared.complete_batch(batch, taken.is_ok());
            if is_last {
                return;
            }
            let collected = self.collect_segments();
            self.log_failure_change(collected.err().as_ref());
        }
    }

    /// Logs the first failure, and the first success after failures.
    fn log_failure_change(&mut self, error: Option<&io::Error>) {
        match error {
            Some(error) if !self.is_failing => {
                tracing::error!(%error, "runs are not recorded on disk");
                self.is_failing = true;
            }
            None if std::mem::take(&mut self.is_failing) => {
                tracing::info!("runs are recorded on disk again");
            }
            _ => {}
        }
    }

    fn write_batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let mut bytes = Vec::new();
        for one in &batch.pending {
            pending_frame(one).write_to(&mut bytes);
        }
        if !bytes.is_empty() {
            self.append_bytes(&bytes)?;
        }
        if batch.is_synced {
            self.sync_segment()?;
        }
        for one in &batch.pending {
            let (run, length) = (one.recorder.run_number, pending_frame(one).length());
            match one.kind {
                RECORD_KIND_FORGET => {
                    self.total_live_bytes -= self.live_run_bytes.remove(&run).unwrap_or_default()
                }
                _ if one.recorder.is_forgotten() => {}
                _ => {
                    *self.live_run_bytes.entry(run).or_default() += length;
                    self.total_live_bytes += length;
                }
            }
        }
        Ok(())
    }

    fn append_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let is_full = self
            .segments
            .back()
            .is_none_or(|s| s.bytes >= SEGMENT_BYTES);
        if self.current_file.is_none() || is_full {
            self.begin_segment()?;
        }
        let (Some(file), Some(segment)) = (&self.current_file, self.segments.back_mut()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if let Err(error) = file.write_all_at(bytes, segment.bytes) {
            // A partial write must not remain between earlier and later records.
            if file.set_len(segment.bytes).is_err() {
                self.current_file = None;
            }
            return Err(error);
        }
        segment.bytes += bytes.len() as u64;
        self.unsynced_since.get_or_insert_with(Instant::now);
        Ok(())
    }

    fn sync_segment(&mut self) -> io::Result<()> {
        if self.unsynced_since.take().is_none() {
            return Ok(());
        }
        let synced = self.current_file.as_ref().map_or(Ok(()), File::sync_data);
        if synced.is_err() {
            // The content of the file is unknown now.
            self.current_file = None;
        }
        #[cfg(test)]
        if synced.is_ok() {
            let current = self.segments.back().map(|s| (s.path.clone(), s.bytes));
            self.shared.synced_bytes.lock().extend(current);
        }
        synced
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        self.sync_segment()?;
        let folder = &self.shared.folder;
        create_private_folder(folder)?;
        let path = folder.join(format!(
            "{SEGMENT_FILE_PREFIX}{:010}",
            self.segment_count + 1
        ));
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        // Without the reservation, each sync takes longer; a full disk may still accept a record.
        let _ = fallocate(
            &file,
            FallocateFlags::empty(),
            0,
            SEGMENT_BYTES.cast_signed(),
        );
        // The folder's own entry must be synced with its first segment.
        let parent = folder.parent().filter(|_| self.segment_count == 0);
        let mut folders = parent.into_iter().chain([folder.as_path()]);
        let synced = |folder: &Path| File::open(folder)?.sync_all();
        let ready = file.sync_all();
        if let Err(error) = ready.and_then(|()| folders.try_for_each(synced)) {
            // The next attempt creates the file again.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.segment_count += 1;
        self.segments.push_back(RunStoreSegment { path, bytes: 0 });
        self.current_file = Some(file);
        Ok(())
    }

    /// Removes the oldest segments while most bytes belong to removed runs.
    fn collect_segments(&mut self) -> io::Result<()> {
        let written =
            |segments: &VecDeque<RunStoreSegment>| segments.iter().map(|s| s.bytes).sum::<u64>();
        while self.segments.len() > 1
            && written(&self.segments) > 2 * self.total_live_bytes + MAX_FORGOTTEN_RUN_BYTES
            && let Some(oldest) = self.segments.front()
        {
            let path = oldest.path.clone();
            let old = fs::read(&path)?;
            let mut needed = Vec::new();
            for frame in
                parse_frames(&old).filter(|frame| self.live_run_bytes.contains_key(&frame.run))
            {
                frame.write_to(&mut needed);
            }
            if !needed.is_empty() {
                self.append_bytes(&needed)?;
                self.sync_segment()?;
            }
            // The segment may have the last records of removed IDs.
            self.shared.save_removed_ids()?;
            fs::remove_file(&path)?;
            self.segments.pop_front();
        }
        Ok(())
    }
}

fn pending_frame(one: &super::queue::PendingRecord) -> RunStoreFrame<'_> {
    RunStoreFrame {
        run: one.recorder.run_number,
        index: one.index,
        kind: one.kind,
        content: &one.content,
    }
}

/// Creates a folder and its parents with access for this user only.
pub(in crate::companion::runs) fn create_private_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}
