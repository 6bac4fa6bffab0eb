//! Follower: reads a run's events as they occur, from a given number on, at the reader's own pace.

use super::RunKind;
use super::event_buffer::{EventChunk, EventGap};
use super::run::{RunSignal, TrackedRun, complete_character_length, read_output};
use crate::protocol::kernel::{OutputStream, RunEvent, RunEventKind, RunStatus};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Number of events after which a follower gets events in batches, at most one in each interval.
const UNBATCHED_EVENT_COUNT: u64 = 2_000;
const FOLLOWER_BATCH_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum number of batches in one read without a live follower.
const MAX_FOLLOWER_BATCHES: usize = 4;

/// Reader of a run's events at its own pace.
#[derive(Debug)]
pub(crate) struct RunFollower<W: RunKind> {
    run: Arc<TrackedRun<W>>,
    next_number: u64,
    signal: watch::Receiver<RunSignal>,
    is_done: bool,
    /// Bytes of each stream that were delivered; `None` until the position is known.
    stream_positions: Option<[u64; 2]>,
    /// Whether the code waits for this follower.
    is_pacing: bool,
}

impl<W: RunKind> RunFollower<W> {
    pub(super) fn new(
        run: Arc<TrackedRun<W>>,
        signal: watch::Receiver<RunSignal>,
        from: u64,
    ) -> Self {
        Self {
            run,
            next_number: from,
            signal,
            is_done: false,
            stream_positions: (from == 0).then_some([0; 2]),
            is_pacing: false,
        }
    }

    /// Lets this follower set the pace: the code waits before its unread output exceeds the memory.
    pub(super) fn with_pacing(mut self) -> Self {
        // Only one follower sets the pace: the first that claims it.
        self.is_pacing = self.run.claim_pacing();
        self
    }

    /// Returns the events since the last call, or waits for the next one. The last event is `done`; after it, the
    /// result is empty. Cancel-safe.
    pub(crate) async fn next_events(
        &mut self,
        running: impl Fn() -> W::Report,
    ) -> Vec<RunEvent<W::Reply>> {
        let (mut ends, first) = self.find_position();
        if self.is_pacing {
            // The events of the last call have been read.
            self.run.set_pacing_bytes_read(Some(ends.iter().sum()));
        }
        if let Some(first) = first {
            return vec![self.gap_event(ends, first)];
        }
        while !self.is_done {
            let status = self.signal.borrow_and_update().status;
            let missed = self
                .run
                .lock_state()
                .events
                .find_gap(self.next_number, ends);
            if let Some(missed) = missed {
                return vec![self.gap_text_event(missed, ends).await];
            }
            let handed = self.run.lock_state().events.take_chunks(self.next_number);
            if !handed.is_empty() {
                for (_, handed) in &handed {
                    if let EventChunk::Text { stream, end, .. } = handed {
                        ends[*stream as usize] = *end;
                    }
                }
                let events = chunks_to_events(handed).await;
                self.stream_positions = Some(ends);
                self.next_number = events.last().map_or(self.next_number, |e| e.seq + 1);
                return events;
            }
            if status != RunStatus::Running {
                self.is_done = true;
                let reply = Box::new(self.run.build_reply(running()));
                return vec![RunEvent {
                    seq: self.next_number,
                    happened: RunEventKind::Done { reply },
                }];
            }
            if self.next_number > UNBATCHED_EVENT_COUNT && !self.is_pacing {
                // In the interval, entries grow instead of becoming more.
                tokio::time::sleep(FOLLOWER_BATCH_INTERVAL).await;
            }
            // The channel stays open, because the run holds the sender.
            let _ = self.signal.changed().await;
        }
        Vec::new()
    }

    /// Bytes of each stream before this follower's position. If the follower starts before the oldest kept event and
    /// the position is unknown, also returns the number of that event.
    fn find_position(&mut self) -> ([u64; 2], Option<u64>) {
        if let Some(ends) = self.stream_positions {
            return (ends, None);
        }
        let record = self.run.lock_state();
        let first = record.events.first_number();
        let ends = record.events.positions_before(self.next_number.max(first));
        if self.next_number < first {
            return (ends, Some(first));
        }
        self.stream_positions = Some(ends);
        (ends, None)
    }

    /// The notice that replaces the events between the follower's start and the oldest kept event.
    fn gap_event(&mut self, ends: [u64; 2], first: u64) -> RunEvent<W::Reply> {
        let (from, last) = (self.next_number, first - 1);
        let text = format!(
            "\n… events {from} to {last} were dropped; read their text at `{}/{}/output` …\n",
            W::RUN_API_PATH,
            self.run.id,
        );
        (self.stream_positions, self.next_number) = (Some(ends), first);
        RunEvent {
            seq: last,
            happened: OutputText { text, base64: None }.into_event(OutputStream::Stderr),
        }
    }

    /// An event with the text of dropped entries. Its number is the number of a dropped entry.
    async fn gap_text_event(&mut self, missed: EventGap, mut ends: [u64; 2]) -> RunEvent<W::Reply> {
        let EventGap {
            stream,
            end,
            pieces,
            is_complete,
        } = missed;
        let bytes = read_output(pieces).await;
        let (text, cut) = decode_output_text(bytes, is_complete);
        let seq = self.next_number;
        ends[stream as usize] = end - cut;
        self.stream_positions = Some(ends);
        let first = self.run.lock_state().events.first_number();
        self.next_number = first.saturating_sub(1).min(seq + 1);
        RunEvent {
            seq,
            happened: text.into_event(stream),
        }
    }

    /// Heartbeat: the run continues, and the connection is open.
    pub(crate) fn heartbeat_event(&self) -> RunEvent<W::Reply> {
        RunEvent {
            seq: self.next_number,
            happened: RunEventKind::Heartbeat,
        }
    }

    /// Reads all events up to now, including `done`; of a long run only the next few MiB.
    pub(crate) async fn read_available(
        &mut self,
        running: impl Fn() -> W::Report,
    ) -> Vec<RunEvent<W::Reply>> {
        let mut events = Vec::new();
        for _ in 0..MAX_FOLLOWER_BATCHES {
            let status = self.run.status();
            if status == RunStatus::Running
                && self.next_number >= self.run.lock_state().events.next_number()
            {
                return events;
            }
            let more = self.next_events(&running).await;
            if more.is_empty() {
                return events;
            }
            events.extend(more);
        }
        events
    }
}

impl<W: RunKind> Drop for RunFollower<W> {
    fn drop(&mut self) {
        if self.is_pacing {
            self.run.set_pacing_bytes_read(None);
        }
    }
}

async fn chunks_to_events<R>(handed: Vec<(u64, EventChunk<R>)>) -> Vec<RunEvent<R>> {
    let mut events = Vec::with_capacity(handed.len());
    for (seq, handed) in handed {
        let happened = match handed {
            EventChunk::Other(happened) => happened,
            EventChunk::Text { stream, pieces, .. } => {
                let (text, _) = decode_output_text(read_output(pieces).await, true);
                text.into_event(stream)
            }
        };
        events.push(RunEvent { seq, happened });
    }
    events
}

/// Text, and the original bytes if they are not UTF-8.
struct OutputText {
    text: String,
    base64: Option<String>,
}

impl OutputText {
    fn into_event<R>(self, stream: OutputStream) -> RunEventKind<R> {
        let Self { text, base64 } = self;
        match stream {
            OutputStream::Stdout => RunEventKind::Stdout { text, base64 },
            OutputStream::Stderr => RunEventKind::Stderr { text, base64 },
        }
    }
}

/// Decodes the read bytes. Returns the text, and the number of bytes of an incomplete character, which are delivered
/// later.
fn decode_output_text(read: io::Result<Vec<u8>>, is_whole: bool) -> (OutputText, u64) {
    let mut bytes = match read {
        Ok(bytes) => bytes,
        Err(error) => {
            let text = format!("\n… this output can't be read: {error} …\n");
            return (OutputText { text, base64: None }, 0);
        }
    };
    let whole = complete_character_length(&bytes, is_whole);
    let cut = (bytes.len() - whole) as u64;
    bytes.truncate(whole);
    let text = match String::from_utf8(bytes) {
        Ok(text) => OutputText { text, base64: None },
        Err(error) => OutputText {
            text: String::from_utf8_lossy(error.as_bytes()).into_owned(),
            base64: Some(STANDARD.encode(error.as_bytes())),
        },
    };
    (text, cut)
}
