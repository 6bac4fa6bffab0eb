//! What of the mind is no variable: which sessions there are, and their shells' folders,
//! environments and functions. It is kept on disk as it changes, so that it outlives the container,
//! however that ends. Variables are cryo's.

use super::evolve::Gate;
use super::kernel::Sessions;
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

/// Between two looks at whether something has changed.
const TICK: Duration = Duration::from_secs(1);

/// What is on disk.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    sessions: Vec<String>,
    shells: BTreeMap<String, shell::Kept>,
    /// Only between two containers.
    #[serde(default)]
    frozen: Frozen,
}

/// Processes that were frozen for the next container.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Frozen {
    /// The digest of the kernel's code.
    pub(crate) kernel: String,
    /// The checkpoint of each session.
    pub(crate) checkpoints: BTreeMap<String, String>,
}

/// What tells whether it is another one.
type Stamp = (Vec<String>, BTreeMap<String, u64>);

#[derive(Debug, Clone)]
pub(crate) struct Mind {
    path: PathBuf,
    sessions: Sessions,
    shells: Shells,
    gate: Gate,
}

impl Mind {
    pub(crate) fn new(data: &Path, sessions: Sessions, shells: Shells, gate: Gate) -> Self {
        Self {
            path: data.join("mind.json"),
            sessions,
            shells,
            gate,
        }
    }

    /// Brings back what was there in the last life, and keeps what there is from now on. What is to be
    /// thawed is returned.
    pub(crate) async fn wake(self) -> Frozen {
        let path = self.path.clone();
        let read = spawn_blocking(move || read(&path)).await;
        let Kept {
            sessions,
            shells,
            frozen,
        } = read.unwrap_or_default();
        self.shells.adopt(shells);
        for name in sessions {
            if let Err(refusal) = self.sessions.create(Some(name.clone())).await {
                tracing::warn!(session = name, "it does not come back: {refusal:?}");
            }
        }
        if !frozen.checkpoints.is_empty() {
            self.keep_or_say(Frozen::default()).await;
        }
        tokio::spawn(self.keep_on());
        frozen
    }

    /// Writes it down now, or says in the log why not.
    pub(crate) async fn keep_or_say(&self, frozen: Frozen) -> bool {
        let kept = self.keep(frozen).await;
        if let Err(error) = &kept {
            tracing::warn!("what the shells hold is not kept: {error:#}");
        }
        kept.is_ok()
    }

    async fn keep_on(self) {
        let mut kept = self.stamp();
        loop {
            tokio::time::sleep(TICK).await;
            let now = self.stamp();
            // Another container may have it by now.
            let is_ours = now != kept && !self.gate.is_shut();
            if is_ours && self.keep_or_say(Frozen::default()).await {
                kept = now;
            }
        }
    }

    /// Writes it down now.
    ///
    /// # Errors
    /// When the disk does not take it; what was kept before is untouched.
    pub(crate) async fn keep(&self, frozen: Frozen) -> Result<()> {
        let (sessions, _) = self.stamp();
        let shells = self.shells.keep();
        let kept = Kept {
            sessions,
            shells,
            frozen,
        };
        let text = serde_json::to_vec(&kept)?;
        let path = self.path.clone();
        spawn_blocking(move || write(&path, &text)).await?
    }

    fn stamp(&self) -> Stamp {
        let sessions = self.sessions.all().into_iter().map(|(name, _)| name);
        (sessions.collect(), self.shells.serials())
    }
}

fn read(path: &Path) -> Kept {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("`{}` can't be read: {error}", path.display());
            }
            return Kept::default();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!("`{}` is not used: {error}", path.display());
        Kept::default()
    })
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file in no folder")?;
    // Readable by this user alone.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
