//! Rebuilding a run of an earlier companion from its journal.

use super::RunKind;
use super::growing_file::GrowingFile;
use super::request_digest::request_digest;
use super::run::TrackedRun;
use super::store::{RecoveredRun, RunStore, StoredRunEnd, StoredRunRecord};
use crate::protocol::kernel::{OutputStream, RunError};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// Recorded parts of a stream after its head.
#[derive(Debug, Default)]
struct StreamRemainder {
    file: Option<PathBuf>,
    /// Bytes of the file that no event covers yet.
    uncovered_bytes: u64,
    tail: Option<Vec<u8>>,
}

impl<W: RunKind> TrackedRun<W> {
    /// Rebuilds the run with its recorded end. A run without a recorded end is lost, and this end is recorded now.
    pub(super) fn replay(recovered: RecoveredRun, store: &RunStore) -> Self {
        let RecoveredRun {
            run: found,
            recorder,
        } = recovered;
        let begin = found.begin;
        let request = W::from_recovered(begin.id.clone(), begin.session, begin.line);
        let mut run = Self::new(begin.id, request, Some(recorder));
        run.created = UNIX_EPOCH + Duration::from_micros(begin.created);
        run.digest = Some(begin.digest);
        let mut remainders = find_remainders(&found.records, store);
        let mut end = None;
        for record in found.records {
            match record {
                StoredRunRecord::End(stored_end) => end = Some(stored_end),
                other => run.apply_record(other, &mut remainders),
            }
        }
        if let Err(error) = run.restore_output(remainders, end.as_ref()) {
            tracing::warn!(run = %run.id, %error, "output of a run is lost");
        }
        match end {
            Some(end) => run.publish_restored(end.status),
            None => run.mark_lost(build_lost_error(store.is_other_boot(&begin.boot))),
        }
        run
    }

    /// Whether the request is the one of this run.
    pub(super) fn is_same_request(&self, request: &W) -> bool {
        match &self.digest {
            Some(digest) => *digest == request_digest(&self.id, request),
            None => self.request.is_same_request(request),
        }
    }

    fn apply_record(&self, record: StoredRunRecord, remainders: &mut [StreamRemainder; 2]) {
        let mut known = self.lock_state();
        let journal = &mut known.events;
        match record {
            StoredRunRecord::Started(number) => known.number = Some(number),
            StoredRunRecord::Text {
                stream,
                event,
                bytes,
            } => {
                journal.resume_at(event);
                journal.write_output(stream, &bytes);
            }
            StoredRunRecord::Spilled {
                stream,
                event,
                length,
            } => {
                journal.resume_at(event);
                let rest = &mut remainders[stream as usize];
                let length = length.min(rest.uncovered_bytes);
                rest.uncovered_bytes -= length;
                journal.skip_bytes(stream, length);
            }
            StoredRunRecord::Event { number, event_json } => {
                journal.resume_at(number);
                match serde_json::from_slice(&event_json) {
                    Ok(event) => journal.add_event(event),
                    Err(error) => {
                        tracing::warn!(run = %self.id, %error, "an event of a run can't be read")
                    }
                }
            }
            StoredRunRecord::Tail { stream, bytes } => {
                remainders[stream as usize].tail = Some(bytes)
            }
            StoredRunRecord::Begin(_)
            | StoredRunRecord::File { .. }
            | StoredRunRecord::End(_)
            | StoredRunRecord::Forget(_) => {}
        }
    }

    fn restore_output(
        &self,
        remainders: [StreamRemainder; 2],
        end: Option<&StoredRunEnd>,
    ) -> io::Result<()> {
        let mut record = self.lock_state();
        for (stream, rest) in [OutputStream::Stdout, OutputStream::Stderr]
            .into_iter()
            .zip(remainders)
        {
            // Bytes that reached the file but not the journal.
            record.events.skip_bytes(stream, rest.uncovered_bytes);
            let reached = record.events.output(stream).total_bytes();
            let total = end.map_or(reached, |end| end.written[stream as usize].max(reached));
            let file = match rest.file {
                Some(path) => Some(GrowingFile::from_complete(
                    path.clone(),
                    fs::metadata(&path)?.len(),
                )),
                None => None,
            };
            let output = record.events.output_mut(stream);
            output.restore_recovered(file, rest.tail, total)?;
        }
        if let Some(end) = end {
            record.elapsed = Duration::try_from_secs_f64(end.timing_ms / 1e3).ok();
            let report = end.report.clone();
            record.report = report.and_then(|report| serde_json::from_value(report).ok());
            record.events.restore_bundle_bytes(end.shown);
        }
        Ok(())
    }
}

fn find_remainders(records: &[StoredRunRecord], store: &RunStore) -> [StreamRemainder; 2] {
    let mut remainders = <[StreamRemainder; 2]>::default();
    for record in records {
        if let StoredRunRecord::File { stream, name } = record
            && let Some(path) = store.file_path(name)
        {
            let length = fs::metadata(&path).map_or(0, |file| file.len());
            remainders[*stream as usize] = StreamRemainder {
                file: Some(path),
                uncovered_bytes: length,
                tail: None,
            };
        }
    }
    remainders
}

/// The error of a run without a recorded end.
fn build_lost_error(is_other_boot: bool) -> RunError {
    let why = match is_other_boot {
        true => "the machine was restarted",
        false => "the companion ended",
    };
    RunError {
        kind: "Lost".into(),
        message: format!(
            "{why} before the run had ended: it may have been executed in part, and is not executed again"
        ),
        traceback: Vec::new(),
    }
}
