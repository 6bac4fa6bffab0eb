//! Terminals: shells on pseudo-terminals, which outlive the connections of those who look at them.
//!
//! [`PtyTerminals`] knows them by id. A [`PtyTerminal`] sends messages to the task that owns one device
//! and one shell ([`owner`]). Who sees and who writes is decided in [`clients`], how fast output is
//! taken in [`flow_control`]; both are pure. What was shown is read from [`output`], by each at their own
//! pace. A client that comes for the first time is given the [`screen`] as it is; one that lost its connection goes on
//! with the very byte that it misses.

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

pub(crate) use connection::{PtyClient, PtyClientView, PtyConnection, PtyUpdate};
pub(crate) use device::TerminalSize;
pub(crate) use output::{PtyChunk, PtyExit, PtyFollower};
pub(crate) use shell::{PtyStart, spawn_terminal_shell};
pub(crate) use terminals::PtyTerminals;

use crate::protocol::pty::{TerminalEndReason, TerminalRole};
use bytes::Bytes;
use clients::PtyConnectionId;
use device::PtyDevice;
use output::PtyOutput;
use owner::PtyOwner;
use shell::PtyShell;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// How many may look at one terminal.
const MAX_TERMINAL_CLIENTS: usize = 32;

/// How many there may be, and how long one lives that nobody uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PtyLimits {
    pub(crate) count: usize,
    pub(crate) idle: Duration,
}

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PtyRefusal {
    NoTerminal(String),
    /// There are as many as there may be.
    TooMany(usize),
    /// As many look at it as may.
    Crowded,
    Invalid(String),
    /// No shell can be started; why.
    NoShell(String),
    Stopping,
}

/// What can be seen of a terminal at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PtyView {
    pub(crate) viewers: usize,
    pub(crate) has_writer: bool,
    pub(crate) size: TerminalSize,
    /// When something was last typed or shown, or somebody left.
    pub(crate) used: Instant,
}

/// Who comes.
#[derive(Debug)]
pub(crate) struct PtyAttachRequest {
    pub(crate) client: Option<String>,
    pub(crate) role: TerminalRole,
    pub(crate) take: bool,
    /// The first byte of output to see; the screen as it is when missing.
    pub(crate) since: Option<u64>,
    pub(crate) size: TerminalSize,
}

/// How a connection stands with its terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PtyConnectionStatus {
    pub(crate) writes: bool,
    pub(crate) size: TerminalSize,
    /// Bytes of the client that the terminal has taken.
    pub(crate) typed: u64,
    /// Bytes that it typed without being the writer.
    pub(crate) ignored: u64,
    /// The connection is over.
    pub(crate) out: Option<PtyDisconnectReason>,
}

/// Why the terminal ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PtyDisconnectReason {
    /// The same client came again.
    Replaced,
    /// It typed far more than the terminal takes.
    TooFast,
}

/// What the owner is asked to do.
#[derive(Debug)]
enum PtyMessage {
    Attach {
        who: PtyAttachRequest,
        answer: oneshot::Sender<PtyAttachReply>,
    },
    Type {
        seat: PtyConnectionId,
        bytes: Bytes,
    },
    Seen {
        seat: PtyConnectionId,
        offset: u64,
    },
    Resize {
        seat: PtyConnectionId,
        size: TerminalSize,
    },
    Take {
        seat: PtyConnectionId,
    },
    Repaint,
    /// The name of what has the screen.
    Program {
        answer: oneshot::Sender<Option<String>>,
    },
    Leave {
        seat: PtyConnectionId,
        lost: bool,
    },
    End {
        why: TerminalEndReason,
    },
}

/// What the owner answers to one who comes.
#[derive(Debug)]
struct PtyAttachReply {
    seat: PtyConnectionId,
    follower: PtyFollower,
    /// Output that shows the screen before what follows.
    screen: Option<String>,
    standing: watch::Receiver<PtyConnectionStatus>,
    typed: Option<u64>,
}

/// One terminal, for everyone who uses it.
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
        let refuse = |error: anyhow::Error| PtyRefusal::NoShell(format!("{error:#}"));
        let (device, theirs) = PtyDevice::open(start.size).map_err(|e| refuse(e.into()))?;
        let parts = (
            device,
            PtyShell::start_shell(theirs, start).map_err(refuse)?,
        );
        let size = start.size;
        let (view, seen) = watch::channel(PtyView {
            viewers: 0,
            has_writer: false,
            size,
            used: Instant::now(),
        });
        let output = PtyOutput::new();
        let (owner, mailbox) = mpsc::channel(64);
        let task = PtyOwner::new(parts, output.clone(), view, size, idle);
        tokio::spawn(task.run(mailbox));
        Ok(Self {
            id,
            session: start.session.clone(),
            owner,
            output,
            view: seen,
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The session in whose folder it was opened.
    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    pub(crate) fn view(&self) -> PtyView {
        self.view.borrow().clone()
    }

    /// How it has ended.
    pub(crate) fn exit_status(&self) -> Option<PtyExit> {
        self.output.exit_status()
    }

    /// Bytes that were shown so far.
    pub(crate) fn output_length(&self) -> u64 {
        self.output.end_offset()
    }

    /// The name of the program that has the screen.
    pub(crate) async fn foreground_program(&self) -> Option<String> {
        let (answer, program) = oneshot::channel();
        self.send_message(PtyMessage::Program { answer })
            .await
            .ok()?;
        program.await.ok()?
    }

    /// Takes a place before it.
    ///
    /// # Errors
    /// [`PtyRefusal::Crowded`] or [`PtyRefusal::Stopping`].
    pub(crate) async fn attach_client(
        &self,
        who: PtyAttachRequest,
    ) -> Result<PtyConnection, PtyRefusal> {
        if self.view.borrow().viewers >= MAX_TERMINAL_CLIENTS {
            return Err(PtyRefusal::Crowded);
        }
        let (answer, attached) = oneshot::channel();
        self.send_message(PtyMessage::Attach { who, answer })
            .await?;
        let attached = attached.await.map_err(|_| PtyRefusal::Stopping)?;
        Ok(PtyConnection::new(self.clone(), attached))
    }

    /// Ends it with all that it runs, and waits until it has ended.
    async fn end_terminal(&self, why: TerminalEndReason) -> Option<PtyExit> {
        // One that has ended does nothing more.
        let _ = self.send_message(PtyMessage::End { why }).await;
        self.output.wait_for_exit().await
    }

    async fn send_message(&self, message: PtyMessage) -> Result<(), PtyRefusal> {
        let sent = self.owner.send(message).await;
        sent.map_err(|_| PtyRefusal::Stopping)
    }
}
