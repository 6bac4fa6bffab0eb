//! The variables of `osctl env` in this container. The host replaces them; their file keeps them across containers.
//!
//! Each part reads the current variables when it starts a process: a command, a terminal, an MCP server. A kernel that
//! is running gets them with its next request.

use crate::atomic_write::{Durability, atomic_write};
use crate::protocol::environment::{ENVIRONMENT_FILE, MAX_ENVIRONMENT_FILE_BYTES, UserEnvironment};
use parking_lot::RwLock;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// A handle to the variables.
#[derive(Debug, Clone)]
pub(crate) struct EnvironmentHandle(Arc<EnvironmentInner>);

#[derive(Debug)]
struct EnvironmentInner {
    file: PathBuf,
    current: RwLock<Arc<UserEnvironment>>,
    /// Held while the file is replaced, so that the file has the variables of the last call.
    replacing: tokio::sync::Mutex<()>,
}

impl EnvironmentHandle {
    /// Reads the file. An invalid one is ignored: the next `osctl up` or `osctl env` writes it again.
    pub(super) fn open(data_folder: &Path) -> Self {
        let file = data_folder.join(ENVIRONMENT_FILE);
        let current = read_environment(&file).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %file.display(), %error, "the file of the user's variables is ignored");
            }
            UserEnvironment::default()
        });
        Self(Arc::new(EnvironmentInner {
            file,
            current: RwLock::new(Arc::new(current)),
            replacing: tokio::sync::Mutex::default(),
        }))
    }

    pub(super) fn current(&self) -> Arc<UserEnvironment> {
        self.0.current.read().clone()
    }

    /// Replaces all variables. Returns whether they differ from the former ones.
    ///
    /// # Errors
    /// When the file can't be written; nothing has changed then.
    pub(super) async fn replace(&self, variables: UserEnvironment) -> io::Result<bool> {
        let _replacing = self.0.replacing.lock().await;
        let is_changed = *self.current() != variables;
        let (text, file) = (serde_json::to_vec(&variables)?, self.0.file.clone());
        let written = spawn_blocking(move || atomic_write(&file, &text, Durability::DataSynced));
        written.await.map_err(io::Error::other)??;
        if is_changed {
            *self.0.current.write() = Arc::new(variables);
        }
        Ok(is_changed)
    }
}

fn read_environment(path: &Path) -> io::Result<UserEnvironment> {
    let mut text = Vec::new();
    let file = File::open(path)?;
    file.take(MAX_ENVIRONMENT_FILE_BYTES)
        .read_to_end(&mut text)?;
    // The error of the parser could contain a value.
    let invalid = |_| io::Error::other("the file is not an object of strings");
    let variables: UserEnvironment = serde_json::from_slice(&text).map_err(invalid)?;
    variables.check().map_err(io::Error::other)?;
    Ok(variables)
}

/// The value that the companion inherited from the engine.
pub(super) fn inherited_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::{ENVIRONMENT_FILE, EnvironmentHandle};
    use crate::protocol::environment::UserEnvironment;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn the_variables_survive_the_companion_in_a_private_file() {
        let data = tempfile::tempdir().unwrap();
        let handle = EnvironmentHandle::open(data.path());
        let set = UserEnvironment([("A".into(), "1".into())].into());
        assert!(handle.replace(set.clone()).await.unwrap());
        let before = handle.current();
        assert!(!handle.replace(set.clone()).await.unwrap());
        assert!(std::sync::Arc::ptr_eq(&before, &handle.current()));
        let file = data.path().join(ENVIRONMENT_FILE);
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(*EnvironmentHandle::open(data.path()).current(), set);
        for invalid in ["{", "[]", r#"{"A":1}"#, r#"{"PATH":"/agent"}"#] {
            fs::write(&file, invalid).unwrap();
            let read = EnvironmentHandle::open(data.path()).current();
            assert!(read.0.is_empty(), "{invalid}");
        }
    }
}
