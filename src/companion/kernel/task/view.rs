//! Publishes the state of the kernel to all readers.

use super::KernelOwner;
use crate::companion::kernel::KernelView;
use crate::companion::kernel::policy::KernelPolicyState;
use crate::companion::kernel::process::KernelProcess;

impl KernelOwner {
    pub(super) fn publish_view(&self) {
        let frozen = self.frozen.as_ref();
        let frozen = frozen.filter(|_| self.state == KernelPolicyState::Frozen);
        let checkpoint = frozen.map(|frozen| frozen.checkpoint.clone());
        let is_started =
            self.hello.is_some() && !matches!(self.state, KernelPolicyState::Starting { .. });
        let ready = is_started && !self.thaw.is_on();
        let fresh = KernelView {
            ready: ready || checkpoint.is_some(),
            checkpoint,
            detail: self.describe_state(),
            busy: self.state.is_busy() && !self.is_checked(),
            queued: self.queue.len(),
            counts: self.counts,
            emptied: self.emptied,
            report: self.ledger.peek_report(self.ledger.generation(), None),
            python: self.hello.as_ref().map(|h| h.python.clone()),
            root: self.process.as_ref().and_then(KernelProcess::root_pid),
            used: self.used,
            changed: self.changed,
            moved: self.moved,
        };
        self.view.send_if_modified(|old| {
            let changed = *old != fresh;
            *old = fresh;
            changed
        });
    }

    /// Whether an idle kernel is being probed.
    pub(super) fn is_checked(&self) -> bool {
        self.state == KernelPolicyState::Probing && self.current.is_none()
    }

    fn describe_state(&self) -> String {
        match self.state {
            KernelPolicyState::Starting { .. } => "starting".into(),
            KernelPolicyState::Probing if self.is_checked() => "idle".into(),
            KernelPolicyState::Idle if self.is_plain => {
                "idle, without the packages installed at run time, with which it did not start"
                    .into()
            }
            KernelPolicyState::Idle => match self.thaw.failure_reason() {
                Some(why) => format!("idle, without its variables, which can't be reloaded: {why}"),
                None => "idle".into(),
            },
            KernelPolicyState::Busy if self.thaw.is_on() => "reloading variables".into(),
            KernelPolicyState::Busy => "executing".into(),
            KernelPolicyState::Stopping { .. } | KernelPolicyState::Probing => {
                "being interrupted".into()
            }
            KernelPolicyState::Killed { .. } => "stopping".into(),
            KernelPolicyState::Apart => "being checkpointed".into(),
            KernelPolicyState::Frozen => "checkpointed".into(),
            KernelPolicyState::Resting { .. } => {
                format!("can't be started, retrying: {}", self.trouble)
            }
        }
    }
}
