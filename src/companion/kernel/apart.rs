//! A kernel apart from its companion: before it is frozen, and after it was thawed.
//!
//! ```text
//! Kernel::part ─▶ Apart ─┬─ rejoin, or dropped ─▶ goes on as it was
//!                        └─ freeze             ─▶ its process is ended; requests are refused
//! Kernel::thaw(Restored)                       ─▶ takes the place of whatever was there
//! ```
//!
//! Who owns the process stays its owner. How a process is frozen and thawed is not known here.

use super::frozen::Frozen;
use super::guard::Guard;
use super::process::connect;
use super::template::{LastWords, Made, Socket};
use super::wire::Counts;
use super::{Answer, Kernel, Message, Refusal};
use std::io;
use std::path::PathBuf;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

/// An idle kernel without any connection. When this is dropped, it goes on as it was.
#[derive(Debug)]
pub(crate) struct Apart {
    pub(crate) pid: i32,
    /// Its guard.
    pub(crate) root: i32,
    /// Where it listens.
    pub(crate) socket: PathBuf,
    pub(crate) generation: u64,
    pub(crate) counts: Counts,
    pub(crate) python: String,
    pub(crate) body_version: String,
    pub(super) fate: oneshot::Sender<Fate>,
}

/// What becomes of a kernel that was apart.
#[derive(Debug)]
pub(super) enum Fate {
    Rejoins(oneshot::Sender<Result<Answer, Refusal>>),
    /// It lies in a checkpoint; its process is to end.
    Frozen(Frozen, oneshot::Sender<()>),
}

impl Apart {
    /// Has it go on, and waits until it does.
    ///
    /// # Errors
    /// [`Refusal::NoKernel`] when it did not survive; [`Refusal::Stopping`].
    pub(crate) async fn rejoin(self) -> Result<Answer, Refusal> {
        let (done, answer) = oneshot::channel();
        // An owner that has ended has dropped the other end, which the answer tells.
        let _ = self.fate.send(Fate::Rejoins(done));
        answer.await.unwrap_or(Err(Refusal::Stopping))
    }

    /// Ends its process, which is kept there, and waits until nothing is left of it.
    pub(crate) async fn freeze(self, frozen: Frozen) {
        let (done, gone) = oneshot::channel();
        let _ = self.fate.send(Fate::Frozen(frozen, done));
        // Without an owner there is no process, either.
        let _ = gone.await;
    }
}

/// A kernel's process that came out of a checkpoint.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(super) made: Made,
}

impl Restored {
    /// Connects with it. `guard` is the process `root`, which is its parent; `stderr` what both say.
    ///
    /// # Errors
    /// When nobody listens at `socket`.
    pub(crate) fn connect(
        guard: UnixStream,
        root: i32,
        socket: PathBuf,
        stderr: Receiver,
    ) -> io::Result<Self> {
        let made = Made {
            stream: connect(&socket)?,
            guard: Guard::new(guard, root, None),
            socket: Socket::at(socket),
            last_words: LastWords::of(stderr),
        };
        Ok(Self { made })
    }
}

impl Kernel {
    /// Waits until the kernel is idle and has let go of every connection.
    ///
    /// # Errors
    /// [`Refusal::Busy`] while code runs; [`Refusal::Held`], and then it goes on as it was;
    /// [`Refusal::Checkpointed`], [`Refusal::NoKernel`] or [`Refusal::Stopping`].
    pub(crate) async fn part(&self) -> Result<Apart, Refusal> {
        let (done, answer) = oneshot::channel();
        self.send(Message::Part { done }).await?;
        answer.await.unwrap_or(Err(Refusal::Stopping))
    }

    /// Ends the present process and has the restored one in its place, once it has answered.
    ///
    /// # Errors
    /// [`Refusal::Busy`] while code runs, and then the restored one is ended;
    /// [`Refusal::NoKernel`] when that does not answer, and then the state is lost.
    pub(crate) async fn thaw(&self, restored: Restored) -> Result<Answer, Refusal> {
        let (done, answer) = oneshot::channel();
        let restored = Box::new(restored);
        self.send(Message::Thaw { restored, done }).await?;
        answer.await.unwrap_or(Err(Refusal::Stopping))
    }
}
