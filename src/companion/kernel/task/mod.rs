//! The task that owns the process: turns wake-ups into events, asks the policy, does as it says.

mod apart;
mod jobs;
mod leaving;
mod news;
mod thaw;
mod view;
mod waits;

use crate::companion::kernel::apart::Fate;
use crate::companion::kernel::ending::{Deaths, Stop};
use crate::companion::kernel::frozen::{Frozen, Waking};
use crate::companion::kernel::ledger::Ledger;
use crate::companion::kernel::policy::{Action, Event, State};
use crate::companion::kernel::process::{News, Process};
use crate::companion::kernel::run_count::RunCount;
use crate::companion::kernel::template::Template;
use crate::companion::kernel::wire::{Ask, Counts, Hello, Question};
use crate::companion::kernel::{Answer, Message, Refusal, Settings, View};
use crate::companion::runs::Spill;
use crate::protocol::kernel::{KernelReport, Raised};
use apart::{Birth, decided};
use jobs::{Job, Outcome, refuse};
use leaving::Leaving;
use std::collections::VecDeque;
use std::future::pending;
use std::thread::available_parallelism;
use std::time::Duration;
use thaw::Thaw;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use waits::{at, stay_awake};

/// How long a guard may take; one that is stopped is killed then.
const BURIAL: Duration = Duration::from_secs(5);

pub(super) struct Owner {
    session: String,
    settings: Settings,
    template: Template,
    mailbox: mpsc::Receiver<Message>,
    view: watch::Sender<View>,
    ledger: Ledger,
    /// Runs that the session has begun in all its lives.
    run_count: RunCount,
    state: State,
    process: Option<Process>,
    /// What the policy armed.
    alarm: Option<Instant>,
    current: Option<Job>,
    /// How the current job ended, while the kernel is probed.
    outcome: Option<Outcome>,
    /// What it raised when it was interrupted.
    raised: Option<Raised>,
    /// What memory does not hold of the current run's output.
    spill: Spill,
    /// When something was last asked or answered.
    used: Instant,
    /// When what the kernel holds may last have become another.
    changed: Instant,
    /// Those who wait for what they have interrupted.
    interrupts: Vec<oneshot::Sender<KernelReport>>,
    /// Those who wait for a restart.
    restarts: Vec<oneshot::Sender<Result<Answer, Refusal>>>,
    /// Comes when it is decided what becomes of a kernel that is apart.
    fate: Option<oneshot::Receiver<Fate>>,
    /// What begins when the process is ready.
    birth: Birth,
    /// Who waits for a kernel that was apart or frozen.
    returning: Option<oneshot::Sender<Result<Answer, Refusal>>>,
    /// Where the kernel was frozen to, until there is another one.
    frozen: Option<Frozen>,
    /// When it was sent.
    sent: Instant,
    /// Whether there is a second processor for the kernel.
    is_eager: bool,
    /// When the current job began, on the clock of process start times.
    begun: i64,
    /// When the current run has had its time.
    deadline: Option<(Instant, f64)>,
    stop: Option<Stop>,
    queue: VecDeque<Job>,
    hello: Option<Hello>,
    /// Whether this life is without the packages that were installed at run time.
    is_plain: bool,
    counts: Counts,
    /// Cells that had run when the namespace was last emptied.
    emptied: u64,
    deaths: Deaths,
    leaving: Leaving,
    /// Those who wait until nothing runs any more.
    closing: Vec<oneshot::Sender<()>>,
    /// Whether it is the session that ends, and not the companion.
    is_deleted: bool,
    trouble: String,
    /// Why the companion itself ends the process.
    broken: Option<String>,
    /// Bytes of output since the last run.
    strayed: usize,
    /// Bytes that a long question has moved so far.
    moved: u64,
    thaw: Thaw,
}

impl Owner {
    pub(super) fn new(
        session: &str,
        settings: Settings,
        template: Template,
        mailbox: mpsc::Receiver<Message>,
        waking: Option<Waking>,
    ) -> (Self, watch::Receiver<View>) {
        let ledger = Ledger::open(&settings.data, session);
        let run_count = RunCount::open(&settings.data, session);
        let used = Instant::now();
        let view = View {
            ready: false,
            checkpoint: None,
            detail: "starting".into(),
            busy: false,
            queued: 0,
            counts: Counts::default(),
            emptied: 0,
            report: ledger.view(ledger.generation(), None),
            python: None,
            root: None,
            used,
            changed: used,
            moved: 0,
        };
        let with = |first| Thaw::of(&ledger, &settings, session, first);
        let (state, thaw, frozen) = match waking {
            None => (State::BEGIN, with(Vec::new()), None),
            Some(Waking::Sleeping(frozen)) => (State::Frozen, Thaw::none(), Some(frozen)),
            Some(Waking::Objects { frozen, folders }) => {
                (State::BEGIN, with(folders), Some(frozen))
            }
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
            spill: Spill::default(),
            used,
            changed: used,
            interrupts: Vec::new(),
            restarts: Vec::new(),
            fate: None,
            birth: Birth::New,
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
            counts: Counts::default(),
            emptied: 0,
            deaths: Deaths::new(),
            leaving: Leaving::Staying,
            closing: Vec::new(),
            is_deleted: false,
            trouble: String::new(),
            broken: None,
            strayed: 0,
            moved: 0,
            thaw,
        };
        owner.publish();
        (owner, seen)
    }

    /// Until a shutdown is complete, or every handle is gone.
    pub(super) async fn run(mut self) {
        if self.state != State::Frozen {
            self.act(vec![Action::Spawn, Action::Arm(super::policy::START)]);
        }
        loop {
            self.publish();
            self.look_at_closing();
            if self.is_over() {
                break;
            }
            tokio::select! {
                biased;
                message = self.mailbox.recv() => match message {
                    Some(message) => self.hear(message),
                    None => break,
                },
                // Time comes before output, or a flood would hold it up.
                () = at(self.alarm) => self.alarm_rings(),
                () = at(self.deadline.map(|(at, _)| at)) => self.time_is_up(),
                () = at(self.leaving.until().filter(|_| self.stop.is_none())) => self.grace_is_over(),
                decision = decided(&mut self.fate) => self.meet(decision).await,
                // How a kernel ends that is apart is told by who has it.
                news = news(&mut self.process), if self.fate.is_none() => self.read(news).await,
                never = stay_awake(self.sent), if self.is_eager && self.current.is_some() =>
                    match never {},
            }
            self.begin_next();
        }
        if let Some(process) = self.process.take() {
            let is_idle = self.state == State::Idle || self.is_checked();
            bury(process, is_idle).await;
        }
        self.run_count.close();
        // Only now those who wait for the end are told.
        self.mailbox.close();
        let refusal = self.farewell();
        while let Ok(message) = self.mailbox.try_recv() {
            refuse(message, &refusal);
        }
    }

    fn alarm_rings(&mut self) {
        self.alarm = None;
        if self.is_checked() {
            self.broken = Some("it was idle and did not answer any more".into());
        } else if self.state == State::Probing {
            self.broken = Some("it did not answer after its code had stopped".into());
        }
        self.step(Event::TimeUp);
    }

    fn time_is_up(&mut self) {
        if let Some((_, seconds)) = self.deadline.take() {
            self.stop.get_or_insert(Stop::Timeout(seconds));
            self.step(Event::Stop);
        }
    }

    fn grace_is_over(&mut self) {
        self.leaving = self.leaving.overdue();
        self.stop = self.current.is_some().then_some(Stop::Shutdown);
        for job in std::mem::take(&mut self.queue) {
            self.abandon(job, &Refusal::Stopping);
        }
        self.step(Event::Stop);
    }

    fn is_over(&self) -> bool {
        self.leaving.is_ending() && self.has_nothing_left()
    }

    /// Nothing is left to finish.
    fn has_nothing_left(&self) -> bool {
        self.current.is_none() && self.queue.is_empty()
    }

    fn step(&mut self, event: Event) {
        let (state, actions) = self.state.after(event);
        if state != self.state {
            tracing::debug!(?event, from = ?self.state, to = ?state, "kernel");
        }
        self.state = state;
        self.act(actions);
        if self.state.is_hopeless() {
            let refusal = Refusal::NoKernel(self.trouble.clone());
            for job in std::mem::take(&mut self.queue) {
                self.abandon(job, &refusal);
            }
            for waiting in std::mem::take(&mut self.restarts) {
                let _ = waiting.send(Err(refusal.clone()));
            }
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                // Nobody would ask it for anything.
                Action::Spawn if self.leaving != Leaving::Staying && self.has_nothing_left() => {}
                Action::Spawn => self.spawn(),
                Action::Probe => {
                    let probe = Ask {
                        id: "probe",
                        question: &Question::Probe,
                    };
                    // What can't be sent is not answered, either.
                    self.process.iter_mut().for_each(|p| drop(p.send(&probe)));
                }
                Action::Interrupt => {
                    if let (Some(process), Some(hello)) = (&self.process, &self.hello) {
                        process.interrupt(hello.pid, self.begun);
                    }
                }
                Action::Kill => self.process.iter_mut().for_each(Process::end),
                Action::Arm(time) => self.alarm = Some(Instant::now() + time),
                Action::Disarm => self.alarm = None,
            }
        }
    }

    fn spawn(&mut self) {
        self.is_plain = self.state.is_doubtful();
        if self.is_plain {
            tracing::warn!("the kernel is started without the packages installed at run time");
        }
        let process = Process::start(&self.template, &self.session, self.is_plain);
        self.process = Some(process);
    }
}

/// Ends a process, and waits until nothing is left of it.
async fn bury(mut process: Process, is_idle: bool) {
    match is_idle {
        _ if process.is_ending() => {}
        true => process.leave(),
        false => process.end(),
    }
    let ended =
        async |process: &mut Process| while !matches!(process.next().await, News::Ended(_)) {};
    while timeout(BURIAL, ended(&mut process)).await.is_err() {
        process.end();
    }
}

async fn news(process: &mut Option<Process>) -> News {
    match process {
        Some(process) => process.next().await,
        None => pending().await,
    }
}
