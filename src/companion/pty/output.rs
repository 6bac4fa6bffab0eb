//! What a terminal has shown, for everyone who looks at it, each at their own pace.
//!
//! The owner writes, followers read. A follower that is overtaken by the ring is told how much it
//! has lost; it holds up neither the owner nor the others.

use super::ring::Ring;
use crate::protocol::pty::Why;
use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Bytes of a terminal that are kept.
const KEPT: usize = 1 << 20;

/// Bytes that a follower is given at once.
const PIECE: usize = 32 << 10;

#[derive(Debug, Clone)]
pub(super) struct Output {
    ring: Arc<Mutex<Ring>>,
    /// How far it is, and how it has ended.
    state: watch::Sender<State>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    end: u64,
    exit: Option<Exit>,
}

/// How a terminal has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: u8,
    pub(crate) why: Why,
}

/// What comes next for a follower.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Bytes(Bytes),
    /// So many are gone.
    Lost(u64),
    Exit(Exit),
}

impl Output {
    pub(super) fn new() -> Self {
        Self {
            ring: Arc::new(Mutex::new(Ring::new(KEPT))),
            state: watch::Sender::default(),
        }
    }

    pub(super) fn push(&self, bytes: &[u8]) {
        let end = {
            let mut ring = self.lock();
            ring.push(bytes);
            ring.end()
        };
        self.state.send_modify(|state| state.end = end);
    }

    /// Nothing comes any more.
    pub(super) fn finish(&self, exit: Exit) {
        self.state.send_modify(|state| state.exit = Some(exit));
    }

    pub(super) fn exit(&self) -> Option<Exit> {
        self.state.borrow().exit
    }

    pub(super) fn end(&self) -> u64 {
        self.state.borrow().end
    }

    /// Waits for the end.
    pub(super) async fn ended(&self) -> Option<Exit> {
        let mut state = self.state.subscribe();
        let ended = state.wait_for(|state| state.exit.is_some()).await.ok()?;
        ended.exit
    }

    /// From that byte on.
    pub(super) fn follow(&self, since: u64) -> Follower {
        let next = since.min(self.lock().end());
        Follower {
            next,
            output: self.clone(),
            state: self.state.subscribe(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader with a place of its own.
#[derive(Debug)]
pub(crate) struct Follower {
    next: u64,
    output: Output,
    state: watch::Receiver<State>,
}

impl Follower {
    /// Offset of what comes next.
    pub(crate) fn offset(&self) -> u64 {
        self.next
    }

    /// The next piece; after the exit nothing comes. Loses nothing when dropped.
    pub(crate) async fn next(&mut self) -> Piece {
        loop {
            let State { end, exit } = *self.state.borrow_and_update();
            if self.next < end {
                return self.read();
            }
            if let Some(exit) = exit {
                return Piece::Exit(exit);
            }
            if self.state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn read(&mut self) -> Piece {
        let ring = self.output.lock();
        let lost = ring.begin().saturating_sub(self.next);
        if lost > 0 {
            self.next = ring.begin();
            return Piece::Lost(lost);
        }
        let bytes = Bytes::from(ring.read(self.next, PIECE));
        self.next += bytes.len() as u64;
        Piece::Bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{Exit, KEPT, Output, Piece};
    use crate::protocol::pty::Why;

    #[tokio::test(flavor = "current_thread")]
    async fn one_that_is_overtaken_is_told_and_goes_on() {
        let output = Output::new();
        output.push(b"first");
        let mut slow = output.follow(0);
        assert_eq!(slow.next().await, Piece::Bytes("first".into()));
        output.push(&[b'x'; KEPT]);
        output.push(b"last");
        assert_eq!(slow.next().await, Piece::Lost(4));
        let exit = Exit {
            code: 3,
            why: Why::Exited,
        };
        output.finish(exit);
        let mut read = Vec::new();
        let ended = loop {
            match slow.next().await {
                Piece::Bytes(bytes) => read.extend_from_slice(&bytes),
                Piece::Lost(bytes) => panic!("{bytes} more are lost"),
                Piece::Exit(exit) => break exit,
            }
        };
        assert!(read.ends_with(b"xlast"));
        assert_eq!((read.len(), ended), (KEPT, exit));
        assert_eq!(output.ended().await, Some(exit));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn nobody_begins_in_the_future() {
        let output = Output::new();
        output.push(b"abc");
        assert_eq!(output.follow(99).offset(), 3);
        assert_eq!(output.follow(1).offset(), 1);
    }
}
