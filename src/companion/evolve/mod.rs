//! The body is replaced, the mind goes on: what of that happens inside.
//!
//! ```text
//! agent ── POST /evolve, runtime.evolve ──▶ keeper's socket ([`keeper`])
//! keeper ── engine exec ──▶ osctl selftest | quiesce | resume | verify ──▶ private socket ──▶ here
//! ```
//!
//! [`EvolveHandle`] is the handle. It passes a wish on, and neither builds nor replaces anything: the keeper
//! does, outside of what is replaced. A container proves itself before ([`selftest`]) and after
//! ([`verify`]) it takes the place of another, which comes to [`quiesce`] meanwhile behind a [`admission`]; its own
//! opens when it is proved ([`readiness_gate`]).
//! Runs are told in the project's own repository, if there is one ([`git_history`]).

mod admission;
mod check;
mod git_history;
mod keeper_client;
mod non_variable_state;
mod process_checkpoints;
mod quiesce;
mod readiness_gate;
mod scripts;
mod selftest;
mod verify;

pub(crate) use admission::{AdmissionControl, ListenerKind};
pub(crate) use keeper_client::{EvolveRefusal, EvolveReplies, unexpected_reply};

use super::criu::Criu;
use super::cryo::CryoService;
use super::desktop::Desktop;
use super::kernel::KernelSessions;
use super::mcp::Hub;
use super::pty::PtyTerminals;
use super::runs::{RetainedRuns, RunStore};
use super::session_state::SessionStateStore;
use super::shell::Shells;
use crate::protocol::evolve::KEEPER_SOCKET;
use git_history::GitHistory;
use quiesce::QuiescedState;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Where the parts are.
#[derive(Debug, Clone)]
pub(crate) struct EvolveSettings {
    /// Where the keeper listens.
    keeper: PathBuf,
    body: PathBuf,
    data: PathBuf,
    /// The project.
    repository: PathBuf,
    /// Ports that others must reach.
    ports: Vec<u16>,
    /// Whether this is a plain process, which no keeper replaces.
    is_embedded: bool,
}

impl From<&super::CompanionSettings> for EvolveSettings {
    fn from(settings: &super::CompanionSettings) -> Self {
        Self {
            keeper: KEEPER_SOCKET.into(),
            body: settings.body.clone(),
            data: settings.data.clone(),
            repository: "/repo".into(),
            ports: vec![settings.listen.port(), settings.mcp.port()],
            is_embedded: settings.embedded,
        }
    }
}

/// Everything that comes to rest, and that is looked at.
#[derive(Debug, Clone)]
pub(crate) struct EvolveParts {
    pub(crate) gate: AdmissionControl,
    pub(crate) sessions: KernelSessions,
    pub(crate) shells: Shells,
    pub(crate) terminals: PtyTerminals,
    pub(crate) cryo: CryoService,
    pub(crate) criu: Criu,
    pub(crate) hub: Hub,
    pub(crate) desktop: Desktop,
    pub(crate) lives: RetainedRuns,
    pub(crate) store: RunStore,
    pub(crate) mind: SessionStateStore,
}

/// Evolving, for everyone who asks.
#[derive(Debug, Clone)]
pub(crate) struct EvolveHandle {
    settings: EvolveSettings,
    parts: EvolveParts,
    /// Held by who brings it to rest, or back; what that came to.
    rest: Arc<tokio::sync::Mutex<Option<QuiescedState>>>,
    /// Tells who brings it to rest that nobody wants it any more.
    recalls: watch::Sender<()>,
    chronicle: GitHistory,
    /// The sessions whose processes came back, and not their objects alone.
    thawed: Arc<Mutex<BTreeSet<String>>>,
}

impl EvolveHandle {
    pub(crate) fn new(settings: EvolveSettings, parts: EvolveParts) -> Self {
        let chronicle = GitHistory::new(settings.repository.clone());
        Self {
            settings,
            parts,
            rest: Arc::default(),
            recalls: watch::Sender::new(()),
            chronicle,
            thawed: Arc::default(),
        }
    }

    fn lock_restored_sessions(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.thawed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn admission(&self) -> &AdmissionControl {
        &self.parts.gate
    }
}
