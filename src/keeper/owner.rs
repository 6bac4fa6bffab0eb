//! The one owner of what is going on: a run, a recovery, a probation, or nothing.

use super::journal::{Entry, Journal, Step};
use super::order::{No, Order, prepare};
use super::patience::{self, Next, is_away};
use super::probation::{self, Verdict};
use super::recovery::{After, give_up, recover};
use super::run::Work;
use super::shelf::{ENDED, Shelf};
use super::site::Site;
use super::stop::{self, Stop};
use super::{Settings, hearsay, reach};
use crate::engine::Docker;
use crate::error::Result;
use crate::protocol::evolve::{Asker, CHARGE, Charge, Record, Run, Task, refusal};
use crate::protocol::fault::Fault;
use anyhow::{Context, bail};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// How long who asks waits for a recovery to end.
const WAIT: Duration = Duration::from_secs(20);
/// Before what could not even begin is tried again.
const LATER: Duration = Duration::from_secs(5);
/// Between two looks at what the host lays down.
const SOON: Duration = Duration::from_millis(300);

type Answer = oneshot::Sender<std::result::Result<Run, No>>;

#[derive(Debug)]
enum Message {
    Begin(Order, Answer),
    Stop(Answer),
    Leave(oneshot::Sender<()>),
}

/// For those who ask.
#[derive(Debug, Clone)]
pub(super) struct Handle(mpsc::Sender<Message>);

impl Handle {
    /// Begins a run, if none is on.
    pub(super) async fn begin(&self, order: Order) -> std::result::Result<Run, No> {
        self.ask(|reply| Message::Begin(order, reply)).await
    }

    /// Has the run that is on come to an end, with what ran before it.
    pub(super) async fn stop(&self) -> std::result::Result<Run, No> {
        self.ask(Message::Stop).await
    }

    /// Returns when the keeper may end: what answered before a run answers.
    pub(super) async fn leave(&self) {
        let (reply, answer) = oneshot::channel();
        if self.0.send(Message::Leave(reply)).await.is_ok() {
            // One that is gone has nothing left to do, either.
            let _ = answer.await;
        }
    }

    async fn ask(&self, message: impl FnOnce(Answer) -> Message) -> std::result::Result<Run, No> {
        let (reply, answer) = oneshot::channel();
        let gone = || No::from(anyhow::anyhow!("the keeper is ending"));
        let asked = async {
            let sent = self.0.send(message(reply)).await;
            sent.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        };
        let late = "the keeper is still ending what was begun before";
        let asked = tokio::time::timeout(WAIT, asked).await;
        asked.unwrap_or_else(|_| Err(No::from(anyhow::anyhow!(late))))
    }
}

/// What is going on.
enum State {
    Idle,
    /// What a keeper before has begun is being ended.
    Recovery,
    Run(Run, Stop),
    Probation,
}

/// How it went on.
enum Done {
    Recovered(Site, After),
    Ran(Site, Box<Record>),
    Watched(Verdict),
    /// What did not last is to be gone back from.
    Rescue(Box<Work>),
    /// Nothing is on, and nothing is to be done.
    Nothing,
    /// The engine went away in the middle.
    Lost(anyhow::Error),
}

pub(super) struct Owner {
    settings: Settings,
    shelf: Shelf,
    inbox: mpsc::Receiver<Message>,
    state: State,
    /// Who waits until the keeper may end.
    leaving: Vec<oneshot::Sender<()>>,
    /// Who asked for a run while the one before was being tidied up.
    next: Vec<(Order, Answer)>,
    current: BoxFuture<'static, Result<Done>>,
}

impl Owner {
    pub(super) fn new(settings: Settings, shelf: Shelf) -> (Self, Handle) {
        let (sender, inbox) = mpsc::channel(8);
        let current = recovery(settings.clone(), shelf.clone(), ENDED.into());
        let owner = Self {
            settings,
            shelf,
            inbox,
            state: State::Recovery,
            leaving: Vec::new(),
            next: Vec::new(),
            current,
        };
        (owner, Handle(sender))
    }

    /// Until the keeper ends.
    ///
    /// # Errors
    /// When the engine is away for long.
    pub(super) async fn run(mut self) -> Result<()> {
        loop {
            tokio::select! {
                done = &mut self.current => {
                    self.go_on(done?)?;
                    self.take_up().await;
                }
                message = self.inbox.recv() => match message {
                    // Who asked has been told that it is not done.
                    Some(Message::Begin(_, reply) | Message::Stop(reply)) if reply.is_closed() => {}
                    // Whoever wants a run during a recovery waits for its end.
                    Some(Message::Begin(order, reply)) if self.is_ending() => self.next.push((order, reply)),
                    // Who asked may have gone; the run goes on.
                    Some(Message::Begin(order, reply)) => drop(reply.send(self.begin(order).await)),
                    Some(Message::Stop(reply)) => drop(reply.send(self.stop())),
                    Some(Message::Leave(reply)) => self.leave(reply),
                    None => return Ok(()),
                }
            }
        }
    }

    /// Whether what was begun before is being ended, or the run that is on has ended for all who look.
    fn is_ending(&self) -> bool {
        match &self.state {
            State::Recovery => true,
            State::Run(run, _) => {
                let record = self.shelf.record(run).ok().flatten();
                record.is_some_and(|record| record.status.has_ended())
            }
            State::Idle | State::Probation => false,
        }
    }

    async fn take_up(&mut self) {
        if matches!(self.state, State::Recovery) {
            return;
        }
        for (order, reply) in std::mem::take(&mut self.next) {
            if !reply.is_closed() {
                drop(reply.send(self.begin(order).await));
            }
        }
    }

    fn go_on(&mut self, done: Done) -> Result<()> {
        self.state = State::Idle;
        let (settings, shelf) = (self.settings.clone(), self.shelf.clone());
        self.current = Box::pin(async move {
            reach::make_good(&settings, &shelf).await;
            std::future::pending().await
        });
        for reply in self.leaving.drain(..) {
            // The keeper ends even so.
            let _ = reply.send(());
        }
        match done {
            Done::Recovered(site, After::Watch(entry)) => self.watch(site, *entry),
            Done::Recovered(_, After::Broken(why)) => self.rescue(why),
            Done::Recovered(_, After::Nothing) | Done::Nothing => {}
            Done::Ran(site, record) => {
                self.shelf.attend(None);
                tracing::info!(run = %record.run, status = %record.status, why = record.why, "a run ended");
                if let Some(entry) = Journal::new(&self.settings.state).read()? {
                    self.watch(site, entry);
                }
            }
            Done::Watched(Verdict::Lasted) => Journal::new(&self.settings.state).close()?,
            Done::Watched(Verdict::Broken(why)) => self.rescue(why),
            Done::Rescue(work) => drop(self.set_out(*work)),
            Done::Lost(error) => {
                tracing::warn!("{error:#}");
                self.state = State::Recovery;
                let why = hearsay::sentence(&format!("{error:#}"));
                self.current = recovery(self.settings.clone(), self.shelf.clone(), why);
            }
        }
        Ok(())
    }

    fn rescue(&mut self, why: String) {
        tracing::warn!("{why}");
        self.state = State::Recovery;
        self.current = Box::pin(rescue(self.settings.clone(), self.shelf.clone(), why));
    }

    fn stop(&self) -> std::result::Result<Run, No> {
        let on = match &self.state {
            State::Run(run, stop) => {
                stop.wish(stop::BY_PERSON);
                return Ok(run.clone());
            }
            // It is being ended already.
            State::Recovery => self.shelf.on(),
            State::Idle | State::Probation => None,
        };
        on.ok_or_else(|| {
            let fault = Fault::new(refusal::NO_SUCH_RUN, "no run is on");
            No::Refused(fault.hint("`osctl evolve history` lists the runs"))
        })
    }

    /// What has changed nothing yet is ended by the keeper that comes next.
    fn leave(&mut self, reply: oneshot::Sender<()>) {
        let step = Journal::new(&self.settings.state).read();
        let step = step.ok().flatten().map(|entry| entry.step);
        let is_mute = matches!(step, Some(Step::Freezing | Step::Swapping));
        match &self.state {
            State::Run(_, stop) if is_mute => {
                stop.wish("the keeper was stopped");
                self.leaving.push(reply);
            }
            State::Recovery if is_mute => self.leaving.push(reply),
            _ => drop(reply.send(())),
        }
    }

    fn watch(&mut self, site: Site, entry: Entry) {
        self.state = State::Probation;
        let (settings, shelf) = (self.settings.clone(), self.shelf.clone());
        self.current = Box::pin(async move {
            let made_good = async {
                reach::make_good(&settings, &shelf).await;
                std::future::pending().await
            };
            let watched = tokio::select! {
                watched = probation::watch(&site, &entry) => watched,
                never = made_good => never,
            };
            Ok(match watched {
                Ok(verdict) => Done::Watched(verdict),
                Err(error) => Done::Lost(error),
            })
        });
    }

    async fn begin(&mut self, order: Order) -> std::result::Result<Run, No> {
        if let State::Run(run, _) = &self.state {
            return Err(No::Busy(run.clone()));
        }
        if !self.leaving.is_empty() {
            return Err(No::from(anyhow::anyhow!("the keeper is ending")));
        }
        let work = prepare(&self.settings, &self.shelf, order).await?;
        Ok(self.set_out(work))
    }

    fn set_out(&mut self, work: Work) -> Run {
        let run = work.record.run.clone();
        tracing::info!(%run, by = ?work.record.by, reason = work.record.reason, "a run begins");
        self.state = State::Run(run.clone(), work.stop.clone());
        self.current = Box::pin(drive(work));
        run
    }
}

async fn drive(work: Work) -> Result<Done> {
    let site = work.site.clone();
    Ok(match work.drive().await {
        Ok(record) => Done::Ran(site, Box::new(record)),
        Err(error) => Done::Lost(error),
    })
}

/// Tries until the engine has done what it takes, or refuses for long. What was on was cut by `why`.
fn recovery(settings: Settings, shelf: Shelf, why: String) -> BoxFuture<'static, Result<Done>> {
    Box::pin(async move {
        let mut heard = Instant::now();
        let mut refused = 0;
        loop {
            let error = match site(&settings).await {
                Ok(site) => match recover(&settings, &shelf, &site, &why).await {
                    Ok(after) => return Ok(Done::Recovered(site, after)),
                    Err(error) => error,
                },
                // What the host will lay down ends nothing that it does not know of.
                Err(error) if !is_away(&error) => {
                    tracing::info!("not yet: {error:#}");
                    heard = Instant::now();
                    tokio::time::sleep(SOON).await;
                    continue;
                }
                Err(error) => error,
            };
            let away = is_away(&error).then(|| heard.elapsed());
            if away.is_none() {
                (heard, refused) = (Instant::now(), refused + 1);
            }
            match patience::next(refused, away) {
                Next::Again(pause) => {
                    tracing::info!("not yet: {error:#}");
                    tokio::time::sleep(pause).await;
                }
                Next::GiveUp => {
                    tracing::error!("given up: {error:#}");
                    give_up(&settings, &shelf, &error);
                    refused = 0;
                }
                Next::End => return Err(error),
            }
        }
    })
}

/// Back to the last image that has lasted, by nobody's wish.
async fn rescue(settings: Settings, shelf: Shelf, why: String) -> Result<Done> {
    let journal = Journal::new(&settings.state);
    let watched = journal.read()?;
    if let Some(entry) = watched.filter(probation::is_hopeless) {
        let times = entry.rescues;
        return without_rescue(
            &journal,
            &shelf,
            &format!("{why}; the keeper went back {times} times in vain"),
        );
    }
    let order = Order {
        task: Task::Rescue,
        by: Asker::Keeper,
        reason: Some(hearsay::sentence(&why)),
        force: true,
        dry_run: false,
        to: None,
    };
    match prepare(&settings, &shelf, order).await {
        Ok(work) => Ok(Done::Rescue(Box::new(work))),
        Err(No::Refused(fault)) if fault.kind == refusal::NO_SUCH_RUN => {
            without_rescue(&journal, &shelf, &format!("{why}; {}", fault.message))
        }
        // An engine that is slow, or a disk that is full, now is as it should be later.
        Err(No::Refused(fault)) => {
            tokio::time::sleep(LATER).await;
            let why = format!("no rescue yet: {}", fault.message);
            Ok(Done::Lost(anyhow::anyhow!(why)))
        }
        Err(No::Busy(run)) => bail!("run {run} is on while nothing is"),
    }
}

/// Says so where people look: in the record of the run whose container does not last.
fn without_rescue(journal: &Journal, shelf: &Shelf, why: &str) -> Result<Done> {
    tracing::error!("no rescue: {why}");
    if let Some(entry) = journal.read()?
        && let Some(mut record) = shelf.record(&entry.run)?
    {
        record.why = Some(hearsay::sentence(why));
        shelf.save(&record)?;
    }
    journal.close()?;
    Ok(Done::Nothing)
}

/// What the host laid down, and the engine.
pub(super) async fn site(settings: &Settings) -> Result<Site> {
    let text = std::fs::read(settings.state.join(CHARGE))
        .context("the host has laid nothing down yet: `osctl up` does")?;
    let charge: Charge = serde_json::from_slice(&text)
        .context("what the host laid down can't be read: `osctl up` lays it down again")?;
    Ok(Site {
        docker: Docker::at(&settings.engine).await?,
        charge: Arc::new(charge),
    })
}
