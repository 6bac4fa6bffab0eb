//! Lock between several processes of osctl: a locked file.

use super::EngineProgress;
use crate::error::Result;
use anyhow::Context;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

const PROCESS_LOCK_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Held while an object is created that all instances share. The system releases the lock however the process ends.
#[derive(Debug)]
pub(crate) struct ProcessLock {
    _file: File,
}

impl ProcessLock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub(crate) async fn acquire(
        folder: &Path,
        name: &str,
        progress: &dyn EngineProgress,
    ) -> Result<Self> {
        Self::wait_for_lock(folder, name, File::try_lock, progress).await
    }

    /// Waits for a shared lock, which several processes can hold at a time while none holds the exclusive one.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub(crate) async fn acquire_shared(
        folder: &Path,
        name: &str,
        progress: &dyn EngineProgress,
    ) -> Result<Self> {
        Self::wait_for_lock(folder, name, File::try_lock_shared, progress).await
    }

    /// Takes the lock if no other process holds it.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub(crate) fn try_acquire(folder: &Path, name: &str) -> Result<Option<Self>> {
        let file = open_lock_file(folder, name)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    async fn wait_for_lock(
        folder: &Path,
        name: &str,
        lock: fn(&File) -> std::result::Result<(), TryLockError>,
        progress: &dyn EngineProgress,
    ) -> Result<Self> {
        let file = open_lock_file(folder, name)?;
        loop {
            match lock(&file) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::WouldBlock) => {
                    progress.report_step("waiting for another osctl");
                    tokio::time::sleep(PROCESS_LOCK_POLL_INTERVAL).await;
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
        }
    }
}

fn open_lock_file(folder: &Path, name: &str) -> Result<File> {
    fs::create_dir_all(folder)?;
    let path = folder.join(name);
    create_lock_file(&path).with_context(|| format!("creating `{}`", path.display()))
}

/// Opens a file for locking, and creates it if it is missing. Only its owner may open it, because opening a file to
/// read suffices to lock it.
///
/// # Errors
/// When the file can't be created.
pub(crate) fn create_lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::ProcessLock;
    use crate::engine::EngineProgress;
    use parking_lot::Mutex;

    /// Releases the first lock as soon as the second one reports that it waits.
    struct ReleasingProgress(Mutex<Option<ProcessLock>>);

    impl EngineProgress for ReleasingProgress {
        fn report_step(&self, what: &str) {
            assert_eq!(what, "waiting for another osctl");
            self.0.lock().take();
        }
        fn report_amount(&self, _what: &str, _done: u64, _total: Option<u64>) {}
        fn log(&self, _line: &str) {}
    }

    #[tokio::test]
    async fn a_second_holder_waits_for_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let handing = ReleasingProgress(Mutex::default());
        let first = ProcessLock::acquire(folder.path(), "lock", &handing)
            .await
            .unwrap();
        *handing.0.lock() = Some(first);
        let _second = ProcessLock::acquire(folder.path(), "lock", &handing)
            .await
            .unwrap();
        assert!(handing.0.lock().is_none(), "it did not wait");
    }
}
