//! Reading a run's events as they come, from any number on, at the reader's own pace.

use super::Work;
use super::journal::{Handed, Missed};
use super::run::{Pulse, Run, read, whole_characters};
use crate::protocol::kernel::{Event, Happened, RunStatus, Stream};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Events after which a follower is told of news in batches, at most so often.
const PROMPT: u64 = 2_000;
const BATCHED: Duration = Duration::from_millis(5);

/// Batches of the journal that are brought at once where nobody reads them one by one.
const BATCHES: usize = 4;

/// Somebody who reads a run's events as they come, at their own pace.
#[derive(Debug)]
pub(crate) struct Follower<W: Work> {
    run: Arc<Run<W>>,
    next: u64,
    pulse: watch::Receiver<Pulse>,
    is_done: bool,
    /// Bytes of each stream that were handed out, once that is known.
    ends: Option<[u64; 2]>,
    /// Whether the work waits for this one.
    is_pacing: bool,
}

impl<W: Work> Follower<W> {
    pub(super) fn new(run: Arc<Run<W>>, pulse: watch::Receiver<Pulse>, from: u64) -> Self {
        Self {
            run,
            next: from,
            pulse,
            is_done: false,
            ends: (from == 0).then_some([0; 2]),
            is_pacing: false,
        }
    }

    /// The work does not get further ahead of this one than memory reaches.
    pub(super) fn pacing(mut self) -> Self {
        // One sets the pace, whoever came first.
        self.is_pacing = self.run.take_pace();
        self
    }

    /// What happened since the last call, at once or when something does; ends with `done`, after
    /// which there is nothing. Loses nothing when dropped.
    pub(crate) async fn next(&mut self, running: impl Fn() -> W::Report) -> Vec<Event<W::Reply>> {
        let (mut ends, first) = self.stand();
        if self.is_pacing {
            // What was handed out before has been read.
            self.run.paced(Some(ends.iter().sum()));
        }
        if let Some(first) = first {
            return vec![self.gap(ends, first)];
        }
        while !self.is_done {
            let status = self.pulse.borrow_and_update().status;
            let missed = self.run.record().journal.missed(self.next, ends);
            if let Some(missed) = missed {
                return vec![self.told_of(missed, ends).await];
            }
            let handed = self.run.record().journal.hand(self.next);
            if !handed.is_empty() {
                for (_, handed) in &handed {
                    if let Handed::Text { stream, end, .. } = handed {
                        ends[*stream as usize] = *end;
                    }
                }
                let events = told(handed).await;
                self.ends = Some(ends);
                self.next = events.last().map_or(self.next, |e| e.seq + 1);
                return events;
            }
            if status != RunStatus::Running {
                self.is_done = true;
                let reply = Box::new(self.run.reply(running()));
                return vec![Event {
                    seq: self.next,
                    happened: Happened::Done { reply },
                }];
            }
            if self.next > PROMPT && !self.is_pacing {
                // So that entries grow meanwhile, instead of becoming more.
                tokio::time::sleep(BATCHED).await;
            }
            // It can't close while the run holds the sender.
            let _ = self.pulse.changed().await;
        }
        Vec::new()
    }

    /// How many bytes of each stream are behind this one; and the first event that is kept, when
    /// this one wants to begin before it and nobody knows any more where that is.
    fn stand(&mut self) -> ([u64; 2], Option<u64>) {
        if let Some(ends) = self.ends {
            return (ends, None);
        }
        let record = self.run.record();
        let first = record.journal.first();
        let ends = record.journal.before(self.next.max(first));
        if self.next < first {
            return (ends, Some(first));
        }
        self.ends = Some(ends);
        (ends, None)
    }

    /// What is between where this one wanted to begin and the first event that is kept.
    fn gap(&mut self, ends: [u64; 2], first: u64) -> Event<W::Reply> {
        let (from, last) = (self.next, first - 1);
        let text = format!(
            "\n… events {from} to {last} are not kept any more; `{}/{}/output` pages through the text …\n",
            W::PLACE,
            self.run.id,
        );
        (self.ends, self.next) = (Some(ends), first);
        Event {
            seq: last,
            happened: Text { text, base64: None }.of(Stream::Stderr),
        }
    }

    /// Text of entries that are gone has one of their numbers.
    async fn told_of(&mut self, missed: Missed, mut ends: [u64; 2]) -> Event<W::Reply> {
        let Missed {
            stream,
            end,
            pieces,
            is_whole,
        } = missed;
        let bytes = read(pieces).await;
        let (text, cut) = text_of(bytes, is_whole);
        let seq = self.next;
        ends[stream as usize] = end - cut;
        self.ends = Some(ends);
        let first = self.run.record().journal.first();
        self.next = first.saturating_sub(1).min(seq + 1);
        Event {
            seq,
            happened: text.of(stream),
        }
    }

    /// What says that the run goes on and this connection with it.
    pub(crate) fn heartbeat(&self) -> Event<W::Reply> {
        Event {
            seq: self.next,
            happened: Happened::Heartbeat,
        }
    }

    /// What has happened up to now, `done` included; of a long run only the next few MiB.
    pub(crate) async fn rest(&mut self, running: impl Fn() -> W::Report) -> Vec<Event<W::Reply>> {
        let mut events = Vec::new();
        for _ in 0..BATCHES {
            let status = self.run.status();
            if status == RunStatus::Running && self.next >= self.run.record().journal.next() {
                return events;
            }
            let more = self.next(&running).await;
            if more.is_empty() {
                return events;
            }
            events.extend(more);
        }
        events
    }
}

impl<W: Work> Drop for Follower<W> {
    fn drop(&mut self) {
        if self.is_pacing {
            self.run.paced(None);
        }
    }
}

async fn told<R>(handed: Vec<(u64, Handed<R>)>) -> Vec<Event<R>> {
    let mut events = Vec::with_capacity(handed.len());
    for (seq, handed) in handed {
        let happened = match handed {
            Handed::Other(happened) => happened,
            Handed::Text { stream, pieces, .. } => {
                let (text, _) = text_of(read(pieces).await, true);
                text.of(stream)
            }
        };
        events.push(Event { seq, happened });
    }
    events
}

/// Text, and the very bytes where they are not UTF-8.
struct Text {
    text: String,
    base64: Option<String>,
}

impl Text {
    fn of<R>(self, stream: Stream) -> Happened<R> {
        let Self { text, base64 } = self;
        match stream {
            Stream::Stdout => Happened::Stdout { text, base64 },
            Stream::Stderr => Happened::Stderr { text, base64 },
        }
    }
}

/// What was read as text, and how many bytes of a character that goes on are left for later.
fn text_of(read: io::Result<Vec<u8>>, is_whole: bool) -> (Text, u64) {
    let mut bytes = match read {
        Ok(bytes) => bytes,
        Err(error) => {
            let text = format!("\n… output that can't be read any more: {error} …\n");
            return (Text { text, base64: None }, 0);
        }
    };
    let whole = whole_characters(&bytes, is_whole);
    let cut = (bytes.len() - whole) as u64;
    bytes.truncate(whole);
    let text = match String::from_utf8(bytes) {
        Ok(text) => Text { text, base64: None },
        Err(error) => Text {
            text: String::from_utf8_lossy(error.as_bytes()).into_owned(),
            base64: Some(STANDARD.encode(error.as_bytes())),
        },
    };
    (text, cut)
}
