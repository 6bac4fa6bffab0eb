//! One connection to a terminal: the half that sends to the terminal, and the half that reads from it.
//!
//! The halves are separate, so that the terminal receives input while the client is slow to read.

use super::output::{PtyChunk, PtyFollower};
use super::{
    PtyAttachReply, PtyConnectionStatus, PtyInput, PtyMessage, PtyRefusal, PtyTerminal,
    TerminalSize,
};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle;
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct PtyConnection {
    pub(crate) client: PtyClient,
    pub(crate) view: PtyClientView,
    /// Output that draws the screen as it was before the first byte of output.
    pub(crate) screen: Option<String>,
    /// Bytes of this client that have arrived before; `None` when unknown.
    pub(crate) typed_bytes: Option<u64>,
}

/// The sending half of a connection. Dropping it detaches the client.
#[derive(Debug)]
pub(crate) struct PtyClient {
    terminal: PtyTerminal,
    connection_id: u64,
    /// Whether this client acknowledges output itself.
    acknowledges_itself: AtomicBool,
    is_lost: bool,
}

/// The reading half of a connection.
#[derive(Debug)]
pub(crate) struct PtyClientView {
    follower: PtyFollower,
    status: watch::Receiver<PtyConnectionStatus>,
}

/// An update for a connection.
#[derive(Debug)]
pub(crate) enum PtyUpdate {
    Output(PtyChunk),
    Status(PtyConnectionStatus),
}

impl PtyConnection {
    pub(super) fn new(terminal: PtyTerminal, attached: PtyAttachReply) -> Self {
        let PtyAttachReply {
            connection_id,
            follower,
            screen,
            status,
            typed_bytes,
        } = attached;
        let client = PtyClient {
            terminal,
            connection_id,
            acknowledges_itself: AtomicBool::new(false),
            is_lost: true,
        };
        let view = PtyClientView { follower, status };
        Self {
            client,
            view,
            screen,
            typed_bytes,
        }
    }

    pub(crate) fn terminal_id(&self) -> &str {
        self.client.terminal.id()
    }
}

impl PtyClientView {
    /// Offset of the next byte of output.
    pub(crate) fn offset(&self) -> u64 {
        self.follower.offset()
    }

    pub(crate) fn status(&self) -> PtyConnectionStatus {
        *self.status.borrow()
    }

    /// The next update: output, or a change of the connection's status. `None` when the terminal is gone. Cancel safe.
    pub(crate) async fn next_update(&mut self) -> Option<PtyUpdate> {
        tokio::select! {
            biased;
            changed = self.status.changed() => {
                changed.ok()?;
                Some(PtyUpdate::Status(*self.status.borrow_and_update()))
            }
            piece = self.follower.next_chunk() => Some(PtyUpdate::Output(piece)),
        }
    }
}

/// Each method fails with [`PtyRefusal::ShuttingDown`] when the terminal is gone.
impl PtyClient {
    /// Output up to `offset` has left this process. This counts as seen for a client that does not acknowledge output
    /// itself.
    pub(crate) async fn report_sent(&self, offset: u64) -> Result<(), PtyRefusal> {
        if self.acknowledges_itself.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.send_input(PtyInput::Acknowledge(offset)).await
    }

    /// The client acknowledges all output up to this offset.
    pub(crate) async fn acknowledge_output(&self, offset: u64) -> Result<(), PtyRefusal> {
        self.acknowledges_itself.store(true, Ordering::Relaxed);
        self.send_input(PtyInput::Acknowledge(offset)).await
    }

    pub(crate) async fn send_keys(&self, bytes: Bytes) -> Result<(), PtyRefusal> {
        self.send_input(PtyInput::Keys(bytes)).await
    }

    pub(crate) async fn resize(&self, size: TerminalSize) -> Result<(), PtyRefusal> {
        self.send_input(PtyInput::Resize(size)).await
    }

    /// Makes this client the writer.
    pub(crate) async fn take_writer(&self) -> Result<(), PtyRefusal> {
        self.send_input(PtyInput::TakeWriter).await
    }

    pub(crate) async fn repaint(&self) -> Result<(), PtyRefusal> {
        self.send_input(PtyInput::Repaint).await
    }

    async fn send_input(&self, input: PtyInput) -> Result<(), PtyRefusal> {
        let message = PtyMessage::Client(self.connection_id, input);
        self.terminal.send_message(message).await
    }

    /// The client leaves deliberately, so its place is not reserved.
    pub(crate) fn detach(mut self) {
        self.is_lost = false;
    }
}

impl Drop for PtyClient {
    fn drop(&mut self) {
        let is_lost = self.is_lost;
        let message = PtyMessage::Client(self.connection_id, PtyInput::Detach { is_lost });
        let owner = self.terminal.owner.clone();
        // Without a runtime, the owner has ended.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { owner.send(message).await });
        }
    }
}
