//! The stored generations, as kernels that start reload them.

use super::{reload_record, reloadable_generations};
use crate::companion::kernel::RestoreSource;
use crate::protocol::restored::{RestoredFrom, SkippedGeneration};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The generations below a folder.
#[derive(Debug)]
pub(crate) struct StoredGenerations(PathBuf);

impl StoredGenerations {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }
}

impl RestoreSource for StoredGenerations {
    fn reloadable_generations(&self, session: &str) -> Vec<PathBuf> {
        reloadable_generations(&self.0, session)
    }

    fn damaged_generations_above(&self, name: &str, generation: u64) -> Vec<SkippedGeneration> {
        reload_record::damaged_generations_above(&self.0, name, generation)
    }

    fn describe_restored(
        &self,
        folder: &Path,
        answer: &Value,
        counts: &Path,
    ) -> Option<RestoredFrom> {
        reload_record::describe_restored(folder, answer, counts)
    }

    fn write_reload_record(&self, folder: &Path, session: &str, from: &RestoredFrom) {
        reload_record::write_reload_record(folder, session, from);
    }
}
