//! Jobs: admission, queue, start, end, abandonment. Every job ends with exactly one answer.

use super::KernelOwner;
use super::job::{KernelJob, KernelJobOutcome, refuse_message};
use super::restore::AUTO_RELOAD_TIMEOUT;
use crate::companion::descendants;
use crate::companion::kernel::connection::{
    KernelCellOutcome, KernelQuery, KernelQueryFrame, KernelRequest,
};
use crate::companion::kernel::exit_reason::{StopReason, new_run_error};
use crate::companion::kernel::policy::{KernelPolicyEvent, KernelPolicyState};
use crate::companion::kernel::{KernelAnswer, KernelMessage, KernelRefusal, KernelRun};
use crate::companion::runs::SpillFiles;
use crate::protocol::kernel::{KernelReport, RunError, RunEventKind, RunStatus};
use serde_json::Value;
use std::io;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Maximum number of queued requests, and bytes of their code.
const MAX_QUEUED_JOBS: usize = 1024;
const MAX_QUEUED_CODE_BYTES: usize = 64 << 20;

/// Time limit of a query.
const KERNEL_QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of processes of a stopped run that are ended one by one; with more, the kernel is ended, too.
const MAX_STOPPED_RUN_PROCESSES: usize = 64;

impl KernelOwner {
    pub(super) fn handle_message(&mut self, message: KernelMessage) {
        let is_asked = !matches!(
            message,
            KernelMessage::CheckHealth
                | KernelMessage::ReleaseIfIdle { .. }
                | KernelMessage::DrainRuns { .. }
        );
        if is_asked {
            self.last_used = Instant::now();
        }
        match message {
            _ if !self.shutdown_state.accepts_message(&message) => {
                refuse_message(message, &self.shutdown_refusal())
            }
            // A reset replaces a kernel in a checkpoint with an empty kernel; the checkpoint is kept.
            KernelMessage::Query {
                query: KernelQuery::Reset,
                done,
                ..
            } if self.state == KernelPolicyState::Checkpointed => {
                self.discard_stored_state();
                self.restart_kernel(StopReason::Restart, done);
            }
            KernelMessage::Execute {
                run,
                queue,
                admitted,
            } => {
                let answer = self.admit_job(queue, run.request.code.len());
                if answer.is_ok() {
                    self.queue.push_back(KernelJob::Run(run));
                }
                // The caller may have disconnected; the run continues and can be found by its id.
                let _ = admitted.send(answer);
            }
            KernelMessage::Query {
                mut query,
                quiet,
                done,
            } => match self.admit_job(false, 0) {
                Ok(()) => {
                    self.bind_generation(&mut query);
                    self.queue
                        .push_back(KernelJob::Query { query, quiet, done });
                }
                Err(refusal) => drop(done.send(Err(refusal))),
            },
            KernelMessage::Detach { done } => match self.admit_job(false, 0) {
                Ok(()) => self.queue.push_back(KernelJob::Detach { done: Some(done) }),
                Err(refusal) => drop(done.send(Err(refusal))),
            },
            KernelMessage::RestoreProcess { restored, done } => {
                self.restore_process(*restored, done)
            }
            KernelMessage::Interrupt { id, done } => self.interrupt_job(id.as_deref(), done),
            KernelMessage::CheckHealth => self.apply_event(KernelPolicyEvent::Check(
                2 * self.settings.limits.probe_interval,
            )),
            KernelMessage::MarkUsed => {}
            KernelMessage::AdoptNewerState { done } => {
                self.generation_store.adopt_newer_generation();
                self.run_count.adopt_newer_count();
                drop(done);
            }
            KernelMessage::Restart { why, done } => {
                self.discard_stored_state();
                self.restart_kernel(why, done);
            }
            KernelMessage::ReleaseIfIdle { idle, done } => {
                // A session in a checkpoint uses no memory, and must stay in the list.
                let is_idle = self.state != KernelPolicyState::Checkpointed
                    && self.is_quiescent()
                    && self.last_used.elapsed() >= idle;
                if is_idle {
                    self.shut_down(Duration::ZERO, StopReason::Deleted);
                }
                // The caller may have ended.
                let _ = done.send(is_idle);
            }
            KernelMessage::DrainRuns { grace, done } => {
                self.shutdown_state = self.shutdown_state.start_closing(Instant::now() + grace);
                self.quiescence_waiters.push(done);
            }
            KernelMessage::Shutdown { grace, why } => self.shut_down(grace, why),
        }
    }

    /// Whether no job runs and none is queued.
    fn is_quiescent(&self) -> bool {
        let is_busy = self.state.is_busy() && !self.is_probing_idle_kernel();
        !is_busy && self.has_no_jobs()
    }

    /// Informs waiting callers as soon as nothing runs any more.
    pub(super) fn check_quiescence(&mut self) {
        if self.is_quiescent() {
            self.shutdown_state = self.shutdown_state.mark_quiescent();
            self.quiescence_waiters.clear();
        }
    }

    fn shut_down(&mut self, grace: Duration, why: StopReason) {
        if why == StopReason::Deleted {
            self.is_deleted = true;
            self.discard_stored_state();
            self.remove_checkpoint_marker();
        }
        self.shutdown_state = self.shutdown_state.start_ending(Instant::now() + grace);
        if grace.is_zero() && !self.is_finished() {
            for job in std::mem::take(&mut self.queue) {
                self.abandon_job(job, &KernelRefusal::NoSession(self.session.clone()));
            }
            self.end_kernel(why);
        }
    }

    /// The refusal of requests during shutdown.
    pub(super) fn shutdown_refusal(&self) -> KernelRefusal {
        match self.is_deleted {
            true => KernelRefusal::NoSession(self.session.clone()),
            false => KernelRefusal::ShuttingDown,
        }
    }

    fn restart_kernel(
        &mut self,
        why: StopReason,
        done: oneshot::Sender<Result<KernelAnswer, KernelRefusal>>,
    ) {
        if self.state == KernelPolicyState::Detached {
            return drop(done.send(Err(KernelRefusal::Busy)));
        }
        self.restart_waiters.push(done);
        self.end_kernel(why);
        // A kernel that waits for its next start is started immediately.
        if matches!(self.state, KernelPolicyState::WaitingToRestart { .. }) {
            self.timer = None;
            self.apply_event(KernelPolicyEvent::TimerFired);
        }
    }

    /// Ends the kernel in any state. Queued jobs wait for the next kernel.
    fn end_kernel(&mut self, why: StopReason) {
        if self.current_job.is_some() {
            self.stop_reason.get_or_insert(why);
        }
        if self.process.is_some() {
            self.end_reason
                .get_or_insert_with(|| "a restart or a shutdown was requested".into());
        }
        self.apply_event(KernelPolicyEvent::Restart);
    }

    fn admit_job(&self, queue: bool, bytes: usize) -> Result<(), KernelRefusal> {
        // A reload at start does not count as busy.
        let own = usize::from(self.restore.is_running());
        let waiting = usize::from(self.current_job.is_some()) + self.queue.len() > own;
        let queued = || self.queue.iter().map(KernelJob::code_bytes).sum::<usize>();
        let is_full = self.queue.len() >= MAX_QUEUED_JOBS
            || (waiting && queued() + bytes > MAX_QUEUED_CODE_BYTES);
        match () {
            () if self.state == KernelPolicyState::Checkpointed => Err(self.checkpointed_refusal()),
            () if self.state.is_waiting_to_restart() => {
                Err(KernelRefusal::NoKernel(self.last_failure.clone()))
            }
            () if waiting && !queue => Err(KernelRefusal::Busy),
            () if is_full => Err(KernelRefusal::QueueFull),
            () => Ok(()),
        }
    }

    /// Stops the run `id`; without an id, stops the current job.
    fn interrupt_job(&mut self, id: Option<&str>, done: oneshot::Sender<KernelReport>) {
        let is_it = |job: &KernelJob| match (job, id) {
            (_, None) => true,
            (KernelJob::Run(run), Some(id)) => run.id == id,
            (KernelJob::Query { .. } | KernelJob::Detach { .. }, Some(_)) => false,
        };
        if self.current_job.as_ref().is_some_and(is_it) {
            self.stop_reason.get_or_insert(StopReason::Requested);
            self.interrupt_waiters.push(done);
            return self.apply_event(KernelPolicyEvent::Stop);
        }
        // Nothing runs; the caller may have disconnected.
        let _ = done.send(
            self.generation_store
                .peek_report(self.generation_store.generation(), None),
        );
        if id.is_some()
            && let Some(at) = self.queue.iter().position(is_it)
            && let Some(KernelJob::Run(run)) = self.queue.remove(at)
        {
            let message = "the run was removed from the queue before it started".into();
            run.add_event(RunEventKind::Error {
                error: new_run_error("Interrupted", message),
            });
            let report = self.record_run_report(&run);
            run.finish(RunStatus::Interrupted, report);
        }
    }

    fn record_run_report(&mut self, run: &KernelRun) -> KernelReport {
        let generation = self.generation_store.generation();
        self.generation_store
            .record_report(generation, run.request.seen)
    }

    pub(super) fn start_next_job(&mut self) {
        if self.state != KernelPolicyState::Idle || self.current_job.is_some() {
            return;
        }
        let Some(mut job) = self.queue.pop_front() else {
            return;
        };
        if let Err(refusal) = self.prepare_store(&mut job) {
            self.abandon_job(job, &refusal);
            return self.start_next_job();
        }
        let Some(process) = &mut self.process else {
            return;
        };
        self.started_ticks = descendants::read_boot_ticks();
        let sent = match &job {
            KernelJob::Run(run) => {
                self.run_count.increment();
                run.mark_started(self.counts.execution_count + 1);
                if let Some(seconds) = run.request.timeout {
                    self.run_deadline =
                        Some((Instant::now() + run_timeout_from_seconds(seconds), seconds));
                }
                process.send_frame(&KernelRequest::Execute {
                    id: &run.id,
                    code: &run.request.code,
                    silent: run.request.silent,
                    store_history: run.request.store_history,
                    argv: &run.request.argv,
                })
            }
            KernelJob::Query { .. } | KernelJob::Detach { .. } => {
                let query = match &job {
                    KernelJob::Query { query, .. } => query,
                    _ => &KernelQuery::Release,
                };
                // A query may run code, too: finalizers and properties, which may not return.
                let time_limit = match query.is_long() {
                    false => Some(KERNEL_QUERY_TIMEOUT),
                    true => self.restore.is_running().then_some(AUTO_RELOAD_TIMEOUT),
                };
                if let Some(time_limit) = time_limit {
                    self.run_deadline =
                        Some((Instant::now() + time_limit, time_limit.as_secs_f64()));
                }
                process.send_frame(&KernelQueryFrame {
                    id: "ask",
                    question: query,
                })
            }
        };
        if let Err(why) = &sent
            && why.kind() == io::ErrorKind::NotConnected
        {
            // The kernel is about to end and did not receive the job; the next kernel executes the job.
            self.run_deadline = None;
            if matches!(job, KernelJob::Run(_)) {
                self.run_count.decrement();
            }
            return self.queue.push_front(job);
        }
        self.current_job = Some(job);
        self.interrupted_error = None;
        self.sent_at = Instant::now();
        (self.stray_output_bytes, self.transferred_bytes) = (0, 0);
        self.apply_event(KernelPolicyEvent::JobStarted);
        if let Err(why) = sent {
            tracing::warn!("the companion can't send to the kernel: {why}");
            self.apply_event(KernelPolicyEvent::Broken);
        }
    }

    /// Records the outcome of the current job. If the job was to be stopped, the kernel is probed first.
    pub(super) fn finish_job(&mut self, outcome: KernelJobOutcome) {
        self.run_deadline = None;
        self.job_outcome = Some(outcome);
        if self.stop_reason.is_none() {
            return self.report_job_outcome();
        }
        if self.end_children() > MAX_STOPPED_RUN_PROCESSES {
            // The effects of that many processes on the kernel are unknown.
            let why = format!(
                "the code had left more than {MAX_STOPPED_RUN_PROCESSES} processes running"
            );
            self.end_reason.get_or_insert(why);
            return self.apply_event(KernelPolicyEvent::Broken);
        }
        self.apply_event(KernelPolicyEvent::Done);
    }

    /// Reports the outcome of the current job to its caller.
    pub(super) fn report_job_outcome(&mut self) {
        let stop = self.stop_reason.take();
        self.last_used = Instant::now();
        if self
            .current_job
            .as_ref()
            .is_some_and(KernelJob::changes_namespace)
        {
            self.last_changed = self.last_used;
        }
        match (self.current_job.take(), self.job_outcome.take()) {
            (Some(KernelJob::Run(run)), Some(KernelJobOutcome::Run(outcome))) => {
                let status = match (outcome, stop) {
                    (KernelCellOutcome::Completed, _) => RunStatus::Completed,
                    // Interrupted code may end with a different exception.
                    (_, Some(stop)) => {
                        let traceback = self.interrupted_error.take().or_else(|| run.code_error());
                        let traceback = traceback.map(|e| e.traceback).unwrap_or_default();
                        let error = stop.interrupted_error();
                        run.add_event(RunEventKind::Error {
                            error: RunError { traceback, ..error },
                        });
                        RunStatus::Interrupted
                    }
                    (KernelCellOutcome::Interrupted, None) => RunStatus::Interrupted,
                    (KernelCellOutcome::Failed, None) => RunStatus::Failed,
                };
                let report = self.record_run_report(&run);
                run.finish(status, report);
            }
            (
                Some(KernelJob::Query { query, quiet, done }),
                Some(KernelJobOutcome::Query(value)),
            ) => {
                let value = match (value, stop) {
                    (Err(_), Some(stop)) => Err(stop.interrupted_error()),
                    (value, _) => value,
                };
                let known = self.generation_store.generation();
                if let Ok(value) = &value {
                    self.record_query_effect(&query, value);
                }
                let generation = self.generation_store.generation();
                // The report of a store covers all changes since the last report to a caller; the next caller reads
                // them, too.
                let is_store = matches!(query, KernelQuery::CryoStore { .. });
                let seen = (!is_store).then_some(known);
                let report = match self.restore.is_running() || quiet || is_store {
                    // The report is not recorded as seen by a caller.
                    true => self.generation_store.peek_report(generation, seen),
                    false => self.generation_store.record_report(generation, seen),
                };
                // The caller may have disconnected.
                let _ = done.send(Ok(KernelAnswer { value, report }));
                self.check_restore();
            }
            (Some(KernelJob::Detach { done }), Some(KernelJobOutcome::Query(Err(error)))) => {
                let why = stop.map_or(error.message, |stop| stop.interrupted_error().message);
                // The caller may have disconnected.
                let _ = done.map(|done| done.send(Err(KernelRefusal::ResourceHeld(why))));
            }
            (job, outcome) => tracing::error!("{outcome:?} of {job:?}"),
        }
        self.answer_interrupts(
            &self
                .generation_store
                .peek_report(self.generation_store.generation(), None),
        );
        self.spill_files = SpillFiles::default();
        self.apply_event(KernelPolicyEvent::Done);
    }

    /// Records the effect of an answered query on the generation.
    fn record_query_effect(&mut self, query: &KernelQuery, value: &Value) {
        match query {
            // The namespace of the old generation is gone; callers that saw the old generation must read this.
            KernelQuery::Reset => {
                self.reset_execution_count = self.counts.execution_count;
                self.restore.clear_failures();
                self.generation_store.set_stored(false);
                self.generation_store.begin_empty_generation();
            }
            // A reload at the start does not begin another generation.
            KernelQuery::CryoReload { folder } => {
                if !self.restore.is_running() {
                    self.generation_store.begin_empty_generation();
                }
                let origin = self.restored_origin(folder, value);
                self.generation_store.set_restored(origin);
            }
            KernelQuery::CryoStore { name, dry_run, .. } if !dry_run && *name == self.session => {
                self.generation_store.set_stored(true);
            }
            _ => {}
        }
    }

    pub(super) fn answer_interrupts(&mut self, report: &KernelReport) {
        for waiting in std::mem::take(&mut self.interrupt_waiters) {
            // The caller may have disconnected.
            let _ = waiting.send(report.clone());
        }
    }

    /// Ends the processes that a stopped run started. Returns their number.
    pub(super) fn end_children(&self) -> usize {
        match (&self.process, &self.hello) {
            (Some(process), Some(hello)) => process.end_children(hello.pid, self.started_ticks),
            _ => 0,
        }
    }

    /// Ends a job that did not start.
    pub(super) fn abandon_job(&mut self, job: KernelJob, refusal: &KernelRefusal) {
        match job {
            KernelJob::Query { done, .. } => {
                drop(done.send(Err(refusal.clone())));
                self.check_restore();
            }
            KernelJob::Detach { done } => drop(done.map(|done| done.send(Err(refusal.clone())))),
            KernelJob::Run(run) => {
                let why = match refusal {
                    KernelRefusal::NoKernel(why) => format!("the kernel can't be started: {why}"),
                    KernelRefusal::NoSession(_) => {
                        "the session was deleted before the code started".into()
                    }
                    KernelRefusal::Checkpointed { checkpoint, .. } => {
                        format!(
                            "the kernel was checkpointed to `{checkpoint}` before the code started"
                        )
                    }
                    _ => "the companion was stopped before the code started".into(),
                };
                run.add_event(RunEventKind::Error {
                    error: new_run_error("NotStarted", why),
                });
                let report = self.record_run_report(&run);
                run.finish(RunStatus::Failed, report);
            }
        }
    }
}

/// Converts seconds; a value out of range becomes the maximum.
fn run_timeout_from_seconds(seconds: f64) -> Duration {
    const MAX_RUN_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
    Duration::try_from_secs_f64(seconds).map_or(MAX_RUN_TIMEOUT, |d| d.min(MAX_RUN_TIMEOUT))
}
