//! The end of jobs. Every job ends with exactly one answer, which [`run_end`] decides.
//!
//! ```text
//! frame ─▶ finish_job ─▶ probe, if the job was stopped ─▶ report_job_outcome ─┐
//! exit  ─▶ end_job_with_kernel ───────────────────────────────────────────────┼─▶ end_run, or the answer to a query
//! queue ─▶ abandon_job ───────────────────────────────────────────────────────┘
//! ```
//!
//! [`run_end`]: crate::companion::kernel::run_end

use super::KernelOwner;
use super::job::{CurrentJob, KernelJob, KernelJobOutcome};
use crate::companion::kernel::connection::KernelQuery;
use crate::companion::kernel::exit_reason::StopReason;
use crate::companion::kernel::policy::KernelPolicyEvent;
use crate::companion::kernel::run_end::{JobEnd, KernelEnd, decide_run_end};
use crate::companion::kernel::{KernelAnswer, KernelAnswerSender, KernelRefusal, KernelRun};
use crate::protocol::kernel::{KernelReport, RunError, RunEventKind};
use serde_json::Value;
use tokio::time::Instant;

/// Maximum number of processes of a stopped run that are ended one by one; with more, the kernel is ended, too.
const MAX_STOPPED_RUN_PROCESSES: usize = 64;

impl KernelOwner {
    /// Records the outcome of the current job. If the job was to be stopped, the kernel is probed first.
    pub(super) fn finish_job(&mut self, outcome: KernelJobOutcome) {
        let Some(current) = &mut self.current_job else {
            return;
        };
        current.deadline = None;
        current.outcome = Some(outcome);
        if current.stop_reason.is_none() {
            return self.report_job_outcome();
        }
        if self.end_children() > MAX_STOPPED_RUN_PROCESSES {
            // The effects of that many processes on the kernel are unknown.
            return self.break_kernel(format!(
                "the code had left more than {MAX_STOPPED_RUN_PROCESSES} processes running"
            ));
        }
        self.apply_event(KernelPolicyEvent::Done);
    }

    /// Reports the outcome of the current job to its caller.
    pub(super) fn report_job_outcome(&mut self) {
        let Some(current) = self.current_job.take() else {
            return;
        };
        self.usage.last_used = Instant::now();
        if current.job.changes_namespace() {
            self.usage.last_changed = self.usage.last_used;
        }
        let stop = current.stop_reason;
        match (current.job, current.outcome) {
            (KernelJob::Run(run), Some(KernelJobOutcome::Run(outcome))) => {
                let raised = current.interrupted_error.or_else(|| run.code_error());
                let stop = stop.map(|stop| (stop, raised));
                self.end_run(&run, &JobEnd::Outcome(outcome), stop);
            }
            (KernelJob::Query { query, quiet, done }, Some(KernelJobOutcome::Query(value))) => {
                let value = match (value, stop) {
                    (Err(_), Some(stop)) => Err(stop.interrupted_error()),
                    (value, _) => value,
                };
                self.answer_query(&query, quiet, value, done);
            }
            (KernelJob::Detach { done }, Some(KernelJobOutcome::Query(Err(error)))) => {
                let why = stop.map_or(error.message, |stop| stop.interrupted_error().message);
                // The caller may have disconnected.
                let _ = done.map(|done| done.send(Err(KernelRefusal::ResourceHeld(why))));
            }
            (job, outcome) => {
                tracing::error!(
                    ?job,
                    ?outcome,
                    "a job of the kernel has an unexpected outcome"
                )
            }
        }
        let generation = self.generation_store.generation();
        let report = self.generation_store.peek_report(generation, None);
        self.waiters.answer_interrupts(&report);
        self.apply_event(KernelPolicyEvent::Done);
    }

    /// Ends the current job, whose kernel has ended.
    pub(super) fn end_job_with_kernel(&mut self, current: CurrentJob, end: &KernelEnd) {
        let stop = current.stop_reason;
        match current.job {
            KernelJob::Run(run) => {
                let stop = stop.map(|stop| (stop, None));
                self.end_run(&run, &JobEnd::KernelEnded(end), stop);
            }
            job => self.abandon_job(job, &end.refusal(stop)),
        }
    }

    /// Ends all jobs that did not start.
    pub(super) fn abandon_queue(&mut self, refusal: &KernelRefusal) {
        for job in std::mem::take(&mut self.queue) {
            self.abandon_job(job, refusal);
        }
    }

    /// Refuses a job.
    pub(super) fn abandon_job(&mut self, job: KernelJob, refusal: &KernelRefusal) {
        match job {
            KernelJob::Query { done, .. } => {
                drop(done.send(Err(refusal.clone())));
                self.check_restore();
            }
            KernelJob::Detach { done } => drop(done.map(|done| done.send(Err(refusal.clone())))),
            KernelJob::Run(run) => self.end_run(&run, &JobEnd::Abandoned(refusal), None),
        }
    }

    /// Ends a run. `stop` is why the run was stopped, and the exception that its code raised.
    pub(super) fn end_run(
        &mut self,
        run: &KernelRun,
        end: &JobEnd<'_>,
        stop: Option<(StopReason, Option<RunError>)>,
    ) {
        let (stop, raised) = stop.unzip();
        let end = decide_run_end(end, stop);
        if let Some(error) = end.error {
            let traceback = raised.flatten().map_or(error.traceback, |e| e.traceback);
            let error = RunError { traceback, ..error };
            run.add_event(RunEventKind::Error { error });
        }
        let generation = self.generation_store.generation();
        let report = match end.is_lost {
            false => self
                .generation_store
                .record_report(generation, run.request.seen),
            true => {
                self.generation_store.record_report(generation, None);
                KernelReport::lost(generation)
            }
        };
        run.finish(end.status, report);
    }

    fn answer_query(
        &mut self,
        query: &KernelQuery,
        quiet: bool,
        value: Result<Value, RunError>,
        done: KernelAnswerSender,
    ) {
        let known = self.generation_store.generation();
        if let Ok(value) = &value {
            self.record_query_effect(query, value);
        }
        let generation = self.generation_store.generation();
        // The report of a store covers all changes since the last report to a caller; the next caller reads them, too.
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

    /// Records the effect of an answered query on the generation.
    fn record_query_effect(&mut self, query: &KernelQuery, value: &Value) {
        match query {
            // The namespace of the old generation is gone; callers that saw the old generation must read this.
            KernelQuery::Reset => {
                self.usage.reset_execution_count = self.usage.counts.execution_count;
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

    /// Ends the processes that a stopped run started. Returns their number.
    fn end_children(&self) -> usize {
        let kernel = &self.kernel;
        match (&kernel.process, &kernel.hello, &self.current_job) {
            (Some(process), Some(hello), Some(current)) => {
                process.end_children(hello.pid, current.started_ticks)
            }
            _ => 0,
        }
    }
}
