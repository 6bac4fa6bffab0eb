//! One connection's place before a terminal: what it says, and what it sees.
//!
//! The two are apart, because a client that takes its time to read is heard meanwhile.

use super::output::{Follower, Piece};
use super::{Attached, Message, Refusal, Size, Standing, Terminal};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle;
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Visit {
    pub(crate) place: Place,
    pub(crate) sight: Sight,
    /// Output that shows the screen before what is seen.
    pub(crate) screen: Option<String>,
    /// Bytes of this client that have arrived before; nothing when it is not known.
    pub(crate) typed: Option<u64>,
}

/// What a connection says. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    terminal: Terminal,
    seat: u64,
    /// Whether this client says itself what it has seen.
    says: AtomicBool,
    is_lost: bool,
}

/// What a connection sees.
#[derive(Debug)]
pub(crate) struct Sight {
    follower: Follower,
    standing: watch::Receiver<Standing>,
}

/// What a connection is told.
#[derive(Debug)]
pub(crate) enum News {
    Piece(Piece),
    Standing(Standing),
}

impl Visit {
    pub(super) fn new(terminal: Terminal, attached: Attached) -> Self {
        let Attached {
            seat,
            follower,
            screen,
            standing,
            typed,
        } = attached;
        let place = Place {
            terminal,
            seat,
            says: AtomicBool::new(false),
            is_lost: true,
        };
        let sight = Sight { follower, standing };
        Self {
            place,
            sight,
            screen,
            typed,
        }
    }

    pub(crate) fn id(&self) -> &str {
        self.place.terminal.id()
    }
}

impl Sight {
    /// Offset of the next byte of output.
    pub(crate) fn offset(&self) -> u64 {
        self.follower.offset()
    }

    pub(crate) fn standing(&self) -> Standing {
        *self.standing.borrow()
    }

    /// What comes next: output, or a change of how this connection stands. Nothing when the
    /// terminal is gone. Loses nothing when dropped.
    pub(crate) async fn next(&mut self) -> Option<News> {
        tokio::select! {
            biased;
            changed = self.standing.changed() => {
                changed.ok()?;
                Some(News::Standing(*self.standing.borrow_and_update()))
            }
            piece = self.follower.next() => Some(News::Piece(piece)),
        }
    }
}

/// Each method fails with [`Refusal::Stopping`] when the terminal is gone.
impl Place {
    /// What was given out up to `offset` has left this process: for a client that says nothing
    /// itself, that is what it has seen.
    pub(crate) async fn sent(&self, offset: u64) -> Result<(), Refusal> {
        if self.says.load(Ordering::Relaxed) {
            return Ok(());
        }
        let seat = self.seat;
        self.terminal.send(Message::Seen { seat, offset }).await
    }

    /// The client has seen everything up to this offset.
    pub(crate) async fn seen(&self, offset: u64) -> Result<(), Refusal> {
        self.says.store(true, Ordering::Relaxed);
        let seat = self.seat;
        self.terminal.send(Message::Seen { seat, offset }).await
    }

    pub(crate) async fn keys(&self, bytes: Bytes) -> Result<(), Refusal> {
        let seat = self.seat;
        self.terminal.send(Message::Type { seat, bytes }).await
    }

    pub(crate) async fn resize(&self, size: Size) -> Result<(), Refusal> {
        let seat = self.seat;
        self.terminal.send(Message::Resize { seat, size }).await
    }

    /// Writes from now on.
    pub(crate) async fn take(&self) -> Result<(), Refusal> {
        let seat = self.seat;
        self.terminal.send(Message::Take { seat }).await
    }

    pub(crate) async fn repaint(&self) -> Result<(), Refusal> {
        self.terminal.send(Message::Repaint).await
    }

    /// The client leaves by its own wish, so its place is not kept.
    pub(crate) fn leave(mut self) {
        self.is_lost = false;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let message = Message::Leave {
            seat: self.seat,
            lost: self.is_lost,
        };
        let owner = self.terminal.owner.clone();
        // Without a runtime there is no owner any more.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { owner.send(message).await });
        }
    }
}
