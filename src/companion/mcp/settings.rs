//! Where the files of the hub are.

use crate::companion::CompanionSettings;
use std::path::PathBuf;

/// Where its files lie.
#[derive(Debug, Clone)]
pub(in crate::companion) struct HubSettings {
    /// Of servers; later ones win.
    pub(super) files: Vec<PathBuf>,
    pub(super) data: PathBuf,
    /// Whose files are resources of the built-in server.
    pub(in crate::companion) root: PathBuf,
}

impl From<&CompanionSettings> for HubSettings {
    fn from(settings: &CompanionSettings) -> Self {
        let data = settings.data.join("mcp");
        Self {
            files: vec![
                settings.body.join("mcp.json"),
                // Written by `osctl up` from `servers` in osctl.yaml.
                data.join("servers.json"),
                // Anybody's.
                settings.data.join("mcp.json"),
            ],
            data,
            root: settings.root.clone(),
        }
    }
}
