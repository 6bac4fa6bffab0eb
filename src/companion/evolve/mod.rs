//! Evolve, the part inside the container: the body is replaced and the session state continues in the new container.
//!
//! ```text
//! agent ── POST /evolve, runtime.evolve ──▶ agent socket of the keeper ([`keeper_client`])
//! keeper ── engine exec ──▶ osctl remember | selftest | quiesce | resume | verify ──▶ private socket ──▶ here
//! ```
//!
//! [`EvolveHandle`] is the handle. It forwards requests to the keeper and neither builds nor replaces anything: the
//! keeper does both, outside of the container that is replaced.
//!
//! - [`selftest`]: checks a new container before it replaces the current one
//! - [`quiesce`]: quiesces the current container behind its gate (`companion::admission`)
//! - [`verify`]: checks the new container after the replacement
//! - [`readiness_gate`]: opens the new container's gate when it is verified
//! - [`git_history`]: records runs in the project's repository, if there is one
//! - [`run_activity`]: records ended runs in the activity log

mod git_history;
mod health_checks;
mod keeper_client;
mod non_variable_state;
mod process_checkpoints;
mod quiesce;
mod readiness_gate;
mod run_activity;
mod selftest;
mod selftest_scripts;
#[cfg(test)]
mod tests;
mod verify;

pub(crate) use keeper_client::{EvolveRefusal, KeeperReplyStream, unexpected_reply};

use super::activity::ActivityLog;
use super::admission::AdmissionControl;
use super::criu::Criu;
use super::cryo::CryoService;
use super::desktop::Desktop;
use super::kernel::KernelSessions;
use super::pty::PtyTerminals;
use super::runs::{RetainedRuns, RunStore};
use super::session_state::SessionStateStore;
use super::shell::Shells;
use crate::protocol::evolve::KEEPER_SOCKET;
use git_history::GitHistory;
use osctl_hub::Hub;
use parking_lot::Mutex;
use quiesce::QuiescedState;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// Settings of evolve.
#[derive(Debug, Clone)]
pub(crate) struct EvolveSettings {
    /// The agent socket of the keeper.
    keeper_socket: PathBuf,
    body_folder: PathBuf,
    data_folder: PathBuf,
    /// Folder of the project.
    project_folder: PathBuf,
    /// Ports that must be reachable on the container's network.
    ports: Vec<u16>,
    /// Whether the companion is a plain process, which no keeper replaces.
    is_embedded: bool,
}

impl From<&super::CompanionSettings> for EvolveSettings {
    fn from(settings: &super::CompanionSettings) -> Self {
        Self {
            keeper_socket: KEEPER_SOCKET.into(),
            body_folder: settings.body_folder.clone(),
            data_folder: settings.data_folder.clone(),
            project_folder: "/repo".into(),
            ports: vec![settings.listen.port(), settings.mcp.port()],
            is_embedded: settings.embedded,
        }
    }
}

/// The parts of the companion that are quiesced and checked.
#[derive(Debug, Clone)]
pub(crate) struct EvolveParts {
    pub(crate) admission: AdmissionControl,
    pub(crate) sessions: KernelSessions,
    pub(crate) shells: Shells,
    pub(crate) terminals: PtyTerminals,
    pub(crate) cryo: CryoService,
    pub(crate) criu: Criu,
    pub(crate) hub: Hub,
    pub(crate) desktop: Desktop,
    pub(crate) retained_runs: RetainedRuns,
    pub(crate) run_store: RunStore,
    pub(crate) session_state: SessionStateStore,
    pub(crate) activity: ActivityLog,
}

/// The shared handle of evolve.
#[derive(Debug, Clone)]
pub(crate) struct EvolveHandle {
    settings: EvolveSettings,
    parts: EvolveParts,
    /// The quiesced state, if any; locked by the task that quiesces or resumes the container.
    quiesced: Arc<tokio::sync::Mutex<Option<QuiescedState>>>,
    /// Cancels a quiesce that is in progress.
    quiesce_cancellation: watch::Sender<()>,
    git_history: GitHistory,
    /// The sessions whose processes were restored, and not only their objects.
    restored_sessions: Arc<Mutex<BTreeSet<String>>>,
}

impl EvolveHandle {
    pub(crate) fn new(settings: EvolveSettings, parts: EvolveParts) -> Self {
        let git_history = GitHistory::new(settings.project_folder.clone());
        Self {
            settings,
            parts,
            quiesced: Arc::default(),
            quiesce_cancellation: watch::Sender::new(()),
            git_history,
            restored_sessions: Arc::default(),
        }
    }

    pub(crate) fn admission(&self) -> &AdmissionControl {
        &self.parts.admission
    }
}
