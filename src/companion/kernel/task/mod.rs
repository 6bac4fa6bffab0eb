//! The task that owns the process: turns wake-ups into events, asks the policy, does as it says.

mod jobs;
mod waits;

use crate::companion::kernel::ending::{Deaths, Stop, raised};
use crate::companion::kernel::guard::Ended;
use crate::companion::kernel::ledger::Ledger;
use crate::companion::kernel::policy::{Action, Event, State};
use crate::companion::kernel::process::{News, Process};
use crate::companion::kernel::template::Template;
use crate::companion::kernel::wire::{Ask, Counts, Frame, Hello, Question};
use crate::companion::kernel::{Answer, Message, Refusal, Settings, View};
use crate::companion::runs::Spill;
use crate::protocol::BODY_VERSION;
use crate::protocol::kernel::{Happened, KernelReport, KernelState, Raised, RunStatus, Stream};
use jobs::{Job, Outcome, refuse};
use std::collections::VecDeque;
use std::future::pending;
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use waits::{at, stay_awake};

/// Bytes of output between two runs that are logged.
const STRAY: usize = 4 << 10;

/// How long a guard may take; one that is stopped is killed then.
const BURIAL: Duration = Duration::from_secs(5);

pub(super) struct Owner {
    session: String,
    settings: Settings,
    template: Template,
    mailbox: mpsc::Receiver<Message>,
    view: watch::Sender<View>,
    ledger: Ledger,
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
    /// Those who wait for what they have interrupted.
    interrupts: Vec<oneshot::Sender<KernelReport>>,
    /// Those who wait for a restart.
    restarts: Vec<oneshot::Sender<Result<Answer, Refusal>>>,
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
    deaths: Deaths,
    /// When a shutdown was asked for: until when running code may finish.
    shutdown: Option<Instant>,
    trouble: String,
    /// Why the companion itself ends the process.
    broken: Option<String>,
    /// Bytes of output since the last run.
    strayed: usize,
}

impl Owner {
    pub(super) fn new(
        session: &str,
        settings: Settings,
        template: Template,
        mailbox: mpsc::Receiver<Message>,
    ) -> (Self, watch::Receiver<View>) {
        let ledger = Ledger::open(&settings.data, session);
        let used = Instant::now();
        let view = View {
            ready: false,
            detail: "starting".into(),
            busy: false,
            queued: 0,
            counts: Counts::default(),
            report: ledger.view(ledger.generation(), None),
            python: None,
            root: None,
            used,
        };
        let (view, seen) = watch::channel(view);
        let owner = Self {
            session: session.into(),
            settings,
            template,
            mailbox,
            view,
            ledger,
            state: State::BEGIN,
            process: None,
            alarm: None,
            current: None,
            outcome: None,
            raised: None,
            spill: Spill::default(),
            used,
            interrupts: Vec::new(),
            restarts: Vec::new(),
            sent: Instant::now(),
            is_eager: available_parallelism().is_ok_and(|n| n.get() > 1),
            begun: 0,
            deadline: None,
            stop: None,
            queue: VecDeque::new(),
            hello: None,
            is_plain: false,
            counts: Counts::default(),
            deaths: Deaths::new(),
            shutdown: None,
            trouble: String::new(),
            broken: None,
            strayed: 0,
        };
        (owner, seen)
    }

    /// Until a shutdown is complete, or every handle is gone.
    pub(super) async fn run(mut self) {
        self.act(vec![Action::Spawn, Action::Arm(super::policy::START)]);
        loop {
            self.publish();
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
                () = at(self.shutdown.filter(|_| self.stop.is_none())) => self.grace_is_over(),
                news = news(&mut self.process) => self.read(news).await,
                never = stay_awake(self.sent), if self.is_eager && self.current.is_some() =>
                    match never {},
            }
            self.begin_next();
        }
        if let Some(process) = self.process.take() {
            let is_idle = self.state == State::Idle || self.is_checked();
            bury(process, is_idle).await;
        }
        // Only now those who wait for the end are told.
        self.mailbox.close();
        while let Ok(message) = self.mailbox.try_recv() {
            refuse(message, &Refusal::Stopping);
        }
    }

    fn alarm_rings(&mut self) {
        self.alarm = None;
        if self.is_checked() {
            self.broken = Some("it was idle and did not answer any more".into());
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
        self.stop = Some(Stop::Shutdown);
        for job in std::mem::take(&mut self.queue) {
            self.abandon(job, &Refusal::Stopping);
        }
        self.step(Event::Stop);
    }

    /// Nothing is left to finish.
    fn is_over(&self) -> bool {
        self.shutdown.is_some() && self.current.is_none() && self.queue.is_empty()
    }

    async fn read(&mut self, news: News) {
        match news {
            News::Output(stream, bytes) => self.output(stream, bytes).await,
            News::Frame(frame) => self.frame(frame).await,
            News::Broken(why) => {
                tracing::warn!("the kernel is ended: {why}");
                self.trouble.clone_from(&why);
                self.broken = Some(why);
                self.step(Event::Broken);
            }
            News::Ended(ended) => self.died(&ended).await,
        }
    }

    async fn output(&mut self, stream: Stream, mut bytes: Vec<u8>) {
        match &self.current {
            Some(Job::Run(run)) => {
                let run = run.clone();
                let rest = run.write(stream, &bytes);
                if rest > 0 {
                    bytes.drain(..bytes.len() - rest);
                    let folder = &self.settings.runs;
                    self.spill.write(folder, &run, stream, bytes).await;
                }
            }
            _ => self.stray(&bytes),
        }
    }

    /// Output of threads and processes that a run left behind: nobody waits for it, so the log
    /// gets its beginning.
    fn stray(&mut self, bytes: &[u8]) {
        let room = STRAY.saturating_sub(self.strayed);
        self.strayed += bytes.len();
        if room > 0 && !bytes.is_empty() {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(room)]).into_owned();
            let rest = if bytes.len() > room {
                " … and more, which is dropped"
            } else {
                ""
            };
            tracing::info!("output between runs: {}{rest}", text.trim_end());
        }
    }

    async fn frame(&mut self, frame: Frame) {
        match (frame, &self.current) {
            (Frame::Hello(hello), _) => self.greet(hello),
            (Frame::Display(shown), Some(Job::Run(run))) => run.add(Happened::Display(shown)),
            (Frame::Result(shown), Some(Job::Run(run))) => run.add(Happened::Result(shown)),
            (Frame::Clear { wait }, Some(Job::Run(run))) => run.add(Happened::Clear { wait }),
            // What interrupted code raises is told with the reason, once.
            (Frame::Error { error }, Some(Job::Run(_))) if self.stop.is_some() => {
                self.raised = Some(error);
            }
            (Frame::Error { error }, Some(Job::Run(run))) => run.add(Happened::Error { error }),
            (Frame::Done { status, counts }, Some(Job::Run(_))) if self.outcome.is_none() => {
                self.counts = counts;
                self.drain().await;
                self.finish(Outcome::Run(status));
            }
            (Frame::Reply { counts, .. }, _) if matches!(self.state, State::Starting { .. }) => {
                self.counts = counts;
                self.ready();
            }
            (Frame::Reply { .. }, None) if self.state == State::Probing => self.step(Event::Done),
            (Frame::Reply { counts, .. }, Some(_)) if self.state == State::Probing => {
                self.counts = counts;
                self.drain().await;
                self.conclude();
            }
            (
                Frame::Reply {
                    value,
                    error,
                    counts,
                },
                Some(Job::Ask { .. }),
            ) => {
                self.counts = counts;
                self.finish(Outcome::Ask(error.map_or(Ok(value), Err)));
            }
            (Frame::Refused { error }, _) => {
                tracing::error!("the kernel refused a request: {}", error.message);
                self.step(Event::Broken);
            }
            (late, _) => tracing::debug!("a frame that nobody waits for: {late:?}"),
        }
    }

    fn greet(&mut self, hello: Hello) {
        if hello.protocol != BODY_VERSION {
            self.trouble = format!(
                "the kernel speaks protocol {}, this companion {BODY_VERSION}",
                hello.protocol
            );
            tracing::error!("{}", self.trouble);
            return self.step(Event::Broken);
        }
        // It is ready when it has its packages, which may keep it from ever being.
        self.hello = Some(hello);
    }

    fn ready(&mut self) {
        let Some(hello) = &self.hello else { return };
        self.ledger.begin();
        let (body, generation) = (&hello.body_version, self.ledger.generation());
        let session = &self.session;
        tracing::info!(
            session,
            python = hello.python,
            body,
            generation,
            "kernel is ready"
        );
        self.step(Event::Ready);
        for waiting in std::mem::take(&mut self.restarts) {
            let report = self.ledger.report(generation, None);
            // Whoever asked may have left.
            let _ = waiting.send(Ok(Answer::of(report)));
        }
    }

    async fn drain(&mut self) {
        let Some(process) = &self.process else { return };
        for (stream, bytes) in process.drain() {
            self.output(stream, bytes).await;
        }
    }

    async fn died(&mut self, ended: &Ended) {
        self.drain().await;
        let last_words = self
            .process
            .take()
            .map(|p| p.last_words())
            .unwrap_or_default();
        self.deadline = None;
        (self.outcome, self.raised) = (None, None);
        self.answer_interrupts(KernelReport {
            generation: self.ledger.generation(),
            state: KernelState::Lost,
        });
        let stop = self.stop.take();
        let how = match std::mem::take(&mut self.broken) {
            Some(why) => format!("it was ended because {why}"),
            None => self.deaths.cause(ended),
        };
        tracing::warn!("the kernel ended: {how}");
        if matches!(self.state, State::Starting { .. }) || self.trouble.is_empty() {
            self.trouble = [how.clone(), last_words].join("\n").trim_end().to_owned();
        }
        match self.current.take() {
            Some(Job::Run(run)) => {
                let (status, error) = match stop {
                    Some(stop) => (RunStatus::Interrupted, stop.lost()),
                    None => {
                        let message = format!(
                            "the kernel ended while it ran this code: {how}; its state is lost"
                        );
                        (RunStatus::Failed, raised("KernelDied", message))
                    }
                };
                run.add(Happened::Error { error });
                let generation = self.ledger.generation();
                self.ledger.report(generation, None);
                run.finish(
                    status,
                    KernelReport {
                        generation,
                        state: KernelState::Lost,
                    },
                );
            }
            Some(job) => self.abandon(job, &Refusal::NoKernel(how)),
            None => {}
        }
        self.spill = Spill::default();
        self.hello = None;
        self.counts = Counts::default();
        self.used = Instant::now();
        self.step(Event::Died);
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
                Action::Spawn if self.is_over() => {}
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

    fn publish(&self) {
        let ready = self.hello.is_some() && !matches!(self.state, State::Starting { .. });
        let fresh = View {
            ready,
            detail: self.detail(),
            busy: self.state.is_busy() && !self.is_checked(),
            queued: self.queue.len(),
            counts: self.counts,
            report: self.ledger.view(self.ledger.generation(), None),
            python: self.hello.as_ref().map(|h| h.python.clone()),
            root: self.process.as_ref().and_then(Process::root),
            used: self.used,
        };
        self.view.send_if_modified(|old| {
            let changed = *old != fresh;
            *old = fresh;
            changed
        });
    }

    /// Whether an idle kernel is asked how it is.
    fn is_checked(&self) -> bool {
        self.state == State::Probing && self.current.is_none()
    }

    fn detail(&self) -> String {
        match self.state {
            State::Starting { .. } => "starting".into(),
            State::Probing if self.is_checked() => "idle".into(),
            State::Idle if self.is_plain => {
                "idle, without the packages installed at run time, which kept it from starting"
                    .into()
            }
            State::Idle => "idle".into(),
            State::Busy => "executing".into(),
            State::Stopping { .. } | State::Probing => "being interrupted".into(),
            State::Killed { .. } => "being ended".into(),
            State::Resting { .. } => {
                format!("can't be started, will be tried again: {}", self.trouble)
            }
        }
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
