//! A terminal in the container, from the host: it survives a lost connection.
//!
//! ```text
//!   connecting ── hello ──▶ open ── exit ──▶ the end
//!      ▲   │ refused for good     │
//!      │   └────▶ the end         │ lost
//!   waiting ◀─────────────────────┘
//! ```
//!
//! After a reconnect, the host requests output from the byte after the last one received, and sends typed bytes again
//! from the byte after the last one that arrived ([`key_buffer`]).

mod key_buffer;
mod socket;

use super::client::CompanionClient;
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::protocol::hex::hex;
use crate::protocol::pty::{AttachQuery, FromTerminal, TerminalEndReason, ToTerminal};
use bytes::Bytes;
use key_buffer::KeyBuffer;
use socket::{TerminalFrame, TerminalSocket};
use std::future::pending;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// The delays between two attempts to reconnect.
const TERMINAL_RECONNECT_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(2),
};
/// Time limit of one attempt.
const TERMINAL_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a port without a listener during a restart.
const TERMINAL_RESTART_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes shown between two acknowledgements.
const TERMINAL_ACK_BYTES: u64 = 32 << 10;

#[derive(Debug)]
pub(crate) struct TerminalClient {
    client: CompanionClient,
    attach: AttachQuery,
    state: TerminalClientState,
    key_buffer: KeyBuffer,
    /// Offset of the next byte of output.
    offset: u64,
    /// Bytes of output shown, as last acknowledged.
    acknowledged: u64,
    /// Since when the companion does not answer.
    lost_since: Option<Instant>,
    reconnect_attempts: u32,
}

#[derive(Debug)]
enum TerminalClientState {
    Waiting(Instant),
    Connecting(JoinHandle<Result<TerminalSocket>>),
    /// Connected; no hello received yet.
    AwaitingHello(TerminalSocket),
    Open(TerminalSocket),
    Ended,
}

/// An event of the terminal.
#[derive(Debug)]
pub(crate) enum TerminalEvent {
    /// Connected, for the first time or again. `dropped_bytes`: bytes typed that may not have arrived.
    Open {
        writer: bool,
        dropped_bytes: u64,
    },
    /// The connection is lost; the client reconnects.
    Lost,
    Output(Bytes),
    /// This number of bytes of output is skipped here.
    Skipped(u64),
    Writer(bool),
    /// Keys were ignored, because another client is the writer.
    Ignored,
    Exit(u8, TerminalEndReason),
}

impl TerminalClient {
    /// Connects for the first time.
    ///
    /// # Errors
    /// When the companion cannot be reached, or refuses.
    pub(crate) async fn open(client: CompanionClient, mut attach: AttachQuery) -> Result<Self> {
        let mut name = [0u8; 8];
        getrandom::fill(&mut name)
            .map_err(|e| anyhow::anyhow!("no random numbers available: {e}"))?;
        attach.client = Some(hex(name));
        let link = TerminalSocket::open(&client, &attach).await?;
        // Take over input once only; a reconnect must not take it from a later writer.
        attach.take = false;
        Ok(Self {
            client,
            attach,
            state: TerminalClientState::AwaitingHello(link),
            key_buffer: KeyBuffer::default(),
            offset: 0,
            acknowledged: 0,
            lost_since: None,
            reconnect_attempts: 0,
        })
    }

    /// The id of the terminal, once known.
    pub(crate) fn id(&self) -> Option<&str> {
        self.attach.id.as_deref()
    }

    /// The next event; pending forever after the exit. Cancel-safe.
    ///
    /// # Errors
    /// When the terminal no longer exists.
    pub(crate) async fn next(&mut self) -> Result<TerminalEvent> {
        loop {
            match &mut self.state {
                TerminalClientState::Waiting(until) => {
                    sleep_until(*until).await;
                    let (client, attach) = (self.client.clone(), self.attach.clone());
                    let attempt = async move { TerminalSocket::open(&client, &attach).await };
                    let attempt = tokio::spawn(async move {
                        let late = || anyhow::Error::from(Error::Interrupted);
                        timeout(TERMINAL_CONNECT_TIMEOUT, attempt)
                            .await
                            .map_err(|_| late())?
                    });
                    self.state = TerminalClientState::Connecting(attempt);
                }
                TerminalClientState::Connecting(attempt) => match attempt.await? {
                    Ok(link) => self.state = TerminalClientState::AwaitingHello(link),
                    Err(error) => self.retry_connect(error)?,
                },
                TerminalClientState::AwaitingHello(link) | TerminalClientState::Open(link) => {
                    let event = match link.next().await {
                        Some(TerminalFrame::Output(bytes)) => {
                            self.offset = self.offset.saturating_add(bytes.len() as u64);
                            self.attach.since = Some(self.offset);
                            Some(TerminalEvent::Output(bytes))
                        }
                        Some(TerminalFrame::Message(word)) => self.handle_message(word),
                        None => self.connection_lost(),
                    };
                    if let Some(event) = event {
                        return Ok(event);
                    }
                }
                TerminalClientState::Ended => pending().await,
            }
        }
    }

    fn handle_message(&mut self, word: FromTerminal) -> Option<TerminalEvent> {
        match word {
            FromTerminal::Hello {
                id,
                offset,
                typed,
                writer,
                ..
            } => {
                let dropped_bytes = self.key_buffer.rewind(typed);
                let skipped = offset.saturating_sub(self.offset);
                tracing::debug!(
                    id,
                    offset,
                    ?typed,
                    writer,
                    skipped,
                    "the terminal sent its state"
                );
                self.attach.id = Some(id);
                (self.offset, self.attach.since) = (offset, Some(offset));
                (self.lost_since, self.reconnect_attempts) = (None, 0);
                let before = std::mem::replace(&mut self.state, TerminalClientState::Ended);
                if let TerminalClientState::AwaitingHello(link) = before {
                    link.send_message(&ToTerminal::Seen {
                        offset: self.acknowledged,
                    });
                    self.state = TerminalClientState::Open(link);
                }
                self.send_typed();
                Some(TerminalEvent::Open {
                    writer,
                    dropped_bytes,
                })
            }
            FromTerminal::Screen { text } => Some(TerminalEvent::Output(text.into())),
            FromTerminal::Lost { bytes } => {
                self.offset = self.offset.saturating_add(bytes);
                self.attach.since = Some(self.offset);
                Some(TerminalEvent::Skipped(bytes))
            }
            FromTerminal::Typed { offset } => {
                self.key_buffer.acknowledge(offset);
                self.send_typed();
                None
            }
            FromTerminal::Writer { held } => Some(TerminalEvent::Writer(held)),
            FromTerminal::Ignored { .. } => Some(TerminalEvent::Ignored),
            FromTerminal::Exit { code, why } => {
                self.state = TerminalClientState::Ended;
                Some(TerminalEvent::Exit(code, why))
            }
            // The size of the window belongs to the person.
            FromTerminal::Resize { .. } => None,
        }
    }

    fn connection_lost(&mut self) -> Option<TerminalEvent> {
        if self.lost_since.is_none() {
            self.lost_since = Some(Instant::now());
            self.state = TerminalClientState::Waiting(Instant::now());
            return Some(TerminalEvent::Lost);
        }
        self.schedule_reconnect();
        None
    }

    /// Schedules a reconnect, unless the error is permanent.
    fn retry_connect(&mut self, error: anyhow::Error) -> Result<()> {
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        tracing::debug!(error = %format_args!("{error:#}"), "the terminal's connection failed");
        match error.downcast_ref::<Error>() {
            Some(Error::Refused { kind, .. }) if kind == "unknown_terminal" => {
                return Err(Error::TerminalNotFound {
                    id: self.attach.id.clone().unwrap_or_default(),
                }
                .into());
            }
            Some(Error::Refused { status: 503, .. }) => {}
            Some(Error::NotRunning { .. }) if since.elapsed() < TERMINAL_RESTART_TIMEOUT => {}
            Some(Error::Unreachable { .. } | Error::Interrupted) => {}
            _ => return Err(error),
        }
        self.schedule_reconnect();
        Ok(())
    }

    fn schedule_reconnect(&mut self) {
        self.reconnect_attempts = self.reconnect_attempts.saturating_add(1);
        let delay = TERMINAL_RECONNECT_BACKOFF.delay_after(self.reconnect_attempts);
        self.state = TerminalClientState::Waiting(Instant::now() + delay);
    }

    /// Whether the buffer accepts more keys.
    pub(crate) fn has_capacity(&self) -> bool {
        self.key_buffer.has_capacity()
    }

    pub(crate) fn type_keys(&mut self, keys: &[u8]) {
        self.key_buffer.push(keys);
        self.send_typed();
    }

    fn send_typed(&mut self) {
        if let TerminalClientState::Open(link) = &self.state {
            while link.has_capacity()
                && let Some(due) = self.key_buffer.take_sendable()
            {
                link.send_keys(due);
            }
        }
    }

    pub(crate) fn resize(&mut self, cols: u16, rows: u16) {
        (self.attach.cols, self.attach.rows) = (cols, rows);
        self.send_message(&ToTerminal::Resize { cols, rows });
    }

    /// Asks the foreground program to redraw the screen.
    pub(crate) fn repaint(&self) {
        self.send_message(&ToTerminal::Repaint {});
    }

    /// Acknowledges all output received but the last `unshown` bytes.
    pub(crate) fn acknowledge_shown(&mut self, unshown: u64) {
        // The initial screen counts as unshown, too, and has no offset.
        let seen = self.offset.saturating_sub(unshown);
        if seen.saturating_sub(self.acknowledged) >= TERMINAL_ACK_BYTES {
            self.acknowledged = seen;
            self.send_message(&ToTerminal::Seen { offset: seen });
        }
    }

    fn send_message(&self, word: &ToTerminal) {
        if let TerminalClientState::Open(link) = &self.state {
            link.send_message(word);
        }
    }

    /// Leaves the terminal as it is.
    pub(crate) async fn detach(self) {
        match self.state {
            TerminalClientState::Open(link) | TerminalClientState::AwaitingHello(link) => {
                link.close().await
            }
            TerminalClientState::Connecting(attempt) => attempt.abort(),
            TerminalClientState::Waiting(_) | TerminalClientState::Ended => {}
        }
    }
}
