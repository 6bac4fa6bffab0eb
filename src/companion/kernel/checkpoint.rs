//! Where a kernel lies that was frozen, and the mark on disk by which the next life knows it.
//!
//! Who freezes writes the mark before the process ends; here it goes when the session has a kernel
//! again, or ends.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A checkpoint that a session lies in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelCheckpoint {
    /// As callers are told of it.
    pub(crate) checkpoint: String,
    /// None, where it lies there for a moment only.
    pub(crate) mark: Option<PathBuf>,
}

/// How a session begins that lay in a checkpoint when the last life ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionRestoring {
    /// It still does.
    Sleeping(KernelCheckpoint),
    /// The checkpoint is of no use: with its objects, of which the first that can be reloaded count.
    Objects {
        frozen: KernelCheckpoint,
        folders: Vec<PathBuf>,
    },
}

impl KernelCheckpoint {
    /// The session does not lie there any more.
    pub(crate) fn remove_mark(self) {
        let Some(mark) = self.mark else { return };
        if let Err(error) = remove_file_synced(&mark) {
            tracing::error!("`{}` stays: {error}", mark.display());
        }
    }
}

/// Removes a file; one that is gone is as good. That it is gone outlasts a loss of power a moment later.
fn remove_file_synced(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
    let sync = move || {
        if let Err(error) = File::open(&folder).and_then(|folder| folder.sync_all()) {
            tracing::warn!("`{}` is not synced: {error}", folder.display());
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
    fn a_mark_goes_with_what_it_marks_and_twice_is_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("default.json");
        fs::write(&mark, "{}").unwrap();
        let frozen = KernelCheckpoint {
            checkpoint: "/data/criu/default/1".into(),
            mark: Some(mark.clone()),
        };
        frozen.clone().remove_mark();
        assert!(!mark.exists());
        frozen.remove_mark();
    }
}
