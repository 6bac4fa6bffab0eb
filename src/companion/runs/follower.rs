//! Reading a run's events as they come, from any number on, at the reader's own pace.

use super::Work;
use super::journal::Handed;
use super::run::{Pulse, Run, read};
use crate::protocol::kernel::{Event, Happened, RunStatus, Stream};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
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
    /// Bytes of each stream that were handed out.
    ends: [u64; 2],
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
            ends: [0; 2],
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
        if self.is_pacing {
            // What was handed out before has been read.
            self.run.paced(Some(self.ends.iter().sum()));
        }
        while !self.is_done {
            let status = self.pulse.borrow_and_update().status;
            let handed = self.run.record().journal.hand(self.next);
            if !handed.is_empty() {
                for (_, handed) in &handed {
                    if let Handed::Text { stream, end, .. } = handed {
                        self.ends[*stream as usize] = *end;
                    }
                }
                let events = told(handed).await;
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
                let (text, base64) = match read(pieces).await {
                    Ok(bytes) => exact(bytes),
                    Err(error) => {
                        let text = format!("\n… output that can't be read any more: {error} …\n");
                        (text, None)
                    }
                };
                match stream {
                    Stream::Stdout => Happened::Stdout { text, base64 },
                    Stream::Stderr => Happened::Stderr { text, base64 },
                }
            }
        };
        events.push(Event { seq, happened });
    }
    events
}

/// The text, and the very bytes where they are not UTF-8.
fn exact(bytes: Vec<u8>) -> (String, Option<String>) {
    String::from_utf8(bytes).map_or_else(
        |error| {
            let bytes = error.as_bytes();
            let text = String::from_utf8_lossy(bytes).into_owned();
            (text, Some(STANDARD.encode(bytes)))
        },
        |text| (text, None),
    )
}
