//! Locations of osctl's own files on the host.

use crate::atomic_write::{Durability, atomic_write};
use crate::error::Result;
use anyhow::Context;
use directories::{BaseDirs, ProjectDirs};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The folders of the user who runs osctl.
#[derive(Debug, Clone)]
pub(crate) struct Folders {
    /// The home folder: `HOST_HOME` if set.
    pub(crate) home: PathBuf,
    /// Configuration.
    pub(crate) config: PathBuf,
    /// Instances, tokens, logs.
    pub(crate) state: PathBuf,
}

impl Folders {
    /// # Errors
    /// When the system does not provide the home folder.
    pub(crate) fn find() -> Result<Self> {
        if let Some(home) = env::var_os("HOST_HOME").filter(|h| !h.is_empty()) {
            let home = std::path::absolute(PathBuf::from(home))?;
            let (config, state) = (home.join(".config/osctl"), home.join(".local/state/osctl"));
            return Ok(Self {
                home,
                config,
                state,
            });
        }
        let base = BaseDirs::new().context("the home folder is unknown")?;
        let own = ProjectDirs::from("", "", "osctl").context("the home folder is unknown")?;
        let state = own.state_dir().unwrap_or_else(|| own.data_local_dir());
        Ok(Self {
            home: base.home_dir().into(),
            config: own.config_dir().into(),
            state: state.into(),
        })
    }

    /// The folders of a test, beneath a home folder.
    #[cfg(test)]
    pub(crate) fn beneath(home: &Path) -> Self {
        Self {
            home: home.into(),
            config: home.join("c"),
            state: home.join("s"),
        }
    }

    /// The default configuration file; it need not exist.
    pub(crate) fn config_file(&self) -> PathBuf {
        self.config.join("osctl.yaml")
    }

    /// The folder for large temporary files, on the same disk as the state.
    pub(crate) fn temporary_folder(&self) -> PathBuf {
        self.state.join("tmp")
    }
}

/// Creates a folder that only its owner may enter, and the missing folders above it. If the folder exists, removes the
/// permissions of group and others, unless it belongs to another user.
///
/// The container writes into some of these folders as root: other users of the host must not reach its files.
///
/// # Errors
/// When the folder cannot be created or its permissions cannot be changed.
pub(crate) fn ensure_private_folder(path: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(path)
        .with_context(|| format!("creating `{}`", path.display()))?;
    #[cfg(unix)]
    if is_open_to_others(path)? {
        use std::io::ErrorKind;
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let rights = fs::Permissions::from_mode(fs::metadata(path)?.mode() & 0o7700);
        match fs::set_permissions(path, rights) {
            // The folder belongs to another user, who chooses its permissions.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {}
            done => {
                done.with_context(|| format!("changing the permissions of `{}`", path.display()))?
            }
        }
    }
    Ok(())
}

/// Whether group or others have any permission on the folder.
///
/// # Errors
/// When the folder does not exist.
#[cfg(unix)]
pub(crate) fn is_open_to_others(path: &Path) -> Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata(path)?.mode() & 0o077 != 0)
}

/// Replaces a file of a private folder, which is created if it is missing; readable by the owner alone.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().context("the path has no parent folder")?;
    ensure_private_folder(folder)?;
    atomic_write(path, content, Durability::DataSynced)
        .with_context(|| format!("writing `{}`", path.display()))?;
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::ensure_private_folder;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_private_folder_is_created_for_its_owner_alone() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("missing/data");
        ensure_private_folder(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&home.path().join("missing")), 0o700);
    }

    #[test]
    fn a_folder_that_others_may_enter_is_closed_to_them_and_the_one_above_it_is_not() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("above/data");
        fs::create_dir_all(&folder).unwrap();
        for path in [home.path().join("above"), folder.clone()] {
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
        ensure_private_folder(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&home.path().join("above")), 0o755);
    }
}
