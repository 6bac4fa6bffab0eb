//! Jobs: taken, queued, begun, finished, given up. Every job ends in exactly one answer.

use super::Owner;
use crate::companion::descendants;
use crate::companion::kernel::ending::{Stop, raised};
use crate::companion::kernel::policy::{Event, State};
use crate::companion::kernel::run::Run;
use crate::companion::kernel::wire::{Ending, Request};
use crate::companion::kernel::{Message, Refusal};
use crate::protocol::kernel::{Event as RunEvent, KernelReport, Raised, RunStatus};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Requests that may wait for their turn.
const QUEUE: usize = 1024;

/// How long a reset may take.
const RESET: Duration = Duration::from_secs(10);

/// Processes of a stopped run that are ended one by one; with more, the kernel ends, too.
const SWARM: usize = 64;

/// What the process works on or is asked to.
#[derive(Debug)]
pub(super) enum Job {
    Run(Arc<Run>),
    Reset(oneshot::Sender<Result<KernelReport, Refusal>>),
}

impl Owner {
    pub(super) fn hear(&mut self, message: Message) {
        match message {
            _ if self.shutdown.is_some() && !matches!(message, Message::Interrupt { .. }) => {
                refuse(message, &Refusal::Stopping);
            }
            Message::Execute { run, queue, taken } => {
                let answer = self.admit(queue);
                if answer.is_ok() {
                    self.queue.push_back(Job::Run(run));
                }
                // Whoever asked may have left; the run goes on and can be found by its id.
                let _ = taken.send(answer);
            }
            Message::Reset { done } => match self.admit(false) {
                Ok(()) => self.queue.push_back(Job::Reset(done)),
                Err(refusal) => drop(done.send(Err(refusal))),
            },
            Message::Interrupt { id } => self.interrupt(&id),
            Message::Shutdown { grace } => self.shutdown = Some(Instant::now() + grace),
        }
    }

    pub(super) fn admit(&self, queue: bool) -> Result<(), Refusal> {
        let waiting = self.current.is_some() || !self.queue.is_empty();
        match () {
            () if self.state.is_hopeless() => Err(Refusal::NoKernel(self.trouble.clone())),
            () if waiting && !queue => Err(Refusal::Busy),
            () if self.queue.len() >= QUEUE => Err(Refusal::QueueFull),
            () => Ok(()),
        }
    }

    pub(super) fn interrupt(&mut self, id: &str) {
        if matches!(&self.current, Some(Job::Run(run)) if run.id == id) {
            self.stop.get_or_insert(Stop::Asked);
            self.step(Event::Stop);
            return;
        }
        let is_it = |job: &Job| matches!(job, Job::Run(run) if run.id == id);
        if let Some(at) = self.queue.iter().position(is_it)
            && let Some(Job::Run(run)) = self.queue.remove(at)
        {
            let message = "the run was taken out of the queue before it began".into();
            run.fold(RunEvent::Error {
                error: raised("Interrupted", message),
            });
            let report = self
                .ledger
                .report(self.ledger.generation(), run.request.seen);
            run.finish(RunStatus::Interrupted, report);
        }
    }

    pub(super) fn begin_next(&mut self) {
        if self.state != State::Idle || self.current.is_some() {
            return;
        }
        let Some(job) = self.queue.pop_front() else {
            return;
        };
        let Some(process) = &mut self.process else {
            return;
        };
        self.begun = descendants::now();
        let sent = match &job {
            Job::Run(run) => {
                run.started(self.counts.0 + 1);
                if let Some(seconds) = run.request.timeout {
                    self.deadline = Some((Instant::now() + seconds_from(seconds), seconds));
                }
                process.send(&Request::Execute {
                    id: &run.id,
                    code: &run.request.code,
                })
            }
            Job::Reset(_) => {
                // It runs code, too: finalizers, which may not end.
                self.deadline = Some((Instant::now() + RESET, RESET.as_secs_f64()));
                process.send(&Request::Reset { id: "reset" })
            }
        };
        self.current = Some(job);
        self.sent = Instant::now();
        self.strayed = 0;
        self.step(Event::Work);
        if let Err(why) = sent {
            tracing::warn!("the kernel could not be reached: {why}");
            self.step(Event::Broken);
        }
    }

    pub(super) fn finish_run(&mut self, ending: Ending) {
        self.deadline = None;
        if self.stop.is_some() && self.end_children() > SWARM {
            // What a swarm leaves behind in the process can't be told: its end says why.
            return self.step(Event::Broken);
        }
        let stop = self.stop.take();
        if let Some(Job::Run(run)) = self.current.take() {
            let status = match (ending, stop) {
                (Ending::Completed, _) => RunStatus::Completed,
                // Code that was interrupted may well end in another exception.
                (_, Some(stop)) => {
                    let traceback = run.raised().map(|e| e.traceback).unwrap_or_default();
                    let error = stop.told("and was interrupted; its state is kept");
                    run.fold(RunEvent::Error {
                        error: Raised { traceback, ..error },
                    });
                    RunStatus::Interrupted
                }
                (Ending::Interrupted, None) => RunStatus::Interrupted,
                (Ending::Failed, None) => RunStatus::Failed,
            };
            let report = self
                .ledger
                .report(self.ledger.generation(), run.request.seen);
            run.finish(status, report);
        }
        self.step(Event::Done);
    }

    /// Ends what a stopped run started.
    pub(super) fn end_children(&self) -> usize {
        match (&self.process, &self.hello) {
            (Some(process), Some(hello)) => process.end_children(hello.pid, self.begun),
            _ => 0,
        }
    }

    pub(super) fn finish_reset(&mut self) {
        if let Some(Job::Reset(done)) = self.current.take() {
            // The namespace of the old generation is gone, which those who knew it must learn.
            let known = self.ledger.generation();
            self.ledger.begin();
            let report = self.ledger.report(self.ledger.generation(), Some(known));
            let _ = done.send(Ok(report));
        }
        (self.stop, self.deadline) = (None, None);
        self.step(Event::Done);
    }

    /// Ends a job that never began.
    pub(super) fn abandon(&mut self, job: Job, refusal: &Refusal) {
        match job {
            Job::Reset(done) => drop(done.send(Err(refusal.clone()))),
            Job::Run(run) => {
                let why = match refusal {
                    Refusal::NoKernel(why) => format!("the kernel can't be started: {why}"),
                    _ => "the companion was stopped before the code began".into(),
                };
                run.fold(RunEvent::Error {
                    error: raised("NotStarted", why),
                });
                let report = self
                    .ledger
                    .report(self.ledger.generation(), run.request.seen);
                run.finish(RunStatus::Failed, report);
            }
        }
    }
}

pub(super) fn refuse(message: Message, refusal: &Refusal) {
    match message {
        Message::Execute { taken, .. } => drop(taken.send(Err(refusal.clone()))),
        Message::Reset { done } => drop(done.send(Err(refusal.clone()))),
        Message::Interrupt { .. } | Message::Shutdown { .. } => {}
    }
}

/// Whatever is out of a clock's range is as good as never.
fn seconds_from(seconds: f64) -> Duration {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Duration::try_from_secs_f64(seconds).map_or(YEAR, |d| d.min(YEAR))
}
