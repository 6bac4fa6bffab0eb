//! A companion without processes, and its gate.

use crate::companion::activity::ActivityLog;
use crate::companion::admission::{AdmissionControl, AdmissionPermit, ListenerKind};
use crate::companion::criu::{Criu, CriuPrerequisites, CriuSettings};
use crate::companion::cryo::{CryoService, CryoSettings, StoredGenerations};
use crate::companion::desktop::{Desktop, DesktopSettings};
use crate::companion::environment::EnvironmentHandle;
use crate::companion::evolve::{EvolveHandle, EvolveParts, EvolveSettings};
use crate::companion::kernel::{KernelRun, KernelSessions, KernelSettings, SessionLimits};
use crate::companion::pty::{PtyLimits, PtyTerminals};
use crate::companion::runs::{RetainedRuns, RunStore};
use crate::companion::session_state::SessionStateStore;
use crate::companion::shell::{ShellSettings, Shells};
use crate::companion::tests::clock::{StoppedClock, settle, wait_event};
use crate::companion::{CompanionSettings, hub_context};
use crate::protocol::evolve::container_reports::QuiesceReply;
use crate::protocol::kernel::{Execute, RunStatus};
use bytes::Bytes;
use osctl_hub::{Hub, InProcessServer};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(super) struct QuiesceHarness {
    folder: TempDir,
    pub(super) evolve: EvolveHandle,
    _stop: watch::Sender<bool>,
    _clock: StoppedClock,
}

/// No configuration names the built-in server.
#[derive(Debug)]
struct UnusedServer;

impl InProcessServer for UnusedServer {
    fn open_connection(&self, _name: &str) -> (UnboundedSender<Bytes>, UnboundedReceiver<Bytes>) {
        (unbounded_channel().0, unbounded_channel().1)
    }
}

impl QuiesceHarness {
    pub(super) async fn start() -> Self {
        let clock = StoppedClock::start();
        let folder = tempfile::tempdir().unwrap();
        let stop = watch::Sender::new(false);
        let settings = companion_settings(folder.path());
        std::fs::create_dir_all(&settings.data_folder).unwrap();
        let parts = start_parts(&settings, &stop.subscribe()).await;
        let evolve = EvolveSettings {
            keeper_socket: folder.path().join("keeper.sock"),
            project_folder: folder.path().to_owned(),
            ..EvolveSettings::from(&settings)
        };
        Self {
            folder,
            evolve: EvolveHandle::new(evolve, parts),
            _stop: stop,
            _clock: clock,
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Begins a run, which waits for a kernel.
    pub(super) async fn execute(&self, code: &str) -> Arc<KernelRun> {
        let request = Execute {
            queue: true,
            ..Execute::new(code)
        };
        let run = wait_event(self.evolve.parts.sessions.execute(request)).await;
        let run = run.unwrap();
        assert_eq!(run.status(), RunStatus::Running);
        run
    }

    pub(super) async fn interrupt(&self, run: &KernelRun) {
        let interrupted = self.evolve.parts.sessions.interrupt_run(&run.id);
        wait_event(interrupted).await.unwrap();
        settle().await;
    }

    /// Begins a quiesce with this grace time in seconds.
    pub(super) async fn begin_quiesce(&self, grace: u64, force: bool) -> JoinHandle<QuiesceReply> {
        let (evolve, grace) = (self.evolve.clone(), Duration::from_secs(grace));
        let quiesce = tokio::spawn(async move { evolve.quiesce(grace, force).await });
        settle().await;
        quiesce
    }

    /// Quiesces a companion in which nothing runs.
    pub(super) async fn quiesce(&self) -> QuiesceReply {
        let quiesce = self.begin_quiesce(0, false).await;
        let reply = wait_event(quiesce).await.unwrap();
        assert_eq!((&reply.why, self.gate()), (&None, "closed"));
        reply
    }

    pub(super) async fn resume(&self) {
        assert!(wait_event(self.evolve.resume()).await.resumed);
        settle().await;
    }

    /// Which requests the gate admits.
    pub(super) fn gate(&self) -> &'static str {
        let admits = |listener| self.admit(listener).is_some();
        match (admits(ListenerKind::Outside), admits(ListenerKind::Inside)) {
            (true, true) => "open",
            (false, true) => "inside",
            (false, false) => "closed",
            (true, false) => "outside",
        }
    }

    pub(super) fn admit(&self, listener: ListenerKind) -> Option<AdmissionPermit> {
        self.evolve.admission().admit(listener)
    }
}

fn companion_settings(folder: &Path) -> CompanionSettings {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    CompanionSettings {
        listen: address,
        mcp: address,
        run_folder: folder.join("run"),
        data_folder: folder.join("data"),
        root: folder.to_owned(),
        project_folder: folder.to_owned(),
        body_folder: folder.join("body"),
        python: folder.join("no-python"),
        required_token_digest: None,
        token_digest: None,
        hosts: Vec::new(),
        // Such a companion has no desktop.
        embedded: true,
        criu: false,
        shutdown_grace: Duration::ZERO,
    }
}

async fn start_parts(settings: &CompanionSettings, stop: &watch::Receiver<bool>) -> EvolveParts {
    let retained_runs = RetainedRuns::new(settings.data_folder.join("runs"), "own".into());
    let run_store = RunStore::disabled();
    let environment = EnvironmentHandle::open(&settings.data_folder);
    let activity = ActivityLog::start(settings.data_folder.join("activity"), environment.clone());
    let prerequisites = CriuPrerequisites::prepare(CriuSettings::from(settings));
    let prerequisites = wait_event(prerequisites).await;
    let sessions = KernelSessions::without_kernels(KernelSettings::new(
        settings,
        SessionLimits::from_environment().unwrap(),
        &retained_runs,
        run_store.clone(),
        Arc::new(StoredGenerations::new(settings.cryo_folder())),
        environment.clone(),
    ));
    let shells = Shells::new(ShellSettings::new(
        settings,
        &retained_runs,
        run_store.clone(),
        environment.clone(),
    ));
    let cryo_settings = CryoSettings::from_environment(settings).unwrap();
    let cryo = CryoService::start(cryo_settings, sessions.clone());
    let desktop_settings = DesktopSettings::from_environment(settings).unwrap();
    let (desktop, _) = Desktop::start(desktop_settings, None, activity.clone(), stop);
    let hub_settings = hub_context::hub_settings(
        settings,
        environment,
        activity.clone(),
        sessions.clone(),
        shells.clone(),
    );
    let admission = AdmissionControl::default();
    let session_state = SessionStateStore::new(
        &settings.data_folder,
        sessions.clone(),
        shells.clone(),
        admission.clone(),
    );
    EvolveParts {
        admission,
        criu: Criu::new(
            prerequisites,
            sessions.clone(),
            shells.clone(),
            Arc::new(cryo.clone()),
        ),
        sessions,
        shells,
        terminals: PtyTerminals::new(PtyLimits::from_environment().unwrap()),
        cryo,
        hub: Hub::start(hub_settings, Arc::new(UnusedServer)),
        desktop,
        retained_runs,
        run_store,
        session_state,
        activity,
    }
}
