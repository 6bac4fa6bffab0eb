//! Checkpoint of a kernel, and the mark on disk that names the checkpoint to the next companion.
//!
//! The code that checkpoints a kernel writes the mark before the process ends. This module removes the mark when the
//! session has a kernel again, or ends.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A checkpoint that contains a session's kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelCheckpoint {
    /// The checkpoint id that callers see.
    pub(crate) id: String,
    /// Path of the mark; `None` for a temporary checkpoint.
    pub(crate) marker: Option<PathBuf>,
}

/// How a session starts whose kernel was in a checkpoint when the previous companion ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionRestoring {
    /// The kernel is still in the checkpoint.
    Checkpointed(KernelCheckpoint),
    /// The checkpoint can't be restored. The session starts with the objects of the first folder that can be reloaded.
    Objects {
        checkpoint: KernelCheckpoint,
        folders: Vec<PathBuf>,
    },
}

impl KernelCheckpoint {
    /// Removes the mark: the session is not in the checkpoint any more.
    pub(crate) fn remove_marker(self) {
        let Some(marker) = self.marker else { return };
        if let Err(error) = remove_file_synced(&marker) {
            tracing::error!(path = %marker.display(), %error, "the marker of a checkpoint can't be removed");
        }
    }
}

/// Removes a file and syncs its folder, so that the removal survives a power loss. A missing file is a success.
fn remove_file_synced(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
    let sync = move || {
        if let Err(error) = File::open(&folder).and_then(|folder| folder.sync_all()) {
            tracing::warn!(path = %folder.display(), %error, "the folder of a removed marker can't be synced");
        }
    };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(sync)),
        Err(_) => sync(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::KernelCheckpoint;
    use std::fs;

    #[test]
    fn a_marker_can_be_removed_twice() {
        let folder = tempfile::tempdir().unwrap();
        let marker = folder.path().join("default.json");
        fs::write(&marker, "{}").unwrap();
        let checkpoint = KernelCheckpoint {
            id: "/data/criu/default/1".into(),
            marker: Some(marker.clone()),
        };
        checkpoint.clone().remove_marker();
        assert!(!marker.exists());
        checkpoint.remove_marker();
    }
}
