//! Generations: which life of the namespace this is, and which one callers were last told of.
//!
//! Kept on disk, because they rise for ever, also across containers. A reply waits until the file is
//! replaced, so that no death of the companion forgets what was told; it does not wait until the
//! disk has it, which takes milliseconds and only a loss of power needs.

use crate::protocol::kernel::{KernelReport, KernelState};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    entry: Entry,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Entry {
    generation: u64,
    reported: Option<u64>,
}

impl Ledger {
    /// An unreadable file begins again at generation 1, and says so in the log.
    pub(super) fn open(folder: &Path, session: &str) -> Self {
        let path = folder.join(format!("{session}.json"));
        let entry = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::error!(
                    "`{}` can't be read, generations begin anew: {error}",
                    path.display()
                );
                Entry::default()
            }),
            Err(_) => Entry::default(),
        };
        Self { path, entry }
    }

    pub(super) fn generation(&self) -> u64 {
        self.entry.generation
    }

    /// A new, empty namespace.
    pub(super) fn begin(&mut self) {
        self.entry.generation += 1;
        self.save();
    }

    /// What a caller is told who last saw `seen`, or what anyone was last told.
    pub(super) fn view(&self, generation: u64, seen: Option<u64>) -> KernelReport {
        let known = seen.or(self.entry.reported).unwrap_or(generation);
        let state = if known == generation {
            KernelState::Kept
        } else {
            KernelState::Lost
        };
        KernelReport { generation, state }
    }

    /// The same, and from now on it has been told.
    pub(super) fn report(&mut self, generation: u64, seen: Option<u64>) -> KernelReport {
        let report = self.view(generation, seen);
        if self.entry.reported != Some(generation) {
            self.entry.reported = Some(generation);
            self.save();
        }
        report
    }

    fn save(&self) {
        // A full disk must not stop the kernel; the log tells that truth may be lost with it.
        if let Err(error) = self.write() {
            tracing::error!("`{}` can't be written: {error}", self.path.display());
        }
    }

    fn write(&self) -> std::io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&serde_json::to_vec(&self.entry)?)?;
        let file = file.persist(&self.path)?;
        let sync = move || {
            if let Err(error) = file.sync_all() {
                tracing::error!("a record of generations may not outlast a loss of power: {error}");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(sync)),
            Err(_) => sync(),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Ledger;
    use crate::protocol::kernel::KernelState;

    #[test]
    fn a_generation_is_lost_to_those_who_knew_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(folder.path(), "default");
        ledger.begin();
        assert_eq!(ledger.report(1, None).state, KernelState::Kept);

        let mut ledger = Ledger::open(folder.path(), "default");
        ledger.begin();
        let report = ledger.report(2, None);
        assert_eq!((report.generation, report.state), (2, KernelState::Lost));
        assert_eq!(ledger.report(2, None).state, KernelState::Kept);
        assert_eq!(ledger.report(2, Some(1)).state, KernelState::Lost);
        assert_eq!(ledger.report(2, Some(2)).state, KernelState::Kept);
    }

    #[test]
    fn what_nobody_was_told_of_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        Ledger::open(folder.path(), "default").begin();
        let mut ledger = Ledger::open(folder.path(), "default");
        ledger.begin();
        assert_eq!(ledger.report(2, None).state, KernelState::Kept);
    }

    #[test]
    fn a_damaged_record_does_not_stop_the_kernel() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("default.json"), "{").unwrap();
        assert_eq!(Ledger::open(folder.path(), "default").generation(), 0);
    }
}
