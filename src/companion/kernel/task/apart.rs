//! Letting go of a process, and taking one that was frozen.

use super::jobs::Job;
use super::{Owner, bury};
use crate::companion::kernel::apart::{Apart, Fate, Restored};
use crate::companion::kernel::policy::Event;
use crate::companion::kernel::process::Process;
use crate::companion::kernel::{Answer, Refusal, Reply};
use crate::protocol::kernel::KernelReport;
use std::future::pending;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

/// Whose life begins when a process is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Birth {
    /// An empty namespace.
    New,
    /// The one that was there before.
    Same,
    /// The one of an earlier generation.
    Restored,
}

/// What is decided about a kernel that is apart; never, while none is.
pub(super) async fn decided(fate: &mut Option<oneshot::Receiver<Fate>>) -> Result<Fate, RecvError> {
    match fate {
        Some(decision) => decision.await,
        None => pending().await,
    }
}

impl Owner {
    /// The kernel has told that it lets go.
    pub(super) async fn part(&mut self) {
        self.deadline = None;
        self.drain().await;
        let parted = match &mut self.process {
            Some(process) => process.part().await,
            None => return,
        };
        if let Err(why) = parted {
            self.broken = Some(format!("it did not let go of its connection: {why}"));
            return self.step(Event::Broken);
        }
        // Who interrupts what ends by itself has no reason to any more.
        self.stop = None;
        let (fate, decision) = oneshot::channel();
        self.fate = Some(decision);
        self.step(Event::Part);
        let known = (&self.process, &self.hello, &mut self.current);
        let (Some(process), Some(hello), Some(Job::Part { done })) = known else {
            return;
        };
        let apart = Apart {
            pid: hello.pid,
            root: process.root().unwrap_or_default(),
            socket: process.socket().unwrap_or_default(),
            generation: self.ledger.generation(),
            counts: self.counts,
            python: hello.python.clone(),
            body_version: hello.body_version.clone(),
            fate,
        };
        // Whoever asked may have left: it is dropped then, which has the kernel come back.
        let _ = done.take().map(|done| done.send(Ok(apart)));
    }

    /// It has been decided what becomes of the kernel that is apart.
    pub(super) async fn meet(&mut self, decision: Result<Fate, RecvError>) {
        self.fate = None;
        self.current = None;
        match decision {
            Ok(Fate::Frozen(frozen, done)) => {
                if let Some(process) = self.process.take() {
                    bury(process, false).await;
                }
                self.hello = None;
                self.frozen = Some(frozen);
                self.step(Event::Freeze);
                let refusal = self.checkpointed();
                for job in std::mem::take(&mut self.queue) {
                    self.abandon(job, &refusal);
                }
                // Whoever asked may have left.
                let _ = done.send(());
            }
            decision => {
                if let Ok(Fate::Rejoins(done)) = decision {
                    self.returning = Some(done);
                }
                self.process.iter_mut().for_each(Process::rejoin);
                self.birth = Birth::Same;
                self.step(Event::Rejoin);
            }
        }
        let report = self.ledger.view(self.ledger.generation(), None);
        self.answer_interrupts(&report);
    }

    /// What requests are told while it lies in a checkpoint.
    pub(super) fn checkpointed(&self) -> Refusal {
        let frozen = self.frozen.as_ref();
        Refusal::Checkpointed {
            session: self.session.clone(),
            checkpoint: frozen.map_or_else(String::new, |frozen| frozen.checkpoint.clone()),
        }
    }

    /// The session does not lie in a checkpoint any more.
    pub(super) fn leave_checkpoint(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            frozen.leave();
        }
    }

    pub(super) fn thaw(&mut self, restored: Restored, done: Reply) {
        if self.current.is_some() || !self.queue.is_empty() {
            // What was restored is dropped, which ends it.
            return drop(done.send(Err(Refusal::Busy)));
        }
        if let Some(old) = self.process.take() {
            tokio::spawn(bury(old, true));
        }
        self.returned(Err(Refusal::NoKernel("another took its place".into())));
        let Restored { made } = restored;
        self.process = Some(Process::restored(made, &self.session));
        // What was said of the old one is not the new one's.
        (self.hello, self.broken, self.stop) = (None, None, None);
        self.is_plain = false;
        self.birth = Birth::Restored;
        self.returning = Some(done);
        self.step(Event::Thaw);
    }

    /// Tells whoever waits for a kernel to come back.
    pub(super) fn returned(&mut self, how: Result<KernelReport, Refusal>) {
        if let Some(done) = self.returning.take() {
            // Whoever asked may have left.
            let _ = done.send(how.map(Answer::of));
        }
    }
}
