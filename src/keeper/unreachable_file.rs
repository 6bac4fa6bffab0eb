//! The file that names a container without its published ports.

use crate::atomic_write::{Durability, atomic_write};
use crate::error::Result;
use crate::protocol::evolve::EvolveRunId;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const UNREACHABLE_FILE: &str = "unreachable-container.json";
/// The file of keepers before 0.1.0.
const FORMER_UNREACHABLE_FILE: &str = "unreached.json";

/// A container without its published ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UnreachableContainer {
    /// The run that rolled back to the container, if there was one.
    pub(super) run: Option<EvolveRunId>,
    /// The id of the container.
    pub(super) container: String,
    /// Whether the container has ended: it gets its ports when it is started.
    pub(super) has_ended: bool,
}

/// The file that names the unreachable container.
#[derive(Debug, Clone)]
pub(super) struct UnreachableFile(PathBuf);

impl UnreachableFile {
    /// Opens the file in the state folder; renames the file of an earlier keeper.
    pub(super) fn new(state: &Path) -> Self {
        let path = state.join(UNREACHABLE_FILE);
        let former = state.join(FORMER_UNREACHABLE_FILE);
        if former.exists()
            && !path.exists()
            && let Err(error) = fs::rename(&former, &path)
        {
            tracing::warn!(%error, path = %former.display(), "the port recovery file can't be renamed");
        }
        Self(path)
    }

    /// # Errors
    /// When the file can't be written.
    pub(super) fn write(&self, unreachable: &UnreachableContainer) -> Result<()> {
        let text = serde_json::to_vec(unreachable)?;
        atomic_write(&self.0, &text, Durability::FolderSynced)
            .context("writing the port recovery file")?;
        Ok(())
    }

    pub(super) fn read(&self) -> Option<UnreachableContainer> {
        let text = match fs::read(&self.0) {
            Err(e) if e.kind() == ErrorKind::NotFound => return None,
            read => read.map_err(anyhow::Error::from),
        };
        let read = text.and_then(|text| Ok(serde_json::from_slice(&text)?));
        read.inspect_err(|error| tracing::warn!(error = %format_args!("{error:#}"), "the port recovery file can't be read"))
            .ok()
    }

    /// Marks the container as ended. A container that ended while no keeper ran was ended by the engine's restart,
    /// which could not start it without its ports; no person stopped it.
    pub(super) fn mark_as_ended(&self) {
        let Some(found) = self.read() else { return };
        let ended = UnreachableContainer {
            has_ended: true,
            ..found
        };
        if let Err(error) = self.write(&ended) {
            tracing::warn!(error = %format_args!("{error:#}"), "the port recovery file can't be written");
        }
    }

    pub(super) fn clear(&self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(%error, "the port recovery file can't be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FORMER_UNREACHABLE_FILE, UNREACHABLE_FILE, UnreachableContainer, UnreachableFile};
    use std::fs;

    #[test]
    fn the_file_of_a_former_keeper_is_read_unless_there_is_a_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let former = folder.path().join(FORMER_UNREACHABLE_FILE);
        let recorded = r#"{"run":null,"container":"a","has_ended":false}"#;
        fs::write(&former, recorded).unwrap();
        let read = || {
            UnreachableFile::new(folder.path())
                .read()
                .unwrap()
                .container
        };
        assert_eq!(read(), "a");
        assert!(!former.exists() && folder.path().join(UNREACHABLE_FILE).exists());
        fs::write(&former, recorded.replace("\"a\"", "\"b\"")).unwrap();
        assert_eq!(read(), "a");
        UnreachableFile::new(folder.path()).clear();
        assert_eq!(read(), "b");
    }

    #[test]
    fn an_unreachable_container_is_recorded_for_the_next_keeper() {
        let folder = tempfile::tempdir().unwrap();
        let unreachable_file = UnreachableFile::new(folder.path());
        assert_eq!(unreachable_file.read(), None);
        let unreachable = UnreachableContainer {
            run: "20261120-193600".parse().ok(),
            container: "a".into(),
            has_ended: false,
        };
        unreachable_file.mark_as_ended();
        assert_eq!(unreachable_file.read(), None);
        unreachable_file.write(&unreachable).unwrap();
        assert_eq!(
            UnreachableFile::new(folder.path()).read(),
            Some(unreachable.clone())
        );
        unreachable_file.mark_as_ended();
        let ended = UnreachableContainer {
            has_ended: true,
            ..unreachable
        };
        assert_eq!(unreachable_file.read(), Some(ended));
        unreachable_file.clear();
        assert_eq!(unreachable_file.read(), None);
    }
}
