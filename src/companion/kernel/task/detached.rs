//! Detaching from a process, and attaching to a restored one.

use super::job::KernelJob;
use super::{KernelOwner, reap_process};
use crate::companion::kernel::detached::{DetachResolution, DetachedKernel, RestoredKernel};
use crate::companion::kernel::policy::KernelPolicyEvent;
use crate::companion::kernel::process::KernelProcess;
use crate::companion::kernel::{KernelAnswer, KernelAnswerSender, KernelRefusal};
use crate::protocol::kernel::KernelReport;
use std::future::pending;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

/// The namespace of a process that is about to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartAction {
    /// An empty namespace.
    New,
    /// The namespace from before.
    Same,
    /// The namespace of an earlier generation.
    Restored,
}

/// Waits for the decision about a detached kernel; waits forever if no kernel is detached.
pub(super) async fn wait_resolution(
    fate: &mut Option<oneshot::Receiver<DetachResolution>>,
) -> Result<DetachResolution, RecvError> {
    match fate {
        Some(decision) => decision.await,
        None => pending().await,
    }
}

impl KernelOwner {
    /// Completes the detaching after the kernel has agreed to close its connection.
    pub(super) async fn detach_kernel(&mut self) {
        self.deadline = None;
        self.drain_output().await;
        let parted = match &mut self.process {
            Some(process) => process.detach().await,
            None => return,
        };
        if let Err(why) = parted {
            self.broken = Some(format!("the kernel did not release its connection: {why}"));
            return self.apply_event(KernelPolicyEvent::Broken);
        }
        // An interrupt has no purpose any more: the job has ended.
        self.stop = None;
        let (fate, decision) = oneshot::channel();
        self.fate = Some(decision);
        self.apply_event(KernelPolicyEvent::Part);
        let known = (&self.process, &self.hello, &mut self.current);
        let (Some(process), Some(hello), Some(KernelJob::Part { done })) = known else {
            return;
        };
        let apart = DetachedKernel {
            pid: hello.pid,
            root: process.root_pid().unwrap_or_default(),
            socket: process.socket_path().unwrap_or_default(),
            generation: self.ledger.generation(),
            counts: self.counts,
            python: hello.python.clone(),
            body_version: hello.body_version.clone(),
            fate,
        };
        // The caller may have disconnected: the value is dropped then, and the kernel reattaches.
        let _ = done.take().map(|done| done.send(Ok(apart)));
    }

    /// Handles the decision about the detached kernel.
    pub(super) async fn resolve_detached(&mut self, decision: Result<DetachResolution, RecvError>) {
        self.fate = None;
        self.current = None;
        match decision {
            Ok(DetachResolution::Frozen(frozen, done)) => {
                if let Some(process) = self.process.take() {
                    reap_process(process, false).await;
                }
                self.hello = None;
                self.frozen = Some(frozen);
                self.apply_event(KernelPolicyEvent::Freeze);
                let refusal = self.checkpointed_refusal();
                for job in std::mem::take(&mut self.queue) {
                    self.abandon_job(job, &refusal);
                }
                // The caller may have disconnected.
                let _ = done.send(());
            }
            decision => {
                if let Ok(DetachResolution::Rejoins(done)) = decision {
                    self.returning = Some(done);
                }
                self.process.iter_mut().for_each(KernelProcess::reattach);
                self.birth = StartAction::Same;
                self.apply_event(KernelPolicyEvent::Rejoin);
            }
        }
        let report = self.ledger.peek_report(self.ledger.generation(), None);
        self.answer_interrupts(&report);
    }

    /// The refusal of requests while the kernel is in a checkpoint.
    pub(super) fn checkpointed_refusal(&self) -> KernelRefusal {
        let frozen = self.frozen.as_ref();
        KernelRefusal::Checkpointed {
            session: self.session.clone(),
            checkpoint: frozen.map_or_else(String::new, |frozen| frozen.checkpoint.clone()),
        }
    }

    /// Removes the mark: the session is not in a checkpoint any more.
    pub(super) fn remove_checkpoint_mark(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            frozen.remove_mark();
        }
    }

    pub(super) fn restore_process(&mut self, restored: RestoredKernel, done: KernelAnswerSender) {
        if self.current.is_some() || !self.queue.is_empty() {
            // Dropping the restored process ends it.
            return drop(done.send(Err(KernelRefusal::Busy)));
        }
        if let Some(old) = self.process.take() {
            tokio::spawn(reap_process(old, true));
        }
        self.answer_returning(Err(KernelRefusal::NoKernel(
            "another kernel replaced it".into(),
        )));
        let RestoredKernel { made } = restored;
        self.process = Some(KernelProcess::from_restored(made, &self.session));
        // These fields belong to the old process.
        (self.hello, self.broken, self.stop) = (None, None, None);
        self.is_plain = false;
        self.birth = StartAction::Restored;
        self.returning = Some(done);
        self.apply_event(KernelPolicyEvent::Thaw);
    }

    /// Answers the caller that waits for a detached or restored kernel.
    pub(super) fn answer_returning(&mut self, how: Result<KernelReport, KernelRefusal>) {
        if let Some(done) = self.returning.take() {
            // The caller may have disconnected.
            let _ = done.send(how.map(KernelAnswer::without_value));
        }
    }
}
