//! One connection to a terminal: the half that sends to the terminal, and the half that reads from it.
//!
//! The halves are separate, so that the terminal receives input while the client is slow to read.

use super::output::{PtyChunk, PtyFollower};
use super::{
    PtyAttachReply, PtyConnectionStatus, PtyMessage, PtyRefusal, PtyTerminal, TerminalSize,
};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle;
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct PtyConnection {
    pub(crate) place: PtyClient,
    pub(crate) sight: PtyClientView,
    /// Output that draws the screen as it was before the first byte of output.
    pub(crate) screen: Option<String>,
    /// Bytes of this client that have arrived before; `None` when unknown.
    pub(crate) typed: Option<u64>,
}

/// The sending half of a connection. Dropping it detaches the client.
#[derive(Debug)]
pub(crate) struct PtyClient {
    terminal: PtyTerminal,
    seat: u64,
    /// Whether this client acknowledges output itself.
    says: AtomicBool,
    is_lost: bool,
}

/// The reading half of a connection.
#[derive(Debug)]
pub(crate) struct PtyClientView {
    follower: PtyFollower,
    standing: watch::Receiver<PtyConnectionStatus>,
}

/// An update for a connection.
#[derive(Debug)]
pub(crate) enum PtyUpdate {
    Piece(PtyChunk),
    Standing(PtyConnectionStatus),
}

impl PtyConnection {
    pub(super) fn new(terminal: PtyTerminal, attached: PtyAttachReply) -> Self {
        let PtyAttachReply {
            seat,
            follower,
            screen,
            standing,
            typed,
        } = attached;
        let place = PtyClient {
            terminal,
            seat,
            says: AtomicBool::new(false),
            is_lost: true,
        };
        let sight = PtyClientView { follower, standing };
        Self {
            place,
            sight,
            screen,
            typed,
        }
    }

    pub(crate) fn terminal_id(&self) -> &str {
        self.place.terminal.id()
    }
}

impl PtyClientView {
    /// Offset of the next byte of output.
    pub(crate) fn offset(&self) -> u64 {
        self.follower.offset()
    }

    pub(crate) fn status(&self) -> PtyConnectionStatus {
        *self.standing.borrow()
    }

    /// The next update: output, or a change of the connection's status. `None` when the terminal is gone. Cancel safe.
    pub(crate) async fn next_update(&mut self) -> Option<PtyUpdate> {
        tokio::select! {
            biased;
            changed = self.standing.changed() => {
                changed.ok()?;
                Some(PtyUpdate::Standing(*self.standing.borrow_and_update()))
            }
            piece = self.follower.next_chunk() => Some(PtyUpdate::Piece(piece)),
        }
    }
}

/// Each method fails with [`PtyRefusal::Stopping`] when the terminal is gone.
impl PtyClient {
    /// Output up to `offset` has left this process. This counts as seen for a client that does not acknowledge output
    /// itself.
    pub(crate) async fn report_sent(&self, offset: u64) -> Result<(), PtyRefusal> {
        if self.says.load(Ordering::Relaxed) {
            return Ok(());
        }
        let seat = self.seat;
        self.terminal
            .send_message(PtyMessage::Seen { seat, offset })
            .await
    }

    /// The client acknowledges all output up to this offset.
    pub(crate) async fn report_seen(&self, offset: u64) -> Result<(), PtyRefusal> {
        self.says.store(true, Ordering::Relaxed);
        let seat = self.seat;
        self.terminal
            .send_message(PtyMessage::Seen { seat, offset })
            .await
    }

    pub(crate) async fn send_keys(&self, bytes: Bytes) -> Result<(), PtyRefusal> {
        let seat = self.seat;
        self.terminal
            .send_message(PtyMessage::Type { seat, bytes })
            .await
    }

    pub(crate) async fn resize(&self, size: TerminalSize) -> Result<(), PtyRefusal> {
        let seat = self.seat;
        self.terminal
            .send_message(PtyMessage::Resize { seat, size })
            .await
    }

    /// Makes this client the writer.
    pub(crate) async fn take_writer(&self) -> Result<(), PtyRefusal> {
        let seat = self.seat;
        self.terminal.send_message(PtyMessage::Take { seat }).await
    }

    pub(crate) async fn repaint(&self) -> Result<(), PtyRefusal> {
        self.terminal.send_message(PtyMessage::Repaint).await
    }

    /// The client leaves deliberately, so its place is not reserved.
    pub(crate) fn detach(mut self) {
        self.is_lost = false;
    }
}

impl Drop for PtyClient {
    fn drop(&mut self) {
        let message = PtyMessage::Leave {
            seat: self.seat,
            lost: self.is_lost,
        };
        let owner = self.terminal.owner.clone();
        // Without a runtime, the owner has ended.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { owner.send(message).await });
        }
    }
}
