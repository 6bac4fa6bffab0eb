//! Jobs: taken, queued, begun, finished, given up. Every job ends in exactly one answer.

use super::Owner;
use super::thaw::PATIENCE;
use crate::companion::descendants;
use crate::companion::kernel::apart::Apart;
use crate::companion::kernel::ending::{Stop, raised};
use crate::companion::kernel::policy::{Event, State};
use crate::companion::kernel::wire::{Ask, Ending, Question, Request};
use crate::companion::kernel::{Answer, Message, Refusal, Run};
use crate::companion::runs::Spill;
use crate::protocol::kernel::{Happened, KernelReport, Raised, RunStatus};
use serde_json::Value;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Requests that may wait for their turn, and bytes of their code.
const QUEUE: usize = 1024;
const QUEUE_BYTES: usize = 64 << 20;

/// How long a question may take.
const ASKED: Duration = Duration::from_secs(10);

/// Processes of a stopped run that are ended one by one; with more, the kernel ends, too.
const SWARM: usize = 64;

/// What the process works on or is asked to.
#[derive(Debug)]
pub(super) enum Job {
    Run(Arc<Run>),
    Ask {
        question: Question,
        quiet: bool,
        done: oneshot::Sender<Result<Answer, Refusal>>,
    },
    /// To let go of everything; `done` is taken by who then has the kernel.
    Part {
        done: Option<oneshot::Sender<Result<Apart, Refusal>>>,
    },
}

impl Job {
    fn bytes(&self) -> usize {
        match self {
            Self::Run(run) => run.work.code.len(),
            Self::Ask { .. } | Self::Part { .. } => 0,
        }
    }

    /// Whether the kernel may hold something else after it.
    fn changes(&self) -> bool {
        match self {
            Self::Run(_) => true,
            Self::Ask { question, .. } => question.changes(),
            Self::Part { .. } => false,
        }
    }
}

/// How a job ended, in the kernel's eyes.
#[derive(Debug)]
pub(super) enum Outcome {
    Run(Ending),
    Ask(Result<Value, Raised>),
}

impl Owner {
    pub(super) fn hear(&mut self, message: Message) {
        let is_asked = !matches!(
            message,
            Message::Check | Message::Release { .. } | Message::Close { .. }
        );
        if is_asked {
            self.used = Instant::now();
        }
        match message {
            _ if !self.leaving.takes(&message) => refuse(message, &self.farewell()),
            // What lies in a checkpoint is given up for an empty one; the checkpoint stays.
            Message::Ask {
                question: Question::Reset,
                done,
                ..
            } if self.state == State::Frozen => {
                self.forget_stored();
                self.restart(Stop::Restart, done);
            }
            Message::Execute { run, queue, taken } => {
                let answer = self.admit(queue, run.work.code.len());
                if answer.is_ok() {
                    self.queue.push_back(Job::Run(run));
                }
                // Whoever asked may have left; the run goes on and can be found by its id.
                let _ = taken.send(answer);
            }
            Message::Ask {
                mut question,
                quiet,
                done,
            } => match self.admit(false, 0) {
                Ok(()) => {
                    self.bind(&mut question);
                    self.queue.push_back(Job::Ask {
                        question,
                        quiet,
                        done,
                    });
                }
                Err(refusal) => drop(done.send(Err(refusal))),
            },
            Message::Part { done } => match self.admit(false, 0) {
                Ok(()) => self.queue.push_back(Job::Part { done: Some(done) }),
                Err(refusal) => drop(done.send(Err(refusal))),
            },
            Message::Thaw { restored, done } => self.thaw(*restored, done),
            Message::Interrupt { id, done } => self.interrupt(id.as_deref(), done),
            Message::Check => self.step(Event::Check(2 * self.settings.limits.check)),
            Message::Touch => {}
            Message::Overtake { done } => {
                self.ledger.overtake();
                self.run_count.overtake();
                drop(done);
            }
            Message::Restart { why, done } => {
                self.forget_stored();
                self.restart(why, done);
            }
            Message::Release { idle, done } => {
                // One that lies in a checkpoint takes nothing, and is to be found there.
                let is_idle =
                    self.state != State::Frozen && self.rests() && self.used.elapsed() >= idle;
                if is_idle {
                    self.shut_down(Duration::ZERO, Stop::Deleted);
                }
                // Whoever asked may have ended.
                let _ = done.send(is_idle);
            }
            Message::Close { grace, done } => {
                self.leaving = self.leaving.close(Instant::now() + grace);
                self.closing.push(done);
            }
            Message::Shutdown { grace, why } => self.shut_down(grace, why),
        }
    }

    /// Nothing is on and nothing waits.
    fn rests(&self) -> bool {
        let is_busy = self.state.is_busy() && !self.is_checked();
        !is_busy && self.has_nothing_left()
    }

    /// Tells who waits for it that nothing runs any more.
    pub(super) fn look_at_closing(&mut self) {
        if self.rests() {
            self.leaving = self.leaving.rested();
            self.closing.clear();
        }
    }

    fn shut_down(&mut self, grace: Duration, why: Stop) {
        if why == Stop::Deleted {
            self.is_deleted = true;
            self.forget_stored();
            self.leave_checkpoint();
        }
        self.leaving = self.leaving.end(Instant::now() + grace);
        if grace.is_zero() && !self.is_over() {
            for job in std::mem::take(&mut self.queue) {
                self.abandon(job, &Refusal::NoSession(self.session.clone()));
            }
            self.give_up(why);
        }
    }

    /// What requests are told that come after that.
    pub(super) fn farewell(&self) -> Refusal {
        match self.is_deleted {
            true => Refusal::NoSession(self.session.clone()),
            false => Refusal::Stopping,
        }
    }

    fn restart(&mut self, why: Stop, done: oneshot::Sender<Result<Answer, Refusal>>) {
        if self.state == State::Apart {
            return drop(done.send(Err(Refusal::Busy)));
        }
        self.restarts.push(done);
        self.give_up(why);
        // One that rests is tried again at once.
        if matches!(self.state, State::Resting { .. }) {
            self.alarm = None;
            self.step(Event::TimeUp);
        }
    }

    /// Ends the kernel, whatever it does; what has not begun waits for the next one.
    fn give_up(&mut self, why: Stop) {
        if self.current.is_some() {
            self.stop.get_or_insert(why);
        }
        if self.process.is_some() {
            self.broken
                .get_or_insert_with(|| "that was asked for".into());
        }
        self.step(Event::Restart);
    }

    fn admit(&self, queue: bool, bytes: usize) -> Result<(), Refusal> {
        // A kernel that wakes up is not busy for anybody.
        let own = usize::from(self.thaw.is_on());
        let waiting = usize::from(self.current.is_some()) + self.queue.len() > own;
        let queued = || self.queue.iter().map(Job::bytes).sum::<usize>();
        let is_full = self.queue.len() >= QUEUE || (waiting && queued() + bytes > QUEUE_BYTES);
        match () {
            () if self.state == State::Frozen => Err(self.checkpointed()),
            () if self.state.is_hopeless() => Err(Refusal::NoKernel(self.trouble.clone())),
            () if waiting && !queue => Err(Refusal::Busy),
            () if is_full => Err(Refusal::QueueFull),
            () => Ok(()),
        }
    }

    /// Stops the run of that id, else whatever is on.
    fn interrupt(&mut self, id: Option<&str>, done: oneshot::Sender<KernelReport>) {
        let is_it = |job: &Job| match (job, id) {
            (_, None) => true,
            (Job::Run(run), Some(id)) => run.id == id,
            (Job::Ask { .. } | Job::Part { .. }, Some(_)) => false,
        };
        if self.current.as_ref().is_some_and(is_it) {
            self.stop.get_or_insert(Stop::Asked);
            self.interrupts.push(done);
            return self.step(Event::Stop);
        }
        // Nothing is on; whoever asked may have left.
        let _ = done.send(self.ledger.view(self.ledger.generation(), None));
        if id.is_some()
            && let Some(at) = self.queue.iter().position(is_it)
            && let Some(Job::Run(run)) = self.queue.remove(at)
        {
            let message = "the run was taken out of the queue before it began".into();
            run.add(Happened::Error {
                error: raised("Interrupted", message),
            });
            let report = self.report(&run);
            run.finish(RunStatus::Interrupted, report);
        }
    }

    fn report(&mut self, run: &Run) -> KernelReport {
        let generation = self.ledger.generation();
        self.ledger.report(generation, run.work.seen)
    }

    pub(super) fn begin_next(&mut self) {
        if self.state != State::Idle || self.current.is_some() {
            return;
        }
        let Some(mut job) = self.queue.pop_front() else {
            return;
        };
        if let Err(refusal) = self.prepare(&mut job) {
            self.abandon(job, &refusal);
            return self.begin_next();
        }
        let Some(process) = &mut self.process else {
            return;
        };
        self.begun = descendants::now();
        let sent = match &job {
            Job::Run(run) => {
                self.run_count.add();
                run.started(self.counts.execution_count + 1);
                if let Some(seconds) = run.work.timeout {
                    self.deadline = Some((Instant::now() + seconds_from(seconds), seconds));
                }
                process.send(&Request::Execute {
                    id: &run.id,
                    code: &run.work.code,
                    silent: run.work.silent,
                    store_history: run.work.store_history,
                })
            }
            Job::Ask { .. } | Job::Part { .. } => {
                let question = match &job {
                    Job::Ask { question, .. } => question,
                    _ => &Question::LetGo,
                };
                // It may run code, too: finalizers and properties, which may not end.
                let patience = match question.is_long() {
                    false => Some(ASKED),
                    true => self.thaw.is_on().then_some(PATIENCE),
                };
                if let Some(patience) = patience {
                    self.deadline = Some((Instant::now() + patience, patience.as_secs_f64()));
                }
                process.send(&Ask {
                    id: "ask",
                    question,
                })
            }
        };
        if let Err(why) = &sent
            && why.kind() == io::ErrorKind::NotConnected
        {
            // It is about to end, and has not heard of the job: the next one does it.
            self.deadline = None;
            if matches!(job, Job::Run(_)) {
                self.run_count.take_back();
            }
            return self.queue.push_front(job);
        }
        self.current = Some(job);
        self.raised = None;
        self.sent = Instant::now();
        (self.strayed, self.moved) = (0, 0);
        self.step(Event::Work);
        if let Err(why) = sent {
            tracing::warn!("the kernel could not be reached: {why}");
            self.step(Event::Broken);
        }
    }

    /// The kernel is done with the current job; one that was to be stopped is probed first.
    pub(super) fn finish(&mut self, outcome: Outcome) {
        self.deadline = None;
        self.outcome = Some(outcome);
        if self.stop.is_none() {
            return self.conclude();
        }
        if self.end_children() > SWARM {
            // What a swarm leaves behind in the process can't be told.
            let why = format!("the code had left more than {SWARM} processes behind");
            self.broken.get_or_insert(why);
            return self.step(Event::Broken);
        }
        self.step(Event::Done);
    }

    /// Tells those who wait what came of the current job.
    pub(super) fn conclude(&mut self) {
        let stop = self.stop.take();
        self.used = Instant::now();
        if self.current.as_ref().is_some_and(Job::changes) {
            self.changed = self.used;
        }
        match (self.current.take(), self.outcome.take()) {
            (Some(Job::Run(run)), Some(Outcome::Run(ending))) => {
                let status = match (ending, stop) {
                    (Ending::Completed, _) => RunStatus::Completed,
                    // Code that was interrupted may well end in another exception.
                    (_, Some(stop)) => {
                        let traceback = self.raised.take().or_else(|| run.raised());
                        let traceback = traceback.map(|e| e.traceback).unwrap_or_default();
                        let error = stop.kept();
                        run.add(Happened::Error {
                            error: Raised { traceback, ..error },
                        });
                        RunStatus::Interrupted
                    }
                    (Ending::Interrupted, None) => RunStatus::Interrupted,
                    (Ending::Failed, None) => RunStatus::Failed,
                };
                let report = self.report(&run);
                run.finish(status, report);
            }
            (
                Some(Job::Ask {
                    question,
                    quiet,
                    done,
                }),
                Some(Outcome::Ask(value)),
            ) => {
                let value = match (value, stop) {
                    (Err(_), Some(stop)) => Err(stop.kept()),
                    (value, _) => value,
                };
                let known = self.ledger.generation();
                if let Ok(value) = &value {
                    self.note(&question, value);
                }
                let generation = self.ledger.generation();
                // A store tells what became of the state since anyone was told; the next caller learns it, too.
                let is_store = matches!(question, Question::CryoStore { .. });
                let seen = (!is_store).then_some(known);
                let report = match self.thaw.is_on() || quiet || is_store {
                    // Whoever asked is not told of it.
                    true => self.ledger.view(generation, seen),
                    false => self.ledger.report(generation, seen),
                };
                // Whoever asked may have left.
                let _ = done.send(Ok(Answer { value, report }));
                self.look_after_thaw();
            }
            (Some(Job::Part { done }), Some(Outcome::Ask(Err(error)))) => {
                let why = stop.map_or(error.message, |stop| stop.kept().message);
                // Whoever asked may have left.
                let _ = done.map(|done| done.send(Err(Refusal::Held(why))));
            }
            (job, outcome) => tracing::error!("{outcome:?} of {job:?}"),
        }
        self.answer_interrupts(&self.ledger.view(self.ledger.generation(), None));
        self.spill = Spill::default();
        self.step(Event::Done);
    }

    /// What an answered question has done to the namespace's life.
    fn note(&mut self, question: &Question, value: &Value) {
        match question {
            // The namespace of the old generation is gone, which those who knew it must learn.
            Question::Reset => {
                self.emptied = self.counts.execution_count;
                self.thaw.forget_failure();
                self.ledger.note_stored(false);
                self.ledger.begin();
            }
            // A kernel that comes back into its own is the generation that it began as.
            Question::CryoReload { folder } => {
                if !self.thaw.is_on() {
                    self.ledger.begin();
                }
                let origin = self.origin(folder, value);
                self.ledger.note_restored(origin);
            }
            Question::CryoStore { name, dry_run, .. } if !dry_run && *name == self.session => {
                self.ledger.note_stored(true);
            }
            _ => {}
        }
    }

    pub(super) fn answer_interrupts(&mut self, report: &KernelReport) {
        for waiting in std::mem::take(&mut self.interrupts) {
            // Whoever asked may have left.
            let _ = waiting.send(report.clone());
        }
    }

    /// Ends what a stopped run started.
    pub(super) fn end_children(&self) -> usize {
        match (&self.process, &self.hello) {
            (Some(process), Some(hello)) => process.end_children(hello.pid, self.begun),
            _ => 0,
        }
    }

    /// Ends a job that never began.
    pub(super) fn abandon(&mut self, job: Job, refusal: &Refusal) {
        match job {
            Job::Ask { done, .. } => {
                drop(done.send(Err(refusal.clone())));
                self.look_after_thaw();
            }
            Job::Part { done } => drop(done.map(|done| done.send(Err(refusal.clone())))),
            Job::Run(run) => {
                let why = match refusal {
                    Refusal::NoKernel(why) => format!("the kernel can't be started: {why}"),
                    Refusal::NoSession(_) => "the session was ended before the code began".into(),
                    Refusal::Checkpointed { checkpoint, .. } => {
                        format!("the kernel was frozen to `{checkpoint}` before the code began")
                    }
                    _ => "the companion was stopped before the code began".into(),
                };
                run.add(Happened::Error {
                    error: raised("NotStarted", why),
                });
                let report = self.report(&run);
                run.finish(RunStatus::Failed, report);
            }
        }
    }
}

pub(super) fn refuse(message: Message, refusal: &Refusal) {
    match message {
        Message::Execute { taken, .. } => drop(taken.send(Err(refusal.clone()))),
        Message::Ask { done, .. } | Message::Restart { done, .. } | Message::Thaw { done, .. } => {
            drop(done.send(Err(refusal.clone())));
        }
        Message::Part { done } => drop(done.send(Err(refusal.clone()))),
        Message::Interrupt { .. }
        | Message::Release { .. }
        | Message::Check
        | Message::Touch
        | Message::Overtake { .. }
        | Message::Close { .. }
        | Message::Shutdown { .. } => {}
    }
}

/// Whatever is out of a clock's range is as good as never.
fn seconds_from(seconds: f64) -> Duration {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Duration::try_from_secs_f64(seconds).map_or(YEAR, |d| d.min(YEAR))
}
