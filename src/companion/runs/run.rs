//! A run: work that was accepted, what came of it, and how it stands.

use super::Work;
use super::filling::Filling;
use super::follower::Follower;
use super::identity::first_line;
use super::journal::Journal;
use super::output::{self, HALF, Piece};
use super::spill::LIMIT;
use super::store::{End, Kept, Record as Stored, Urgency};
use crate::protocol::kernel::{
    Bundle, Happened, Page, Raised, RunStatus, Stream, Summary, Truncated,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

/// Bytes that work may be ahead of the follower that sets its pace: memory holds the last so many.
const AHEAD: u64 = (HALF / 2) as u64;

/// Bytes of a page of output.
const PAGE: u64 = 1 << 20;

/// One piece of work, from its acceptance to its end and beyond.
#[derive(Debug)]
pub(crate) struct Run<W: Work> {
    pub(crate) id: String,
    pub(crate) work: W,
    pub(super) created: SystemTime,
    record: Mutex<Record<W>>,
    pulse: watch::Sender<Pulse>,
    /// What is on disk of it, unless it is not durable.
    kept: Option<Arc<Kept>>,
    /// By which the work of an earlier life is known again.
    pub(super) digest: Option<String>,
    /// How many bytes the follower that sets the pace has read, when there is one.
    pace: watch::Sender<Option<u64>>,
}

/// What followers and those who wait for the end are woken by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pulse {
    pub(super) status: RunStatus,
    /// Changes with everything that happens.
    beat: u64,
    /// Whether its owner has it.
    is_admitted: bool,
    /// Whether its owner does not take it: it never was.
    is_refused: bool,
}

/// The disk does not take a run that was to be recorded on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotRecorded;

#[derive(Debug)]
pub(super) struct Record<W: Work> {
    pub(super) journal: Journal<W::Reply>,
    pub(super) number: Option<u64>,
    started: Option<Instant>,
    pub(super) took: Option<Duration>,
    pub(super) report: Option<W::Report>,
}

/// What can be told of every kind of run.
#[derive(Debug)]
pub(crate) struct SoFar {
    pub(crate) id: String,
    pub(crate) status: RunStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) result: Option<String>,
    pub(crate) data: Vec<Arc<Bundle>>,
    pub(crate) error: Option<Raised>,
    /// What it got when it began: the count of executions, a process id.
    pub(crate) number: Option<u64>,
    pub(crate) timing_ms: f64,
    pub(crate) truncated: Option<BTreeMap<String, Truncated>>,
    pub(crate) durable: bool,
}

impl<W: Work> Run<W> {
    pub(super) fn new(id: String, work: W, kept: Option<Arc<Kept>>) -> Self {
        let pulse = watch::Sender::new(Pulse {
            status: RunStatus::Running,
            beat: 0,
            is_admitted: false,
            is_refused: false,
        });
        Self {
            id,
            work,
            created: SystemTime::now(),
            record: Mutex::new(Record {
                journal: Journal::default(),
                number: None,
                started: None,
                took: None,
                report: None,
            }),
            pulse,
            kept,
            digest: None,
            pace: watch::Sender::new(None),
        }
    }

    pub(crate) fn started(&self, number: u64) {
        let mut record = self.record();
        record.started = Some(Instant::now());
        record.number = Some(number);
        drop(record);
        self.keep(Urgency::Later, || Stored::Started(number));
    }

    /// Takes what the code wrote; the last so many bytes are to be spilled.
    pub(crate) fn write(&self, stream: Stream, bytes: &[u8]) -> usize {
        let mut record = self.record();
        let rest = record.journal.write(stream, bytes);
        let (head, event) = (&bytes[..bytes.len() - rest], record.journal.last());
        if !head.is_empty() {
            self.keep_shown(|| Stored::Text {
                stream,
                event,
                bytes: head.to_vec(),
            });
        }
        // Of what no file holds, the end tells the size.
        if rest > 0 && record.journal.output(stream).total() <= HALF as u64 + LIMIT {
            self.keep_shown(|| Stored::Spilled {
                stream,
                event,
                length: rest as u64,
            });
        }
        drop(record);
        self.beat();
        rest
    }

    pub(super) fn spilled(&self, stream: Stream, file: &Arc<Filling>, bytes: u64) {
        let mut record = self.record();
        let output = record.journal.output_mut(stream);
        let is_first = output.on_disk() == 0;
        output.spilled(file, bytes);
        if let Some(kept) = self.kept.as_ref().filter(|_| is_first) {
            let name = kept.name_of(file.path());
            self.keep_shown(|| Stored::File { stream, name });
        }
    }

    pub(crate) fn add(&self, happened: Happened<W::Reply>) {
        let mut record = self.record();
        record.journal.add(happened);
        if let Some(happened) = record.journal.newest() {
            self.keep_shown(|| Stored::Event {
                number: record.journal.last(),
                // What is told is always JSON.
                happened: serde_json::to_vec(happened).unwrap_or_default(),
            });
        }
        drop(record);
        self.beat();
    }

    /// Records what the code shows, unless the disk may not hold it.
    fn keep_shown(&self, record: impl FnOnce() -> Stored) {
        if self.kept.as_ref().is_some_and(|kept| !kept.is_private) {
            self.keep(Urgency::Soon, record);
        }
    }

    fn keep(&self, urgency: Urgency, record: impl FnOnce() -> Stored) {
        if let Some(kept) = self.kept.as_ref().filter(|kept| !kept.is_forgotten()) {
            kept.push(&record(), urgency);
        }
    }

    fn beat(&self) {
        self.pulse.send_modify(|pulse| pulse.beat += 1);
    }

    /// The error that the code raised, when it did.
    pub(crate) fn raised(&self) -> Option<Raised> {
        self.record().journal.error().cloned()
    }

    /// The work has ended; the end is published once it is synced to the disk.
    pub(crate) fn finish(&self, status: RunStatus, report: W::Report) {
        let end = {
            let mut record = self.record();
            record.journal.close();
            record.took = record.started.map(|s| s.elapsed());
            record.report = Some(report);
            for stream in [Stream::Stdout, Stream::Stderr] {
                if let Some(bytes) = record.journal.output(stream).beyond_file() {
                    self.keep_shown(|| Stored::Tail { stream, bytes });
                }
            }
            record.end(status)
        };
        match self.kept.as_ref().filter(|kept| !kept.is_forgotten()) {
            Some(kept) => kept.end(&Stored::End(end), self.pulse.clone(), status),
            None => self.ended(status),
        }
    }

    fn ended(&self, status: RunStatus) {
        self.pulse.send_modify(|pulse| pulse.status = status);
    }

    /// Ends a run of an earlier life that has no end of its own.
    pub(super) fn lost(&self, error: Raised) {
        self.add(Happened::Error { error });
        let end = self.record().end(RunStatus::Lost);
        self.keep(Urgency::Later, || Stored::End(end));
        self.restored(RunStatus::Lost);
    }

    /// How a run of an earlier life has ended is known.
    pub(super) fn restored(&self, status: RunStatus) {
        self.record().journal.close();
        self.ended(status);
    }

    /// Its owner has it.
    pub(crate) fn admitted(&self) {
        self.pulse.send_modify(|pulse| pulse.is_admitted = true);
    }

    /// Waits until its owner has it, or it has ended; `false` when it was refused.
    pub(crate) async fn taken(&self) -> bool {
        let mut pulse = self.pulse.subscribe();
        let is_taken = |p: &Pulse| p.is_admitted || p.status != RunStatus::Running;
        // It can't close while `self` holds the sender.
        let taken = pulse.wait_for(is_taken).await;
        taken.is_ok_and(|pulse| !pulse.is_refused)
    }

    /// Waits, before the code begins, until the disk knows of a run that can be asked for again.
    ///
    /// # Errors
    /// When the disk does not take it, and it was to be durable.
    pub(crate) async fn recorded(&self) -> Result<(), NotRecorded> {
        let must = self.work.durable() == Some(true);
        if self.work.id().is_some() || must {
            self.acknowledged().await;
        }
        match must && !self.is_durable() {
            true => Err(NotRecorded),
            false => Ok(()),
        }
    }

    /// Waits until the id may be told: the disk knows of the run, or can't.
    pub(crate) async fn acknowledged(&self) {
        if let Some(kept) = &self.kept {
            kept.begun().await;
        }
    }

    /// Whether it is found again after the companion's death.
    pub(crate) fn is_durable(&self) -> bool {
        let is_kept = |kept: &Arc<Kept>| kept.is_complete() && !kept.is_forgotten();
        self.kept.as_ref().is_some_and(is_kept)
    }

    /// It need not be found again.
    pub(super) fn forget(&self) {
        self.kept.iter().for_each(Kept::forget);
    }

    /// Its files are left to the next life.
    pub(super) fn leave(&self) {
        if self.kept.is_some() {
            let record = self.record();
            for stream in [Stream::Stdout, Stream::Stderr] {
                record.journal.output(stream).leave();
            }
        }
    }

    /// It was not admitted; a caller that has found it meanwhile must not wait for ever.
    pub(crate) fn refused(&self, report: W::Report) {
        let error = Raised {
            kind: "NotStarted".into(),
            message: "the run was refused, as its first request was told".into(),
            traceback: Vec::new(),
        };
        self.add(Happened::Error { error });
        self.pulse.send_modify(|pulse| pulse.is_refused = true);
        self.finish(RunStatus::Failed, report);
    }

    pub(crate) async fn finished(&self) {
        let mut pulse = self.pulse.subscribe();
        // It can't close while `self` holds the sender.
        let _ = pulse.wait_for(|p| p.status != RunStatus::Running).await;
    }

    pub(crate) fn status(&self) -> RunStatus {
        self.pulse.borrow().status
    }

    /// How it stands; `running` is what to report while it runs.
    pub(crate) fn reply(&self, running: W::Report) -> W::Reply {
        let status = self.status();
        let record = self.record();
        let journal = &record.journal;
        let truncated = journal.truncated();
        let so_far = SoFar {
            id: self.id.clone(),
            status,
            stdout: journal.output(Stream::Stdout).text(),
            stderr: journal.output(Stream::Stderr).text(),
            result: journal.result().cloned(),
            data: journal.data().to_vec(),
            error: journal.error().cloned(),
            number: record.number,
            timing_ms: record.timing_ms(),
            truncated: (!truncated.is_empty()).then_some(truncated),
            durable: self.is_durable(),
        };
        self.work.reply(so_far, record.report.clone(), running)
    }

    /// The work's first line, shortened.
    pub(crate) fn line(&self) -> String {
        first_line(self.work.text())
    }

    /// It in the list of those that can be found.
    pub(crate) fn summary(&self) -> Summary {
        let record = self.record();
        let created = self.created.duration_since(UNIX_EPOCH).unwrap_or_default();
        let written = |stream| record.journal.output(stream).total();
        Summary {
            id: self.id.clone(),
            session: self.work.session().into(),
            status: self.status(),
            code: self.line(),
            execution_count: record.number,
            created: created.as_secs_f64(),
            timing_ms: record.timing_ms(),
            stdout: written(Stream::Stdout),
            stderr: written(Stream::Stderr),
        }
    }

    /// A page of what was written, from byte `offset` on: at most `limit` bytes.
    ///
    /// # Errors
    /// When the file that holds it can't be read.
    pub(crate) async fn page(
        &self,
        stream: Stream,
        offset: u64,
        limit: Option<u64>,
    ) -> io::Result<Page> {
        let (pieces, offset, total) = {
            let record = self.record();
            let output = record.journal.output(stream);
            // What is not kept is left out: the page begins behind it.
            let offset = output.kept_from(offset);
            let to = offset.saturating_add(limit.unwrap_or(PAGE).min(PAGE));
            (output.pieces(offset, to), offset, output.total())
        };
        let is_kept = |piece: &Piece| !matches!(piece, Piece::Gone(_));
        let wanted: Vec<Piece> = pieces.into_iter().take_while(is_kept).collect();
        let length: u64 = wanted.iter().map(Piece::length).sum();
        let mut bytes = read(wanted).await?;
        let whole = whole_characters(&bytes, offset + bytes.len() as u64 == total);
        bytes.truncate(whole);
        Ok(Page {
            stream,
            offset,
            // A mark stands for what could not be read, and is no part of the count.
            next: offset + (whole as u64).min(length),
            total,
            text: output::text(bytes),
        })
    }

    /// Follows the run from event number `from` on.
    pub(crate) fn follow(self: &Arc<Self>, from: u64) -> Follower<W> {
        Follower::new(self.clone(), self.pulse.subscribe(), from)
    }

    /// Follows it from its beginning; what does the work is to wait for this follower.
    pub(crate) fn follow_pacing(self: &Arc<Self>) -> Follower<W> {
        self.follow(0).pacing()
    }

    /// Whether nobody set the pace so far.
    pub(super) fn take_pace(&self) -> bool {
        self.pace.send_if_modified(|pace| {
            let is_free = pace.is_none();
            pace.get_or_insert(0);
            is_free
        })
    }

    pub(super) fn paced(&self, read: Option<u64>) {
        self.pace.send_replace(read);
    }

    /// Whether more output is to be taken now.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room_for(*self.pace.borrow())
    }

    fn has_room_for(&self, read: Option<u64>) -> bool {
        read.is_none_or(|read| self.record().journal.total() <= read + AHEAD)
    }

    /// Waits until there is room.
    pub(crate) async fn room(&self) {
        let mut pace = self.pace.subscribe();
        // It can't close while `self` holds the sender.
        let _ = pace.wait_for(|read| self.has_room_for(*read)).await;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.status() != RunStatus::Running
    }

    pub(super) fn bytes(&self) -> u64 {
        self.record().journal.bytes() + self.work.bytes() as u64
    }

    pub(super) fn on_disk(&self) -> u64 {
        self.record().journal.on_disk()
    }

    pub(super) fn record(&self) -> MutexGuard<'_, Record<W>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Work> Record<W> {
    fn end(&self, status: RunStatus) -> End {
        let written = |stream| self.journal.output(stream).total();
        let report = self.report.as_ref();
        End {
            status,
            report: report.and_then(|report| serde_json::to_value(report).ok()),
            timing_ms: self.timing_ms(),
            written: [written(Stream::Stdout), written(Stream::Stderr)],
            shown: self.journal.shown(),
        }
    }

    fn timing_ms(&self) -> f64 {
        let took = self
            .took
            .or_else(|| self.started.map(|s| s.elapsed()))
            .unwrap_or_default();
        (took.as_secs_f64() * 1e6).round() / 1e3
    }
}

/// How many of the bytes are whole characters; all, when no more follow.
pub(super) fn whole_characters(bytes: &[u8], is_end: bool) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if !is_end && error.error_len().is_none() && error.valid_up_to() > 0 => {
            error.valid_up_to()
        }
        _ => bytes.len(),
    }
}

pub(super) async fn read(pieces: Vec<Piece>) -> io::Result<Vec<u8>> {
    if pieces.iter().any(|p| matches!(p, Piece::File { .. })) {
        return spawn_blocking(|| output::read(pieces))
            .await
            .map_err(io::Error::other)?;
    }
    output::read(pieces)
}
