//! Session state other than variables: the sessions, and the folder, environment and functions of each session's shell.
//!
//! Changes are saved to disk, so that the state survives the container however it ends. Variables belong to cryo.

use super::admission::AdmissionControl;
use super::kernel::KernelSessions;
use super::shell::{self, Shells};
use crate::atomic_write::{Durability, atomic_write};
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::spawn_blocking;

/// Time between two checks for changes.
const SESSION_STATE_INTERVAL: Duration = Duration::from_secs(1);

/// The state file, in `/data`.
const STATE_FILE: &str = "session-state.json";

/// The state file of companions before 0.1.0. The companion reads this file when it is newer than [`STATE_FILE`].
const FORMER_STATE_FILE: &str = "mind.json";

/// The content of the state file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SessionStateFile {
    sessions: Vec<String>,
    shells: BTreeMap<String, shell::RetainedContext>,
    /// Set only between two containers.
    #[serde(default, alias = "frozen")]
    checkpoints: EvolveCheckpoints,
}

/// Process checkpoints that were made for the next container.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct EvolveCheckpoints {
    /// The digest of the kernel's code.
    #[serde(alias = "kernel")]
    pub(crate) kernel_digest: String,
    /// The checkpoint of each session.
    #[serde(alias = "checkpoints")]
    pub(crate) by_session: BTreeMap<String, String>,
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
            path: data.join(STATE_FILE),
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
            checkpoints,
        } = read.unwrap_or_default();
        self.shells.restore_contexts(shells);
        for name in sessions {
            if let Err(refusal) = self.sessions.create_session(Some(name.clone())).await {
                tracing::warn!(
                    session = name,
                    ?refusal,
                    "the companion can't restore the session"
                );
            }
        }
        if !checkpoints.by_session.is_empty() {
            self.save_or_warn(EvolveCheckpoints::default()).await;
        }
        tokio::spawn(self.save_on_change());
        checkpoints
    }

    /// Saves the state now; logs a warning when this fails.
    pub(crate) async fn save_or_warn(&self, checkpoints: EvolveCheckpoints) -> bool {
        let saved = self.save_state(checkpoints).await;
        if let Err(error) = &saved {
            tracing::warn!(error = %format_args!("{error:#}"), "the companion can't save the state of the shells");
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
    pub(crate) async fn save_state(&self, checkpoints: EvolveCheckpoints) -> Result<()> {
        let (sessions, _) = self.take_stamp();
        let shells = self.shells.retain_contexts();
        let state = SessionStateFile {
            sessions,
            shells,
            checkpoints,
        };
        let text = serde_json::to_vec(&state)?;
        let path = self.path.clone();
        spawn_blocking(move || atomic_write(&path, &text, Durability::DataSynced)).await??;
        Ok(())
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
    let former = path.with_file_name(FORMER_STATE_FILE);
    let changed_at = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let path = match changed_at(&former) > changed_at(path) {
        true => &former,
        false => path,
    };
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %error, "the state of the sessions can't be read");
            }
            return SessionStateFile::default();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "the state of the sessions is invalid and is ignored");
        SessionStateFile::default()
    })
}

#[cfg(test)]
mod tests {
    use super::{FORMER_STATE_FILE, STATE_FILE, read_state_file};
    use std::fs::{self, File};
    use std::time::{Duration, SystemTime};

    #[test]
    fn the_newer_of_the_current_and_the_former_state_file_is_read() {
        let data = tempfile::tempdir().unwrap();
        let (today, former) = (
            data.path().join(STATE_FILE),
            data.path().join(FORMER_STATE_FILE),
        );
        assert!(read_state_file(&today).sessions.is_empty());
        let recorded =
            r#"{"sessions":["a"],"shells":{},"frozen":{"kernel":"k","checkpoints":{"a":"a-1"}}}"#;
        fs::write(&former, recorded).unwrap();
        let read = read_state_file(&today);
        assert_eq!(read.sessions, ["a"]);
        assert_eq!(read.checkpoints.by_session["a"], "a-1");

        fs::write(&today, r#"{"sessions":["b"],"shells":{}}"#).unwrap();
        let at = |path, seconds| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_modified(time)
                .unwrap();
        };
        at(&former, 1);
        at(&today, 2);
        assert_eq!(read_state_file(&today).sessions, ["b"]);
        at(&former, 3);
        assert_eq!(read_state_file(&today).sessions, ["a"]);
    }
}
