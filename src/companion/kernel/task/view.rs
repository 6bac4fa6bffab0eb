//! What everyone sees of the kernel.

use super::Owner;
use crate::companion::kernel::View;
use crate::companion::kernel::policy::State;
use crate::companion::kernel::process::Process;

impl Owner {
    pub(super) fn publish(&self) {
        let frozen = self.frozen.as_ref();
        let frozen = frozen.filter(|_| self.state == State::Frozen);
        let checkpoint = frozen.map(|frozen| frozen.checkpoint.clone());
        let is_started = self.hello.is_some() && !matches!(self.state, State::Starting { .. });
        let ready = is_started && !self.thaw.is_on();
        let fresh = View {
            ready: ready || checkpoint.is_some(),
            checkpoint,
            detail: self.detail(),
            busy: self.state.is_busy() && !self.is_checked(),
            queued: self.queue.len(),
            counts: self.counts,
            emptied: self.emptied,
            report: self.ledger.view(self.ledger.generation(), None),
            python: self.hello.as_ref().map(|h| h.python.clone()),
            root: self.process.as_ref().and_then(Process::root),
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

    /// Whether an idle kernel is asked how it is.
    pub(super) fn is_checked(&self) -> bool {
        self.state == State::Probing && self.current.is_none()
    }

    fn detail(&self) -> String {
        match self.state {
            State::Starting { .. } => "starting".into(),
            State::Probing if self.is_checked() => "idle".into(),
            State::Idle if self.is_plain => {
                "idle, without the packages installed at run time, which kept it from starting"
                    .into()
            }
            State::Idle => match self.thaw.failure() {
                Some(why) => format!("idle, without its variables, which can't be reloaded: {why}"),
                None => "idle".into(),
            },
            State::Busy if self.thaw.is_on() => "bringing its variables back".into(),
            State::Busy => "executing".into(),
            State::Stopping { .. } | State::Probing => "being interrupted".into(),
            State::Killed { .. } => "being ended".into(),
            State::Apart => "being checkpointed".into(),
            State::Frozen => "checkpointed".into(),
            State::Resting { .. } => {
                format!("can't be started, will be tried again: {}", self.trouble)
            }
        }
    }
}
