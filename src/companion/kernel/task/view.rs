//! Publishes the state of the kernel to all readers.

use super::KernelOwner;
use crate::companion::kernel::KernelView;
use crate::companion::kernel::policy::{KernelPolicyState, ProbeCause};
use crate::companion::kernel::process::KernelProcess;
use crate::protocol::session::{RELOADING_DETAIL, STARTING_DETAIL};

impl KernelOwner {
    pub(super) fn publish_view(&self) {
        let checkpoint = self.checkpoint.as_ref();
        let checkpoint = checkpoint.filter(|_| self.state == KernelPolicyState::Checkpointed);
        let checkpoint = checkpoint.map(|checkpoint| checkpoint.id.clone());
        let is_started = self.kernel.hello.is_some()
            && !matches!(self.state, KernelPolicyState::Starting { .. });
        let ready = is_started && !self.restore.is_running();
        let kernel = &self.kernel;
        let fresh = KernelView {
            ready: ready || checkpoint.is_some(),
            checkpoint,
            detail: self.describe_state(),
            start_failure: self
                .state
                .has_failed_restarts()
                .then(|| self.kernel.last_failure.clone()),
            busy: self.state.is_busy(),
            queued: self.queue.len(),
            counts: self.usage.counts,
            reset_execution_count: self.usage.reset_execution_count,
            report: self
                .generation_store
                .peek_report(self.generation_store.generation(), None),
            python: kernel.hello.as_ref().map(|hello| hello.python.clone()),
            root_pid: kernel.process.as_ref().and_then(KernelProcess::root_pid),
            last_used: self.usage.last_used,
            last_changed: self.usage.last_changed,
            transferred_bytes: self.usage.transferred_bytes,
        };
        self.view.send_if_modified(|old| {
            let changed = *old != fresh;
            *old = fresh;
            changed
        });
    }

    fn describe_state(&self) -> String {
        match self.state {
            KernelPolicyState::Starting { .. } => STARTING_DETAIL.into(),
            KernelPolicyState::Probing(ProbeCause::Idle) => "idle".into(),
            KernelPolicyState::Idle if self.kernel.is_plain => {
                "idle, without the packages installed at run time, with which it did not start"
                    .into()
            }
            KernelPolicyState::Idle => match self.restore.failure_reason() {
                Some(why) => format!("idle, without its variables, which can't be reloaded: {why}"),
                None => "idle".into(),
            },
            KernelPolicyState::Busy if self.restore.is_running() => RELOADING_DETAIL.into(),
            KernelPolicyState::Busy => "executing".into(),
            KernelPolicyState::Stopping { .. }
            | KernelPolicyState::Probing(ProbeCause::StoppedCode) => "being interrupted".into(),
            KernelPolicyState::Killed { .. } => "stopping".into(),
            KernelPolicyState::Detached => "being checkpointed".into(),
            KernelPolicyState::Checkpointed => "checkpointed".into(),
            KernelPolicyState::WaitingToRestart { .. } => {
                format!("can't be started, retrying: {}", self.kernel.last_failure)
            }
        }
    }
}
