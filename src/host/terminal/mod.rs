//! A terminal inside, from the host: its connection may break, the terminal does not.
//!
//! ```text
//!   connecting ── hello ──▶ open ── exit ──▶ the end
//!      ▲   │ refused for good     │
//!      │   └────▶ the end         │ lost
//!   waiting ◀─────────────────────┘
//! ```
//!
//! Output is asked for again from the byte behind the last one that came; what was typed is sent
//! again from the byte behind the last one that arrived ([`typed`]).

mod link;
mod typed;

use super::client::Client;
use crate::error::{Error, Result};
use crate::protocol::hex::hex;
use crate::protocol::pty::{Attach, FromTerminal, ToTerminal, Why};
use bytes::Bytes;
use link::{Frame, Link};
use std::future::pending;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use typed::Typed;

/// Between two attempts to connect again, the first and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// After which a port at which nobody listens is no restart any more.
const GONE: Duration = Duration::from_secs(30);
/// Bytes shown, after which that is told.
const TELL: u64 = 32 << 10;

#[derive(Debug)]
pub(crate) struct Terminal {
    client: Client,
    attach: Attach,
    state: State,
    typed: Typed,
    /// Offset of the next byte of output.
    offset: u64,
    /// Bytes of output that were shown, as told last.
    told: u64,
    /// Since when nobody answers.
    lost: Option<Instant>,
    pause: Duration,
}

#[derive(Debug)]
enum State {
    Waiting(Instant),
    Connecting(JoinHandle<Result<Link>>),
    /// Connected; not greeted yet.
    Silent(Link),
    Open(Link),
    Ended,
}

/// What happens at the other end.
#[derive(Debug)]
pub(crate) enum Event {
    /// Connected, for the first time or again. `given_up`: bytes typed that may not have arrived.
    Open {
        writer: bool,
        given_up: u64,
    },
    /// Not connected any more, and trying to be.
    Lost,
    Output(Bytes),
    /// So many bytes of output are skipped here.
    Skipped(u64),
    Writer(bool),
    /// Keys were not typed, because another one writes.
    Ignored,
    Exit(u8, Why),
}

impl Terminal {
    /// Connects for the first time.
    ///
    /// # Errors
    /// When the companion can't be reached, or refuses.
    pub(crate) async fn open(client: Client, mut attach: Attach) -> Result<Self> {
        let mut name = [0u8; 8];
        getrandom::fill(&mut name).map_err(|e| anyhow::anyhow!("no randomness: {e}"))?;
        attach.client = Some(hex(name));
        let link = Link::open(&client, &attach).await?;
        // What was taken once is taken from nobody again by connecting again.
        attach.take = false;
        Ok(Self {
            client,
            attach,
            state: State::Silent(link),
            typed: Typed::default(),
            offset: 0,
            told: 0,
            lost: None,
            pause: PAUSE,
        })
    }

    /// Its id, once it is known.
    pub(crate) fn id(&self) -> Option<&str> {
        self.attach.id.as_deref()
    }

    /// What happens next; after the exit nothing does. Loses nothing when dropped.
    ///
    /// # Errors
    /// When the terminal is gone for good.
    pub(crate) async fn next(&mut self) -> Result<Event> {
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    sleep_until(*until).await;
                    let (client, attach) = (self.client.clone(), self.attach.clone());
                    let attempt = async move { Link::open(&client, &attach).await };
                    let attempt = tokio::spawn(async move {
                        let late = || anyhow::Error::from(Error::Interrupted);
                        timeout(ATTEMPT, attempt).await.map_err(|_| late())?
                    });
                    self.state = State::Connecting(attempt);
                }
                State::Connecting(attempt) => match attempt.await? {
                    Ok(link) => self.state = State::Silent(link),
                    Err(error) => self.retry(error)?,
                },
                State::Silent(link) | State::Open(link) => {
                    let event = match link.next().await {
                        Some(Frame::Output(bytes)) => {
                            self.offset = self.offset.saturating_add(bytes.len() as u64);
                            self.attach.since = Some(self.offset);
                            Some(Event::Output(bytes))
                        }
                        Some(Frame::Word(word)) => self.hear(word),
                        None => self.lose(),
                    };
                    if let Some(event) = event {
                        return Ok(event);
                    }
                }
                State::Ended => pending().await,
            }
        }
    }

    fn hear(&mut self, word: FromTerminal) -> Option<Event> {
        match word {
            FromTerminal::Hello {
                id,
                offset,
                typed,
                writer,
                ..
            } => {
                let given_up = self.typed.again(typed);
                let skipped = offset.saturating_sub(self.offset);
                tracing::debug!(id, offset, ?typed, writer, skipped, "greeted");
                self.attach.id = Some(id);
                (self.offset, self.attach.since) = (offset, Some(offset));
                (self.lost, self.pause) = (None, PAUSE);
                let before = std::mem::replace(&mut self.state, State::Ended);
                if let State::Silent(link) = before {
                    link.say(&ToTerminal::Seen { offset: self.told });
                    self.state = State::Open(link);
                }
                self.send();
                Some(Event::Open { writer, given_up })
            }
            FromTerminal::Screen { text } => Some(Event::Output(text.into())),
            FromTerminal::Lost { bytes } => {
                self.offset = self.offset.saturating_add(bytes);
                self.attach.since = Some(self.offset);
                Some(Event::Skipped(bytes))
            }
            FromTerminal::Typed { offset } => {
                self.typed.arrived(offset);
                self.send();
                None
            }
            FromTerminal::Writer { held } => Some(Event::Writer(held)),
            FromTerminal::Ignored { .. } => Some(Event::Ignored),
            FromTerminal::Exit { code, why } => {
                self.state = State::Ended;
                Some(Event::Exit(code, why))
            }
            // The window is the person's.
            FromTerminal::Resize { .. } => None,
        }
    }

    fn lose(&mut self) -> Option<Event> {
        if self.lost.is_none() {
            self.lost = Some(Instant::now());
            self.state = State::Waiting(Instant::now());
            return Some(Event::Lost);
        }
        self.wait();
        None
    }

    /// Waits and tries again, unless that is of no use.
    fn retry(&mut self, error: anyhow::Error) -> Result<()> {
        let since = *self.lost.get_or_insert_with(Instant::now);
        tracing::debug!("not connected: {error:#}");
        match error.downcast_ref::<Error>() {
            Some(Error::Refused { kind, .. }) if kind == "unknown_terminal" => {
                return Err(Error::TerminalGone {
                    id: self.attach.id.clone().unwrap_or_default(),
                }
                .into());
            }
            Some(Error::Refused { status: 503, .. }) => {}
            Some(Error::NotRunning { .. }) if since.elapsed() < GONE => {}
            Some(Error::Unreachable { .. } | Error::Interrupted) => {}
            _ => return Err(error),
        }
        self.wait();
        Ok(())
    }

    fn wait(&mut self) {
        self.state = State::Waiting(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST);
    }

    /// Whether more can be typed.
    pub(crate) fn has_room(&self) -> bool {
        self.typed.has_room()
    }

    pub(crate) fn type_keys(&mut self, keys: &[u8]) {
        self.typed.push(keys);
        self.send();
    }

    fn send(&mut self) {
        if let State::Open(link) = &self.state {
            while link.is_free()
                && let Some(due) = self.typed.due()
            {
                link.keys(due);
            }
        }
    }

    pub(crate) fn resize(&mut self, cols: u16, rows: u16) {
        (self.attach.cols, self.attach.rows) = (cols, rows);
        self.say(&ToTerminal::Resize { cols, rows });
    }

    /// Lets the program that has the screen draw it again.
    pub(crate) fn repaint(&self) {
        self.say(&ToTerminal::Repaint {});
    }

    /// All but the last `unshown` bytes that came were shown.
    pub(crate) fn shown(&mut self, unshown: u64) {
        // The screen that it began with waits to be shown, too, and has no offset.
        let seen = self.offset.saturating_sub(unshown);
        if seen.saturating_sub(self.told) >= TELL {
            self.told = seen;
            self.say(&ToTerminal::Seen { offset: seen });
        }
    }

    fn say(&self, word: &ToTerminal) {
        if let State::Open(link) = &self.state {
            link.say(word);
        }
    }

    /// Leaves the terminal as it is.
    pub(crate) async fn leave(self) {
        match self.state {
            State::Open(link) | State::Silent(link) => link.leave().await,
            State::Connecting(attempt) => attempt.abort(),
            State::Waiting(_) | State::Ended => {}
        }
    }
}
