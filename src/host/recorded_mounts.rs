//! The mounts that the user has chosen, as the last `up` recorded them.

use super::folders::write_private;
use super::instance::Instance;
use crate::error::Result;
use crate::protocol::spec::Mount;
use serde::Deserialize;
use std::path::PathBuf;

/// The record of the mounts.
const MOUNTS_FILE: &str = "mounts.json";

/// A recorded mount.
#[derive(Deserialize)]
#[serde(untagged)]
enum RecordedMount {
    Whole(Mount),
    /// Recorded by an earlier version, which recorded only writable mounts.
    Written(PathBuf),
}

impl Instance {
    /// The mounts that the user has chosen, without links, as the last `up` recorded them.
    ///
    /// # Errors
    /// When the record exists and cannot be read.
    pub(crate) fn recorded_mounts(&self) -> Result<Vec<Mount>> {
        let recorded: Vec<RecordedMount> = self.read_state_file(MOUNTS_FILE)?.unwrap_or_default();
        let mounts = recorded.into_iter().map(|mount| match mount {
            RecordedMount::Whole(mount) => mount,
            RecordedMount::Written(host) => Mount {
                host,
                container: String::new(),
                read_only: false,
            },
        });
        Ok(mounts.collect())
    }

    /// The recorded folders that the container can write.
    ///
    /// # Errors
    /// As [`Instance::recorded_mounts`].
    pub(crate) fn writable_mounts(&self) -> Result<Vec<PathBuf>> {
        let written = self
            .recorded_mounts()?
            .into_iter()
            .filter(|mount| !mount.read_only);
        Ok(written.map(|mount| mount.host).collect())
    }

    /// # Errors
    /// When the state folder cannot be written.
    pub(crate) fn save_mounts(&self, mounts: &[Mount]) -> Result<()> {
        write_private(&self.folder.join(MOUNTS_FILE), &serde_json::to_vec(mounts)?)
    }
}
