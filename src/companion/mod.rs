//! The companion: the process inside the container that owns the kernels, the terminals, the MCP servers and the
//! desktop's services, and serves HTTP.
//!
//! [`serve_companion`] runs from start to shutdown. Its sockets and its shutdown future are arguments, so tests and
//! production differ only in the call.

mod activity;
mod admission;
mod criu;
mod cryo;
mod desktop;
mod display;
mod environment;
mod evolve;
mod files;
mod http;
mod hub_context;
mod kernel;
mod listeners;
mod memory;
mod os_tools;
mod packages;
mod pipes;
mod pty;
mod refusal_table;
mod runs;
mod service;
mod session_state;
mod settings;
mod shell;
#[cfg(test)]
mod tests;

pub(crate) use packages::{PackageInstaller, PackageProject};
pub(crate) use settings::CompanionSettings;

use crate::error::Result;
use crate::protocol::service::Health;
use activity::ActivityLog;
use admission::AdmissionControl;
use anyhow::Context;
use criu::{Criu, CriuPrerequisites};
use cryo::{CryoService, CryoSettings, StoredGenerations};
use desktop::{Desktop, DesktopSettings, OneTimeTokens};
use environment::EnvironmentHandle;
use evolve::EvolveHandle;
use files::FilesHandle;
use http::HttpHandles;
use kernel::{KernelSessions, SessionLimits};
use listeners::CompanionListeners;
use os_tools::OsServerFactory;
use osctl_hub::Hub;
use pty::{PtyLimits, PtyTerminals};
use runs::{RetainedRuns, RunStore};
use serde_json::Value;
use session_state::{EvolveCheckpoints, SessionStateStore};
use shell::Shells;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

/// Time between two checks of which sessions are in use. Idle timeouts are longer.
const SESSION_TOUCH_INTERVAL: Duration = Duration::from_secs(1);

/// The settings that each belong to one part.
#[derive(Debug)]
pub(crate) struct PartSettings {
    sessions: SessionLimits,
    terminals: PtyLimits,
    cryo: CryoSettings,
    desktop: DesktopSettings,
    retained_runs: RetainedRuns,
}

impl PartSettings {
    /// Reads all variables, so that an invalid one ends the companion before any part starts.
    fn from_environment(settings: &CompanionSettings) -> Result<Self> {
        Ok(Self {
            sessions: SessionLimits::from_environment()?,
            terminals: PtyLimits::from_environment()?,
            cryo: CryoSettings::from_environment(settings)?,
            desktop: DesktopSettings::from_environment(settings)?,
            retained_runs: RetainedRuns::with_random_id(settings.data_folder.join("runs"))?,
        })
    }
}

/// Opens the sockets and serves until SIGTERM or SIGINT.
///
/// # Errors
/// When a setting is invalid, or a socket can't be opened.
pub(crate) async fn run_companion(settings: CompanionSettings) -> Result<()> {
    let parts = PartSettings::from_environment(&settings)?;
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    if settings.embedded {
        // Leave the terminal's session, so that closing the terminal does not end the service. The call fails when this
        // process already leads a session, which has the same effect.
        let _ = nix::unistd::setsid();
    }
    let listeners = CompanionListeners::open(&settings, &parts.desktop).await?;
    let shutdown = async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    };
    serve_companion(listeners, settings, parts, shutdown).await
}

/// Keeps one blocking thread of the runtime alive. With one thread, work waits for it while no thread can be created,
/// as during a fork bomb. Without any, the runtime panics and ends the calling task.
async fn keep_blocking_thread() {
    // The runtime ends a thread that has no work for 10 s.
    while tokio::task::spawn_blocking(|| ()).await.is_ok() {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// Starts the kernel and answers requests. On `shutdown`, lets running code finish and ends the terminals.
///
/// # Errors
/// When serving fails. A failing kernel is not an error here; requests to it report the failure.
pub(crate) async fn serve_companion(
    mut listeners: CompanionListeners,
    settings: CompanionSettings,
    parts: PartSettings,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), address = %listeners.tcp.local_addr()?, "the companion starts");
    tokio::spawn(keep_blocking_thread());
    let grace = settings.shutdown_grace;
    let retained_runs = parts.retained_runs;
    let store = RunStore::open(&retained_runs);
    let environment = EnvironmentHandle::open(&settings.data_folder);
    let activity = ActivityLog::start(settings.data_folder.join("activity"), environment.clone());
    // This step must run before any process takes an id.
    let prerequisites = CriuPrerequisites::prepare(criu::CriuSettings::from(&settings)).await;
    let restore_source = Arc::new(StoredGenerations::new(settings.cryo_folder()));
    let (sessions, owner) = KernelSessions::start(
        kernel::KernelSettings::new(
            &settings,
            parts.sessions,
            &retained_runs,
            store.clone(),
            restore_source,
            environment.clone(),
        ),
        prerequisites.restoring_sessions(),
    );
    let shells = Shells::new(shell::ShellSettings::new(
        &settings,
        &retained_runs,
        store.clone(),
        environment.clone(),
    ));
    if store.wait_synced().await {
        retained_runs.remove_stale();
    }
    remove_ended_shells(&sessions, &shells);
    let terminals = PtyTerminals::new(parts.terminals);
    touch_used_sessions(&sessions, &shells, &terminals);
    let cryo = CryoService::start(parts.cryo, sessions.clone());
    let (stop, stopping) = watch::channel(false);
    let ports = listeners.desktop.take();
    let (desktop, services) = Desktop::start(parts.desktop, ports, activity.clone(), &stopping);
    let files = FilesHandle::start(settings.data_folder.clone());
    let os = OsServerFactory::new(
        os_tools::ToolContext {
            sessions: sessions.clone(),
            shells: shells.clone(),
            files: files.clone(),
            cryo: cryo.clone(),
            desktop: desktop.clone(),
        },
        settings.root.clone(),
        settings.project_folder.clone(),
    );
    let hub_settings = hub_context::hub_settings(
        &settings,
        environment.clone(),
        activity.clone(),
        sessions.clone(),
        shells.clone(),
    );
    let hub = Hub::start(hub_settings, Arc::new(os.clone()));
    let gate = AdmissionControl::default();
    let session_state = SessionStateStore::new(
        &settings.data_folder,
        sessions.clone(),
        shells.clone(),
        gate.clone(),
    );
    let checkpoints = session_state.clone().restore_sessions().await;
    let criu = Criu::new(
        prerequisites,
        sessions.clone(),
        shells.clone(),
        Arc::new(cryo.clone()),
    );
    let evolve = EvolveHandle::new(
        evolve::EvolveSettings::from(&settings),
        evolve::EvolveParts {
            admission: gate.clone(),
            sessions: sessions.clone(),
            shells: shells.clone(),
            terminals: terminals.clone(),
            cryo: cryo.clone(),
            criu: criu.clone(),
            hub: hub.clone(),
            desktop: desktop.clone(),
            retained_runs,
            run_store: store.clone(),
            session_state: session_state.clone(),
            activity: activity.clone(),
        },
    );
    os.set_evolve(evolve.clone());
    evolve.start_readiness_gate(checkpoints);
    evolve.watch_runs();
    let handles = HttpHandles {
        cryo: cryo.clone(),
        sessions: sessions.clone(),
        shells: shells.clone(),
        terminals: terminals.clone(),
        files,
        criu,
        hub: hub.clone(),
        desktop,
        one_time_tokens: OneTimeTokens::new(settings.required_token_digest.as_deref()),
        evolve,
        environment,
        activity: activity.clone(),
    };
    let server = http::HttpServer::start(listeners, &settings, handles);
    tokio::spawn(memory::trim_periodically());
    let mut owner = std::pin::pin!(owner);
    tokio::select! {
        () = shutdown => {}
        // The companion can't work without the owner, so it exits and the engine restarts it.
        ended = &mut owner => anyhow::bail!("the task of the kernels ended: {ended:?}"),
    }
    tracing::info!(
        seconds = grace.as_secs(),
        "the companion stops and gives running code time to finish"
    );
    stop.send_replace(true);
    // Save changes since the last periodic save. While quiesced everything is saved, and another container may use the
    // state.
    if !gate.is_closed() {
        session_state
            .save_or_warn(EvolveCheckpoints::default())
            .await;
    }
    tokio::join!(
        store_and_end_sessions(&sessions, &cryo, &gate, grace),
        shells.shutdown(grace),
        terminals.shutdown(),
        hub.shutdown(),
        futures_util::future::join_all(services)
    );
    server.stop().await;
    owner.await.context("the task of the kernels failed")?;
    sessions.run_registry().retain_files();
    shells.run_registry().retain_files();
    store.close();
    activity.flush().await;
    tracing::info!("the companion has stopped");
    Ok(())
}

/// Stores the sessions and ends the kernels.
async fn store_and_end_sessions(
    sessions: &KernelSessions,
    cryo: &CryoService,
    gate: &AdmissionControl,
    grace: Duration,
) {
    // While quiesced everything is stored, and another container may use the state.
    if !gate.is_closed() {
        cryo.snapshot_before_exit(grace).await;
    }
    sessions.shutdown_all(grace).await;
}

/// Removes a session's shell context and jobs when the session ends.
fn remove_ended_shells(sessions: &KernelSessions, shells: &Shells) {
    let (mut ends, shells) = (sessions.subscribe_session_ends(), shells.clone());
    tokio::spawn(async move {
        loop {
            match ends.recv().await {
                Ok(session) => shells.remove_session(&session),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
}

/// Marks sessions with running commands or an open terminal as used, so that they do not become idle.
fn touch_used_sessions(sessions: &KernelSessions, shells: &Shells, terminals: &PtyTerminals) {
    let (sessions, shells) = (sessions.clone(), shells.clone());
    let terminals = terminals.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(SESSION_TOUCH_INTERVAL).await;
            for session in shells
                .sessions_in_use()
                .into_iter()
                .chain(terminals.live_sessions())
            {
                if let Ok(kernel) = sessions.find_kernel(&session) {
                    kernel.mark_used();
                }
            }
        }
    });
}

/// Asks the companion of this machine over its private socket for its health.
///
/// # Errors
/// When the companion does not answer.
pub(crate) async fn fetch_health() -> Result<Health> {
    let stream = connect_private_socket().await?;
    let (_, answer) =
        http::send_private_request(stream, http::Method::GET, "/health", None).await?;
    serde_json::from_slice(&answer).context("reading the reply of the companion")
}

/// Sends a request to the companion of this machine over its private socket.
///
/// # Errors
/// When the companion does not answer or refuses the request.
pub(crate) async fn post_to_companion(path: &str, body: &Value) -> Result<Value> {
    let stream = connect_private_socket().await?;
    let (is_fine, answer) =
        http::send_private_request(stream, http::Method::POST, path, Some(body)).await?;
    let answer: Value =
        serde_json::from_slice(&answer).context("reading the reply of the companion")?;
    if !is_fine {
        let why = answer["error"]["message"].as_str().unwrap_or_default();
        anyhow::bail!("the companion refused `{path}`: {why}");
    }
    Ok(answer)
}

async fn connect_private_socket() -> Result<UnixStream> {
    let socket = CompanionSettings::run_folder().join(settings::COMPANION_SOCKET_FILE);
    let connected = UnixStream::connect(&socket).await;
    connected.with_context(|| format!("connecting to `{}`", socket.display()))
}
