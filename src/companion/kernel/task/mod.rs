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
    ledger: GenerationStore,
    /// Number of runs that the session has started in all generations.
    run_count: RunCount,
    state: KernelPolicyState,
    process: Option<KernelProcess>,
    /// When the timer of the policy fires.
    alarm: Option<Instant>,
    current: Option<KernelJob>,
    /// Outcome of the current job, while the kernel is probed.
    outcome: Option<KernelJobOutcome>,
    /// The exception that the interrupted code raised.
    raised: Option<RunError>,
    /// Output of the current run that exceeds the memory limit.
    spill: SpillFiles,
    /// Time of the last request or answer.
    used: Instant,
    /// Time when the namespace may last have changed.
    changed: Instant,
    /// Callers that wait for the end of the job that they interrupted.
    interrupts: Vec<oneshot::Sender<KernelReport>>,
    /// Callers that wait for a restart.
    restarts: Vec<oneshot::Sender<Result<KernelAnswer, KernelRefusal>>>,
    /// Delivers the decision about a detached kernel.
    fate: Option<oneshot::Receiver<DetachResolution>>,
    /// The namespace of the process when it is ready.
    birth: StartAction,
    /// The caller that waits for a detached or checkpointed kernel.
    returning: Option<oneshot::Sender<Result<KernelAnswer, KernelRefusal>>>,
    /// The checkpoint that contains the kernel, until another kernel exists.
    frozen: Option<KernelCheckpoint>,
    /// When the current job was sent.
    sent: Instant,
    /// Whether the machine has a second processor for the kernel.
    is_eager: bool,
    /// When the current job started, on the clock of process start times.
    begun: i64,
    /// When the time of the current run ends, and its time limit in seconds.
    deadline: Option<(Instant, f64)>,
    stop: Option<StopReason>,
    queue: VecDeque<KernelJob>,
    hello: Option<KernelHello>,
    /// Whether the kernel runs without the packages that were installed at run time.
    is_plain: bool,
    counts: KernelCounts,
    /// Execution count when the namespace was last emptied.
    emptied: u64,
    deaths: ExitHistory,
    leaving: KernelShutdownState,
    /// Callers that wait until nothing runs any more.
    closing: Vec<oneshot::Sender<()>>,
    /// Whether the session ends, and not the companion.
    is_deleted: bool,
    trouble: String,
    /// Why the companion ends the process.
    broken: Option<String>,
    /// Bytes of output since the last run.
    strayed: usize,
    /// Bytes that a long query has moved up to now.
    moved: u64,
    thaw: KernelRestore,
}

impl KernelOwner {
    pub(super) fn new(
        session: &str,
        settings: KernelSettings,
        template: KernelTemplate,
        mailbox: mpsc::Receiver<KernelMessage>,
        waking: Option<SessionRestoring>,
    ) -> (Self, watch::Receiver<KernelView>) {
        let ledger = GenerationStore::open(&settings.data, session);
        let run_count = RunCount::open(&settings.data, session);
        let used = Instant::now();
        let view = KernelView {
            ready: false,
            checkpoint: None,
            detail: "starting".into(),
            busy: false,
            queued: 0,
            counts: KernelCounts::default(),
            emptied: 0,
            report: ledger.peek_report(ledger.generation(), None),
            python: None,
            root: None,
            used,
            changed: used,
            moved: 0,
        };
        let with = |first| KernelRestore::from_stored(&ledger, &settings, session, first);
        let (state, thaw, frozen) = match waking {
            None => (KernelPolicyState::INITIAL_STATE, with(Vec::new()), None),
            Some(SessionRestoring::Sleeping(frozen)) => (
                KernelPolicyState::Frozen,
                KernelRestore::empty(),
                Some(frozen),
            ),
            Some(SessionRestoring::Objects { frozen, folders }) => (
                KernelPolicyState::INITIAL_STATE,
                with(folders),
                Some(frozen),
            ),
        };
        let (view, seen) = watch::channel(view);
        let owner = Self {
            session: session.into(),
            settings,
            template,
            mailbox,
            view,
            ledger,
            run_count,
            state,
            process: None,
            alarm: None,
            current: None,
            outcome: None,
            raised: None,
            spill: SpillFiles::default(),
            used,
            changed: used,
            interrupts: Vec::new(),
            restarts: Vec::new(),
            fate: None,
            birth: StartAction::New,
            returning: None,
            frozen,
            sent: Instant::now(),
            is_eager: available_parallelism().is_ok_and(|n| n.get() > 1),
            begun: 0,
            deadline: None,
            stop: None,
            queue: VecDeque::new(),
            hello: None,
            is_plain: false,
            counts: KernelCounts::default(),
            emptied: 0,
            deaths: ExitHistory::new(),
            leaving: KernelShutdownState::Staying,
            closing: Vec::new(),
            is_deleted: false,
            trouble: String::new(),
            broken: None,
            strayed: 0,
            moved: 0,
            thaw,
        };
        owner.publish_view();
        (owner, seen)
    }

    /// Runs until a shutdown is complete, or every handle is dropped.
    pub(super) async fn run(mut self) {
        if self.state != KernelPolicyState::Frozen {
            self.perform_actions(vec![
                KernelPolicyAction::Spawn,
                KernelPolicyAction::Arm(super::policy::KERNEL_HELLO_TIMEOUT),
            ]);
        }
        loop {
            self.publish_view();
            self.check_closing();
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
                () = wait_until(self.alarm) => self.handle_alarm(),
                () = wait_until(self.deadline.map(|(at, _)| at)) => self.handle_run_timeout(),
                () = wait_until(self.leaving.run_deadline().filter(|_| self.stop.is_none())) => self.handle_grace_timeout(),
                decision = wait_resolution(&mut self.fate) => self.resolve_detached(decision).await,
                // The holder of a detached kernel reports its exit.
                news = next_process_event(&mut self.process), if self.fate.is_none() => self.handle_event(news).await,
                never = spin_briefly(self.sent), if self.is_eager && self.current.is_some() =>
                    match never {},
            }
            self.begin_next();
        }
        if let Some(process) = self.process.take() {
            let is_idle = self.state == KernelPolicyState::Idle || self.is_checked();
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

    fn handle_alarm(&mut self) {
        self.alarm = None;
        if self.is_checked() {
            self.broken = Some("the idle kernel did not answer a probe".into());
        } else if self.state == KernelPolicyState::Probing {
            self.broken =
                Some("the kernel did not answer a probe after its code had stopped".into());
        }
        self.apply_event(KernelPolicyEvent::TimeUp);
    }

    fn handle_run_timeout(&mut self) {
        if let Some((_, seconds)) = self.deadline.take() {
            self.stop.get_or_insert(StopReason::Timeout(seconds));
            self.apply_event(KernelPolicyEvent::Stop);
        }
    }

    fn handle_grace_timeout(&mut self) {
        self.leaving = self.leaving.mark_overdue();
        self.stop = self.current.is_some().then_some(StopReason::Shutdown);
        for job in std::mem::take(&mut self.queue) {
            self.abandon_job(job, &KernelRefusal::Stopping);
        }
        self.apply_event(KernelPolicyEvent::Stop);
    }

    fn is_finished(&self) -> bool {
        self.leaving.is_ending() && self.has_no_jobs()
    }

    /// Whether no job runs and none is queued.
    fn has_no_jobs(&self) -> bool {
        self.current.is_none() && self.queue.is_empty()
    }

    fn apply_event(&mut self, event: KernelPolicyEvent) {
        let (state, actions) = self.state.next_state(event);
        if state != self.state {
            tracing::debug!(?event, from = ?self.state, to = ?state, "kernel");
        }
        self.state = state;
        self.perform_actions(actions);
        if self.state.is_waiting_to_restart() {
            let refusal = KernelRefusal::NoKernel(self.trouble.clone());
            for job in std::mem::take(&mut self.queue) {
                self.abandon_job(job, &refusal);
            }
            for waiting in std::mem::take(&mut self.restarts) {
                let _ = waiting.send(Err(refusal.clone()));
            }
        }
    }

    fn perform_actions(&mut self, actions: Vec<KernelPolicyAction>) {
        for action in actions {
            match action {
                // No request would reach the new process.
                KernelPolicyAction::Spawn
                    if self.leaving != KernelShutdownState::Staying && self.has_no_jobs() => {}
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
                        process.interrupt(hello.pid, self.begun);
                    }
                }
                KernelPolicyAction::Kill => {
                    self.process.iter_mut().for_each(KernelProcess::end_process)
                }
                KernelPolicyAction::Arm(time) => self.alarm = Some(Instant::now() + time),
                KernelPolicyAction::Disarm => self.alarm = None,
            }
        }
    }

    fn spawn_process(&mut self) {
        self.is_plain = self.state.should_start_plain();
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
        while !matches!(process.next_event().await, ProcessEvent::Ended(_)) {}
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
