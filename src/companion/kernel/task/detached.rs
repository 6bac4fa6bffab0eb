//! Detaching from a process, and attaching to a restored one.

use super::job::KernelJob;
use super::{KernelOwner, reap_process};
use crate::companion::kernel::detached::{DetachResolution, DetachedKernel, RestoredKernel};
use crate::companion::kernel::policy::KernelPolicyEvent;
use crate::companion::kernel::process::KernelProcess;
use crate::companion::kernel::{KernelAnswerSender, KernelRefusal};
use std::future::pending;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

/// Waits for the decision about a detached kernel; waits forever if no kernel is detached.
pub(super) async fn wait_resolution(
    resolution: &mut Option<oneshot::Receiver<DetachResolution>>,
) -> Result<DetachResolution, RecvError> {
    match resolution {
        Some(decision) => decision.await,
        None => pending().await,
    }
}

impl KernelOwner {
    /// Completes the detaching after the kernel has agreed to close its connection.
    pub(super) async fn detach_kernel(&mut self) {
        if let Some(current) = &mut self.current_job {
            current.deadline = None;
        }
        self.drain_output().await;
        let parted = match &mut self.kernel.process {
            Some(process) => process.detach().await,
            None => return,
        };
        if let Err(why) = parted {
            return self.break_kernel(format!("the kernel did not release its connection: {why}"));
        }
        // An interrupt has no purpose any more: the job has ended.
        if let Some(current) = &mut self.current_job {
            current.stop_reason = None;
        }
        let (resolution, decision) = oneshot::channel();
        self.resolution = Some(decision);
        self.apply_event(KernelPolicyEvent::Detached);
        let kernel = &self.kernel;
        let (Some(process), Some(hello)) = (&kernel.process, &kernel.hello) else {
            return;
        };
        let Some(KernelJob::Detach { done }) =
            self.current_job.as_mut().map(|current| &mut current.job)
        else {
            return;
        };
        let detached = DetachedKernel {
            pid: hello.pid,
            supervisor_pid: process.root_pid().unwrap_or_default(),
            socket: process.socket_path().unwrap_or_default(),
            generation: self.generation_store.generation(),
            counts: self.usage.counts,
            python: hello.python.clone(),
            body_version: hello.body_version.clone(),
            resolution,
        };
        // The caller may have disconnected: the value is dropped then, and the kernel reattaches.
        let _ = done.take().map(|done| done.send(Ok(detached)));
    }

    /// Handles the decision about the detached kernel.
    pub(super) async fn resolve_detached(&mut self, decision: Result<DetachResolution, RecvError>) {
        self.resolution = None;
        self.current_job = None;
        match decision {
            Ok(DetachResolution::Checkpointed(checkpoint, done)) => {
                if let Some(process) = self.kernel.process.take() {
                    reap_process(process, false).await;
                }
                self.kernel.hello = None;
                self.checkpoint = Some(checkpoint);
                self.apply_event(KernelPolicyEvent::Checkpointed);
                let refusal = self.checkpointed_refusal();
                self.abandon_queue(&refusal);
                // The caller may have disconnected.
                let _ = done.send(());
            }
            decision => {
                if let Ok(DetachResolution::Reattach(done)) = decision {
                    self.waiters.attach = Some(done);
                }
                let process = self.kernel.process.iter_mut();
                process.for_each(KernelProcess::reattach);
                self.apply_event(KernelPolicyEvent::Reattach);
            }
        }
        let report = self
            .generation_store
            .peek_report(self.generation_store.generation(), None);
        self.waiters.answer_interrupts(&report);
    }

    /// The refusal of requests while the kernel is in a checkpoint.
    pub(super) fn checkpointed_refusal(&self) -> KernelRefusal {
        let checkpoint = self.checkpoint.as_ref();
        KernelRefusal::Checkpointed {
            session: self.session.clone(),
            checkpoint: checkpoint.map_or_else(String::new, |checkpoint| checkpoint.id.clone()),
        }
    }

    /// Removes the mark: the session is not in a checkpoint any more.
    pub(super) fn remove_checkpoint_marker(&mut self) {
        if let Some(checkpoint) = self.checkpoint.take() {
            checkpoint.remove_marker();
        }
    }

    pub(super) fn restore_process(&mut self, restored: RestoredKernel, done: KernelAnswerSender) {
        if self.current_job.is_some() || !self.queue.is_empty() {
            // Dropping the restored process ends it.
            return drop(done.send(Err(KernelRefusal::Busy)));
        }
        if let Some(old) = self.kernel.process.take() {
            tokio::spawn(reap_process(old, true));
        }
        self.waiters.answer_attach(Err(KernelRefusal::NoKernel(
            "another kernel replaced it".into(),
        )));
        let RestoredKernel { spawned } = restored;
        self.kernel.process = Some(KernelProcess::from_restored(spawned, &self.session));
        // These fields belong to the old process.
        (self.kernel.hello, self.kernel.is_plain) = (None, false);
        self.kernel.broken_reason.clear();
        self.waiters.attach = Some(done);
        self.apply_event(KernelPolicyEvent::Restore);
    }
}
