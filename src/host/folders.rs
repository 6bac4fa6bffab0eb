//! Where things of ours lie on the host.

use crate::error::Result;
use anyhow::Context;
use directories::{BaseDirs, ProjectDirs};
use std::env;
use std::path::PathBuf;

/// The folders of the person who runs osctl.
#[derive(Debug, Clone)]
pub(crate) struct Folders {
    /// The home folder, `HOST_HOME` when that is set.
    pub(crate) home: PathBuf,
    /// Configuration.
    pub(crate) config: PathBuf,
    /// Instances, tokens, logs.
    pub(crate) state: PathBuf,
}

impl Folders {
    /// # Errors
    /// When the system does not tell the home folder.
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

    /// The usual configuration file; it need not exist.
    pub(crate) fn config_file(&self) -> PathBuf {
        self.config.join("osctl.yaml")
    }

    /// Where big temporary things go, on the same disk as the state.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.state.join("tmp")
    }
}
