//! Terminals: shells on pseudo-terminals, which outlive the connections of their clients.
//!
//! [`PtyTerminals`] finds terminals by id. A [`PtyTerminal`] sends messages to the task that owns one device and one
//! shell ([`owner`]). [`clients`] decides which client writes, and [`flow_control`] how fast output is read; both are
//! pure. Each client reads the output from [`output`], at its own pace. A new client gets the current [`screen`]; a
//! client that lost its connection resumes at the first byte that it misses.

mod clients;
mod connection;
mod device;
mod flow_control;
mod output;
mod owner;
mod ring;
mod screen;
mod shell;
mod terminals;
#[cfg(test)]
mod tests;

pub(crate) use connection::{PtyClient, PtyClientView, PtyConnection, PtyUpdate};
pub(crate) use device::TerminalSize;
pub(crate) use output::{PtyChunk, PtyExit, PtyFollower};
pub(crate) use shell::PtyStart;
pub(crate) use terminals::PtyTerminals;

use super::settings;
use crate::error::Result;
use crate::protocol::pty::{TerminalEndReason, TerminalRole};
use crate::supervise::Supervisor;
use bytes::Bytes;
use clients::PtyConnectionId;
use device::PtyDevice;
use output::PtyOutput;
use owner::PtyOwner;
use shell::spawn_shell;
use std::io;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;

/// Maximum number of clients of one terminal.
const MAX_TERMINAL_CLIENTS: usize = 32;

const DEFAULT_MAX_TERMINALS: usize = 16;
const DEFAULT_TERMINAL_IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The maximum number of terminals, and the time after which an unused terminal is ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PtyLimits {
    max_terminals: usize,
    idle_timeout: Duration,
}

impl PtyLimits {
    /// # Errors
    /// When a variable is invalid.
    pub(crate) fn from_environment() -> Result<Self> {
        Ok(Self {
            max_terminals: settings::read_value("OSCTL_TERMINALS_MAX")?
                .unwrap_or(DEFAULT_MAX_TERMINALS),
            idle_timeout: settings::read_seconds("OSCTL_TERMINALS_IDLE")?
                .unwrap_or(DEFAULT_TERMINAL_IDLE_TIMEOUT),
        })
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PtyRefusal {
    NoTerminal(String),
    /// The maximum number of terminals exists.
    TooManyTerminals(usize),
    /// The terminal has the maximum number of clients.
    TooManyClients,
    Invalid(String),
    /// The shell cannot be started, with the reason.
    ShellNotStarted(String),
    ShuttingDown,
}

/// The state of a terminal, readable at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PtyView {
    pub(crate) client_count: usize,
    pub(crate) has_writer: bool,
    pub(crate) size: TerminalSize,
    /// When input or output last happened, or a client last left.
    pub(crate) last_used: Instant,
}

/// A request to attach to a terminal.
#[derive(Debug)]
pub(crate) struct PtyAttachRequest {
    pub(crate) client: Option<String>,
    pub(crate) role: TerminalRole,
    pub(crate) take_writer: bool,
    /// The first byte of output to send; the current screen when missing.
    pub(crate) from_offset: Option<u64>,
    pub(crate) size: TerminalSize,
}

/// The status of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PtyConnectionStatus {
    pub(crate) is_writer: bool,
    pub(crate) size: TerminalSize,
    /// Bytes of the client that were written to the terminal.
    pub(crate) typed_bytes: u64,
    /// Bytes that the client typed without being the writer.
    pub(crate) ignored_bytes: u64,
    /// The connection has ended, with the reason.
    pub(crate) disconnect_reason: Option<PtyDisconnectReason>,
}

/// Why the terminal ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PtyDisconnectReason {
    /// The same client connected again.
    Replaced,
    /// The client typed far more than the terminal accepts.
    TooFast,
}

/// A message to the owner.
#[derive(Debug)]
enum PtyMessage {
    Attach {
        request: PtyAttachRequest,
        reply: oneshot::Sender<PtyAttachReply>,
    },
    Client(PtyConnectionId, PtyInput),
    /// Asks for the name of the foreground program.
    GetForegroundProgram {
        reply: oneshot::Sender<Option<String>>,
    },
    End {
        reason: TerminalEndReason,
    },
}

/// What an attached client sends.
#[derive(Debug)]
enum PtyInput {
    Keys(Bytes),
    /// The client has seen the output up to this offset.
    Acknowledge(u64),
    Resize(TerminalSize),
    TakeWriter,
    Repaint,
    Detach {
        is_lost: bool,
    },
}

/// The owner's reply to a client that attaches.
#[derive(Debug)]
struct PtyAttachReply {
    connection_id: PtyConnectionId,
    follower: PtyFollower,
    /// Output that draws the screen as it was before the first byte of output.
    screen: Option<String>,
    status: watch::Receiver<PtyConnectionStatus>,
    typed_bytes: Option<u64>,
}

/// A handle to one terminal.
#[derive(Debug, Clone)]
pub(crate) struct PtyTerminal {
    id: String,
    session: String,
    owner: mpsc::Sender<PtyMessage>,
    output: PtyOutput,
    view: watch::Receiver<PtyView>,
}

impl PtyTerminal {
    fn start(id: String, start: &PtyStart, idle: Duration) -> Result<Self, PtyRefusal> {
        let refuse = |error: io::Error| PtyRefusal::ShellNotStarted(error.to_string());
        let (device, theirs) = PtyDevice::open(start.size).map_err(refuse)?;
        let parts = (device, spawn_shell(theirs, start).map_err(refuse)?);
        Ok(Self::start_owner(id, start, parts, idle))
    }

    fn start_owner(
        id: String,
        start: &PtyStart,
        parts: (PtyDevice, Supervisor),
        idle: Duration,
    ) -> Self {
        let size = start.size;
        let (view, seen) = watch::channel(PtyView {
            client_count: 0,
            has_writer: false,
            size,
            last_used: Instant::now(),
        });
        let output = PtyOutput::new();
        let (owner, mailbox) = mpsc::channel(64);
        let task = PtyOwner::new(parts, output.clone(), view, size, idle);
        let span = tracing::info_span!("terminal", terminal = %id, session = %start.session);
        tokio::spawn(task.run(mailbox).instrument(span));
        Self {
            id,
            session: start.session.clone(),
            owner,
            output,
            view: seen,
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The session in whose folder the terminal was opened.
    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    pub(crate) fn view(&self) -> PtyView {
        self.view.borrow().clone()
    }

    /// How the terminal has ended.
    pub(crate) fn exit_status(&self) -> Option<PtyExit> {
        self.output.exit_status()
    }

    /// Bytes of output up to now.
    pub(crate) fn output_length(&self) -> u64 {
        self.output.end_offset()
    }

    /// The name of the foreground program.
    pub(crate) async fn foreground_program(&self) -> Option<String> {
        let (reply, program) = oneshot::channel();
        self.send_message(PtyMessage::GetForegroundProgram { reply })
            .await
            .ok()?;
        program.await.ok()?
    }

    /// Attaches a client.
    ///
    /// # Errors
    /// [`PtyRefusal::TooManyClients`] or [`PtyRefusal::ShuttingDown`].
    pub(crate) async fn attach_client(
        &self,
        request: PtyAttachRequest,
    ) -> Result<PtyConnection, PtyRefusal> {
        if self.view.borrow().client_count >= MAX_TERMINAL_CLIENTS {
            return Err(PtyRefusal::TooManyClients);
        }
        let (answer, attached) = oneshot::channel();
        self.send_message(PtyMessage::Attach {
            request,
            reply: answer,
        })
        .await?;
        let attached = attached.await.map_err(|_| PtyRefusal::ShuttingDown)?;
        Ok(PtyConnection::new(self.clone(), attached))
    }

    /// Ends the terminal with all its processes, and waits for the end.
    async fn end_terminal(&self, reason: TerminalEndReason) -> Option<PtyExit> {
        // A terminal that has ended ignores this.
        let _ = self.send_message(PtyMessage::End { reason }).await;
        self.output.wait_for_exit().await
    }

    async fn send_message(&self, message: PtyMessage) -> Result<(), PtyRefusal> {
        let sent = self.owner.send(message).await;
        sent.map_err(|_| PtyRefusal::ShuttingDown)
    }
}
