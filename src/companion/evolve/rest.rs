//! The container comes to rest, and goes on: nothing runs, nothing is written, all is stored.
//!
//! ```text
//!  at work ── close ──▶ waiting ── nothing runs ──▶ storing ──▶ at rest
//!     ▲                    │ grace is over,            │ can't      │ resume, or nobody has
//!     └────────────────────┴ or resume ────────────────┴────────────┘ replaced it for a while
//! ```
//!
//! Until it is at rest, every way back leaves it as it was. At rest it is replaced or paused at once.
//! A container that was not replaced answers requests again when the keeper says that the run has ended,
//! and after [`LEASE`] in any case, so that the keeper's death does not leave a container that refuses requests.

use super::newborn::{ended_in_vain, run_on};
use super::{Evolve, Parts};
use crate::companion::cryo;
use crate::companion::kernel::{self, View};
use crate::companion::mind::Frozen;
use crate::protocol::cryo::{Reason, Stored};
use crate::protocol::evolve::inside::{
    Expected, Kept, KeptBy, Quiesced, Remembered, Resumed, Session,
};
use crate::protocol::kernel::RunStatus;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// How long requests that were let in before may take to be answered.
const ANSWERS: Duration = Duration::from_secs(5);

/// How long the browser may take to end; its own grace time is shorter.
const BROWSER: Duration = Duration::from_secs(12);

/// Between two looks at the calls of MCP servers.
const LOOK: Duration = Duration::from_millis(20);

/// How long interrupted code may take to end: it is ended by force before.
const STOPPING: Duration = Duration::from_secs(30);

/// Seconds in which a container at rest is replaced. Those in which it is paused do not count.
const LEASE: u32 = 60;

/// What the container was brought to rest with.
#[derive(Debug)]
pub(super) struct Rest {
    told: Quiesced,
    /// Whether the browser ran.
    browser: bool,
    /// Tells one rest from another.
    begun: Instant,
}

/// Something that runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Running {
    id: String,
    /// What it is, in words.
    what: String,
}

impl Evolve {
    /// Lets nobody in, waits for what runs, and stores everything.
    pub(crate) async fn quiesce(&self, grace: Duration, force: bool) -> Quiesced {
        let evolve = self.clone();
        let recalled = self.recalls.subscribe();
        // In a task of its own: whoever asked may leave, and must not leave half of it undone.
        let done = tokio::spawn(async move { evolve.come_to_rest(grace, force, recalled).await });
        done.await.unwrap_or_else(|error| {
            self.parts.gate.open();
            not_quiesced(error.to_string(), &[])
        })
    }

    async fn come_to_rest(
        &self,
        grace: Duration,
        force: bool,
        recalled: watch::Receiver<()>,
    ) -> Quiesced {
        let mut rest = self.rest.lock().await;
        if let Some(rest) = &*rest {
            return rest.told.clone();
        }
        let begun = Instant::now();
        let parts = &self.parts;
        let before = Before::look(parts);
        parts.gate.close();
        match self.settle(begun + grace, force, recalled).await {
            Ok(receipt) => {
                let told = Quiesced {
                    quiesced: true,
                    why: None,
                    running: Vec::new(),
                    expected: before.expected(parts, &receipt),
                    besides: parts.besides(before.browser).await,
                    receipt: receipt.into_iter().map(|(kept, _)| kept).collect(),
                };
                let browser = before.browser;
                *rest = Some(Rest {
                    told: told.clone(),
                    browser,
                    begun,
                });
                tokio::spawn(self.clone().go_on_if_left(begun));
                tracing::info!("at rest after {:?}", begun.elapsed());
                told
            }
            Err((why, running)) => {
                tracing::warn!("not brought to rest: {why}");
                self.go_on(before.browser).await;
                not_quiesced(why, &running)
            }
        }
    }

    async fn settle(
        &self,
        deadline: Instant,
        force: bool,
        mut recalled: watch::Receiver<()>,
    ) -> Result<Vec<(Kept, Option<Stored>)>, (String, Vec<Running>)> {
        let parts = &self.parts;
        let quiet = tokio::select! {
            biased;
            // What runs goes on, also when it was to be interrupted.
            _ = recalled.changed() => return Err(("it was called off".into(), Vec::new())),
            quiet = parts.quiet(deadline) => quiet,
        };
        if let Err(running) = quiet {
            if !force {
                return Err((outlasted(&running), running));
            }
            parts.interrupt(&running).await;
        }
        let failed = |why: String| (why, Vec::new());
        if !parts.gate.shut(ANSWERS).await && !force {
            return Err(failed(
                "a request that was let in before has no answer yet".into(),
            ));
        }
        // One that those inside began last.
        if let Err(running) = parts.quiet(Instant::now()).await {
            match force {
                false => return Err((outlasted(&running), running)),
                true => parts.interrupt(&running).await,
            }
        }
        let (receipt, closed) = tokio::join!(parts.store(), parts.desktop.rest(BROWSER));
        if !closed {
            return Err(failed("the browser does not end".into()));
        }
        let mut receipt = receipt.map_err(failed)?;
        let kernel = self.settings.body.join("kernel");
        let frozen = parts.freeze(kernel, &mut receipt).await;
        let kept = parts.mind.keep(frozen).await;
        kept.map_err(|error| failed(format!("what the shells hold is not kept: {error:#}")))?;
        let waits = parts.lives.wait();
        waits.map_err(|error| failed(format!("what runs have written is not kept: {error}")))?;
        Ok(receipt)
    }

    /// Stores every session that is idle, and changes nothing else: what a body is tried with that
    /// has to bring it back. What can't be stored now is no hindrance yet.
    pub(crate) async fn remember(&self) -> Remembered {
        let stored = self.parts.cryo.snapshot(Reason::Evolve).await;
        self.parts.cryo.pin().await;
        let sessions = stored.into_iter().map(|(session, stored)| match stored {
            Ok(_) => (session, None),
            Err(refusal) => (session, Some(words(refusal))),
        });
        Remembered {
            sessions: sessions.collect(),
        }
    }

    /// Lets everybody in again, or for the first time. What is waited for is not any longer.
    pub(crate) async fn resume(&self) -> Resumed {
        let evolve = self.clone();
        self.recalls.send_replace(());
        let done = tokio::spawn(async move {
            let mut rest = evolve.rest.lock().await;
            if let Some(Rest { browser, .. }) = rest.take() {
                evolve.go_on(browser).await;
            }
            evolve.parts.gate.trust();
            evolve.parts.cryo.unpin();
        });
        Resumed {
            resumed: done.await.is_ok(),
        }
    }

    async fn go_on(&self, browser: bool) {
        let parts = &self.parts;
        if parts.gate.is_shut() {
            // Another container may have had the state meanwhile.
            parts.sessions.overtake().await;
            tokio::spawn(parts.clone().take_runs_over());
            parts.mind.keep_or_say(Frozen::default()).await;
            if parts.criu.is_wanted() {
                let sessions = parts.sessions.all().into_iter().map(|(name, _)| name);
                parts.forget_frozen(sessions).await;
            }
        }
        parts.gate.open();
        if browser {
            let desktop = parts.desktop.clone();
            tokio::spawn(async move {
                if let Err(why) = desktop.browser().await {
                    tracing::warn!("the browser does not come back: {why:?}");
                }
            });
        }
        self.tell_runs();
        tracing::info!("requests are answered again");
    }

    /// Answers requests again when the run that brought the container to rest has ended without replacing it, or
    /// when the lease is over. The keeper that says so may have started after the run's end.
    async fn go_on_if_left(self, begun: Instant) {
        let keeper = &self.settings.keeper;
        let left = async {
            // Nothing has begun it where the keeper was ended in between, and the next one has ended the run already.
            let run = run_on(keeper).await;
            ended_in_vain(keeper, run.as_ref()).await;
        };
        tokio::select! {
            () = left => {}
            () = lease() => {}
        }
        let mut rest = self.rest.lock().await;
        if rest.as_ref().is_some_and(|rest| rest.begun == begun)
            && let Some(Rest { browser, .. }) = rest.take()
        {
            tracing::warn!("nothing has replaced this container: it goes on");
            self.go_on(browser).await;
        }
    }
}

/// Counted in small steps, so that the time in which everything here is paused is not.
async fn lease() {
    for _ in 0..LEASE {
        sleep(Duration::from_secs(1)).await;
    }
}

impl Parts {
    /// Another container may have executed something meanwhile.
    async fn take_runs_over(self) {
        let store = self.store.clone();
        let recovered = spawn_blocking(move || store.recover()).await;
        self.sessions.registry().adopt();
        self.shells.registry().adopt();
        let taken = recovered.is_ok() && self.store.settle().await;
        drop(spawn_blocking(move || self.lives.go_on(taken)).await);
    }

    /// Waits until nothing runs.
    ///
    /// # Errors
    /// What still runs then.
    async fn quiet(&self, deadline: Instant) -> Result<(), Vec<Running>> {
        loop {
            let running = self.running();
            if running.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(running);
            }
            let next = sleep_until(deadline.min(Instant::now() + LOOK));
            // A run tells its end; a call of an MCP server is looked at now and then.
            tokio::select! {
                () = self.first_to_end(&running) => {}
                () = next => {}
            }
        }
    }

    async fn first_to_end(&self, running: &[Running]) {
        let Some(first) = running.first() else { return };
        match (self.sessions.run(&first.id), self.shells.run(&first.id)) {
            (Ok(run), _) => run.finished().await,
            (_, Ok(run)) => run.finished().await,
            _ => std::future::pending().await,
        }
    }

    fn running(&self) -> Vec<Running> {
        let cells = self.sessions.runs().into_iter();
        let cells = cells.filter(|run| run.status() == RunStatus::Running);
        let cells = cells.map(|run| Running {
            what: format!("run `{}` (`{}`)", run.id, run.line()),
            id: run.id.clone(),
        });
        let commands = self.shells.runs().into_iter();
        let commands = commands.filter(|run| run.status() == RunStatus::Running);
        let commands = commands.map(|run| Running {
            what: format!("command `{}` (`{}`)", run.id, run.line()),
            id: run.id.clone(),
        });
        let calls = self.hub.open_calls().into_iter();
        let calls = calls.map(|server| Running {
            what: format!("a call of the MCP server `{server}`"),
            id: format!("mcp:{server}"),
        });
        cells.chain(commands).chain(calls).collect()
    }

    /// Stops what runs; calls of MCP servers end with the container.
    async fn interrupt(&self, running: &[Running]) {
        let deadline = Instant::now() + STOPPING;
        // The last come first: what is queued must not begin because another has ended.
        let stops = running.iter().rev().map(|one| async move {
            tracing::info!("{} is interrupted", one.what);
            match self.sessions.run(&one.id) {
                Ok(_) => drop(self.sessions.interrupt(&one.id).await),
                Err(_) => drop(self.shells.interrupt(&one.id).await),
            }
        });
        // What does not stop is ended with the container.
        let _ = timeout_at(deadline, join_all(stops)).await;
    }

    /// Stores every session, and says of each what is kept.
    async fn store(&self) -> Result<Vec<(Kept, Option<Stored>)>, String> {
        let views: BTreeMap<String, View> = self.sessions.all().into_iter().collect();
        let mut receipt = Vec::new();
        for (session, stored) in self.cryo.snapshot(Reason::Evolve).await {
            let view = views.get(&session);
            let mut kept = Kept {
                by: KeptBy::Nothing,
                rows: Vec::new(),
                why: None,
                session,
            };
            let is_frozen = view.is_some_and(|view| view.checkpoint.is_some());
            let stored = match stored {
                // Said below.
                _ if is_frozen => None,
                Ok(Some(stored)) => Some(stored),
                Ok(None) if view.is_none_or(View::is_blank) => None,
                // It was stored before, and nothing was done since.
                Ok(None) => self.stored_before(&kept.session).await,
                Err(cryo::Refusal::Kernel(kernel::Refusal::Checkpointed { .. })) => None,
                Err(cryo::Refusal::Kernel(kernel::Refusal::NoKernel(why))) => {
                    kept.why = Some(format!("its kernel can't be started: {why}"));
                    None
                }
                Err(refusal) => {
                    let (session, why) = (&kept.session, words(refusal));
                    return Err(format!("session `{session}` can't be stored: {why}"));
                }
            };
            if let Some(stored) = &stored {
                kept.by = KeptBy::Objects;
                kept.rows.clone_from(&stored.receipt);
            }
            if let Some(checkpoint) = view.and_then(|view| view.checkpoint.as_deref()) {
                kept.by = KeptBy::Process;
                kept.why = Some(format!(
                    "it lies in the checkpoint `{checkpoint}`; `osctl criu restore` brings it back"
                ));
            }
            receipt.push((kept, stored));
        }
        Ok(receipt)
    }

    async fn stored_before(&self, session: &str) -> Option<Stored> {
        let shown = self.cryo.show(session.to_owned(), None).await.ok()?;
        Some(Stored {
            status: "completed".into(),
            message: "nothing was done since it was stored".into(),
            name: shown.name,
            generation: Some(shown.generation.generation),
            path: Some(shown.path),
            created: Some(shown.generation.created),
            size_bytes: shown.generation.size_bytes,
            timing_ms: 0.0,
            receipt: shown.receipt,
            kernel: None,
        })
    }
}

/// How everything stood before it was brought to rest.
#[derive(Debug)]
struct Before {
    services: Vec<String>,
    servers: Vec<String>,
    browser: bool,
}

impl Before {
    fn look(parts: &Parts) -> Self {
        let (services, _) = parts.desktop.health();
        let ready = services.into_iter().filter(|service| service.ready);
        let kernel = parts.sessions.view().ready.then(|| "kernel".to_owned());
        Self {
            services: kernel.into_iter().chain(ready.map(|s| s.name)).collect(),
            servers: parts.hub.running(),
            browser: parts.desktop.is_browsing(),
        }
    }

    fn expected(&self, parts: &Parts, receipt: &[(Kept, Option<Stored>)]) -> Expected {
        let sessions = parts.sessions.all().into_iter().map(|(session, view)| {
            let found = receipt.iter().find(|(kept, _)| kept.session == session);
            let stored = found.and_then(|(_, stored)| stored.as_ref());
            Session {
                kernel: view.report.generation,
                stored: stored.and_then(|stored| stored.generation),
                variables: stored.map_or(0, |stored| stored.receipt.len() as u64),
                checkpoint: view.checkpoint,
                session,
            }
        });
        Expected {
            run: None,
            healthy_before: self.services.clone(),
            sessions: sessions.collect(),
            servers: self.servers.clone(),
            shells: parts.folders(),
            clients: parts.hub.clients().0 as u64,
        }
    }
}

fn words(refusal: cryo::Refusal) -> String {
    match refusal {
        cryo::Refusal::Full => "the disk is full".into(),
        cryo::Refusal::Raised(raised) => format!("{}: {}", raised.kind, raised.message),
        cryo::Refusal::Failed(why) | cryo::Refusal::Losses(why) => why,
        cryo::Refusal::Kernel(kernel::Refusal::Busy) => "its kernel is busy".into(),
        other => format!("{other:?}"),
    }
}

fn outlasted(running: &[Running]) -> String {
    let whats: Vec<&str> = running.iter().map(|one| one.what.as_str()).collect();
    format!(
        "{} still {} when the grace time was over",
        whats.join(", "),
        if whats.len() == 1 { "ran" } else { "run" }
    )
}

fn not_quiesced(why: String, running: &[Running]) -> Quiesced {
    Quiesced {
        quiesced: false,
        why: Some(why),
        running: running.iter().map(|one| one.id.clone()).collect(),
        receipt: Vec::new(),
        besides: Vec::new(),
        expected: Expected::default(),
    }
}
