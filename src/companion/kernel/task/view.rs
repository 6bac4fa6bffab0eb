//! Publishes the state of the kernel to all readers.

use super::KernelOwner;
use crate::companion::kernel::KernelView;
use crate::companion::kernel::policy::KernelPolicyState;
use crate::companion::kernel::process::KernelProcess;

impl KernelOwner {
    pub(super) fn publish_view(&self) {
        let checkpoint = self.checkpoint.as_ref();
        let checkpoint = checkpoint.filter(|_| self.state == KernelPolicyState::Checkpointed);
        let checkpoint = checkpoint.map(|checkpoint| checkpoint.id.clone());
        let is_started =
            self.hello.is_some() && !matches!(self.state, KernelPolicyState::Starting { .. });
        let ready = is_started && !self.restore.is_running();
        let fresh = KernelView {
            ready: ready || checkpoint.is_some(),
            checkpoint,
            detail: self.describe_state(),
            start_failure: self
                .state
                .has_failed_to_start()
                .then(|| self.last_failure.clone()),
            busy: self.state.is_busy() && !self.is_probing_idle_kernel(),
            queued: self.queue.len(),
            counts: self.counts,
            reset_execution_count: self.reset_execution_count,
            report: self
                .generation_store
                .peek_report(self.generation_store.generation(), None),
            python: self.hello.as_ref().map(|h| h.python.clone()),
            root_pid: self.process.as_ref().and_then(KernelProcess::root_pid),
            last_used: self.last_used,
            last_changed: self.last_changed,
            transferred_bytes: self.transferred_bytes,
        };
        self.view.send_if_modified(|old| {
            let changed = *old != fresh;
            *old = fresh;
            changed
        });
    }

    /// Whether an idle kernel is being probed.
    pub(super) fn is_probing_idle_kernel(&self) -> bool {
        self.state == KernelPolicyState::Probing && self.current_job.is_none()
    }

    fn describe_state(&self) -> String {
        match self.state {
            KernelPolicyState::Starting { .. } => "starting".into(),
            KernelPolicyState::Probing if self.is_probing_idle_kernel() => "idle".into(),
            KernelPolicyState::Idle if self.is_plain => {
                "idle, without the packages installed at run time, with which it did not start"
                    .into()
            }
            KernelPolicyState::Idle => match self.restore.failure_reason() {
                Some(why) => format!("idle, without its variables, which can't be reloaded: {why}"),
                None => "idle".into(),
            },
            KernelPolicyState::Busy if self.restore.is_running() => "reloading variables".into(),
            KernelPolicyState::Busy => "executing".into(),
            KernelPolicyState::Stopping { .. } | KernelPolicyState::Probing => {
                "being interrupted".into()
            }
            KernelPolicyState::Killed { .. } => "stopping".into(),
            KernelPolicyState::Detached => "being checkpointed".into(),
            KernelPolicyState::Checkpointed => "checkpointed".into(),
            KernelPolicyState::WaitingToRestart { .. } => {
                format!("can't be started, retrying: {}", self.last_failure)
            }
        }
    }
}
