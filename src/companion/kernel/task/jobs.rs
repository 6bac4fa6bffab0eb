//! Jobs: admission, queue and start. Their end is in [`super::job_end`].

use super::KernelOwner;
use super::job::{CurrentJob, KernelJob, refuse_message};
use super::restore::AUTO_RELOAD_TIMEOUT;
use crate::companion::kernel::connection::{KernelQuery, KernelRequest};
use crate::companion::kernel::exit_reason::StopReason;
use crate::companion::kernel::policy::{KernelPolicyEvent, KernelPolicyState};
use crate::companion::kernel::run_end::JobEnd;
use crate::companion::kernel::{KernelAnswer, KernelMessage, KernelRefusal};
use crate::protocol::kernel::KernelReport;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Maximum number of queued requests, and bytes of their code.
const MAX_QUEUED_JOBS: usize = 1024;
const MAX_QUEUED_CODE_BYTES: usize = 64 << 20;

/// Time limit of a query.
const KERNEL_QUERY_TIMEOUT: Duration = Duration::from_secs(10);

impl KernelOwner {
    pub(super) fn handle_message(&mut self, message: KernelMessage) {
        let is_asked = !matches!(
            message,
            KernelMessage::CheckHealth
                | KernelMessage::ReleaseIfIdle { .. }
                | KernelMessage::DrainRuns { .. }
        );
        if is_asked {
            self.usage.last_used = Instant::now();
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
                    && self.usage.last_used.elapsed() >= idle;
                if is_idle {
                    self.shut_down(Duration::ZERO, StopReason::Deleted);
                }
                // The caller may have ended.
                let _ = done.send(is_idle);
            }
            KernelMessage::DrainRuns { grace, done } => {
                self.shutdown_state = self.shutdown_state.start_closing(Instant::now() + grace);
                self.waiters.quiescence.push(done);
            }
            KernelMessage::Shutdown { grace, why } => self.shut_down(grace, why),
        }
    }

    /// Whether no job runs and none is queued.
    fn is_quiescent(&self) -> bool {
        !self.state.is_busy() && self.has_no_jobs()
    }

    /// Informs waiting callers as soon as nothing runs any more.
    pub(super) fn check_quiescence(&mut self) {
        if self.is_quiescent() {
            self.shutdown_state = self.shutdown_state.mark_quiescent();
            self.waiters.quiescence.clear();
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
            let refusal = self.shutdown_refusal();
            self.abandon_queue(&refusal);
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
        self.waiters.restarts.push(done);
        self.end_kernel(why);
    }

    /// Ends the kernel in any state. Queued jobs wait for the next kernel.
    fn end_kernel(&mut self, why: StopReason) {
        if let Some(job) = &mut self.current_job {
            job.stop_reason.get_or_insert(why);
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
                Err(KernelRefusal::NoKernel(self.kernel.last_failure.clone()))
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
        if self
            .current_job
            .as_ref()
            .is_some_and(|current| is_it(&current.job))
        {
            self.waiters.interrupts.push(done);
            return self.stop_job(StopReason::Requested);
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
            self.end_run(&run, &JobEnd::Removed, None);
        }
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
        let Some(process) = &mut self.kernel.process else {
            return;
        };
        let time_limit = read_time_limit(&job, self.restore.is_running());
        let current = CurrentJob::start(job, time_limit);
        let user = self.settings.environment.current();
        let has_user = |sent| Arc::ptr_eq(sent, &user);
        let is_sent = self.kernel.sent_environment.as_ref().is_some_and(has_user);
        let environment = (!is_sent).then_some(&*user);
        let sent = match &current.job {
            KernelJob::Run(run) => {
                self.run_count.increment();
                run.mark_started(self.usage.counts.execution_count + 1);
                process.send_frame(&KernelRequest::Execute {
                    id: &run.id,
                    code: &run.request.code,
                    silent: run.request.silent,
                    store_history: run.request.store_history,
                    environment,
                    argv: &run.request.argv,
                })
            }
            KernelJob::Query { query, .. } => process.send_query(query, environment),
            KernelJob::Detach { .. } => process.send_query(&KernelQuery::Release, environment),
        };
        if let Err(why) = &sent
            && why.kind() == io::ErrorKind::NotConnected
        {
            // The kernel is about to end and did not receive the job; the next kernel executes the job.
            if matches!(current.job, KernelJob::Run(_)) {
                self.run_count.decrement();
            }
            return self.queue.push_front(current.job);
        }
        self.kernel.sent_environment = Some(user);
        self.current_job = Some(current);
        (self.usage.stray_output_bytes, self.usage.transferred_bytes) = (0, 0);
        self.apply_event(KernelPolicyEvent::JobStarted);
        if let Err(error) = sent {
            tracing::warn!(%error, "the companion can't send to the kernel");
            self.break_kernel(format!("the companion can't send to the kernel: {error}"));
        }
    }
}

/// The time limit of a job, also in seconds. `is_reload`: the job reloads variables at the start.
fn read_time_limit(job: &KernelJob, is_reload: bool) -> Option<(Duration, f64)> {
    let limit = match job {
        KernelJob::Run(run) => {
            let timeout = run.request.timeout;
            return timeout.map(|seconds| (run_timeout_from_seconds(seconds), seconds));
        }
        KernelJob::Query { query, .. } if query.is_long() => {
            is_reload.then_some(AUTO_RELOAD_TIMEOUT)
        }
        // A query may run code, too: finalizers and properties, which may not return.
        KernelJob::Query { .. } | KernelJob::Detach { .. } => Some(KERNEL_QUERY_TIMEOUT),
    };
    limit.map(|limit| (limit, limit.as_secs_f64()))
}

/// Converts seconds; a value out of range becomes the maximum.
fn run_timeout_from_seconds(seconds: f64) -> Duration {
    const MAX_RUN_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
    Duration::try_from_secs_f64(seconds).map_or(MAX_RUN_TIMEOUT, |d| d.min(MAX_RUN_TIMEOUT))
}
