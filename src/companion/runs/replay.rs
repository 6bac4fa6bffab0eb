//! A run of an earlier life, from what the journal says of it.

use super::Work;
use super::filling::Filling;
use super::identity::digest_of;
use super::run::Run;
use super::store::{End, Record, Recovered, RunStore};
use crate::protocol::kernel::{Raised, Stream};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// What is left of a stream beside its head.
#[derive(Debug, Default)]
struct Rest {
    file: Option<PathBuf>,
    /// Bytes of the file that no event stands for so far.
    unread: u64,
    tail: Option<Vec<u8>>,
}

impl<W: Work> Run<W> {
    /// Its end is the one that was recorded; without one it is lost, which is recorded now.
    pub(super) fn replay(recovered: Recovered, store: &RunStore) -> Self {
        let Recovered { found, kept } = recovered;
        let begin = found.begin;
        let work = W::recovered(begin.id.clone(), begin.session, begin.line);
        let mut run = Self::new(begin.id, work, Some(kept));
        run.created = UNIX_EPOCH + Duration::from_micros(begin.created);
        run.digest = Some(begin.digest);
        let mut rests = rests(&found.records, store);
        let mut end = None;
        for record in found.records {
            match record {
                Record::End(told) => end = Some(told),
                other => run.happen(other, &mut rests),
            }
        }
        if let Err(error) = run.restore(rests, end.as_ref()) {
            tracing::warn!("output of run `{}` is lost: {error}", run.id);
        }
        match end {
            Some(end) => run.restored(end.status),
            None => run.lost(reason(store.is_other_boot(&begin.boot))),
        }
        run
    }

    /// Whether a request asks for this very run.
    pub(super) fn is_same(&self, work: &W) -> bool {
        match &self.digest {
            Some(digest) => *digest == digest_of(&self.id, work),
            None => self.work.is_same(work),
        }
    }

    fn happen(&self, record: Record, rests: &mut [Rest; 2]) {
        let mut known = self.record();
        let journal = &mut known.journal;
        match record {
            Record::Started(number) => known.number = Some(number),
            Record::Text {
                stream,
                event,
                bytes,
            } => {
                journal.resume(event);
                journal.write(stream, &bytes);
            }
            Record::Spilled {
                stream,
                event,
                length,
            } => {
                journal.resume(event);
                let rest = &mut rests[stream as usize];
                let length = length.min(rest.unread);
                rest.unread -= length;
                journal.skip(stream, length);
            }
            Record::Event { number, happened } => {
                journal.resume(number);
                match serde_json::from_slice(&happened) {
                    Ok(happened) => journal.add(happened),
                    Err(error) => tracing::warn!("an event of run `{}`: {error}", self.id),
                }
            }
            Record::Tail { stream, bytes } => rests[stream as usize].tail = Some(bytes),
            Record::Begin(_) | Record::File { .. } | Record::End(_) | Record::Forget => {}
        }
    }

    fn restore(&self, rests: [Rest; 2], end: Option<&End>) -> io::Result<()> {
        let mut record = self.record();
        for (stream, rest) in [Stream::Stdout, Stream::Stderr].into_iter().zip(rests) {
            // What reached the file, and not the journal.
            record.journal.skip(stream, rest.unread);
            let reached = record.journal.output(stream).total();
            let total = end.map_or(reached, |end| end.written[stream as usize].max(reached));
            let file = match rest.file {
                Some(path) => Some(Filling::filled(path.clone(), fs::metadata(&path)?.len())),
                None => None,
            };
            let output = record.journal.output_mut(stream);
            output.restore(file, rest.tail, total)?;
        }
        if let Some(end) = end {
            record.took = Duration::try_from_secs_f64(end.timing_ms / 1e3).ok();
            let report = end.report.clone();
            record.report = report.and_then(|report| serde_json::from_value(report).ok());
            record.journal.restore_shown(end.shown);
        }
        Ok(())
    }
}

fn rests(records: &[Record], store: &RunStore) -> [Rest; 2] {
    let mut rests = <[Rest; 2]>::default();
    for record in records {
        if let Record::File { stream, name } = record
            && let Some(path) = store.file(name)
        {
            let length = fs::metadata(&path).map_or(0, |file| file.len());
            rests[*stream as usize] = Rest {
                file: Some(path),
                unread: length,
                tail: None,
            };
        }
    }
    rests
}

/// Why it has no end of its own.
fn reason(is_other_boot: bool) -> Raised {
    let why = match is_other_boot {
        true => "the machine was started again",
        false => "the companion ended",
    };
    Raised {
        kind: "Lost".into(),
        message: format!(
            "{why} before the run had ended: it may have been executed in part, and is not executed again"
        ),
        traceback: Vec::new(),
    }
}
