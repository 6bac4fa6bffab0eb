//! The owner task of a kernel process: turns wake-ups into events, asks the policy, and performs its actions.

mod detached;
mod events;
mod job;
mod job_end;
mod jobs;
mod log_span;
mod restore;
mod shutdown;
mod timers;
mod view;
mod waiters;

use crate::companion::kernel::checkpoint::{KernelCheckpoint, SessionRestoring};
use crate::companion::kernel::connection::{KernelCounts, KernelHello, KernelQuery};
use crate::companion::kernel::detached::DetachResolution;
use crate::companion::kernel::exit_reason::{ExitHistory, StopReason};
use crate::companion::kernel::generation_store::GenerationStore;
use crate::companion::kernel::policy::{
    KERNEL_HELLO_TIMEOUT, KernelPolicyAction, KernelPolicyEvent, KernelPolicyState,
};
use crate::companion::kernel::process::{KernelProcess, ProcessEvent};
use crate::companion::kernel::run_count::RunCount;
use crate::companion::kernel::template::KernelTemplate;
use crate::companion::kernel::{KernelMessage, KernelRefusal, KernelSettings, KernelView};
use crate::protocol::environment::UserEnvironment;
use detached::wait_resolution;
use job::{CurrentJob, KernelJob, refuse_message};
use log_span::KernelLogSpan;
use restore::KernelRestore;
use shutdown::KernelShutdownState;
use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;
use timers::{spin_briefly, wait_until};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tracing::{Instrument, Span};
use waiters::KernelWaiters;

/// Time limit of a supervisor to end its processes; a supervisor that exceeds the limit is killed.
const KERNEL_REAP_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct KernelOwner {
    session: String,
    settings: KernelSettings,
    template: KernelTemplate,
    mailbox: mpsc::Receiver<KernelMessage>,
    view: watch::Sender<KernelView>,
    generation_store: GenerationStore,
    /// Number of runs that the session has started in all generations.
    run_count: RunCount,
    state: KernelPolicyState,
    /// When the timer of the policy fires.
    timer: Option<Instant>,
    kernel: CurrentKernel,
    current_job: Option<CurrentJob>,
    queue: VecDeque<KernelJob>,
    waiters: KernelWaiters,
    usage: KernelUsage,
    /// Delivers the decision about a detached kernel.
    resolution: Option<oneshot::Receiver<DetachResolution>>,
    /// The checkpoint that contains the kernel, until another kernel exists.
    checkpoint: Option<KernelCheckpoint>,
    /// Whether the machine has a second processor for the kernel.
    can_spin: bool,
    shutdown_state: KernelShutdownState,
    /// Whether the session ends, and not the companion.
    is_deleted: bool,
    restore: KernelRestore,
    log_span: KernelLogSpan,
}

/// The process, what it has told about itself, and why processes ended.
struct CurrentKernel {
    process: Option<KernelProcess>,
    hello: Option<KernelHello>,
    /// Whether the kernel runs without the packages that were installed at run time.
    is_plain: bool,
    /// The user's variables that the process has.
    sent_environment: Option<Arc<UserEnvironment>>,
    /// Why the connection is useless.
    broken_reason: String,
    exit_history: ExitHistory,
    /// Why the last process that was never ready ended.
    last_failure: String,
}

/// What the session has done.
struct KernelUsage {
    counts: KernelCounts,
    /// Execution count when the namespace was last emptied.
    reset_execution_count: u64,
    /// Time of the last request or answer.
    last_used: Instant,
    /// Time when the namespace may last have changed.
    last_changed: Instant,
    /// Bytes of output since the last run.
    stray_output_bytes: usize,
    /// Bytes that a long query has moved up to now.
    transferred_bytes: u64,
}

impl KernelOwner {
    pub(super) fn new(
        session: &str,
        settings: KernelSettings,
        template: KernelTemplate,
        mailbox: mpsc::Receiver<KernelMessage>,
        restoring: Option<SessionRestoring>,
    ) -> (Self, watch::Receiver<KernelView>) {
        let exit_history = ExitHistory::new(&settings.cgroup_folder);
        let generation_store = GenerationStore::open(&settings.record_folder, session);
        let run_count = RunCount::open(&settings.record_folder, session);
        let log_span = KernelLogSpan::new(session, generation_store.generation(), None);
        let last_used = Instant::now();
        let view = KernelView {
            ready: false,
            checkpoint: None,
            detail: "starting".into(),
            start_failure: None,
            busy: false,
            queued: 0,
            counts: KernelCounts::default(),
            reset_execution_count: 0,
            report: generation_store.peek_report(generation_store.generation(), None),
            python: None,
            root_pid: None,
            last_used,
            last_changed: last_used,
            transferred_bytes: 0,
        };
        let with = |first| KernelRestore::from_stored(&generation_store, &settings, session, first);
        let (state, restore, checkpoint) = match restoring {
            None => (KernelPolicyState::INITIAL_STATE, with(Vec::new()), None),
            Some(SessionRestoring::Checkpointed(checkpoint)) => (
                KernelPolicyState::Checkpointed,
                KernelRestore::empty(),
                Some(checkpoint),
            ),
            Some(SessionRestoring::Objects {
                checkpoint,
                folders,
            }) => (
                KernelPolicyState::INITIAL_STATE,
                with(folders),
                Some(checkpoint),
            ),
        };
        let (view, seen) = watch::channel(view);
        let owner = Self {
            session: session.into(),
            settings,
            template,
            mailbox,
            view,
            generation_store,
            run_count,
            state,
            timer: None,
            kernel: CurrentKernel {
                process: None,
                hello: None,
                is_plain: false,
                sent_environment: None,
                broken_reason: String::new(),
                exit_history,
                last_failure: String::new(),
            },
            current_job: None,
            queue: VecDeque::new(),
            waiters: KernelWaiters::default(),
            usage: KernelUsage {
                counts: KernelCounts::default(),
                reset_execution_count: 0,
                last_used,
                last_changed: last_used,
                stray_output_bytes: 0,
                transferred_bytes: 0,
            },
            resolution: None,
            checkpoint,
            can_spin: available_parallelism().is_ok_and(|n| n.get() > 1),
            shutdown_state: KernelShutdownState::Running,
            is_deleted: false,
            restore,
            log_span,
        };
        owner.publish_view();
        (owner, seen)
    }

    /// Runs until a shutdown is complete, or every handle is dropped.
    pub(super) async fn run(mut self) {
        if self.state != KernelPolicyState::Checkpointed {
            self.perform_actions(vec![
                KernelPolicyAction::Spawn,
                KernelPolicyAction::StartTimer(KERNEL_HELLO_TIMEOUT),
            ]);
        }
        loop {
            let span = self.refresh_span();
            if !self.handle_next_event().instrument(span).await {
                break;
            }
        }
        if let Some(process) = self.kernel.process.take() {
            reap_process(process, self.state.is_idle()).await;
        }
        self.run_count.sync_and_close();
        // Callers that wait for the end are informed only now.
        self.mailbox.close();
        let refusal = self.shutdown_refusal();
        while let Ok(message) = self.mailbox.try_recv() {
            refuse_message(message, &refusal);
        }
    }

    /// Handles the next event; `false` when the task ends.
    async fn handle_next_event(&mut self) -> bool {
        self.publish_view();
        self.check_quiescence();
        if self.is_finished() {
            return false;
        }
        let job = self.current_job.as_ref();
        let run_deadline = job.and_then(|job| job.deadline).map(|(at, _)| at);
        // A job that is already being stopped is not stopped again.
        let grace_end = self
            .shutdown_state
            .run_deadline()
            .filter(|_| job.is_none_or(|job| job.stop_reason.is_none()));
        let sent_at = job.filter(|_| self.can_spin).map(|job| job.sent_at);
        tokio::select! {
            biased;
            message = self.mailbox.recv() => match message {
                Some(message) => self.handle_message(message),
                None => return false,
            },
            // Timers come before output; a flood of output would delay them.
            () = wait_until(self.timer) => self.handle_timer(),
            () = wait_until(run_deadline) => self.handle_run_timeout(),
            () = wait_until(grace_end) => self.handle_grace_timeout(),
            decision = wait_resolution(&mut self.resolution) => self.resolve_detached(decision).await,
            // The holder of a detached kernel reports its exit.
            event = next_process_event(&mut self.kernel.process), if self.resolution.is_none() => self.handle_event(event).await,
            never = spin_briefly(sent_at) => match never {},
        }
        self.start_next_job();
        true
    }

    /// The span of what the session does now.
    fn refresh_span(&mut self) -> Span {
        let run = match self.current_job.as_ref().map(|current| &current.job) {
            Some(KernelJob::Run(run)) => Some(run.id.as_str()),
            _ => None,
        };
        let generation = self.generation_store.generation();
        self.log_span.refresh(&self.session, generation, run)
    }

    fn handle_timer(&mut self) {
        self.timer = None;
        self.apply_event(KernelPolicyEvent::TimerFired);
    }

    fn handle_run_timeout(&mut self) {
        let deadline = self
            .current_job
            .as_mut()
            .and_then(|job| job.deadline.take());
        if let Some((_, seconds)) = deadline {
            self.stop_job(StopReason::Timeout(seconds));
        }
    }

    fn handle_grace_timeout(&mut self) {
        self.shutdown_state = self.shutdown_state.mark_overdue();
        self.abandon_queue(&KernelRefusal::ShuttingDown);
        self.stop_job(StopReason::Shutdown);
    }

    /// Asks the current job to stop. The first reason counts.
    fn stop_job(&mut self, why: StopReason) {
        if let Some(job) = &mut self.current_job {
            job.stop_reason.get_or_insert(why);
        }
        self.apply_event(KernelPolicyEvent::Stop);
    }

    /// Ends the process because its connection is useless.
    fn break_kernel(&mut self, why: String) {
        // A kernel that is being killed has its reason already.
        if self.state.kill_reason().is_none() {
            self.kernel.broken_reason = why;
        }
        self.apply_event(KernelPolicyEvent::Broken);
    }

    fn is_finished(&self) -> bool {
        self.shutdown_state.is_ending() && self.has_no_jobs()
    }

    /// Whether no job runs and none is queued.
    fn has_no_jobs(&self) -> bool {
        self.current_job.is_none() && self.queue.is_empty()
    }

    fn apply_event(&mut self, event: KernelPolicyEvent) {
        let (state, actions) = self.state.next_state(event);
        if state != self.state {
            tracing::debug!(?event, from = ?self.state, to = ?state, "the kernel's state changes");
        }
        self.state = state;
        self.perform_actions(actions);
        if self.state.is_waiting_to_restart() {
            let refusal = KernelRefusal::NoKernel(self.kernel.last_failure.clone());
            self.abandon_queue(&refusal);
            self.waiters.refuse_restarts(&refusal);
        }
    }

    fn perform_actions(&mut self, actions: Vec<KernelPolicyAction>) {
        for action in actions {
            match action {
                // No request would reach the new process.
                KernelPolicyAction::Spawn
                    if self.shutdown_state != KernelShutdownState::Running
                        && self.has_no_jobs() => {}
                KernelPolicyAction::Spawn => self.spawn_process(),
                KernelPolicyAction::Probe => {
                    // A probe that can't be sent is not answered, and the timer ends the kernel.
                    let process = self.kernel.process.iter_mut();
                    process.for_each(|process| drop(process.send_query(&KernelQuery::Probe, None)));
                }
                KernelPolicyAction::Interrupt => {
                    let CurrentKernel { process, hello, .. } = &self.kernel;
                    if let (Some(process), Some(hello), Some(job)) =
                        (process, hello, &self.current_job)
                    {
                        process.interrupt(hello.pid, job.started_ticks);
                    }
                }
                KernelPolicyAction::Kill => {
                    let process = self.kernel.process.iter_mut();
                    process.for_each(KernelProcess::end_process);
                }
                KernelPolicyAction::StartTimer(time) => self.timer = Some(Instant::now() + time),
                KernelPolicyAction::StopTimer => self.timer = None,
            }
        }
    }

    fn spawn_process(&mut self) {
        let is_plain = self.state.is_next_start_plain();
        if is_plain {
            tracing::warn!(
                "the companion starts the kernel without the packages installed at run time"
            );
        }
        let process = KernelProcess::start(&self.template, &self.session, is_plain);
        (self.kernel.process, self.kernel.is_plain) = (Some(process), is_plain);
    }
}

/// Ends a process, and waits until all its descendants are gone.
async fn reap_process(mut process: KernelProcess, is_idle: bool) {
    match is_idle {
        _ if process.is_ending() => {}
        true => process.shut_down(),
        false => process.end_process(),
    }
    let ended = async |process: &mut KernelProcess| {
        while !matches!(process.next_event().await, ProcessEvent::Exited(_)) {}
    };
    while timeout(KERNEL_REAP_TIMEOUT, ended(&mut process))
        .await
        .is_err()
    {
        process.end_process();
    }
}

async fn next_process_event(process: &mut Option<KernelProcess>) -> ProcessEvent {
    match process {
        Some(process) => process.next_event().await,
        None => pending().await,
    }
}
