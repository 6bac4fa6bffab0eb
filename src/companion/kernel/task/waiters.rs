//! Callers that wait for something other than a job of their own.

use crate::companion::kernel::{KernelAnswer, KernelAnswerSender, KernelRefusal};
use crate::protocol::kernel::KernelReport;
use tokio::sync::oneshot;

#[derive(Debug, Default)]
pub(super) struct KernelWaiters {
    /// Wait for the end of the job that they interrupted.
    pub(super) interrupts: Vec<oneshot::Sender<KernelReport>>,
    /// Wait for a restart.
    pub(super) restarts: Vec<KernelAnswerSender>,
    /// Waits for a detached or checkpointed kernel.
    pub(super) attach: Option<KernelAnswerSender>,
    /// Wait until nothing runs any more.
    pub(super) quiescence: Vec<oneshot::Sender<()>>,
}

// A caller may have disconnected: an answer that can't be sent is dropped.
impl KernelWaiters {
    pub(super) fn answer_interrupts(&mut self, report: &KernelReport) {
        for waiting in self.interrupts.drain(..) {
            let _ = waiting.send(report.clone());
        }
    }

    pub(super) fn refuse_restarts(&mut self, refusal: &KernelRefusal) {
        for waiting in self.restarts.drain(..) {
            let _ = waiting.send(Err(refusal.clone()));
        }
    }

    pub(super) fn answer_attach(&mut self, how: Result<KernelReport, KernelRefusal>) {
        if let Some(done) = self.attach.take() {
            let _ = done.send(how.map(KernelAnswer::without_value));
        }
    }
}
