//! The owner task of a kernel process: turns wake-ups into events, asks the policy, and performs its actions.

mod detached;
mod events;
mod job;
mod jobs;
mod restore;
mod shutdown;
mod timers;
mod view;

use crate::companion::kernel::checkpoint::{KernelCheckpoint, SessionRestoring};
use crate::companion::kernel::connection::{
    KernelCounts, KernelHello, KernelQuery, KernelQueryFrame,
};
use crate::companion::kernel::detached::DetachResolution;
use crate::companion::kernel::exit_reason::{ExitHistory, StopReason};
use crate::companion::kernel::generation_store::GenerationStore;
use crate::companion::kernel::policy::{KernelPolicyAction, KernelPolicyEvent, KernelPolicyState};
use crate::companion::kernel::process::{KernelProcess, ProcessEvent};
use crate::companion::kernel::run_count::RunCount;
use crate::companion::kernel::template::KernelTemplate;
use crate::companion::kernel::{
    KernelAnswer, KernelMessage, KernelRefusal, KernelSettings, KernelView,
};
use crate::companion::runs::SpillFiles;
use crate::protocol::kernel::{KernelReport, RunError};
use detached::{StartAction, wait_resolution};
use job::{KernelJob, KernelJobOutcome, refuse_message};
use restore::KernelRestore;
use shutdown::KernelShutdownState;
use std::collections::VecDeque;
use std::future::pending;
use std::thread::available_parallelism;
use std::time::Duration;
use timers::{spin_briefly, wait_until};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

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
    process: Option<KernelProcess>,
    /// When the timer of the policy fires.
    timer: Option<Instant>,
    current_job: Option<KernelJob>,
    /// Outcome of the current job, while the kernel is probed.
    job_outcome: Option<KernelJobOutcome>,
    /// The exception that the interrupted code raised.
    interrupted_error: Option<RunError>,
    /// Output of the current run that exceeds the memory limit.
    spill_files: SpillFiles,
    /// Time of the last request or answer.
    last_used: Instant,
    /// Time when the namespace may last have changed.
    last_changed: Instant,
    /// Callers that wait for the end of the job that they interrupted.
    interrupt_waiters: Vec<oneshot::Sender<KernelReport>>,
    /// Callers that wait for a restart.
    restart_waiters: Vec<oneshot::Sender<Result<KernelAnswer, KernelRefusal>>>,
    /// Delivers the decision about a detached kernel.
    resolution: Option<oneshot::Receiver<DetachResolution>>,
    /// The namespace of the process when it is ready.
    start_action: StartAction,
    /// The caller that waits for a detached or checkpointed kernel.
    attach_waiter: Option<oneshot::Sender<Result<KernelAnswer, KernelRefusal>>>,
    /// The checkpoint that contains the kernel, until another kernel exists.
    checkpoint: Option<KernelCheckpoint>,
    /// When the current job was sent.
    sent_at: Instant,
    /// Whether the machine has a second processor for the kernel.
    can_spin: bool,
    /// When the current job started, on the clock of process start times.
    started_ticks: i64,
    /// When the time of the current run ends, and its time limit in seconds.
    run_deadline: Option<(Instant, f64)>,
    stop_reason: Option<StopReason>,
    queue: VecDeque<KernelJob>,
    hello: Option<KernelHello>,
    /// Whether the kernel runs without the packages that were installed at run time.
    is_plain: bool,
    counts: KernelCounts,
    /// Execution count when the namespace was last emptied.
    reset_execution_count: u64,
    exit_history: ExitHistory,
    shutdown_state: KernelShutdownState,
    /// Callers that wait until nothing runs any more.
    quiescence_waiters: Vec<oneshot::Sender<()>>,
    /// Whether the session ends, and not the companion.
    is_deleted: bool,
    last_failure: String,
    /// Why the companion ends the process.
    end_reason: Option<String>,
    /// Bytes of output since the last run.
    stray_output_bytes: usize,
    /// Bytes that a long query has moved up to now.
    transferred_bytes: u64,
    restore: KernelRestore,
}

impl KernelOwner {
    pub(super) fn new(
        session: &str,
        settings: KernelSettings,
        template: KernelTemplate,
        mailbox: mpsc::Receiver<KernelMessage>,
        restoring: Option<SessionRestoring>,
    ) -> (Self, watch::Receiver<KernelView>) {
        let generation_store = GenerationStore::open(&settings.record_folder, session);
        let run_count = RunCount::open(&settings.record_folder, session);
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
            process: None,
            timer: None,
            current_job: None,
            job_outcome: None,
            interrupted_error: None,
            spill_files: SpillFiles::default(),
            last_used,
            last_changed: last_used,
            interrupt_waiters: Vec::new(),
            restart_waiters: Vec::new(),
            resolution: None,
            start_action: StartAction::New,
            attach_waiter: None,
            checkpoint,
            sent_at: Instant::now(),
            can_spin: available_parallelism().is_ok_and(|n| n.get() > 1),
            started_ticks: 0,
            run_deadline: None,
            stop_reason: None,
            queue: VecDeque::new(),
            hello: None,
            is_plain: false,
            counts: KernelCounts::default(),
            reset_execution_count: 0,
            exit_history: ExitHistory::new(),
            shutdown_state: KernelShutdownState::Running,
            quiescence_waiters: Vec::new(),
            is_deleted: false,
            last_failure: String::new(),
            end_reason: None,
            stray_output_bytes: 0,
            transferred_bytes: 0,
            restore,
        };
        owner.publish_view();
        (owner, seen)
    }

    /// Runs until a shutdown is complete, or every handle is dropped.
    pub(super) async fn run(mut self) {
        if self.state != KernelPolicyState::Checkpointed {
            self.perform_actions(vec![
                KernelPolicyAction::Spawn,
                KernelPolicyAction::StartTimer(super::policy::KERNEL_HELLO_TIMEOUT),
            ]);
        }
        loop {
            self.publish_view();
            self.check_quiescence();
            if self.is_finished() {
                break;
            }
            tokio::select! {
                biased;
                message = self.mailbox.recv() => match message {
                    Some(message) => self.handle_message(message),
                    None => break,
                },
                // Timers come before output; a flood of output would delay them.
                () = wait_until(self.timer) => self.handle_timer(),
                () = wait_until(self.run_deadline.map(|(at, _)| at)) => self.handle_run_timeout(),
                () = wait_until(self.shutdown_state.run_deadline().filter(|_| self.stop_reason.is_none())) => self.handle_grace_timeout(),
                decision = wait_resolution(&mut self.resolution) => self.resolve_detached(decision).await,
                // The holder of a detached kernel reports its exit.
                event = next_process_event(&mut self.process), if self.resolution.is_none() => self.handle_event(event).await,
                never = spin_briefly(self.sent_at), if self.can_spin && self.current_job.is_some() =>
                    match never {},
            }
            self.start_next_job();
        }
        if let Some(process) = self.process.take() {
            let is_idle = self.state == KernelPolicyState::Idle || self.is_probing_idle_kernel();
            reap_process(process, is_idle).await;
        }
        self.run_count.sync_and_close();
        // Callers that wait for the end are informed only now.
        self.mailbox.close();
        let refusal = self.shutdown_refusal();
        while let Ok(message) = self.mailbox.try_recv() {
            refuse_message(message, &refusal);
        }
    }

    fn handle_timer(&mut self) {
        self.timer = None;
        if self.is_probing_idle_kernel() {
            self.end_reason = Some("the idle kernel did not answer a probe".into());
        } else if self.state == KernelPolicyState::Probing {
            self.end_reason =
                Some("the kernel did not answer a probe after its code had stopped".into());
        }
        self.apply_event(KernelPolicyEvent::TimerFired);
    }

    fn handle_run_timeout(&mut self) {
        if let Some((_, seconds)) = self.run_deadline.take() {
            self.stop_reason.get_or_insert(StopReason::Timeout(seconds));
            self.apply_event(KernelPolicyEvent::Stop);
        }
    }

    fn handle_grace_timeout(&mut self) {
        self.shutdown_state = self.shutdown_state.mark_overdue();
        self.stop_reason = self.current_job.is_some().then_some(StopReason::Shutdown);
        for job in std::mem::take(&mut self.queue) {
            self.abandon_job(job, &KernelRefusal::ShuttingDown);
        }
        self.apply_event(KernelPolicyEvent::Stop);
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
            tracing::debug!(?event, from = ?self.state, to = ?state, "kernel");
        }
        self.state = state;
        self.perform_actions(actions);
        if self.state.is_waiting_to_restart() {
            let refusal = KernelRefusal::NoKernel(self.last_failure.clone());
            for job in std::mem::take(&mut self.queue) {
                self.abandon_job(job, &refusal);
            }
            for waiting in std::mem::take(&mut self.restart_waiters) {
                let _ = waiting.send(Err(refusal.clone()));
            }
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
                    let probe = KernelQueryFrame {
                        id: "probe",
                        question: &KernelQuery::Probe,
                    };
                    // A probe that can't be sent is not answered, and the timer ends the kernel.
                    self.process
                        .iter_mut()
                        .for_each(|p| drop(p.send_frame(&probe)));
                }
                KernelPolicyAction::Interrupt => {
                    if let (Some(process), Some(hello)) = (&self.process, &self.hello) {
                        process.interrupt(hello.pid, self.started_ticks);
                    }
                }
                KernelPolicyAction::Kill => {
                    self.process.iter_mut().for_each(KernelProcess::end_process)
                }
                KernelPolicyAction::StartTimer(time) => self.timer = Some(Instant::now() + time),
                KernelPolicyAction::StopTimer => self.timer = None,
            }
        }
    }

    fn spawn_process(&mut self) {
        self.is_plain = self.state.is_next_start_plain();
        if self.is_plain {
            tracing::warn!(
                "the companion starts the kernel without the packages installed at run time"
            );
        }
        let process = KernelProcess::start(&self.template, &self.session, self.is_plain);
        self.process = Some(process);
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
