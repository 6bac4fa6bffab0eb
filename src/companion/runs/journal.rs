//! A run's events in their order, within limits: what a reply is made of and followers read.
//!
//! Text is kept once, in the [`Output`]s; an entry only says which bytes it stands for. An entry
//! that nobody was handed yet grows instead of getting a successor, so slow followers, and runs
//! that nobody follows, have few.

use super::output::{Output, Piece};
use crate::protocol::kernel::{Bundle, Happened, Raised, Shown, Stream, Truncated};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bytes of MIME bundles kept of one run.
const DATA_LIMIT: u64 = 64 << 20;
/// Bytes that each of them takes beside its text: small ones are mostly that.
const SHOWN: usize = 1 << 10;
/// Entries kept; of more, the oldest are given up. Who begins before them is told their text all the
/// same, one stream after the other.
const ENTRIES: usize = 1 << 14;
/// Bytes that an entry grows to.
const GROWN: u64 = 64 << 10;
/// Bytes and entries that are handed out at once.
const HANDED: u64 = 1 << 20;
const BATCH: usize = 512;

#[derive(Debug)]
pub(super) struct Journal<R> {
    outputs: [Output; 2],
    /// Bytes of each stream that entries stand for.
    covered: [u64; 2],
    entries: VecDeque<Entry<R>>,
    /// The number of the first entry that is kept.
    first: u64,
    /// Entries below this number were handed out, and stay as they are.
    handed: u64,
    data: Vec<Arc<Bundle>>,
    data_total: u64,
    data_kept: u64,
    result: Option<String>,
    error: Option<Raised>,
}

#[derive(Debug)]
enum Entry<R> {
    Text { stream: Stream, from: u64, to: u64 },
    Other(Box<Happened<R>>),
}

/// An entry as it is handed out: text has still to be read.
#[derive(Debug)]
pub(super) enum Handed<R> {
    /// The bytes of a stream up to `end`.
    Text {
        stream: Stream,
        end: u64,
        pieces: Vec<Piece>,
    },
    Other(Happened<R>),
}

/// Text of entries that were given up.
#[derive(Debug)]
pub(super) struct Missed {
    pub(super) stream: Stream,
    /// The bytes of the stream up to here.
    pub(super) end: u64,
    pub(super) pieces: Vec<Piece>,
    /// Whether an entry goes on behind it.
    pub(super) is_whole: bool,
}

impl<R> Default for Journal<R> {
    fn default() -> Self {
        Self {
            outputs: Default::default(),
            covered: [0; 2],
            entries: VecDeque::new(),
            first: 0,
            handed: 0,
            data: Vec::new(),
            data_total: 0,
            data_kept: 0,
            result: None,
            error: None,
        }
    }
}

impl<R: Clone> Journal<R> {
    /// Takes what was written; the last so many bytes are to be spilled.
    pub(super) fn write(&mut self, stream: Stream, bytes: &[u8]) -> usize {
        let rest = self.outputs[stream as usize].push(bytes);
        self.cover(stream, self.output(stream).complete());
        rest
    }

    fn cover(&mut self, stream: Stream, to: u64) {
        let from = self.covered[stream as usize];
        if from == to {
            return;
        }
        self.covered[stream as usize] = to;
        let is_free = self.next() > self.handed;
        match self.entries.back_mut() {
            Some(Entry::Text {
                stream: last,
                from: first,
                to: end,
            }) if is_free && *last == stream && to - *first <= GROWN => *end = to,
            _ => self.push(Entry::Text { stream, from, to }),
        }
    }

    pub(super) fn add(&mut self, happened: Happened<R>) {
        let happened = match happened {
            Happened::Display(shown) => Happened::Display(self.keep(shown)),
            Happened::Result(shown) => {
                let plain = shown.data.get("text/plain").and_then(Value::as_str);
                self.result = plain.map(str::to_owned);
                Happened::Result(self.keep(shown))
            }
            Happened::Error { error } => {
                self.error = Some(error.clone());
                Happened::Error { error }
            }
            other => other,
        };
        self.push(Entry::Other(Box::new(happened)));
    }

    /// The newest event, unless it is text.
    pub(super) fn newest(&self) -> Option<&Happened<R>> {
        match self.entries.back() {
            Some(Entry::Other(happened)) => Some(happened),
            _ => None,
        }
    }

    /// The number of the event that was written last.
    pub(super) fn last(&self) -> u64 {
        self.next().saturating_sub(1)
    }

    /// What follows belongs to the event of that number, as it did in an earlier life.
    pub(super) fn resume(&mut self, number: u64) {
        if number >= self.next() {
            self.handed = self.next();
        }
    }

    /// Text of an earlier life that is in its file alone.
    pub(super) fn skip(&mut self, stream: Stream, bytes: u64) {
        self.output_mut(stream).skip(bytes);
        self.cover(stream, self.output(stream).total());
    }

    /// So many bytes of bundles were shown in an earlier life.
    pub(super) fn restore_shown(&mut self, bytes: u64) {
        self.data_total = self.data_total.max(bytes);
    }

    /// Bytes of bundles, whether they are kept or not.
    pub(super) fn shown(&self) -> u64 {
        self.data_total
    }

    /// No more is to come: also what is no whole character is told.
    pub(super) fn close(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.cover(stream, self.output(stream).total());
        }
    }

    fn push(&mut self, entry: Entry<R>) {
        if self.entries.len() == ENTRIES {
            self.entries.pop_front();
            self.first += 1;
        }
        self.entries.push_back(entry);
    }

    fn keep(&mut self, shown: Shown) -> Shown {
        let fields = shown.data.iter().chain(&shown.metadata);
        let size: usize = fields.map(|(k, v)| k.len() + size(v)).sum();
        let size = (size + SHOWN) as u64;
        self.data_total += size;
        if self.data_kept + size > DATA_LIMIT {
            let notice = format!("<{size} bytes that were left out: the run shows too much>");
            let data = Map::from_iter([("text/plain".to_owned(), Value::String(notice))]);
            return Shown {
                data: Arc::new(data),
                metadata: Map::new(),
                ..shown
            };
        }
        self.data_kept += size;
        self.data.push(shown.data.clone());
        shown
    }

    /// The number that the next entry will have.
    pub(super) fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// What was written before the first entry from `from` on that is kept, beyond the bytes of each
    /// stream that are known already.
    pub(super) fn missed(&self, from: u64, known: [u64; 2]) -> Option<Missed> {
        if from >= self.first {
            return None;
        }
        [Stream::Stdout, Stream::Stderr]
            .into_iter()
            .find_map(|stream| {
                let (at, to) = (known[stream as usize], self.begin(self.first, stream));
                let end = to.min(at + HANDED);
                (at < end).then(|| Missed {
                    stream,
                    end,
                    pieces: self.output(stream).pieces(at, end),
                    is_whole: end == to,
                })
            })
    }

    /// Where each stream stands before the entry of that number; before the first one that is kept
    /// nobody knows.
    pub(super) fn before(&self, number: u64) -> [u64; 2] {
        [Stream::Stdout, Stream::Stderr].map(|stream| self.begin(number, stream))
    }

    /// Where the entries of a stream begin, from that number on.
    fn begin(&self, number: u64, wanted: Stream) -> u64 {
        let skipped = number.saturating_sub(self.first) as usize;
        let mut begins = self
            .entries
            .iter()
            .skip(skipped)
            .filter_map(|entry| match entry {
                Entry::Text { stream, from, .. } if *stream == wanted => Some(*from),
                _ => None,
            });
        begins.next().unwrap_or(self.covered[wanted as usize])
    }

    /// The first entry that is kept.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Some of the entries from number `from` on, with their numbers.
    pub(super) fn hand(&mut self, from: u64) -> Vec<(u64, Handed<R>)> {
        let begin = from.clamp(self.first, self.next());
        let mut room = HANDED;
        let mut handed = Vec::new();
        let entries = self.entries.iter().skip((begin - self.first) as usize);
        for (seq, entry) in (begin..).zip(entries).take(BATCH) {
            if room == 0 {
                break;
            }
            handed.push((
                seq,
                match entry {
                    Entry::Text { stream, from, to } => {
                        room = room.saturating_sub(to - from);
                        Handed::Text {
                            stream: *stream,
                            end: *to,
                            pieces: self.output(*stream).pieces(*from, *to),
                        }
                    }
                    Entry::Other(happened) => {
                        if let Happened::Display(shown) | Happened::Result(shown) = &**happened {
                            let bytes = shown.data.values().map(size).sum::<usize>();
                            room = room.saturating_sub(bytes as u64);
                        }
                        Handed::Other((**happened).clone())
                    }
                },
            ));
        }
        self.handed = self.handed.max(begin + handed.len() as u64);
        handed
    }

    pub(super) fn output(&self, stream: Stream) -> &Output {
        &self.outputs[stream as usize]
    }

    pub(super) fn output_mut(&mut self, stream: Stream) -> &mut Output {
        &mut self.outputs[stream as usize]
    }

    pub(super) fn data(&self) -> &[Arc<Bundle>] {
        &self.data
    }

    pub(super) fn result(&self) -> Option<&String> {
        self.result.as_ref()
    }

    pub(super) fn error(&self) -> Option<&Raised> {
        self.error.as_ref()
    }

    pub(super) fn truncated(&self) -> BTreeMap<String, Truncated> {
        let mut found = BTreeMap::new();
        for (name, stream) in [("stdout", Stream::Stdout), ("stderr", Stream::Stderr)] {
            found.extend(
                self.output(stream)
                    .truncated()
                    .map(|t| (name.to_owned(), t)),
            );
        }
        if self.data_kept < self.data_total {
            let cut = Truncated {
                total: self.data_total,
                kept: self.data_kept,
                file: None,
            };
            found.insert("data".into(), cut);
        }
        found
    }

    /// Bytes written to both streams.
    pub(super) fn total(&self) -> u64 {
        self.outputs.iter().map(Output::total).sum()
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        let text: usize = self.outputs.iter().map(Output::kept).sum();
        let entries = self.entries.len() * size_of::<Entry<R>>();
        (text + entries) as u64 + self.data_kept
    }

    pub(super) fn on_disk(&self) -> u64 {
        self.outputs.iter().map(Output::on_disk).sum()
    }
}

fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum::<usize>() + items.len(),
        Value::Object(map) => map.iter().map(|(k, v)| k.len() + size(v)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::{read, text};
    use super::{ENTRIES, Handed};
    use crate::protocol::kernel::{Happened, Shown, Stream};
    use proptest::prelude::*;

    type Journal = super::Journal<()>;

    fn texts(handed: Vec<(u64, Handed<()>)>) -> Vec<(u64, Stream, String)> {
        let one = |(seq, handed)| match handed {
            Handed::Text { stream, pieces, .. } => (seq, stream, text(read(pieces).unwrap())),
            Handed::Other(other) => panic!("{other:?}"),
        };
        handed.into_iter().map(one).collect()
    }

    #[test]
    fn what_nobody_was_handed_grows_and_what_somebody_has_does_not() {
        let mut journal = Journal::default();
        journal.write(Stream::Stdout, b"a");
        journal.write(Stream::Stdout, b"b");
        assert_eq!(texts(journal.hand(0)), [(0, Stream::Stdout, "ab".into())]);
        journal.write(Stream::Stdout, b"c");
        journal.write(Stream::Stderr, b"d");
        journal.write(Stream::Stdout, b"e");
        let expected = [
            (1, Stream::Stdout, "c".into()),
            (2, Stream::Stderr, "d".into()),
            (3, Stream::Stdout, "e".into()),
        ];
        assert_eq!(texts(journal.hand(1)), expected);
        assert_eq!(texts(journal.hand(0)).len(), 4);
    }

    #[test]
    fn a_run_that_shows_too_much_says_what_it_left_out() {
        let mut journal = Journal::default();
        let shown = |length| {
            let data = [("text/plain".to_owned(), "x".repeat(length).into())];
            Happened::Display(Shown {
                data: std::sync::Arc::new(data.into_iter().collect()),
                ..Shown::default()
            })
        };
        journal.add(shown(60 << 20));
        journal.add(shown(10 << 20));
        journal.add(shown(1));
        assert_eq!(journal.data().len(), 2);
        let each = 10 + super::SHOWN as u64;
        assert_eq!(journal.truncated()["data"].total, (70 << 20) + 1 + 3 * each);
        assert_eq!(journal.next(), 3);
    }

    #[test]
    fn many_small_values_take_no_more_than_a_large_one() {
        let mut journal = Journal::default();
        for _ in 0..100_000 {
            journal.add(Happened::Display(Shown::default()));
        }
        assert_eq!(journal.data().len(), (64 << 20) / super::SHOWN);
        assert!(journal.truncated().contains_key("data"));
    }

    #[test]
    fn entries_are_given_up_from_the_oldest_on() {
        let mut journal = Journal::default();
        for _ in 0..ENTRIES + 10 {
            journal.write(Stream::Stdout, b"x");
            journal.hand(journal.next());
        }
        assert_eq!(journal.next(), ENTRIES as u64 + 10);
        assert_eq!(journal.hand(0)[0].0, 10);
        let missed = journal.missed(0, [0; 2]).unwrap();
        assert_eq!((missed.end, missed.is_whole), (10, true));
        assert_eq!(text(read(missed.pieces).unwrap()), "x".repeat(10));
        assert!(journal.missed(10, [0; 2]).is_none());
        assert!(journal.missed(0, [10, 0]).is_none());
        assert_eq!(journal.before(12), [12, 0]);
        assert_eq!(journal.before(journal.next()), [journal.next(), 0]);
    }

    proptest! {
        #[test]
        fn followers_get_every_byte_once(
            writes in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..9), any::<bool>()), 0..60)
        ) {
            let mut journal = Journal::default();
            let (mut next, mut got, mut all) = (0, [String::new(), String::new()], [Vec::new(), Vec::new()]);
            let mut follow = |journal: &mut Journal| {
                for (seq, stream, text) in texts(journal.hand(next)) {
                    assert_eq!(seq, next);
                    got[stream as usize] += &text;
                    next += 1;
                }
            };
            for (is_err, bytes, read) in writes {
                let stream = if is_err { Stream::Stderr } else { Stream::Stdout };
                journal.write(stream, &bytes);
                all[stream as usize].extend(bytes);
                if read {
                    follow(&mut journal);
                }
            }
            journal.close();
            follow(&mut journal);
            for (got, all) in got.iter().zip(all) {
                // Where bytes are no UTF-8, how many marks stand for them may differ.
                if let Ok(all) = String::from_utf8(all) {
                    prop_assert_eq!(got, &all);
                }
            }
        }
    }
}
