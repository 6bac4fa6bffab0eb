//! Terminals: shells on pseudo-terminals, which outlive the connections of those who look at them.
//!
//! [`Terminals`] knows them by id. A [`Terminal`] sends messages to the task that owns one device
//! and one shell ([`owner`]). Who sees and who writes is decided in [`seats`], how fast output is
//! taken in [`pace`]; both are pure. What was shown is read from [`output`], by each at their own
//! pace. A client that comes for the first time is given the [`screen`] as it is; one that lost its connection goes on
//! with the very byte that it misses.

mod device;
mod output;
mod owner;
mod pace;
mod ring;
mod screen;
mod seats;
mod shell;
mod terminals;
mod visit;

pub(crate) use device::Size;
pub(crate) use output::{Exit, Follower, Piece};
pub(crate) use shell::{Start, spawn};
pub(crate) use terminals::Terminals;
pub(crate) use visit::{News, Place, Sight, Visit};

use crate::protocol::pty::{Role, Why};
use bytes::Bytes;
use device::Device;
use output::Output;
use owner::Owner;
use seats::Seat;
use shell::Shell;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// How many may look at one terminal.
const PLACES: usize = 32;

/// How many there may be, and how long one lives that nobody uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) count: usize,
    pub(crate) idle: Duration,
}

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
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
pub(crate) struct View {
    pub(crate) viewers: usize,
    pub(crate) has_writer: bool,
    pub(crate) size: Size,
    /// When something was last typed or shown, or somebody left.
    pub(crate) used: Instant,
}

/// Who comes.
#[derive(Debug)]
pub(crate) struct Who {
    pub(crate) client: Option<String>,
    pub(crate) role: Role,
    pub(crate) take: bool,
    /// The first byte of output to see; the screen as it is when missing.
    pub(crate) since: Option<u64>,
    pub(crate) size: Size,
}

/// How a connection stands with its terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) writes: bool,
    pub(crate) size: Size,
    /// Bytes of the client that the terminal has taken.
    pub(crate) typed: u64,
    /// Bytes that it typed without being the writer.
    pub(crate) ignored: u64,
    /// The connection is over.
    pub(crate) out: Option<Out>,
}

/// Why the terminal ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Out {
    /// The same client came again.
    Replaced,
    /// It typed far more than the terminal takes.
    TooFast,
}

/// What the owner is asked to do.
#[derive(Debug)]
enum Message {
    Attach {
        who: Who,
        answer: oneshot::Sender<Attached>,
    },
    Type {
        seat: Seat,
        bytes: Bytes,
    },
    Seen {
        seat: Seat,
        offset: u64,
    },
    Resize {
        seat: Seat,
        size: Size,
    },
    Take {
        seat: Seat,
    },
    Repaint,
    /// The name of what has the screen.
    Program {
        answer: oneshot::Sender<Option<String>>,
    },
    Leave {
        seat: Seat,
        lost: bool,
    },
    End {
        why: Why,
    },
}

/// What the owner answers to one who comes.
#[derive(Debug)]
struct Attached {
    seat: Seat,
    follower: Follower,
    /// Output that shows the screen before what follows.
    screen: Option<String>,
    standing: watch::Receiver<Standing>,
    typed: Option<u64>,
}

/// One terminal, for everyone who uses it.
#[derive(Debug, Clone)]
pub(crate) struct Terminal {
    id: String,
    session: String,
    owner: mpsc::Sender<Message>,
    output: Output,
    view: watch::Receiver<View>,
}

impl Terminal {
    fn start(id: String, start: &Start, idle: Duration) -> Result<Self, Refusal> {
        let refuse = |error: anyhow::Error| Refusal::NoShell(format!("{error:#}"));
        let (device, theirs) = Device::open(start.size).map_err(|e| refuse(e.into()))?;
        let parts = (device, Shell::start(theirs, start).map_err(refuse)?);
        let size = start.size;
        let (view, seen) = watch::channel(View {
            viewers: 0,
            has_writer: false,
            size,
            used: Instant::now(),
        });
        let output = Output::new();
        let (owner, mailbox) = mpsc::channel(64);
        let task = Owner::new(parts, output.clone(), view, size, idle);
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

    pub(crate) fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// How it has ended.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.output.exit()
    }

    /// Bytes that were shown so far.
    pub(crate) fn shown(&self) -> u64 {
        self.output.end()
    }

    /// The name of the program that has the screen.
    pub(crate) async fn program(&self) -> Option<String> {
        let (answer, program) = oneshot::channel();
        self.send(Message::Program { answer }).await.ok()?;
        program.await.ok()?
    }

    /// Takes a place before it.
    ///
    /// # Errors
    /// [`Refusal::Crowded`] or [`Refusal::Stopping`].
    pub(crate) async fn visit(&self, who: Who) -> Result<Visit, Refusal> {
        if self.view.borrow().viewers >= PLACES {
            return Err(Refusal::Crowded);
        }
        let (answer, attached) = oneshot::channel();
        self.send(Message::Attach { who, answer }).await?;
        let attached = attached.await.map_err(|_| Refusal::Stopping)?;
        Ok(Visit::new(self.clone(), attached))
    }

    /// Ends it with all that it runs, and waits until it has ended.
    async fn end(&self, why: Why) -> Option<Exit> {
        // One that has ended does nothing more.
        let _ = self.send(Message::End { why }).await;
        self.output.ended().await
    }

    async fn send(&self, message: Message) -> Result<(), Refusal> {
        let sent = self.owner.send(message).await;
        sent.map_err(|_| Refusal::Stopping)
    }
}
