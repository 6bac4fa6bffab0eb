//! Bringing a kernel's variables back before anything else is asked of it, once in the owner's life.
//!
//! A generation that can't be reloaded gives way to the one before it. When none can, the kernel is
//! empty, which its replies then say.

use super::Owner;
use super::jobs::Job;
use crate::companion::cryo;
use crate::companion::kernel::ledger::Ledger;
use crate::companion::kernel::wire::Question;
use crate::companion::kernel::{Answer, Refusal, Settings};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long it may take, by itself: whoever raises the container waits for no longer than two
/// minutes, and what hangs must not keep it from starting. By hand it takes as long as it takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// What is still to be tried.
#[derive(Debug)]
pub(super) struct Thaw {
    left: VecDeque<PathBuf>,
    /// The answer to what is being tried.
    on: Option<oneshot::Receiver<Result<Answer, Refusal>>>,
}

impl Thaw {
    /// Everything that the last life has stored, unless it was ended by wish; before that, what
    /// comes first.
    pub(super) fn of(
        ledger: &Ledger,
        settings: &Settings,
        session: &str,
        first: Vec<PathBuf>,
    ) -> Self {
        let mut left = VecDeque::from(first);
        if ledger.is_stored() {
            left.extend(cryo::snapshots(&settings.cryo, session));
        }
        Self { left, on: None }
    }

    /// Nothing comes back by itself.
    pub(super) fn none() -> Self {
        Self {
            left: VecDeque::new(),
            on: None,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.is_some()
    }
}

impl Owner {
    pub(super) fn thaw_next(&mut self) {
        self.thaw.on = None;
        let Some(folder) = self.thaw.left.pop_front() else {
            // Nothing comes back any more, in later lives neither, unless it is stored again.
            if !self.ledger.has_come_back() {
                self.ledger.note_stored(false);
            }
            return;
        };
        let (done, answer) = oneshot::channel();
        tracing::info!(session = self.session, "reloading `{}`", folder.display());
        let question = Question::CryoReload { folder };
        self.queue.push_front(Job::Ask {
            question,
            quiet: true,
            done,
        });
        self.thaw.on = Some(answer);
    }

    /// Looks what came of it; called when a job has ended.
    pub(super) fn look_after_thaw(&mut self) {
        let Some(answer) = &mut self.thaw.on else {
            return;
        };
        match answer.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => {}
            Ok(Ok(Answer { value: Ok(_), .. })) => {
                self.thaw.left.clear();
                self.thaw.on = None;
            }
            Ok(Ok(Answer {
                value: Err(error), ..
            })) => {
                tracing::error!("it can't be reloaded: {}: {}", error.kind, error.message);
                // One that takes too long, or was stopped, is not made better by an older one.
                if matches!(error.kind.as_str(), "Timeout" | "Interrupted") {
                    self.thaw.left.clear();
                }
                self.thaw_next();
            }
            // The kernel has ended meanwhile; the next one begins where it is ready.
            Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => self.thaw.on = None,
        }
    }

    /// What was stored is not to come back by itself.
    pub(super) fn forget_stored(&mut self) {
        self.thaw.left.clear();
        self.ledger.note_stored(false);
    }
}
