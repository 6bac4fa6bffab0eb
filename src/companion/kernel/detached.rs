//! A kernel without connections to its companion: before its checkpoint, and after its restore.
//!
//! ```text
//! KernelHandle::detach ─▶ DetachedKernel ─┬─ reattach, or dropped ─▶ continues with the same state
//!                                         └─ finish_checkpoint    ─▶ its process ends; requests are refused
//! KernelHandle::restore_process(RestoredKernel)                   ─▶ replaces the current process, if one exists
//! ```
//!
//! The owner task still owns the process. This module does not checkpoint or restore processes.

use super::checkpoint::KernelCheckpoint;
use super::connection::KernelCounts;
use super::process::connect_kernel;
use super::template::{KernelSocket, SpawnedKernel, StderrTail};
use super::{KernelAnswer, KernelHandle, KernelMessage, KernelRefusal};
use crate::supervise::Supervisor;
use std::io;
use std::path::PathBuf;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

/// An idle kernel without any connection. When this value is dropped, the kernel reattaches with the same state.
#[derive(Debug)]
pub(crate) struct DetachedKernel {
    pub(crate) pid: i32,
    /// PID of the kernel's supervisor.
    pub(crate) supervisor_pid: i32,
    /// Socket on which the kernel listens.
    pub(crate) socket: PathBuf,
    pub(crate) generation: u64,
    pub(crate) counts: KernelCounts,
    pub(crate) python: String,
    pub(crate) body_version: String,
    pub(super) resolution: oneshot::Sender<DetachResolution>,
}

/// Decision about a detached kernel.
#[derive(Debug)]
pub(super) enum DetachResolution {
    Reattach(oneshot::Sender<Result<KernelAnswer, KernelRefusal>>),
    /// The kernel is in a checkpoint; the owner ends its process.
    Checkpointed(KernelCheckpoint, oneshot::Sender<()>),
}

impl DetachedKernel {
    /// Reattaches the kernel, and waits until the kernel is ready.
    ///
    /// # Errors
    /// [`KernelRefusal::NoKernel`] when the kernel did not survive; [`KernelRefusal::ShuttingDown`].
    pub(crate) async fn reattach(self) -> Result<KernelAnswer, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        // An owner that has ended dropped the receiver; the answer below reports this case.
        let _ = self.resolution.send(DetachResolution::Reattach(done));
        answer.await.unwrap_or(Err(KernelRefusal::ShuttingDown))
    }

    /// Ends the process, whose state is in the checkpoint, and waits until the process and its descendants are gone.
    pub(crate) async fn finish_checkpoint(self, checkpoint: KernelCheckpoint) {
        let (done, ended) = oneshot::channel();
        let _ = self
            .resolution
            .send(DetachResolution::Checkpointed(checkpoint, done));
        // Without an owner, no process exists either.
        let _ = ended.await;
    }
}

/// A kernel process that was restored from a checkpoint.
#[derive(Debug)]
pub(crate) struct RestoredKernel {
    pub(super) spawned: SpawnedKernel,
}

impl RestoredKernel {
    /// Connects with the process. `stderr` carries its output.
    ///
    /// # Errors
    /// When no process listens at `socket`.
    pub(crate) fn connect(
        supervisor: Supervisor,
        socket: PathBuf,
        stderr: Receiver,
    ) -> io::Result<Self> {
        let spawned = SpawnedKernel {
            stream: connect_kernel(&socket)?,
            supervisor,
            socket: KernelSocket::from_path(socket),
            stderr_tail: StderrTail::from_stream(stderr),
        };
        Ok(Self { spawned })
    }
}

impl KernelHandle {
    /// Waits until the kernel is idle and has closed every connection.
    ///
    /// # Errors
    /// [`KernelRefusal::Busy`] while code runs; [`KernelRefusal::ResourceHeld`], in which case the kernel stays
    /// attached; [`KernelRefusal::Checkpointed`], [`KernelRefusal::NoKernel`] or [`KernelRefusal::ShuttingDown`].
    pub(crate) async fn detach(&self) -> Result<DetachedKernel, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        self.send_message(KernelMessage::Detach { done }).await?;
        answer.await.unwrap_or(Err(KernelRefusal::ShuttingDown))
    }

    /// Ends the current process, and replaces it with the restored one after the restored process has answered.
    ///
    /// # Errors
    /// [`KernelRefusal::Busy`] while code runs, in which case the restored process is ended;
    /// [`KernelRefusal::NoKernel`] when the restored process does not answer, in which case the state is lost.
    pub(crate) async fn restore_process(
        &self,
        restored: RestoredKernel,
    ) -> Result<KernelAnswer, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        let restored = Box::new(restored);
        self.send_message(KernelMessage::RestoreProcess { restored, done })
            .await?;
        answer.await.unwrap_or(Err(KernelRefusal::ShuttingDown))
    }
}
