//! A run: accepted work, its events, and its state.

use super::RunKind;
use super::event_buffer::RunEventBuffer;
use super::follower::RunFollower;
use super::growing_file::GrowingFile;
use super::output::{self, OUTPUT_HALF_BYTES, OutputPiece};
use super::request_digest::first_line;
use super::spill_file::MAX_SPILL_FILE_BYTES;
use super::store::{
    RecordUrgency, RunIdDigest, RunRecorder, StoredRunEnd, StoredRunRecord as Stored,
};
use crate::protocol::activity::ActivityVerdict;
use crate::protocol::kernel::{
    MimeBundle, OutputPage, OutputStream, RunError, RunEventKind, RunStatus, RunSummary,
    TruncatedOutput,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

/// Maximum bytes of output that the follower that sets the pace has not read; memory holds at least this many.
const MAX_UNREAD_OUTPUT_BYTES: u64 = (OUTPUT_HALF_BYTES / 2) as u64;

/// Maximum bytes of a page of output.
const MAX_OUTPUT_PAGE_BYTES: u64 = 1 << 20;

/// One execution or command, from its acceptance until its record is removed.
#[derive(Debug)]
pub(crate) struct TrackedRun<W: RunKind> {
    pub(crate) id: String,
    pub(crate) request: W,
    pub(super) created: SystemTime,
    state: Mutex<TrackedRunState<W>>,
    signal: watch::Sender<RunSignal>,
    /// Recorder of the run on disk; `None` for a run that is not durable.
    recorder: Option<Arc<RunRecorder>>,
    /// Digest of the request, for a run of an earlier companion.
    pub(super) digest: Option<String>,
    /// Bytes that the follower that sets the pace has read; `None` without such a follower.
    pacing_bytes_read: watch::Sender<Option<u64>>,
    /// Whether the activity log records the end of the run.
    has_activity: AtomicBool,
}

/// State that wakes followers and callers that wait for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunSignal {
    pub(super) status: RunStatus,
    /// Changes with each event.
    event_count: u64,
    /// Whether the owner has accepted the run.
    is_admitted: bool,
    /// Whether the owner has refused the run.
    is_refused: bool,
}

/// The run must be durable, and its record can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunNotRecorded;

#[derive(Debug)]
pub(super) struct TrackedRunState<W: RunKind> {
    pub(super) events: RunEventBuffer<W::Reply>,
    pub(super) number: Option<u64>,
    started: Option<Instant>,
    pub(super) elapsed: Option<Duration>,
    pub(super) report: Option<W::Report>,
}

/// The parts of a reply that all kinds of runs have.
#[derive(Debug)]
pub(crate) struct RunSnapshot {
    pub(crate) id: String,
    pub(crate) status: RunStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) result: Option<String>,
    pub(crate) data: Vec<Arc<MimeBundle>>,
    pub(crate) error: Option<RunError>,
    /// Number at the start: the execution count, or a process id.
    pub(crate) number: Option<u64>,
    pub(crate) timing_ms: f64,
    pub(crate) truncated: Option<BTreeMap<String, TruncatedOutput>>,
    pub(crate) durable: bool,
}

impl<W: RunKind> TrackedRun<W> {
    pub(super) fn new(id: String, request: W, recorder: Option<Arc<RunRecorder>>) -> Self {
        let signal = watch::Sender::new(RunSignal {
            status: RunStatus::Running,
            event_count: 0,
            is_admitted: false,
            is_refused: false,
        });
        Self {
            id,
            request,
            created: SystemTime::now(),
            state: Mutex::new(TrackedRunState {
                events: RunEventBuffer::default(),
                number: None,
                started: None,
                elapsed: None,
                report: None,
            }),
            signal,
            recorder,
            digest: None,
            pacing_bytes_read: watch::Sender::new(None),
            has_activity: AtomicBool::new(false),
        }
    }

    /// Whether this is the first call, for a run of this companion.
    pub(crate) fn claim_activity(&self) -> bool {
        self.digest.is_none() && !self.has_activity.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn mark_started(&self, number: u64) {
        let mut record = self.lock_state();
        record.started = Some(Instant::now());
        record.number = Some(number);
        drop(record);
        self.append_record(RecordUrgency::Later, || Stored::Started(number));
    }

    /// Adds output. Returns the number of bytes at its end that must be spilled.
    pub(crate) fn write_output(&self, stream: OutputStream, bytes: &[u8]) -> usize {
        let mut record = self.lock_state();
        let rest = record.events.write_output(stream, bytes);
        let (head, event) = (&bytes[..bytes.len() - rest], record.events.last_number());
        if !head.is_empty() {
            self.append_output_record(|| Stored::Text {
                stream,
                event,
                bytes: head.to_vec(),
            });
        }
        // The end record contains the size of output that no file holds.
        if rest > 0
            && record.events.output(stream).total_bytes()
                <= OUTPUT_HALF_BYTES as u64 + MAX_SPILL_FILE_BYTES
        {
            self.append_output_record(|| Stored::Spilled {
                stream,
                event,
                length: rest as u64,
            });
        }
        drop(record);
        self.notify_followers();
        rest
    }

    pub(super) fn record_spill(&self, stream: OutputStream, file: &Arc<GrowingFile>, bytes: u64) {
        let mut record = self.lock_state();
        let output = record.events.output_mut(stream);
        let is_first = output.disk_bytes() == 0;
        output.record_spill(file, bytes);
        if let Some(recorder) = self.recorder.as_ref().filter(|_| is_first) {
            let name = recorder.relative_name(file.path());
            self.append_output_record(|| Stored::File { stream, name });
        }
    }

    pub(crate) fn add_event(&self, happened: RunEventKind<W::Reply>) {
        let mut record = self.lock_state();
        record.events.add_event(happened);
        if let Some(happened) = record.events.newest_event() {
            self.append_output_record(|| Stored::Event {
                number: record.events.last_number(),
                // An event is always valid JSON.
                event_json: serde_json::to_vec(happened).unwrap_or_default(),
            });
        }
        drop(record);
        self.notify_followers();
    }

    /// Records output, unless it must not be on disk.
    fn append_output_record(&self, record: impl FnOnce() -> Stored) {
        if self.recorder.as_ref().is_some_and(|r| !r.is_private) {
            self.append_record(RecordUrgency::Soon, record);
        }
    }

    fn append_record(&self, urgency: RecordUrgency, record: impl FnOnce() -> Stored) {
        if let Some(recorder) = self.recorder.as_ref().filter(|r| !r.is_forgotten()) {
            recorder.push_record(&record(), urgency);
        }
    }

    fn notify_followers(&self) {
        self.signal.send_modify(|signal| signal.event_count += 1);
    }

    /// The error that the code raised.
    pub(crate) fn code_error(&self) -> Option<RunError> {
        self.lock_state().events.error().cloned()
    }

    /// Ends the run. The end is published after it is synced to disk.
    pub(crate) fn finish(&self, status: RunStatus, report: W::Report) {
        let end = {
            let mut record = self.lock_state();
            record.events.close_output();
            record.elapsed = record.started.map(|s| s.elapsed());
            record.report = Some(report);
            for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                if let Some(bytes) = record.events.output(stream).tail_not_in_file() {
                    self.append_output_record(|| Stored::Tail { stream, bytes });
                }
            }
            record.end_record(status)
        };
        match self.recorder.as_ref().filter(|r| !r.is_forgotten()) {
            Some(recorder) => recorder.push_end(&Stored::End(end), self.signal.clone(), status),
            None => self.publish_end(status),
        }
    }

    fn publish_end(&self, status: RunStatus) {
        self.signal.send_modify(|signal| signal.status = status);
    }

    /// Ends a run of an earlier companion without a recorded end.
    pub(super) fn mark_lost(&self, error: RunError) {
        self.add_event(RunEventKind::Error { error });
        let end = self.lock_state().end_record(RunStatus::Lost);
        self.append_record(RecordUrgency::Later, || Stored::End(end));
        self.publish_restored(RunStatus::Lost);
    }

    /// Publishes the recorded end of a run of an earlier companion.
    pub(super) fn publish_restored(&self, status: RunStatus) {
        self.lock_state().events.close_output();
        self.publish_end(status);
    }

    /// Marks the run as accepted by its owner.
    pub(crate) fn mark_admitted(&self) {
        self.signal.send_modify(|signal| signal.is_admitted = true);
    }

    /// Waits until the owner has accepted the run, or the run has ended; `false` when the run was refused.
    pub(crate) async fn wait_admitted(&self) -> bool {
        let mut signal = self.signal.subscribe();
        let is_taken = |p: &RunSignal| p.is_admitted || p.status != RunStatus::Running;
        // The channel stays open, because `self` holds the sender.
        let taken = signal.wait_for(is_taken).await;
        taken.is_ok_and(|signal| !signal.is_refused)
    }

    /// Waits, before the code starts, until the start of the run is recorded.
    ///
    /// # Errors
    /// When the run must be durable and the record can't be written.
    pub(crate) async fn wait_recorded(&self) -> Result<(), RunNotRecorded> {
        let is_required = self.request.durable() == Some(true);
        if self.request.id().is_some() || is_required {
            self.wait_begin_synced().await;
        }
        match is_required && !self.is_durable() {
            true => Err(RunNotRecorded),
            false => Ok(()),
        }
    }

    /// Waits until the id can be returned to the client: the start is synced, or can't be.
    pub(crate) async fn wait_begin_synced(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.wait_begin_synced().await;
        }
    }

    /// Whether the run is found again after a crash of the companion.
    pub(crate) fn is_durable(&self) -> bool {
        let is_retained = |r: &Arc<RunRecorder>| r.is_complete() && !r.is_forgotten();
        self.recorder.as_ref().is_some_and(is_retained)
    }

    /// Removes the run from the journal. With the digest of its ID, later requests with this ID are refused.
    pub(super) fn mark_forgotten(&self, id: Option<RunIdDigest>) {
        if let Some(recorder) = &self.recorder {
            recorder.mark_forgotten(id);
        }
    }

    /// Leaves the run's files to the next companion.
    pub(super) fn retain_files(&self) {
        if self.recorder.is_some() {
            let record = self.lock_state();
            for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                record.events.output(stream).retain_file();
            }
        }
    }

    /// Ends a run that was not accepted, so that a caller that has found the run does not wait forever.
    pub(crate) fn finish_refused(&self, report: W::Report) {
        let error = RunError {
            kind: "NotStarted".into(),
            message: "the run was refused; the reply to its first request contains the reason"
                .into(),
            traceback: Vec::new(),
        };
        self.add_event(RunEventKind::Error { error });
        self.signal.send_modify(|signal| signal.is_refused = true);
        self.finish(RunStatus::Failed, report);
    }

    pub(crate) async fn wait_finished(&self) {
        let mut signal = self.signal.subscribe();
        // The channel stays open, because `self` holds the sender.
        let _ = signal.wait_for(|p| p.status != RunStatus::Running).await;
    }

    pub(crate) fn status(&self) -> RunStatus {
        self.signal.borrow().status
    }

    /// The reply at this moment; `running` is the report for a run that has not ended.
    pub(crate) fn build_reply(&self, running: W::Report) -> W::Reply {
        let status = self.status();
        let record = self.lock_state();
        let journal = &record.events;
        let truncated = journal.truncated();
        let so_far = RunSnapshot {
            id: self.id.clone(),
            status,
            stdout: journal.output(OutputStream::Stdout).to_text(),
            stderr: journal.output(OutputStream::Stderr).to_text(),
            result: journal.result().cloned(),
            data: journal.bundles().to_vec(),
            error: journal.error().cloned(),
            number: record.number,
            timing_ms: record.timing_ms(),
            truncated: (!truncated.is_empty()).then_some(truncated),
            durable: self.is_durable(),
        };
        self.request.reply(so_far, record.report.clone(), running)
    }

    /// The first line of the run's label, shortened.
    pub(crate) fn summary_line(&self) -> String {
        first_line(&self.request.label())
    }

    /// The run's entry in the list of runs.
    pub(crate) fn summary(&self) -> RunSummary {
        let record = self.lock_state();
        let created = self.created.duration_since(UNIX_EPOCH).unwrap_or_default();
        let written = |stream| record.events.output(stream).total_bytes();
        RunSummary {
            id: self.id.clone(),
            session: self.request.session().into(),
            status: self.status(),
            code: self.summary_line(),
            execution_count: record.number,
            created: created.as_secs_f64(),
            timing_ms: record.timing_ms(),
            stdout_bytes: written(OutputStream::Stdout),
            stderr_bytes: written(OutputStream::Stderr),
        }
    }

    /// How the run ended, for the activity log.
    pub(crate) fn activity_verdict(&self) -> ActivityVerdict {
        let is_failure = self.lock_state().report.as_ref().is_some_and(W::is_failure);
        match self.status() {
            RunStatus::Completed if is_failure => ActivityVerdict::Failed,
            status => status.into(),
        }
    }

    /// A page of output: at most `limit` bytes from `offset` on.
    ///
    /// # Errors
    /// When the file that contains the bytes can't be read.
    pub(crate) async fn read_page(
        &self,
        stream: OutputStream,
        offset: u64,
        limit: Option<u64>,
    ) -> io::Result<OutputPage> {
        let (pieces, offset, total) = {
            let record = self.lock_state();
            let output = record.events.output(stream);
            // Bytes that are not kept are left out: the page starts after them.
            let offset = output.first_retained_from(offset);
            let to = offset.saturating_add(
                limit
                    .unwrap_or(MAX_OUTPUT_PAGE_BYTES)
                    .min(MAX_OUTPUT_PAGE_BYTES),
            );
            (
                output.pieces_between(offset, to),
                offset,
                output.total_bytes(),
            )
        };
        let is_retained = |piece: &OutputPiece| !matches!(piece, OutputPiece::Dropped(_));
        let wanted: Vec<OutputPiece> = pieces.into_iter().take_while(is_retained).collect();
        let length: u64 = wanted.iter().map(OutputPiece::length).sum();
        let mut bytes = read_output(wanted).await?;
        let whole = complete_character_length(&bytes, offset + bytes.len() as u64 == total);
        bytes.truncate(whole);
        Ok(OutputPage {
            stream,
            offset,
            // The mark for unreadable bytes does not count.
            next: offset + (whole as u64).min(length),
            total,
            text: output::decode_lossy(bytes),
        })
    }

    /// Follows the run from event number `from` on.
    pub(crate) fn follow(self: &Arc<Self>, from: u64) -> RunFollower<W> {
        RunFollower::new(self.clone(), self.signal.subscribe(), from)
    }

    /// Follows the run from its start; the code waits for this follower.
    pub(crate) fn follow_pacing(self: &Arc<Self>) -> RunFollower<W> {
        self.follow(0).with_pacing()
    }

    /// Claims to set the pace; `false` if another follower has claimed it.
    pub(super) fn claim_pacing(&self) -> bool {
        self.pacing_bytes_read.send_if_modified(|pace| {
            let is_free = pace.is_none();
            pace.get_or_insert(0);
            is_free
        })
    }

    pub(super) fn set_pacing_bytes_read(&self, read: Option<u64>) {
        self.pacing_bytes_read.send_replace(read);
    }

    /// Whether the owner may accept more output now.
    pub(crate) fn can_accept_output(&self) -> bool {
        self.can_accept_output_at(*self.pacing_bytes_read.borrow())
    }

    fn can_accept_output_at(&self, read: Option<u64>) -> bool {
        read.is_none_or(|read| {
            self.lock_state().events.total_bytes() <= read + MAX_UNREAD_OUTPUT_BYTES
        })
    }

    /// Waits until the owner may accept more output.
    pub(crate) async fn wait_output_capacity(&self) {
        let mut pace = self.pacing_bytes_read.subscribe();
        // The channel stays open, because `self` holds the sender.
        let _ = pace.wait_for(|read| self.can_accept_output_at(*read)).await;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.status() != RunStatus::Running
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.lock_state().events.memory_bytes() + self.request.bytes() as u64
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.lock_state().events.disk_bytes()
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, TrackedRunState<W>> {
        self.state.lock()
    }
}

impl<W: RunKind> TrackedRunState<W> {
    fn end_record(&self, status: RunStatus) -> StoredRunEnd {
        let written = |stream| self.events.output(stream).total_bytes();
        let report = self.report.as_ref();
        StoredRunEnd {
            status,
            report: report.and_then(|report| serde_json::to_value(report).ok()),
            timing_ms: self.timing_ms(),
            written: [written(OutputStream::Stdout), written(OutputStream::Stderr)],
            shown: self.events.bundle_bytes(),
        }
    }

    fn timing_ms(&self) -> f64 {
        let took = self
            .elapsed
            .or_else(|| self.started.map(|s| s.elapsed()))
            .unwrap_or_default();
        (took.as_secs_f64() * 1e6).round() / 1e3
    }
}

/// Number of bytes that form complete characters; all bytes at the end of the output.
pub(super) fn complete_character_length(bytes: &[u8], is_end: bool) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if !is_end && error.error_len().is_none() && error.valid_up_to() > 0 => {
            error.valid_up_to()
        }
        _ => bytes.len(),
    }
}

pub(super) async fn read_output(pieces: Vec<OutputPiece>) -> io::Result<Vec<u8>> {
    if pieces.iter().any(|p| matches!(p, OutputPiece::File { .. })) {
        return spawn_blocking(|| output::read_pieces(pieces))
            .await
            .map_err(io::Error::other)?;
    }
    output::read_pieces(pieces)
}
