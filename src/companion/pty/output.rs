//! The retained output of a terminal, for all clients, each at its own pace.
//!
//! The owner writes, followers read. A follower that the ring overtakes gets the number of bytes that it has lost; it
//! delays neither the owner nor other followers.

use super::ring::ByteRing;
use crate::protocol::pty::TerminalEndReason;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;

/// Bytes of output that are retained per terminal.
const RETAINED_PTY_BYTES: usize = 1 << 20;

/// Maximum bytes of one chunk for a follower.
const PTY_CHUNK_BYTES: usize = 32 << 10;

#[derive(Debug, Clone)]
pub(super) struct PtyOutput {
    ring: Arc<Mutex<ByteRing>>,
    /// The end of the output, and the exit.
    state: watch::Sender<PtyOutputState>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PtyOutputState {
    end: u64,
    exit: Option<PtyExit>,
}

/// How a terminal has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PtyExit {
    pub(crate) code: u8,
    pub(crate) reason: TerminalEndReason,
}

/// The next chunk for a follower.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PtyChunk {
    Bytes(Bytes),
    /// The number of lost bytes.
    Lost(u64),
    Exit(PtyExit),
}

impl PtyOutput {
    pub(super) fn new() -> Self {
        Self {
            ring: Arc::new(Mutex::new(ByteRing::new(RETAINED_PTY_BYTES))),
            state: watch::Sender::default(),
        }
    }

    pub(super) fn push(&self, bytes: &[u8]) {
        let end = {
            let mut ring = self.ring.lock();
            ring.push(bytes);
            ring.end_offset()
        };
        self.state.send_modify(|state| state.end = end);
    }

    /// Marks the output as complete.
    pub(super) fn finish(&self, exit: PtyExit) {
        self.state.send_modify(|state| state.exit = Some(exit));
    }

    pub(super) fn exit_status(&self) -> Option<PtyExit> {
        self.state.borrow().exit
    }

    pub(super) fn end_offset(&self) -> u64 {
        self.state.borrow().end
    }

    /// Waits for the end.
    pub(super) async fn wait_for_exit(&self) -> Option<PtyExit> {
        let mut state = self.state.subscribe();
        let ended = state.wait_for(|state| state.exit.is_some()).await.ok()?;
        ended.exit
    }

    /// A follower that starts at byte `since`.
    pub(super) fn follow(&self, since: u64) -> PtyFollower {
        let next_offset = since.min(self.ring.lock().end_offset());
        PtyFollower {
            next_offset,
            output: self.clone(),
            state: self.state.subscribe(),
        }
    }
}

/// A reader with its own position.
#[derive(Debug)]
pub(crate) struct PtyFollower {
    next_offset: u64,
    output: PtyOutput,
    state: watch::Receiver<PtyOutputState>,
}

impl PtyFollower {
    /// Offset of the next chunk.
    pub(crate) fn offset(&self) -> u64 {
        self.next_offset
    }

    /// The next chunk; the exit is the last one. Cancel safe.
    pub(crate) async fn next_chunk(&mut self) -> PtyChunk {
        loop {
            let PtyOutputState { end, exit } = *self.state.borrow_and_update();
            if self.next_offset < end {
                return self.read_chunk();
            }
            if let Some(exit) = exit {
                return PtyChunk::Exit(exit);
            }
            if self.state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn read_chunk(&mut self) -> PtyChunk {
        let ring = self.output.ring.lock();
        let lost = ring.start_offset().saturating_sub(self.next_offset);
        if lost > 0 {
            self.next_offset = ring.start_offset();
            return PtyChunk::Lost(lost);
        }
        let bytes = Bytes::from(ring.read(self.next_offset, PTY_CHUNK_BYTES));
        self.next_offset += bytes.len() as u64;
        PtyChunk::Bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{PtyChunk, PtyExit, PtyOutput, RETAINED_PTY_BYTES};
    use crate::protocol::pty::TerminalEndReason;

    #[tokio::test(flavor = "current_thread")]
    async fn an_overtaken_follower_gets_the_loss_and_continues() {
        let output = PtyOutput::new();
        output.push(b"first");
        let mut slow = output.follow(0);
        assert_eq!(slow.next_chunk().await, PtyChunk::Bytes("first".into()));
        output.push(&[b'x'; RETAINED_PTY_BYTES]);
        output.push(b"last");
        assert_eq!(slow.next_chunk().await, PtyChunk::Lost(4));
        let exit = PtyExit {
            code: 3,
            reason: TerminalEndReason::Exited,
        };
        output.finish(exit);
        let mut read = Vec::new();
        let ended = loop {
            match slow.next_chunk().await {
                PtyChunk::Bytes(bytes) => read.extend_from_slice(&bytes),
                PtyChunk::Lost(bytes) => panic!("{bytes} more are lost"),
                PtyChunk::Exit(exit) => break exit,
            }
        };
        assert!(read.ends_with(b"xlast"));
        assert_eq!((read.len(), ended), (RETAINED_PTY_BYTES, exit));
        assert_eq!(output.wait_for_exit().await, Some(exit));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_follower_starts_at_the_end_at_most() {
        let output = PtyOutput::new();
        output.push(b"abc");
        assert_eq!(output.follow(99).offset(), 3);
        assert_eq!(output.follow(1).offset(), 1);
    }
}
