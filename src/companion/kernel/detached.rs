//! A kernel apart from its companion: before it is frozen, and after it was thawed.
//!
//! ```text
//! Kernel::part ─▶ Apart ─┬─ rejoin, or dropped ─▶ goes on as it was
//!                        └─ freeze             ─▶ its process is ended; requests are refused
//! Kernel::thaw(Restored)                       ─▶ takes the place of whatever was there
//! ```
//!
//! Who owns the process stays its owner. How a process is frozen and thawed is not known here.

use super::checkpoint::KernelCheckpoint;
use super::connection::KernelCounts;
use super::process::connect_kernel;
use super::supervisor::KernelSupervisor;
use super::template::{KernelSocket, SpawnedKernel, StderrTail};
use super::{KernelAnswer, KernelHandle, KernelMessage, KernelRefusal};
use std::io;
use std::path::PathBuf;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

/// An idle kernel without any connection. When this is dropped, it goes on as it was.
#[derive(Debug)]
pub(crate) struct DetachedKernel {
    pub(crate) pid: i32,
    /// Its guard.
    pub(crate) root: i32,
    /// Where it listens.
    pub(crate) socket: PathBuf,
    pub(crate) generation: u64,
    pub(crate) counts: KernelCounts,
    pub(crate) python: String,
    pub(crate) body_version: String,
    pub(super) fate: oneshot::Sender<DetachResolution>,
}

/// What becomes of a kernel that was apart.
#[derive(Debug)]
pub(super) enum DetachResolution {
    Rejoins(oneshot::Sender<Result<KernelAnswer, KernelRefusal>>),
    /// It lies in a checkpoint; its process is to end.
    Frozen(KernelCheckpoint, oneshot::Sender<()>),
}

impl DetachedKernel {
    /// Has it go on, and waits until it does.
    ///
    /// # Errors
    /// [`KernelRefusal::NoKernel`] when it did not survive; [`KernelRefusal::Stopping`].
    pub(crate) async fn reattach(self) -> Result<KernelAnswer, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        // An owner that has ended has dropped the other end, which the answer tells.
        let _ = self.fate.send(DetachResolution::Rejoins(done));
        answer.await.unwrap_or(Err(KernelRefusal::Stopping))
    }

    /// Ends its process, which is kept there, and waits until nothing is left of it.
    pub(crate) async fn finish_checkpoint(self, frozen: KernelCheckpoint) {
        let (done, gone) = oneshot::channel();
        let _ = self.fate.send(DetachResolution::Frozen(frozen, done));
        // Without an owner there is no process, either.
        let _ = gone.await;
    }
}

/// A kernel's process that came out of a checkpoint.
#[derive(Debug)]
pub(crate) struct RestoredKernel {
    pub(super) made: SpawnedKernel,
}

impl RestoredKernel {
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
        let made = SpawnedKernel {
            stream: connect_kernel(&socket)?,
            guard: KernelSupervisor::new(guard, root, None),
            socket: KernelSocket::at(socket),
            last_words: StderrTail::from_stream(stderr),
        };
        Ok(Self { made })
    }
}

impl KernelHandle {
    /// Waits until the kernel is idle and has let go of every connection.
    ///
    /// # Errors
    /// [`KernelRefusal::Busy`] while code runs; [`KernelRefusal::Held`], and then it goes on as it was;
    /// [`KernelRefusal::Checkpointed`], [`KernelRefusal::NoKernel`] or [`KernelRefusal::Stopping`].
    pub(crate) async fn detach(&self) -> Result<DetachedKernel, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        self.send_message(KernelMessage::Part { done }).await?;
        answer.await.unwrap_or(Err(KernelRefusal::Stopping))
    }

    /// Ends the present process and has the restored one in its place, once it has answered.
    ///
    /// # Errors
    /// [`KernelRefusal::Busy`] while code runs, and then the restored one is ended;
    /// [`KernelRefusal::NoKernel`] when that does not answer, and then the state is lost.
    pub(crate) async fn restore_process(
        &self,
        restored: RestoredKernel,
    ) -> Result<KernelAnswer, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        let restored = Box::new(restored);
        self.send_message(KernelMessage::Thaw { restored, done })
            .await?;
        answer.await.unwrap_or(Err(KernelRefusal::Stopping))
    }
}
