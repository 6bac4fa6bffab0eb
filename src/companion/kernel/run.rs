//! A run: code that was accepted for execution, what came of it, and how it stands.

use super::ending::raised;
use super::follower::Follower;
use super::journal::Journal;
use super::output::{self, Piece};
use crate::protocol::kernel::{
    Execute, Happened, KernelReport, Page, Raised, Reply, RunStatus, Stream, Summary,
};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

/// Bytes of a page of output.
const PAGE: u64 = 1 << 20;

/// One execution, from its acceptance to its end and beyond.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: String,
    pub(super) request: Execute,
    created: SystemTime,
    record: Mutex<Record>,
    pulse: watch::Sender<Pulse>,
}

/// What followers and those who wait for the end are woken by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pulse {
    pub(super) status: RunStatus,
    /// Changes with everything that happens.
    beat: u64,
}

#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) journal: Journal,
    execution_count: Option<u64>,
    started: Option<Instant>,
    took: Option<Duration>,
    report: Option<KernelReport>,
}

impl Run {
    pub(super) fn new(id: String, request: Execute) -> Self {
        let pulse = watch::Sender::new(Pulse {
            status: RunStatus::Running,
            beat: 0,
        });
        Self {
            id,
            request,
            created: SystemTime::now(),
            record: Mutex::default(),
            pulse,
        }
    }

    pub(super) fn started(&self, execution_count: u64) {
        let mut record = self.record();
        record.started = Some(Instant::now());
        record.execution_count = Some(execution_count);
    }

    /// Takes what the code wrote; the last so many bytes are to be spilled.
    pub(super) fn write(&self, stream: Stream, bytes: &[u8]) -> usize {
        let rest = self.record().journal.write(stream, bytes);
        self.beat();
        rest
    }

    pub(super) fn spilled(&self, stream: Stream, path: &Path, bytes: u64) {
        let mut record = self.record();
        record.journal.output_mut(stream).spilled(path, bytes);
    }

    /// The last so many bytes did not arrive in the file after all.
    pub(super) fn unspilled(&self, stream: Stream, bytes: u64) {
        self.record().journal.output_mut(stream).unspilled(bytes);
    }

    pub(super) fn add(&self, happened: Happened) {
        self.record().journal.add(happened);
        self.beat();
    }

    fn beat(&self) {
        self.pulse.send_modify(|pulse| pulse.beat += 1);
    }

    /// The error that the code raised, when it did.
    pub(super) fn raised(&self) -> Option<Raised> {
        self.record().journal.error().cloned()
    }

    pub(super) fn finish(&self, status: RunStatus, report: KernelReport) {
        {
            let mut record = self.record();
            record.journal.close();
            record.took = record.started.map(|s| s.elapsed());
            record.report = Some(report);
        }
        self.pulse.send_modify(|pulse| pulse.status = status);
    }

    /// It was not admitted.
    pub(super) fn refused(&self, report: KernelReport) {
        let message = "the run was refused, as its first request was told".into();
        self.add(Happened::Error {
            error: raised("NotStarted", message),
        });
        self.finish(RunStatus::Failed, report);
    }

    pub(crate) async fn finished(&self) {
        let mut pulse = self.pulse.subscribe();
        // It can't close while `self` holds the sender.
        let _ = pulse.wait_for(|p| p.status != RunStatus::Running).await;
    }

    pub(crate) fn session(&self) -> &str {
        &self.request.session
    }

    pub(crate) fn status(&self) -> RunStatus {
        self.pulse.borrow().status
    }

    /// How it stands; `running` is what to say of the kernel while it runs.
    pub(crate) fn reply(&self, running: KernelReport) -> Reply {
        let status = self.status();
        let record = self.record();
        let journal = &record.journal;
        let truncated = journal.truncated();
        Reply {
            id: self.id.clone(),
            status,
            stdout: journal.output(Stream::Stdout).text(),
            stderr: journal.output(Stream::Stderr).text(),
            result: journal.result().cloned(),
            data: journal.data().to_vec(),
            error: journal.error().cloned(),
            execution_count: record.execution_count,
            timing_ms: record.timing_ms(),
            kernel: record
                .report
                .unwrap_or_else(|| running.to(self.request.seen)),
            truncated: (!truncated.is_empty()).then_some(truncated),
        }
    }

    pub(crate) fn summary(&self) -> Summary {
        let record = self.record();
        let line = self.request.code.trim().lines().next().unwrap_or_default();
        let created = self.created.duration_since(UNIX_EPOCH).unwrap_or_default();
        Summary {
            id: self.id.clone(),
            session: self.request.session.clone(),
            status: self.status(),
            code: line.chars().take(120).collect(),
            execution_count: record.execution_count,
            created: created.as_secs_f64(),
            timing_ms: record.timing_ms(),
            stdout: record.journal.output(Stream::Stdout).total(),
            stderr: record.journal.output(Stream::Stderr).total(),
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
    pub(crate) fn follow(self: &Arc<Self>, from: u64) -> Follower {
        Follower::new(self.clone(), self.pulse.subscribe(), from)
    }

    pub(super) fn is_finished(&self) -> bool {
        self.status() != RunStatus::Running
    }

    pub(super) fn bytes(&self) -> u64 {
        self.record().journal.bytes() + self.request.code.len() as u64
    }

    pub(super) fn on_disk(&self) -> u64 {
        self.record().journal.on_disk()
    }

    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn timing_ms(&self) -> f64 {
        let took = self
            .took
            .or_else(|| self.started.map(|s| s.elapsed()))
            .unwrap_or_default();
        (took.as_secs_f64() * 1e6).round() / 1e3
    }
}

/// How many of the bytes are whole characters; all, when no more follow.
fn whole_characters(bytes: &[u8], is_end: bool) -> usize {
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
