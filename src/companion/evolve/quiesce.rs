//! Quiesce and resume. In a quiesced container nothing runs, nothing is written, and all state is stored.
//!
//! ```text
//! at work ── close ──▶ waiting ── nothing runs ──▶ storing ──▶ quiesced
//!    ▲                    │ grace is over,            │ fails      │ resume, or the run ended
//!    └────────────────────┴ or resume ────────────────┴────────────┘ without a replacement
//! ```
//!
//! A quiesce that fails leaves the container unchanged. The keeper replaces or pauses a quiesced container at once. A
//! container that was not replaced answers requests again when the keeper reports that the run has ended, and after
//! [`QUIESCE_LEASE_SECONDS`] in any case, so that the end of the keeper does not leave a container that refuses
//! requests.

use super::readiness_gate::{find_current_run, wait_not_replaced};
use super::{EvolveHandle, EvolveParts};
use crate::companion::cryo;
use crate::companion::kernel::{self, KernelView};
use crate::companion::session_state::EvolveCheckpoints;
use crate::protocol::cryo::{CryoStored, StoreReason};
use crate::protocol::evolve::container_reports::{
    ExpectedSession, ExpectedState, QuiesceReply, RememberReply, RestoreMethod, ResumeReply,
    SessionReceipt,
};
use crate::protocol::kernel::RunStatus;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// How long requests that were admitted before may take to be answered.
const QUIESCE_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the browser may take to end; its own grace time is shorter.
const QUIESCE_BROWSER_TIMEOUT: Duration = Duration::from_secs(12);

/// Time between two checks of the calls of MCP servers.
const QUIESCE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long the interrupt of code may take; its kill timeout is shorter.
const QUIESCE_INTERRUPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Seconds after which a quiesced container resumes if it was not replaced. Paused time does not count.
const QUIESCE_LEASE_SECONDS: u32 = 60;

/// The result of a quiesce.
#[derive(Debug)]
pub(super) struct QuiescedState {
    result: QuiesceReply,
    /// Whether the browser ran.
    had_browser: bool,
    /// Start of the quiesce, which distinguishes it from others.
    started: Instant,
}

/// Running work that prevents the quiesce.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct QuiesceBlocker {
    id: String,
    /// A description for people.
    description: String,
}

impl EvolveHandle {
    /// Closes the gate, waits for running work, and stores everything.
    pub(crate) async fn quiesce(&self, grace: Duration, force: bool) -> QuiesceReply {
        let evolve = self.clone();
        let recalled = self.quiesce_cancellation.subscribe();
        // The task runs to its end even if the caller disconnects, so that no quiesce is left half done.
        let done =
            tokio::spawn(async move { evolve.quiesce_exclusively(grace, force, recalled).await });
        done.await.unwrap_or_else(|error| {
            self.parts.admission.open();
            failed_quiesce(error.to_string(), &[])
        })
    }

    #[tracing::instrument(name = "quiesce", skip_all, fields(force))]
    async fn quiesce_exclusively(
        &self,
        grace: Duration,
        force: bool,
        recalled: watch::Receiver<()>,
    ) -> QuiesceReply {
        let mut quiesced = self.quiesced.lock().await;
        if let Some(state) = &*quiesced {
            return state.result.clone();
        }
        let started = Instant::now();
        let parts = &self.parts;
        let before = StateBeforeQuiesce::capture(parts);
        parts.admission.close_to_outside();
        match self.drain_and_store(started + grace, force, recalled).await {
            Ok(receipt) => {
                let reply = QuiesceReply {
                    quiesced: true,
                    why: None,
                    running: Vec::new(),
                    expected: before.build_expected(parts, &receipt),
                    other_state: parts.list_non_variable_state(before.had_browser).await,
                    receipt: receipt.into_iter().map(|(entry, _)| entry).collect(),
                };
                let had_browser = before.had_browser;
                *quiesced = Some(QuiescedState {
                    result: reply.clone(),
                    had_browser,
                    started,
                });
                tokio::spawn(self.clone().resume_if_abandoned(started));
                tracing::info!(time = ?started.elapsed(), "the container quiesced");
                reply
            }
            Err((why, running)) => {
                tracing::warn!(%why, "the container did not quiesce");
                self.resume_requests(before.had_browser).await;
                failed_quiesce(why, &running)
            }
        }
    }

    async fn drain_and_store(
        &self,
        deadline: Instant,
        force: bool,
        mut recalled: watch::Receiver<()>,
    ) -> Result<Vec<(SessionReceipt, Option<CryoStored>)>, (String, Vec<QuiesceBlocker>)> {
        let parts = &self.parts;
        let quiet = tokio::select! {
            biased;
            // Running work continues, even if `force` would have interrupted it.
            _ = recalled.changed() => return Err(("the quiesce was cancelled".into(), Vec::new())),
            quiet = parts.wait_idle(deadline) => quiet,
        };
        if let Err(running) = quiet {
            if !force {
                return Err((describe_blockers(&running), running));
            }
            parts.interrupt_all(&running).await;
        }
        let failed = |why: String| (why, Vec::new());
        if !parts
            .admission
            .close_and_drain(QUIESCE_ANSWER_TIMEOUT)
            .await
            && !force
        {
            return Err(failed(
                "a request that was admitted before has no reply yet".into(),
            ));
        }
        // Check again for work that a request over the private socket started last.
        if let Err(running) = parts.wait_idle(Instant::now()).await {
            match force {
                false => return Err((describe_blockers(&running), running)),
                true => parts.interrupt_all(&running).await,
            }
        }
        let (receipt, closed) = tokio::join!(
            parts.store_sessions(),
            parts.desktop.quiesce_browser(QUIESCE_BROWSER_TIMEOUT)
        );
        if !closed {
            return Err(failed("the browser did not stop".into()));
        }
        let mut receipt = receipt.map_err(failed)?;
        let kernel = self.settings.body_folder.join("kernel");
        let checkpoints = parts.checkpoint_sessions(kernel, &mut receipt).await;
        let saved = parts.session_state.save_state(checkpoints).await;
        saved.map_err(|error| failed(format!("cannot save the state of the shells: {error:#}")))?;
        let marked = parts.retained_runs.mark_waiting();
        marked.map_err(|error| failed(format!("cannot keep the output of runs: {error}")))?;
        Ok(receipt)
    }

    /// Stores every idle session and changes nothing else. A new body is tested with these objects. Sessions that can't
    /// be stored now do not cause an error.
    pub(crate) async fn store_and_pin(&self) -> RememberReply {
        let stored = self.parts.cryo.snapshot_sessions(StoreReason::Evolve).await;
        self.parts.cryo.pin_newest().await;
        let sessions = stored.into_iter().map(|(session, stored)| match stored {
            Ok(_) => (session, None),
            Err(refusal) => (session, Some(describe_cryo_refusal(refusal))),
        });
        RememberReply {
            sessions: sessions.collect(),
        }
    }

    /// Cancels a quiesce in progress, or opens the gate of a quiesced container again, and marks a new container as
    /// verified, which opens its readiness gate.
    pub(crate) async fn resume(&self) -> ResumeReply {
        let evolve = self.clone();
        self.quiesce_cancellation.send_replace(());
        let done = tokio::spawn(async move {
            let mut quiesced = evolve.quiesced.lock().await;
            if let Some(QuiescedState { had_browser, .. }) = quiesced.take() {
                evolve.resume_requests(had_browser).await;
            }
            evolve.parts.admission.mark_verified();
            evolve.parts.cryo.unpin_all();
        });
        ResumeReply {
            resumed: done.await.is_ok(),
        }
    }

    async fn resume_requests(&self, browser: bool) {
        let parts = &self.parts;
        if parts.admission.is_closed() {
            // Another container may have used the state since.
            parts.sessions.adopt_newer_state().await;
            tokio::spawn(parts.clone().adopt_runs());
            parts
                .session_state
                .save_or_warn(EvolveCheckpoints::default())
                .await;
            if parts.criu.is_enabled() {
                let sessions = parts
                    .sessions
                    .list_sessions()
                    .into_iter()
                    .map(|(name, _)| name);
                parts.remove_checkpoints(sessions).await;
            }
        }
        parts.admission.open();
        if browser {
            let desktop = parts.desktop.clone();
            tokio::spawn(async move {
                if let Err(why) = desktop.ensure_browser().await {
                    tracing::warn!(?why, "the browser did not restart");
                }
            });
        }
        self.record_runs();
        tracing::info!("the container accepts requests again");
    }

    /// Resumes when the run that quiesced the container has ended without replacing it, or when the lease is over. The
    /// keeper may have restarted after the run's end.
    async fn resume_if_abandoned(self, started: Instant) {
        let keeper = &self.settings.keeper_socket;
        let left = async {
            // There is no current run if the keeper ended in between and its next process has already ended the run.
            let run = find_current_run(keeper).await;
            wait_not_replaced(keeper, run.as_ref()).await;
        };
        tokio::select! {
            () = left => {}
            () = wait_quiesce_lease() => {}
        }
        let mut quiesced = self.quiesced.lock().await;
        if quiesced
            .as_ref()
            .is_some_and(|state| state.started == started)
            && let Some(QuiescedState { had_browser, .. }) = quiesced.take()
        {
            tracing::warn!(
                "no container has replaced this one; the container accepts requests again"
            );
            self.resume_requests(had_browser).await;
        }
    }
}

/// Counts in small steps, so that the time in which the container is paused does not count.
async fn wait_quiesce_lease() {
    for _ in 0..QUIESCE_LEASE_SECONDS {
        sleep(Duration::from_secs(1)).await;
    }
}

impl EvolveParts {
    /// Takes over runs that another container may have executed since.
    async fn adopt_runs(self) {
        let store = self.run_store.clone();
        let recovered = spawn_blocking(move || store.recover_runs()).await;
        self.sessions.run_registry().adopt_recovered();
        self.shells.run_registry().adopt_recovered();
        let taken = recovered.is_ok() && self.run_store.wait_synced().await;
        drop(spawn_blocking(move || self.retained_runs.clear_waiting(taken)).await);
    }

    /// Waits until nothing runs.
    ///
    /// # Errors
    /// The work that still runs at the deadline.
    async fn wait_idle(&self, deadline: Instant) -> Result<(), Vec<QuiesceBlocker>> {
        loop {
            let running = self.list_blockers();
            if running.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(running);
            }
            let next = sleep_until(deadline.min(Instant::now() + QUIESCE_POLL_INTERVAL));
            // A run signals its end; calls of MCP servers are polled.
            tokio::select! {
                () = self.wait_first_run_finished(&running) => {}
                () = next => {}
            }
        }
    }

    async fn wait_first_run_finished(&self, running: &[QuiesceBlocker]) {
        let Some(first) = running.first() else { return };
        match (
            self.sessions.find_run(&first.id),
            self.shells.find_run(&first.id),
        ) {
            (Ok(run), _) => run.wait_finished().await,
            (_, Ok(run)) => run.wait_finished().await,
            _ => std::future::pending().await,
        }
    }

    fn list_blockers(&self) -> Vec<QuiesceBlocker> {
        let cells = self.sessions.list_runs().into_iter();
        let cells = cells.filter(|run| run.status() == RunStatus::Running);
        let cells = cells.map(|run| QuiesceBlocker {
            description: format!("run `{}` (`{}`)", run.id, run.summary_line()),
            id: run.id.clone(),
        });
        let commands = self.shells.list_runs().into_iter();
        let commands = commands.filter(|run| run.status() == RunStatus::Running);
        let commands = commands.map(|run| QuiesceBlocker {
            description: format!("command `{}` (`{}`)", run.id, run.summary_line()),
            id: run.id.clone(),
        });
        let calls = self.hub.servers_with_open_calls().into_iter();
        let calls = calls.map(|server| QuiesceBlocker {
            description: format!("a call to the MCP server `{server}`"),
            id: format!("mcp:{server}"),
        });
        cells.chain(commands).chain(calls).collect()
    }

    /// Interrupts running work; calls of MCP servers end with the container.
    async fn interrupt_all(&self, running: &[QuiesceBlocker]) {
        let deadline = Instant::now() + QUIESCE_INTERRUPT_TIMEOUT;
        // Interrupts the last work first, because queued work must not start when other work ends.
        let stops = running.iter().rev().map(|one| async move {
            tracing::info!(
                run = one.id,
                what = one.description,
                "the companion interrupts running work"
            );
            match self.sessions.find_run(&one.id) {
                Ok(_) => drop(self.sessions.interrupt_run(&one.id).await),
                Err(_) => drop(self.shells.interrupt(&one.id).await),
            }
        });
        // Work that does not stop ends with the container.
        let _ = timeout_at(deadline, join_all(stops)).await;
    }

    /// Stores every session and lists the kept state of each session.
    async fn store_sessions(&self) -> Result<Vec<(SessionReceipt, Option<CryoStored>)>, String> {
        let views: BTreeMap<String, KernelView> =
            self.sessions.list_sessions().into_iter().collect();
        let mut receipt = Vec::new();
        for (session, stored) in self.cryo.snapshot_sessions(StoreReason::Evolve).await {
            let view = views.get(&session);
            let mut entry = SessionReceipt {
                restored_by: RestoreMethod::Nothing,
                rows: Vec::new(),
                why: None,
                session,
            };
            let is_checkpointed = view.is_some_and(|view| view.checkpoint.is_some());
            let stored = match stored {
                // The code below reports a checkpointed session.
                _ if is_checkpointed => None,
                Ok(Some(stored)) => Some(stored),
                Ok(None) if view.is_none_or(KernelView::is_blank) => None,
                // The session was stored before and has not changed since.
                Ok(None) => self.last_stored(&entry.session).await,
                Err(cryo::CryoRefusal::Kernel(kernel::KernelRefusal::Checkpointed { .. })) => None,
                Err(cryo::CryoRefusal::Kernel(kernel::KernelRefusal::NoKernel(why))) => {
                    entry.why = Some(format!("the kernel can't be started: {why}"));
                    None
                }
                Err(cryo::CryoRefusal::Kernel(kernel::KernelRefusal::KernelLost(why))) => {
                    entry.why = Some(why);
                    None
                }
                Err(refusal) => {
                    let (session, why) = (&entry.session, describe_cryo_refusal(refusal));
                    return Err(format!("session `{session}` can't be stored: {why}"));
                }
            };
            if let Some(stored) = &stored {
                entry.restored_by = RestoreMethod::Objects;
                entry.rows.clone_from(&stored.receipt);
            }
            if let Some(checkpoint) = view.and_then(|view| view.checkpoint.as_deref()) {
                entry.restored_by = RestoreMethod::Process;
                entry.why = Some(format!(
                    "the kernel is in the checkpoint `{checkpoint}`; `osctl criu restore` restores the kernel"
                ));
            }
            receipt.push((entry, stored));
        }
        Ok(receipt)
    }

    async fn last_stored(&self, session: &str) -> Option<CryoStored> {
        let details = self
            .cryo
            .show_generation(session.to_owned(), None)
            .await
            .ok()?;
        Some(CryoStored {
            status: "completed".into(),
            message: "the session has not changed since the last store".into(),
            name: details.name,
            generation: Some(details.generation.generation),
            path: Some(details.path),
            created: Some(details.generation.created),
            size_bytes: details.generation.size_bytes,
            timing_ms: 0.0,
            receipt: details.receipt,
            kernel: None,
        })
    }
}

/// The services, MCP servers and browser that ran before the quiesce.
#[derive(Debug)]
struct StateBeforeQuiesce {
    services: Vec<String>,
    servers: Vec<String>,
    had_browser: bool,
}

impl StateBeforeQuiesce {
    fn capture(parts: &EvolveParts) -> Self {
        let (services, _) = parts.desktop.health();
        let ready = services.into_iter().filter(|service| service.ready);
        let kernel = parts
            .sessions
            .default_view()
            .ready
            .then(|| "kernel".to_owned());
        Self {
            services: kernel.into_iter().chain(ready.map(|s| s.name)).collect(),
            servers: parts.hub.running_servers(),
            had_browser: parts.desktop.is_browser_active(),
        }
    }

    fn build_expected(
        &self,
        parts: &EvolveParts,
        receipt: &[(SessionReceipt, Option<CryoStored>)],
    ) -> ExpectedState {
        let sessions = parts
            .sessions
            .list_sessions()
            .into_iter()
            .map(|(session, view)| {
                let found = receipt.iter().find(|(entry, _)| entry.session == session);
                let stored = found.and_then(|(_, stored)| stored.as_ref());
                ExpectedSession {
                    kernel_generation: view.report.generation,
                    stored_generation: stored.and_then(|stored| stored.generation),
                    stored_variable_count: stored.map_or(0, |stored| stored.receipt.len() as u64),
                    checkpoint: view.checkpoint,
                    session,
                }
            });
        ExpectedState {
            run: None,
            same_image: false,
            healthy_before: self.services.clone(),
            sessions: sessions.collect(),
            servers: self.servers.clone(),
            shells: parts.list_shell_folders(),
            clients: parts.hub.client_counts().0 as u64,
        }
    }
}

fn describe_cryo_refusal(refusal: cryo::CryoRefusal) -> String {
    match refusal {
        cryo::CryoRefusal::DiskFull => "the disk is full".into(),
        cryo::CryoRefusal::UserError(raised) => format!("{}: {}", raised.kind, raised.message),
        cryo::CryoRefusal::Failed(why) | cryo::CryoRefusal::StrictLosses(why) => why,
        cryo::CryoRefusal::Kernel(kernel::KernelRefusal::Busy) => "the kernel is busy".into(),
        other => format!("{other:?}"),
    }
}

fn describe_blockers(running: &[QuiesceBlocker]) -> String {
    let whats: Vec<&str> = running.iter().map(|one| one.description.as_str()).collect();
    format!("still running after the grace time: {}", whats.join(", "))
}

fn failed_quiesce(why: String, running: &[QuiesceBlocker]) -> QuiesceReply {
    QuiesceReply {
        quiesced: false,
        why: Some(why),
        running: running.iter().map(|one| one.id.clone()).collect(),
        receipt: Vec::new(),
        other_state: Vec::new(),
        expected: ExpectedState::default(),
    }
}
