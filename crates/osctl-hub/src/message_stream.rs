//! A stream of messages to one client. It keeps messages for a while, so that a client that lost its connection can
//! resume at its last event.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::Notify;

/// Limits of kept messages that were read already; a client may resume before them.
const MAX_STREAM_READ_EVENTS: usize = 1024;
const MAX_STREAM_READ_BYTES: usize = 8 << 20;
/// Limits of all kept messages while unread; beyond them the oldest message is dropped.
const MAX_STREAM_UNREAD_EVENTS: usize = 16 << 10;
const MAX_STREAM_UNREAD_BYTES: usize = 256 << 20;
/// Limits of the general stream (messages that belong to no call), which a client may never read.
const MAX_STREAM_GENERAL_EVENTS: usize = 1024;
const MAX_STREAM_GENERAL_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct MessageStream {
    pub(super) number: u64,
    /// The raw ids of the requests that the stream answers, as a JSON array; empty where the ids are not known.
    pub(super) request_ids: String,
    state: Mutex<MessageStreamState>,
    changed: Notify,
}

#[derive(Debug)]
struct MessageStreamState {
    events: VecDeque<Bytes>,
    /// The number of the first kept event; events count from 1.
    first_seq: u64,
    buffered_bytes: usize,
    /// The last event that a reader has received.
    last_read_seq: u64,
    /// The number of answers that have not arrived.
    pending_answers: usize,
    /// Whether the stream ends with the last answer.
    ends_after_answers: bool,
    closed: bool,
    /// The number of the current reader. A new reader ends the earlier ones.
    reader: u64,
    /// The most messages and bytes that are kept unread.
    unread_limits: (usize, usize),
    /// Whether the last sweep found the stream fully read.
    was_fully_read: bool,
}

impl MessageStreamState {
    fn count_answer(&mut self) {
        self.pending_answers = self.pending_answers.saturating_sub(1);
        self.closed |= self.ends_after_answers && self.pending_answers == 0;
    }

    fn trim_events(&mut self) {
        loop {
            let (count, bytes) = (self.events.len(), self.buffered_bytes);
            let is_much = count > MAX_STREAM_READ_EVENTS || bytes > MAX_STREAM_READ_BYTES;
            let is_too_much = count > self.unread_limits.0 || bytes > self.unread_limits.1;
            let is_read = self.first_seq <= self.last_read_seq;
            if count < 2 || !(is_too_much || (is_much && is_read)) {
                return;
            }
            self.first_seq += 1;
            self.buffered_bytes -= self.events.pop_front().map_or(0, |removed| removed.len());
        }
    }
}

/// An event for a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MessageStreamEvent {
    pub(super) seq: u64,
    pub(super) text: Bytes,
    /// No event follows.
    pub(super) is_last: bool,
}

impl MessageStream {
    /// A stream that ends after `count` answers.
    pub(super) fn of_answers(number: u64, count: usize) -> Self {
        Self::new(
            number,
            Some(count),
            (MAX_STREAM_UNREAD_EVENTS, MAX_STREAM_UNREAD_BYTES),
        )
    }

    /// A stream that ends after the answers to these requests.
    pub(super) fn of_requests(number: u64, ids: &[&str]) -> Self {
        let mut stream = Self::of_answers(number, ids.len());
        stream.request_ids = format!("[{}]", ids.join(","));
        stream
    }

    /// A stream without an end for all messages, answers included.
    pub(super) fn endless(number: u64) -> Self {
        Self::new(
            number,
            None,
            (MAX_STREAM_UNREAD_EVENTS, MAX_STREAM_UNREAD_BYTES),
        )
    }

    /// A stream without an end for messages that belong to no call.
    pub(super) fn general(number: u64) -> Self {
        Self::new(
            number,
            None,
            (MAX_STREAM_GENERAL_EVENTS, MAX_STREAM_GENERAL_BYTES),
        )
    }

    fn new(number: u64, missing: Option<usize>, unread_limits: (usize, usize)) -> Self {
        Self {
            number,
            request_ids: String::new(),
            state: Mutex::new(MessageStreamState {
                events: VecDeque::new(),
                first_seq: 1,
                buffered_bytes: 0,
                last_read_seq: 0,
                pending_answers: missing.unwrap_or(0),
                ends_after_answers: missing.is_some(),
                closed: missing == Some(0),
                reader: 0,
                unread_limits,
                was_fully_read: false,
            }),
            changed: Notify::new(),
        }
    }

    /// Adds a message that is not an answer.
    pub(super) fn push_event(&self, text: Bytes) {
        self.push_text(text, false);
    }

    /// Adds an answer. The last answer ends the stream.
    pub(super) fn push_answer(&self, text: Bytes) {
        self.push_text(text, true);
    }

    fn push_text(&self, text: Bytes, is_answer: bool) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        state.buffered_bytes += text.len();
        state.events.push_back(text);
        if is_answer {
            state.count_answer();
        }
        state.trim_events();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Expects one answer less, as when a call is cancelled.
    pub(super) fn skip_answer(&self) {
        self.state.lock().count_answer();
        self.changed.notify_waiters();
    }

    /// Expects one answer more, on a stream without an end.
    pub(super) fn expect_answer(&self) {
        self.state.lock().pending_answers += 1;
    }

    /// Ends the stream after the answers that have not arrived yet.
    pub(super) fn drain(&self) {
        let mut state = self.state.lock();
        state.ends_after_answers = true;
        state.closed |= state.pending_answers == 0;
        drop(state);
        self.changed.notify_waiters();
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// Whether the stream has ended and its reader has received everything.
    pub(super) fn is_fully_read(&self) -> bool {
        let read = self.state.lock().last_read_seq;
        self.is_exhausted_after(read)
    }

    /// Records whether the stream is fully read. Returns whether the previous sweep found it fully read: its client
    /// then had time to resume it.
    pub(super) fn mark_fully_read(&self) -> bool {
        let is_fully_read = self.is_fully_read();
        std::mem::replace(&mut self.state.lock().was_fully_read, is_fully_read)
    }

    /// Whether no event can follow event number `seen`.
    pub(super) fn is_exhausted_after(&self, seen: u64) -> bool {
        let state = self.state.lock();
        state.closed && state.first_seq + state.events.len() as u64 <= seen + 1
    }

    /// The size of the kept messages in bytes.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.state.lock().buffered_bytes
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Whether another reader has taken over from `reader`.
    pub(super) fn has_newer_reader(&self, reader: u64) -> bool {
        self.state.lock().reader != reader
    }

    /// Becomes the reader and ends the previous one. Returns the number of this reader.
    pub(super) fn attach_reader(&self) -> u64 {
        let mut state = self.state.lock();
        state.reader += 1;
        let reader = state.reader;
        drop(state);
        self.changed.notify_waiters();
        reader
    }

    /// Waits for the event after number `seen`; `None` at the end, or when another reader took over. Cancel-safe: a
    /// dropped call loses no event.
    pub(super) async fn next_event(&self, seen: u64, reader: u64) -> Option<MessageStreamEvent> {
        let mut changed = std::pin::pin!(self.changed.notified());
        loop {
            // From here on every change wakes this task.
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.reader != reader {
                    return None;
                }
                state.last_read_seq = state.last_read_seq.max(seen);
                state.trim_events();
                let seq = state.first_seq.max(seen + 1);
                let at = usize::try_from(seq - state.first_seq).unwrap_or(usize::MAX);
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

    /// Waits for the last message, for a caller that needs one answer only.
    pub(super) async fn wait_for_answer(&self) -> Option<Bytes> {
        let reader = self.attach_reader();
        let mut seen = 0;
        while let Some(event) = self.next_event(seen, reader).await {
            if event.is_last {
                return Some(event.text);
            }
            seen = event.seq;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_STREAM_GENERAL_BYTES, MAX_STREAM_UNREAD_EVENTS, MessageStream};
    use bytes::Bytes;

    #[tokio::test]
    async fn kept_events_are_replayed_from_any_event_to_the_end() {
        let stream = MessageStream::of_answers(1, 1);
        let reader = stream.attach_reader();
        stream.push_event("a".into());
        stream.push_answer("b".into());
        stream.push_event("late".into());
        let first = stream.next_event(0, reader).await.unwrap();
        assert_eq!((first.seq, first.is_last), (1, false));
        let again = stream.attach_reader();
        assert!(stream.next_event(1, reader).await.is_none());
        let last = stream.next_event(1, again).await.unwrap();
        assert_eq!((&last.text[..], last.is_last), (&b"b"[..], true));
        assert!(stream.next_event(2, again).await.is_none());
        assert_eq!(stream.wait_for_answer().await.unwrap(), "b");
    }

    #[tokio::test]
    async fn a_flood_drops_the_oldest_and_never_the_answer() {
        let stream = MessageStream::of_answers(1, 1);
        let reader = stream.attach_reader();
        for _ in 0..MAX_STREAM_UNREAD_EVENTS * 2 {
            stream.push_event(Bytes::from_static(b"x"));
        }
        stream.push_answer("end".into());
        let first = stream.next_event(0, reader).await.unwrap();
        assert_eq!(first.seq as usize, MAX_STREAM_UNREAD_EVENTS + 2);
        assert_eq!(stream.wait_for_answer().await.unwrap(), "end");
        // A client may never read the general stream.
        let general = MessageStream::general(2);
        for _ in 0..10 {
            general.push_event(vec![b'x'; MAX_STREAM_GENERAL_BYTES / 2].into());
        }
        assert!(general.buffered_bytes() <= MAX_STREAM_GENERAL_BYTES);
    }

    #[tokio::test]
    async fn a_stream_is_exhausted_after_its_last_event_is_read() {
        let stream = MessageStream::of_answers(1, 1);
        stream.push_event("a".into());
        assert!(!stream.is_exhausted_after(1));
        stream.push_answer("b".into());
        assert!(!stream.is_exhausted_after(1) && stream.is_exhausted_after(2));
        let cancelled = MessageStream::of_answers(1, 1);
        cancelled.skip_answer();
        assert!(cancelled.is_exhausted_after(0));
    }

    #[test]
    fn drained_stream_delivers_pending() {
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
    async fn a_waiting_reader_gets_the_next_event() {
        let stream = std::sync::Arc::new(MessageStream::endless(1));
        let reader = stream.attach_reader();
        let other = stream.clone();
        let waiting = tokio::spawn(async move { other.next_event(0, reader).await });
        tokio::task::yield_now().await;
        stream.push_answer("x".into());
        assert!(!waiting.await.unwrap().unwrap().is_last);
        assert!(!stream.is_closed());
    }
}
