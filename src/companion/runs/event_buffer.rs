//! A run's events in order, within limits: the source of replies and of followers.
//!
//! The [`StreamOutput`]s hold the text once; an entry only refers to a byte range. An entry that no follower has
//! received yet grows instead of getting a successor. Slow followers, and runs without followers, therefore have few
//! entries.

use super::output::{OutputPiece, StreamOutput};
use crate::protocol::kernel::{
    DisplayData, MimeBundle, OutputStream, RunError, RunEventKind, TruncatedOutput,
};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Maximum bytes of MIME bundles that are kept for one run.
const MAX_RUN_BUNDLE_BYTES: u64 = 64 << 20;
/// Bytes of memory that each bundle takes in addition to its text; small bundles consist mostly of this overhead.
const BUNDLE_OVERHEAD_BYTES: usize = 1 << 10;
/// Maximum number of entries; beyond it, the oldest are dropped. A follower that starts before the oldest entry still
/// gets the text of dropped entries, one stream after the other.
const MAX_BUFFERED_EVENTS: usize = 1 << 14;
/// Maximum bytes of a text entry.
const MAX_TEXT_EVENT_BYTES: u64 = 64 << 10;
/// Maximum bytes and number of entries in one batch.
const MAX_EVENT_CHUNK_BYTES: u64 = 1 << 20;
const MAX_EVENT_CHUNK_COUNT: usize = 512;

#[derive(Debug)]
pub(super) struct RunEventBuffer<R> {
    outputs: [StreamOutput; 2],
    /// Bytes of each stream that entries cover.
    covered_bytes: [u64; 2],
    entries: VecDeque<BufferedEvent<R>>,
    /// The number of the first entry that is kept.
    first_number: u64,
    /// Entries below this number were delivered and do not change any more.
    delivered: u64,
    bundles: Vec<Arc<MimeBundle>>,
    total_bundle_bytes: u64,
    retained_bundle_bytes: u64,
    result: Option<String>,
    error: Option<RunError>,
}

#[derive(Debug)]
enum BufferedEvent<R> {
    Text {
        stream: OutputStream,
        from: u64,
        to: u64,
    },
    Other(Box<RunEventKind<R>>),
}

/// An entry for a follower; its text is not read yet.
#[derive(Debug)]
pub(super) enum EventChunk<R> {
    /// The bytes of a stream up to `end`.
    Text {
        stream: OutputStream,
        end: u64,
        pieces: Vec<OutputPiece>,
    },
    Other(RunEventKind<R>),
}

/// Text of dropped entries.
#[derive(Debug)]
pub(super) struct EventGap {
    pub(super) stream: OutputStream,
    /// Position in the stream where this text ends.
    pub(super) end: u64,
    pub(super) pieces: Vec<OutputPiece>,
    /// Whether the dropped text ends here; otherwise more of it follows.
    pub(super) is_complete: bool,
}

impl<R> Default for RunEventBuffer<R> {
    fn default() -> Self {
        Self {
            outputs: Default::default(),
            covered_bytes: [0; 2],
            entries: VecDeque::new(),
            first_number: 0,
            delivered: 0,
            bundles: Vec::new(),
            total_bundle_bytes: 0,
            retained_bundle_bytes: 0,
            result: None,
            error: None,
        }
    }
}

impl<R: Clone> RunEventBuffer<R> {
    /// Adds output. Returns the number of bytes at its end that must be spilled to a file.
    pub(super) fn write_output(&mut self, stream: OutputStream, bytes: &[u8]) -> usize {
        let rest = self.outputs[stream as usize].push(bytes);
        self.extend_text_entries(stream, self.output(stream).complete_character_bytes());
        rest
    }

    fn extend_text_entries(&mut self, stream: OutputStream, to: u64) {
        let from = self.covered_bytes[stream as usize];
        if from == to {
            return;
        }
        self.covered_bytes[stream as usize] = to;
        let is_free = self.next_number() > self.delivered;
        match self.entries.back_mut() {
            Some(BufferedEvent::Text {
                stream: last,
                from: first,
                to: end,
            }) if is_free && *last == stream && to - *first <= MAX_TEXT_EVENT_BYTES => *end = to,
            _ => self.push_entry(BufferedEvent::Text { stream, from, to }),
        }
    }

    pub(super) fn add_event(&mut self, happened: RunEventKind<R>) {
        let happened = match happened {
            RunEventKind::Display(bundle) => RunEventKind::Display(self.retain_bundle(bundle)),
            RunEventKind::Result(bundle) => {
                let plain = bundle.data.get("text/plain").and_then(Value::as_str);
                self.result = plain.map(str::to_owned);
                RunEventKind::Result(self.retain_bundle(bundle))
            }
            RunEventKind::Error { error } => {
                self.error = Some(error.clone());
                RunEventKind::Error { error }
            }
            other => other,
        };
        self.push_entry(BufferedEvent::Other(Box::new(happened)));
    }

    /// The newest event, unless it is text.
    pub(super) fn newest_event(&self) -> Option<&RunEventKind<R>> {
        match self.entries.back() {
            Some(BufferedEvent::Other(happened)) => Some(happened),
            _ => None,
        }
    }

    /// Number of the last event.
    pub(super) fn last_number(&self) -> u64 {
        self.next_number().saturating_sub(1)
    }

    /// Continues after the last event that an earlier companion recorded: later output belongs to event `number`.
    pub(super) fn resume_at(&mut self, number: u64) {
        if number >= self.next_number() {
            self.delivered = self.next_number();
        }
    }

    /// Counts text that an earlier companion wrote only to the file.
    pub(super) fn skip_bytes(&mut self, stream: OutputStream, bytes: u64) {
        self.output_mut(stream).skip_bytes(bytes);
        self.extend_text_entries(stream, self.output(stream).total_bytes());
    }

    /// Adds the bytes of bundles that an earlier companion recorded.
    pub(super) fn restore_bundle_bytes(&mut self, bytes: u64) {
        self.total_bundle_bytes = self.total_bundle_bytes.max(bytes);
    }

    /// Total bytes of all bundles, kept or dropped.
    pub(super) fn bundle_bytes(&self) -> u64 {
        self.total_bundle_bytes
    }

    /// Ends the output: an incomplete character at the end is delivered, too.
    pub(super) fn close_output(&mut self) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            self.extend_text_entries(stream, self.output(stream).total_bytes());
        }
    }

    fn push_entry(&mut self, entry: BufferedEvent<R>) {
        if self.entries.len() == MAX_BUFFERED_EVENTS {
            self.entries.pop_front();
            self.first_number += 1;
        }
        self.entries.push_back(entry);
    }

    fn retain_bundle(&mut self, bundle: DisplayData) -> DisplayData {
        let fields = bundle.data.iter().chain(&bundle.metadata);
        let size: usize = fields.map(|(k, v)| k.len() + json_bytes(v)).sum();
        let size = (size + BUNDLE_OVERHEAD_BYTES) as u64;
        self.total_bundle_bytes += size;
        if self.retained_bundle_bytes + size > MAX_RUN_BUNDLE_BYTES {
            let notice =
                format!("<{size} bytes left out: the run exceeds the limit for displayed data>");
            let data = Map::from_iter([("text/plain".to_owned(), Value::String(notice))]);
            return DisplayData {
                data: Arc::new(data),
                metadata: Map::new(),
                ..bundle
            };
        }
        self.retained_bundle_bytes += size;
        self.bundles.push(bundle.data.clone());
        bundle
    }

    /// Number of the next entry.
    pub(super) fn next_number(&self) -> u64 {
        self.first_number + self.entries.len() as u64
    }

    /// Finds the text between entry `from` and the oldest kept entry, after the bytes of each stream that the follower
    /// has.
    pub(super) fn find_gap(&self, from: u64, known: [u64; 2]) -> Option<EventGap> {
        if from >= self.first_number {
            return None;
        }
        [OutputStream::Stdout, OutputStream::Stderr]
            .into_iter()
            .find_map(|stream| {
                let (at, to) = (
                    known[stream as usize],
                    self.entry_start(self.first_number, stream),
                );
                let end = to.min(at + MAX_EVENT_CHUNK_BYTES);
                (at < end).then(|| EventGap {
                    stream,
                    end,
                    pieces: self.output(stream).pieces_between(at, end),
                    is_complete: end == to,
                })
            })
    }

    /// Position of each stream before the entry `number`; only for kept entries.
    pub(super) fn positions_before(&self, number: u64) -> [u64; 2] {
        [OutputStream::Stdout, OutputStream::Stderr].map(|stream| self.entry_start(number, stream))
    }

    /// Position in the stream of its first entry from `number` on.
    fn entry_start(&self, number: u64, wanted: OutputStream) -> u64 {
        let skipped = number.saturating_sub(self.first_number) as usize;
        let mut begins = self
            .entries
            .iter()
            .skip(skipped)
            .filter_map(|entry| match entry {
                BufferedEvent::Text { stream, from, .. } if *stream == wanted => Some(*from),
                _ => None,
            });
        begins.next().unwrap_or(self.covered_bytes[wanted as usize])
    }

    /// Number of the oldest kept entry.
    pub(super) fn first_number(&self) -> u64 {
        self.first_number
    }

    /// Takes a batch of entries with their numbers, from `from` on.
    pub(super) fn take_chunks(&mut self, from: u64) -> Vec<(u64, EventChunk<R>)> {
        let begin = from.clamp(self.first_number, self.next_number());
        let mut free_bytes = MAX_EVENT_CHUNK_BYTES;
        let mut handed = Vec::new();
        let entries = self
            .entries
            .iter()
            .skip((begin - self.first_number) as usize);
        for (seq, entry) in (begin..).zip(entries).take(MAX_EVENT_CHUNK_COUNT) {
            if free_bytes == 0 {
                break;
            }
            handed.push((
                seq,
                match entry {
                    BufferedEvent::Text { stream, from, to } => {
                        free_bytes = free_bytes.saturating_sub(to - from);
                        EventChunk::Text {
                            stream: *stream,
                            end: *to,
                            pieces: self.output(*stream).pieces_between(*from, *to),
                        }
                    }
                    BufferedEvent::Other(happened) => {
                        if let RunEventKind::Display(bundle) | RunEventKind::Result(bundle) =
                            &**happened
                        {
                            let bytes = bundle.data.values().map(json_bytes).sum::<usize>();
                            free_bytes = free_bytes.saturating_sub(bytes as u64);
                        }
                        EventChunk::Other((**happened).clone())
                    }
                },
            ));
        }
        self.delivered = self.delivered.max(begin + handed.len() as u64);
        handed
    }

    pub(super) fn output(&self, stream: OutputStream) -> &StreamOutput {
        &self.outputs[stream as usize]
    }

    pub(super) fn output_mut(&mut self, stream: OutputStream) -> &mut StreamOutput {
        &mut self.outputs[stream as usize]
    }

    pub(super) fn bundles(&self) -> &[Arc<MimeBundle>] {
        &self.bundles
    }

    pub(super) fn result(&self) -> Option<&String> {
        self.result.as_ref()
    }

    pub(super) fn error(&self) -> Option<&RunError> {
        self.error.as_ref()
    }

    pub(super) fn truncated(&self) -> BTreeMap<String, TruncatedOutput> {
        let mut found = BTreeMap::new();
        for (name, stream) in [
            ("stdout", OutputStream::Stdout),
            ("stderr", OutputStream::Stderr),
        ] {
            found.extend(
                self.output(stream)
                    .truncated()
                    .map(|t| (name.to_owned(), t)),
            );
        }
        if self.retained_bundle_bytes < self.total_bundle_bytes {
            let cut = TruncatedOutput {
                total: self.total_bundle_bytes,
                kept: self.retained_bundle_bytes,
                file: None,
            };
            found.insert("data".into(), cut);
        }
        found
    }

    /// Bytes written to both streams.
    pub(super) fn total_bytes(&self) -> u64 {
        self.outputs.iter().map(StreamOutput::total_bytes).sum()
    }

    /// Bytes in memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        let text: usize = self.outputs.iter().map(StreamOutput::memory_bytes).sum();
        let entries = self.entries.len() * size_of::<BufferedEvent<R>>();
        (text + entries) as u64 + self.retained_bundle_bytes
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.outputs.iter().map(StreamOutput::disk_bytes).sum()
    }
}

fn json_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(json_bytes).sum::<usize>() + items.len(),
        Value::Object(map) => map.iter().map(|(k, v)| k.len() + json_bytes(v)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::{decode_lossy, read_pieces};
    use super::{EventChunk, MAX_BUFFERED_EVENTS};
    use crate::protocol::kernel::{DisplayData, OutputStream, RunEventKind};
    use proptest::prelude::*;

    type Journal = super::RunEventBuffer<()>;

    fn texts(handed: Vec<(u64, EventChunk<()>)>) -> Vec<(u64, OutputStream, String)> {
        let one = |(seq, handed)| match handed {
            EventChunk::Text { stream, pieces, .. } => {
                (seq, stream, decode_lossy(read_pieces(pieces).unwrap()))
            }
            EventChunk::Other(other) => panic!("{other:?}"),
        };
        handed.into_iter().map(one).collect()
    }

    #[test]
    fn an_entry_grows_until_it_is_delivered() {
        let mut journal = Journal::default();
        journal.write_output(OutputStream::Stdout, b"a");
        journal.write_output(OutputStream::Stdout, b"b");
        assert_eq!(
            texts(journal.take_chunks(0)),
            [(0, OutputStream::Stdout, "ab".into())]
        );
        journal.write_output(OutputStream::Stdout, b"c");
        journal.write_output(OutputStream::Stderr, b"d");
        journal.write_output(OutputStream::Stdout, b"e");
        let expected = [
            (1, OutputStream::Stdout, "c".into()),
            (2, OutputStream::Stderr, "d".into()),
            (3, OutputStream::Stdout, "e".into()),
        ];
        assert_eq!(texts(journal.take_chunks(1)), expected);
        assert_eq!(texts(journal.take_chunks(0)).len(), 4);
    }

    #[test]
    fn a_run_that_shows_too_much_reports_what_it_left_out() {
        let mut journal = Journal::default();
        let display = |length| {
            let data = [("text/plain".to_owned(), "x".repeat(length).into())];
            RunEventKind::Display(DisplayData {
                data: std::sync::Arc::new(data.into_iter().collect()),
                ..DisplayData::default()
            })
        };
        journal.add_event(display(60 << 20));
        journal.add_event(display(10 << 20));
        journal.add_event(display(1));
        assert_eq!(journal.bundles().len(), 2);
        let each = 10 + super::BUNDLE_OVERHEAD_BYTES as u64;
        assert_eq!(journal.truncated()["data"].total, (70 << 20) + 1 + 3 * each);
        assert_eq!(journal.next_number(), 3);
    }

    #[test]
    fn many_small_values_take_no_more_than_a_large_one() {
        let mut journal = Journal::default();
        for _ in 0..100_000 {
            journal.add_event(RunEventKind::Display(DisplayData::default()));
        }
        assert_eq!(
            journal.bundles().len(),
            (64 << 20) / super::BUNDLE_OVERHEAD_BYTES
        );
        assert!(journal.truncated().contains_key("data"));
    }

    #[test]
    fn the_oldest_entries_are_dropped_first() {
        let mut journal = Journal::default();
        for _ in 0..MAX_BUFFERED_EVENTS + 10 {
            journal.write_output(OutputStream::Stdout, b"x");
            journal.take_chunks(journal.next_number());
        }
        assert_eq!(journal.next_number(), MAX_BUFFERED_EVENTS as u64 + 10);
        assert_eq!(journal.take_chunks(0)[0].0, 10);
        let missed = journal.find_gap(0, [0; 2]).unwrap();
        assert_eq!((missed.end, missed.is_complete), (10, true));
        assert_eq!(
            decode_lossy(read_pieces(missed.pieces).unwrap()),
            "x".repeat(10)
        );
        assert!(journal.find_gap(10, [0; 2]).is_none());
        assert!(journal.find_gap(0, [10, 0]).is_none());
        assert_eq!(journal.positions_before(12), [12, 0]);
        assert_eq!(
            journal.positions_before(journal.next_number()),
            [journal.next_number(), 0]
        );
    }

    proptest! {
        #[test]
        fn followers_get_every_byte_once(
            writes in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..9), any::<bool>()), 0..60)
        ) {
            let mut journal = Journal::default();
            let (mut next, mut got, mut all) = (0, [String::new(), String::new()], [Vec::new(), Vec::new()]);
            let mut follow = |journal: &mut Journal| {
                for (seq, stream, text) in texts(journal.take_chunks(next)) {
                    assert_eq!(seq, next);
                    got[stream as usize] += &text;
                    next += 1;
                }
            };
            for (is_err, bytes, read) in writes {
                let stream = if is_err { OutputStream::Stderr } else { OutputStream::Stdout };
                journal.write_output(stream, &bytes);
                all[stream as usize].extend(bytes);
                if read {
                    follow(&mut journal);
                }
            }
            journal.close_output();
            follow(&mut journal);
            for (got, all) in got.iter().zip(all) {
                // For bytes that are not UTF-8, the number of replacement characters may differ.
                if let Ok(all) = String::from_utf8(all) {
                    prop_assert_eq!(got, &all);
                }
            }
        }
    }
}
