//! What one side is told, one message after the other, kept for a while so that a connection that
//! was lost can go on where it was.

use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Kept of what was read, to be told again.
const MAX_STREAM_READ_EVENTS: usize = 1024;
const MAX_STREAM_READ_BYTES: usize = 8 << 20;
/// Kept of what nobody has read yet, in all; beyond it the oldest is lost.
const MAX_STREAM_UNREAD_EVENTS: usize = 16 << 10;
const MAX_STREAM_UNREAD_BYTES: usize = 256 << 20;
/// Kept of what belongs to no call, which a client may never listen to.
const MAX_STREAM_GENERAL_EVENTS: usize = 1024;
const MAX_STREAM_GENERAL_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct MessageStream {
    pub(super) number: u64,
    /// The raw ids of the requests that it answers, as a JSON array; empty where they are not known.
    pub(super) asked: String,
    state: Mutex<MessageStreamState>,
    changed: Notify,
}

#[derive(Debug)]
struct MessageStreamState {
    events: VecDeque<Bytes>,
    /// The number of the first of them; they count from 1.
    first: u64,
    bytes: usize,
    /// Up to this number a reader has come.
    read: u64,
    /// Answers still to come.
    missing: usize,
    /// Whether it ends with the last of them.
    ends: bool,
    closed: bool,
    /// Whoever reads last, reads; earlier readers end.
    reader: u64,
    /// Messages and bytes that are kept unread.
    most: (usize, usize),
}

impl MessageStreamState {
    fn count_answer(&mut self) {
        self.missing = self.missing.saturating_sub(1);
        self.closed |= self.ends && self.missing == 0;
    }

    fn trim_events(&mut self) {
        loop {
            let (count, bytes) = (self.events.len(), self.bytes);
            let is_much = count > MAX_STREAM_READ_EVENTS || bytes > MAX_STREAM_READ_BYTES;
            let is_too_much = count > self.most.0 || bytes > self.most.1;
            let is_read = self.first <= self.read;
            if count < 2 || !(is_too_much || (is_much && is_read)) {
                return;
            }
            self.first += 1;
            self.bytes -= self.events.pop_front().map_or(0, |gone| gone.len());
        }
    }
}

/// What a reader finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MessageStreamEvent {
    pub(super) seq: u64,
    pub(super) text: Bytes,
    /// Nothing comes after it.
    pub(super) is_last: bool,
}

impl MessageStream {
    /// One that ends with so many answers.
    pub(super) fn of_answers(number: u64, count: usize) -> Self {
        Self::new(
            number,
            Some(count),
            (MAX_STREAM_UNREAD_EVENTS, MAX_STREAM_UNREAD_BYTES),
        )
    }

    /// One that ends with the answers to these requests.
    pub(super) fn of_requests(number: u64, ids: &[&str]) -> Self {
        let mut stream = Self::of_answers(number, ids.len());
        stream.asked = format!("[{}]", ids.join(","));
        stream
    }

    /// One without an end that brings everything, answers too.
    pub(super) fn endless(number: u64) -> Self {
        Self::new(
            number,
            None,
            (MAX_STREAM_UNREAD_EVENTS, MAX_STREAM_UNREAD_BYTES),
        )
    }

    /// One without an end that brings what belongs to no call.
    pub(super) fn general(number: u64) -> Self {
        Self::new(
            number,
            None,
            (MAX_STREAM_GENERAL_EVENTS, MAX_STREAM_GENERAL_BYTES),
        )
    }

    fn new(number: u64, missing: Option<usize>, most: (usize, usize)) -> Self {
        Self {
            number,
            asked: String::new(),
            state: Mutex::new(MessageStreamState {
                events: VecDeque::new(),
                first: 1,
                bytes: 0,
                read: 0,
                missing: missing.unwrap_or(0),
                ends: missing.is_some(),
                closed: missing == Some(0),
                reader: 0,
                most,
            }),
            changed: Notify::new(),
        }
    }

    /// Something on the way.
    pub(super) fn push_event(&self, text: Bytes) {
        self.push_text(text, false);
    }

    /// An answer; with the last one the stream ends.
    pub(super) fn push_answer(&self, text: Bytes) {
        self.push_text(text, true);
    }

    fn push_text(&self, text: Bytes, is_answer: bool) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.bytes += text.len();
        state.events.push_back(text);
        if is_answer {
            state.count_answer();
        }
        state.trim_events();
        drop(state);
        self.changed.notify_waiters();
    }

    /// One answer less will come, as when a call is given up.
    pub(super) fn give_up(&self) {
        self.lock().count_answer();
        self.changed.notify_waiters();
    }

    /// One answer more will come, on a stream without an end.
    pub(super) fn expect_answer(&self) {
        self.lock().missing += 1;
    }

    /// Ends it, once the answers that are still to come are there.
    pub(super) fn drain(&self) {
        let mut state = self.lock();
        state.ends = true;
        state.closed |= state.missing == 0;
        drop(state);
        self.changed.notify_waiters();
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// Whether it has ended, and its reader has come to the end.
    pub(super) fn is_read(&self) -> bool {
        let read = self.lock().read;
        self.is_over(read)
    }

    /// Whether nothing will ever come after event number `seen`.
    pub(super) fn is_over(&self, seen: u64) -> bool {
        let state = self.lock();
        state.closed && state.first + state.events.len() as u64 <= seen + 1
    }

    /// So much is kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.lock().bytes
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether somebody has become the reader after that one.
    pub(super) fn is_read_by_other(&self, reader: u64) -> bool {
        self.lock().reader != reader
    }

    /// Becomes the reader; whoever was it ends.
    pub(super) fn take_over(&self) -> u64 {
        let mut state = self.lock();
        state.reader += 1;
        let reader = state.reader;
        drop(state);
        self.changed.notify_waiters();
        reader
    }

    /// What comes after event number `seen`; nothing at the end. Loses nothing when dropped.
    pub(super) async fn next_event(&self, seen: u64, reader: u64) -> Option<MessageStreamEvent> {
        let mut changed = std::pin::pin!(self.changed.notified());
        loop {
            // From here on no change is missed.
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                if state.reader != reader {
                    return None;
                }
                state.read = state.read.max(seen);
                state.trim_events();
                let seq = state.first.max(seen + 1);
                let at = usize::try_from(seq - state.first).unwrap_or(usize::MAX);
                if let Some(text) = state.events.get(at) {
                    let is_last = state.closed && at + 1 == state.events.len();
                    let text = text.clone();
                    return Some(MessageStreamEvent { seq, text, is_last });
                }
                if state.closed {
                    return None;
                }
            }
            changed.as_mut().await;
            changed.set(self.changed.notified());
        }
    }

    /// The first thing told, by whoever needs just one answer.
    pub(super) async fn wait_for_answer(&self) -> Option<Bytes> {
        let reader = self.take_over();
        let mut seen = 0;
        while let Some(told) = self.next_event(seen, reader).await {
            if told.is_last {
                return Some(told.text);
            }
            seen = told.seq;
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, MessageStreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_STREAM_GENERAL_BYTES, MAX_STREAM_UNREAD_EVENTS, MessageStream};
    use bytes::Bytes;

    #[tokio::test]
    async fn what_was_told_is_told_again_from_anywhere_to_the_end() {
        let stream = MessageStream::of_answers(1, 1);
        let reader = stream.take_over();
        stream.push_event("a".into());
        stream.push_answer("b".into());
        stream.push_event("late".into());
        let first = stream.next_event(0, reader).await.unwrap();
        assert_eq!((first.seq, first.is_last), (1, false));
        let again = stream.take_over();
        assert!(stream.next_event(1, reader).await.is_none());
        let last = stream.next_event(1, again).await.unwrap();
        assert_eq!((&last.text[..], last.is_last), (&b"b"[..], true));
        assert!(stream.next_event(2, again).await.is_none());
        assert_eq!(stream.wait_for_answer().await.unwrap(), "b");
    }

    #[tokio::test]
    async fn a_flood_drops_the_oldest_and_never_the_answer() {
        let stream = MessageStream::of_answers(1, 1);
        let reader = stream.take_over();
        for _ in 0..MAX_STREAM_UNREAD_EVENTS * 2 {
            stream.push_event(Bytes::from_static(b"x"));
        }
        stream.push_answer("end".into());
        let first = stream.next_event(0, reader).await.unwrap();
        assert_eq!(first.seq as usize, MAX_STREAM_UNREAD_EVENTS + 2);
        assert_eq!(stream.wait_for_answer().await.unwrap(), "end");
        // Nobody may ever listen to what belongs to no call.
        let general = MessageStream::general(2);
        for _ in 0..10 {
            general.push_event(vec![b'x'; MAX_STREAM_GENERAL_BYTES / 2].into());
        }
        assert!(general.kept_bytes() <= MAX_STREAM_GENERAL_BYTES);
    }

    #[tokio::test]
    async fn a_stream_is_over_when_its_end_was_read() {
        let stream = MessageStream::of_answers(1, 1);
        stream.push_event("a".into());
        assert!(!stream.is_over(1));
        stream.push_answer("b".into());
        assert!(!stream.is_over(1) && stream.is_over(2));
        let cancelled = MessageStream::of_answers(1, 1);
        cancelled.give_up();
        assert!(cancelled.is_over(0));
    }

    #[test]
    fn a_stream_without_an_end_that_retires_brings_what_is_on_its_way() {
        let stream = MessageStream::endless(1);
        stream.expect_answer();
        stream.expect_answer();
        stream.push_answer("a".into());
        stream.drain();
        assert!(!stream.is_closed());
        stream.push_answer("b".into());
        assert!(stream.is_closed());
        let idle = MessageStream::endless(2);
        idle.push_answer("not asked for".into());
        idle.drain();
        assert!(idle.is_closed());
    }

    #[tokio::test]
    async fn a_reader_waits_and_is_woken() {
        let stream = std::sync::Arc::new(MessageStream::endless(1));
        let reader = stream.take_over();
        let other = stream.clone();
        let waiting = tokio::spawn(async move { other.next_event(0, reader).await });
        tokio::task::yield_now().await;
        stream.push_answer("x".into());
        assert!(!waiting.await.unwrap().unwrap().is_last);
        assert!(!stream.is_closed());
    }
}
