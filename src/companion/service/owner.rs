//! The task that owns one service: it turns wake-ups into events, and does what the policy says.

use super::declaration::{Declaration, Need, Restart};
use super::lines::Lines;
use super::policy::{Action, Event, State};
use super::process::Process;
use super::{View, probe};
use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How long a service may take to become ready.
const START: Duration = Duration::from_secs(15);

/// Between two probes; many services are ready after a few of them.
const PAUSE: Duration = Duration::from_millis(10);

/// In which order services end with the companion: whoever stands on another ends before it.
#[derive(Debug)]
pub(super) struct Order {
    /// Closed when all have ended that stand on this one.
    pub(super) held: mpsc::Receiver<()>,
    /// Let go when this one has ended.
    pub(super) _holds: Vec<mpsc::Sender<()>>,
}

#[derive(Debug)]
pub(super) struct Owner {
    declaration: Arc<Declaration>,
    ground: Vec<watch::Receiver<View>>,
    needs: watch::Receiver<BTreeSet<Need>>,
    view: watch::Sender<View>,
    state: State,
    process: Option<Process>,
    /// The lives of the ground when this one began.
    stands_on: u64,
    began: Instant,
    /// When it must have ended, or may start again.
    deadline: Option<Instant>,
    last_end: String,
    life: u64,
    order: Order,
}

impl Owner {
    pub(super) fn new(
        declaration: Arc<Declaration>,
        ground: Vec<watch::Receiver<View>>,
        needs: Arc<watch::Sender<BTreeSet<Need>>>,
        order: Order,
    ) -> (Self, watch::Receiver<View>) {
        let (view, seen) = watch::channel(View {
            ready: false,
            life: 0,
            detail: "off until it is needed".into(),
            idle: true,
            finished: false,
            guard: None,
        });
        let owner = Self {
            declaration,
            ground,
            needs: needs.subscribe(),
            view,
            state: State::Off,
            process: None,
            stands_on: 0,
            began: Instant::now(),
            deadline: None,
            last_end: String::new(),
            life: 0,
            order,
        };
        (owner, seen)
    }

    /// Runs until it is told to stop; then the process is gone.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            self.look();
            let event = tokio::select! {
                // Whoever held the word is gone: so is the companion.
                _ = stop.wait_for(|stop| *stop) => break,
                event = self.event() => event,
            };
            if let Some(event) = event {
                self.take(event);
            }
        }
        // Nobody says anything there; it ends when the last sender is gone.
        while self.order.held.recv().await.is_some() {}
        if let Some(mut process) = self.process.take() {
            process.leave();
            process.ended().await;
        }
    }

    /// What others say, as far as it means something now.
    fn look(&mut self) {
        let is_needed = (self.needs.borrow_and_update().iter())
            .any(|need| need.includes(self.declaration.need));
        match (self.state, is_needed) {
            (State::Off | State::Leaving { again: false }, true) => self.take(Event::Needed),
            (State::Off | State::Leaving { again: false }, false) => {}
            (_, false) => self.take(Event::NotNeeded),
            (_, true) => {}
        }
        let ground = self.standing();
        match self.state {
            State::Waiting { .. } if ground.is_some() => self.take(Event::GroundReady),
            State::Starting { .. } | State::Ready { .. } if ground != Some(self.stands_on) => {
                self.take(Event::GroundLost);
            }
            _ => {}
        }
    }

    /// The lives of what it stands on; nothing, when one is not ready.
    fn standing(&mut self) -> Option<u64> {
        let mut lives = 0;
        let mut is_ready = true;
        for view in &mut self.ground {
            let view = view.borrow_and_update();
            is_ready &= view.ready;
            lives += view.life;
        }
        is_ready.then_some(lives)
    }

    /// The next thing that happens; nothing, when it is to look again.
    async fn event(&mut self) -> Option<Event> {
        let is_starting = matches!(self.state, State::Starting { .. });
        let late = self.began + START;
        tokio::select! {
            biased;
            end = ended(&mut self.process) => Some(self.after_end(end)),
            () = moved(&mut self.needs, &mut self.ground) => None,
            () = at(self.deadline) => {
                self.deadline = None;
                match &mut self.process {
                    Some(process) => {
                        process.end();
                        None
                    }
                    None => Some(Event::Rested),
                }
            }
            () = answers(&self.declaration), if is_starting => Some(Event::Probed),
            () = tokio::time::sleep_until(late), if is_starting => Some(Event::TooLate),
        }
    }

    fn after_end(&mut self, code: u8) -> Event {
        self.process = None;
        self.deadline = None;
        let is_wish = code == 0 && self.declaration.restart == Restart::OnFailure;
        self.last_end = match code {
            129.. => format!("it was ended by signal {}", code - 128),
            _ => format!("it ended with exit code {code}"),
        };
        if !matches!(self.state, State::Leaving { .. }) {
            tracing::warn!("{}: {}", self.declaration.name, self.last_end);
        }
        let lasted = self.began.elapsed();
        Event::Ended { lasted, is_wish }
    }

    fn take(&mut self, event: Event) {
        let (state, action) = self.state.after(event);
        tracing::debug!("{}: {event:?}: {state:?}", self.declaration.name);
        self.state = state;
        match action {
            Action::Nothing => {}
            Action::Start => self.start(),
            Action::Leave => {
                self.deadline = Some(Instant::now() + self.declaration.grace);
                self.process.iter().for_each(Process::leave);
            }
            Action::Kill => {
                if event == Event::TooLate {
                    tracing::warn!(
                        "{}: it does not answer, and is ended",
                        self.declaration.name
                    );
                    // Not asked again; its end is awaited.
                    self.began = Instant::now();
                }
                self.process.iter().for_each(Process::end);
            }
            Action::Rest(pause) => self.deadline = Some(Instant::now() + pause),
        }
        self.tell();
    }

    fn start(&mut self) {
        self.stands_on = self.standing().unwrap_or_default();
        self.began = Instant::now();
        self.life += 1;
        for path in &self.declaration.clean {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!("{}: `{}`: {error}", self.declaration.name, path.display());
                }
                _ => {}
            }
        }
        let failures = match self.state {
            State::Starting { failures } => failures,
            _ => 0,
        };
        match Process::start(&self.declaration, failures) {
            Ok((process, output)) => {
                tracing::info!("{}: started", self.declaration.name);
                tokio::spawn(Lines::new(&self.declaration.name).follow(output));
                self.process = Some(process);
            }
            Err(error) => {
                self.last_end = format!("{error:#}");
                tracing::warn!("{}: {}", self.declaration.name, self.last_end);
                self.take(Event::Ended {
                    lasted: Duration::ZERO,
                    is_wish: false,
                });
            }
        }
    }

    fn tell(&self) {
        let detail = match self.state {
            State::Off => "off until it is needed".into(),
            State::Waiting { .. } => "waiting for what it stands on".into(),
            State::Starting { failures: 0 } => "starting".into(),
            State::Starting { .. } => format!("starting again: {}", self.last_end),
            State::Ready { .. } => "ready".into(),
            State::Resting { .. } => format!("starting again soon: {}", self.last_end),
            State::Leaving { .. } => "ending".into(),
            State::Finished => "closed".into(),
        };
        self.view.send_replace(View {
            ready: matches!(self.state, State::Ready { .. }),
            life: self.life,
            detail,
            idle: matches!(self.state, State::Off | State::Finished),
            finished: self.state == State::Finished,
            guard: self.process.as_ref().and_then(Process::guard),
        });
    }
}

async fn ended(process: &mut Option<Process>) -> u8 {
    match process {
        Some(process) => process.ended().await,
        None => pending().await,
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Until a need, or something it stands on, is another one.
async fn moved(needs: &mut watch::Receiver<BTreeSet<Need>>, ground: &mut [watch::Receiver<View>]) {
    tokio::select! {
        _ = needs.changed() => {}
        () = any_changed(ground) => {}
    }
}

async fn any_changed(ground: &mut [watch::Receiver<View>]) {
    if ground.is_empty() {
        return pending().await;
    }
    let changes = ground.iter_mut().map(|view| Box::pin(view.changed()));
    let (_, _, _) = futures_util::future::select_all(changes).await;
}

async fn answers(declaration: &Declaration) {
    while !probe::is_ready(&declaration.ready).await {
        tokio::time::sleep(PAUSE).await;
    }
}
