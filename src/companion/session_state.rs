//! Session state other than variables: the sessions, and the folder, environment and functions of each session's shell.
//!
//! Changes are saved to disk, so that the state survives the container however it ends. Variables belong to cryo.

use super::evolve::AdmissionControl;
use super::kernel::KernelSessions;
use super::shell::{self, Shells};
use crate::error::Result;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::spawn_blocking;

/// Time between two checks for changes.
const SESSION_STATE_INTERVAL: Duration = Duration::from_secs(1);

/// The content of the state file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SessionStateFile {
    sessions: Vec<String>,
    shells: BTreeMap<String, shell::RetainedContext>,
    /// Set only between two containers.
    #[serde(default)]
    frozen: EvolveCheckpoints,
}

/// Process checkpoints that were made for the next container.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct EvolveCheckpoints {
    /// The digest of the kernel's code.
    pub(crate) kernel: String,
    /// The checkpoint of each session.
    pub(crate) checkpoints: BTreeMap<String, String>,
}

/// A stamp that differs after each change.
type SessionStateStamp = (Vec<String>, BTreeMap<String, u64>);

#[derive(Debug, Clone)]
pub(crate) struct SessionStateStore {
    path: PathBuf,
    sessions: KernelSessions,
    shells: Shells,
    admission: AdmissionControl,
}

impl SessionStateStore {
    pub(crate) fn new(
        data: &Path,
        sessions: KernelSessions,
        shells: Shells,
        admission: AdmissionControl,
    ) -> Self {
        Self {
            path: data.join("mind.json"),
            sessions,
            shells,
            admission,
        }
    }

    /// Restores the state of the last companion generation, and saves changes from now on. Returns the process
    /// checkpoints to restore.
    pub(crate) async fn restore_sessions(self) -> EvolveCheckpoints {
        let path = self.path.clone();
        let read = spawn_blocking(move || read_state_file(&path)).await;
        let SessionStateFile {
            sessions,
            shells,
            frozen,
        } = read.unwrap_or_default();
        self.shells.restore_contexts(shells);
        for name in sessions {
            if let Err(refusal) = self.sessions.create_session(Some(name.clone())).await {
                tracing::warn!(session = name, "cannot restore the session: {refusal:?}");
            }
        }
        if !frozen.checkpoints.is_empty() {
            self.save_or_warn(EvolveCheckpoints::default()).await;
        }
        tokio::spawn(self.save_on_change());
        frozen
    }

    /// Saves the state now; logs a warning when this fails.
    pub(crate) async fn save_or_warn(&self, frozen: EvolveCheckpoints) -> bool {
        let saved = self.save_state(frozen).await;
        if let Err(error) = &saved {
            tracing::warn!("cannot save the state of the shells: {error:#}");
        }
        saved.is_ok()
    }

    async fn save_on_change(self) {
        let mut last_stamp = self.take_stamp();
        loop {
            tokio::time::sleep(SESSION_STATE_INTERVAL).await;
            let now = self.take_stamp();
            // While quiesced, another container may use the state.
            let is_ours = now != last_stamp && !self.admission.is_closed();
            if is_ours && self.save_or_warn(EvolveCheckpoints::default()).await {
                last_stamp = now;
            }
        }
    }

    /// Saves the state now.
    ///
    /// # Errors
    /// When the write fails; the saved state stays untouched.
    pub(crate) async fn save_state(&self, frozen: EvolveCheckpoints) -> Result<()> {
        let (sessions, _) = self.take_stamp();
        let shells = self.shells.retain_contexts();
        let state = SessionStateFile {
            sessions,
            shells,
            frozen,
        };
        let text = serde_json::to_vec(&state)?;
        let path = self.path.clone();
        spawn_blocking(move || write_state_file(&path, &text)).await?
    }

    fn take_stamp(&self) -> SessionStateStamp {
        let sessions = self
            .sessions
            .list_sessions()
            .into_iter()
            .map(|(name, _)| name);
        (sessions.collect(), self.shells.context_serials())
    }
}

fn read_state_file(path: &Path) -> SessionStateFile {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("`{}` can't be read: {error}", path.display());
            }
            return SessionStateFile::default();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!("`{}` is invalid and is ignored: {error}", path.display());
        SessionStateFile::default()
    })
}

fn write_state_file(path: &Path, text: &[u8]) -> Result<()> {
    let folder = path
        .parent()
        .context("the path of the state file has no folder")?;
    // Only this user can read the file.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
