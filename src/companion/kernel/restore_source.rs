//! The interface to the stored states that a starting kernel reloads.

use crate::protocol::restored::{RestoredFrom, SkippedGeneration};
use serde_json::Value;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

/// The stored generations of all sessions. A generation is a folder `…/NAME/NUMBER`.
pub(crate) trait RestoreSource: Debug + Send + Sync {
    /// Folders of the generations that the next start may reload into a session, newest first: intact, under the
    /// session's name, and stored from the session itself.
    fn reloadable_generations(&self, session: &str) -> Vec<PathBuf>;

    /// Lists the generations of a name above `generation`, which can't be reloaded.
    fn damaged_generations_above(&self, name: &str, generation: u64) -> Vec<SkippedGeneration>;

    /// Describes a reload of the generation in `folder` from the kernel's answer. `counts` is the folder of the run
    /// counts.
    fn describe_restored(
        &self,
        folder: &Path,
        answer: &Value,
        counts: &Path,
    ) -> Option<RestoredFrom>;

    /// Writes the losses of a reload into a session beside the generation in `folder`.
    fn write_reload_record(&self, folder: &Path, session: &str, from: &RestoredFrom);
}
