//! The paths of the hub's files.

use crate::companion::CompanionSettings;
use std::path::PathBuf;

/// The paths that the hub uses.
#[derive(Debug, Clone)]
pub(in crate::companion) struct HubSettings {
    /// The configuration files; later ones win.
    pub(super) files: Vec<PathBuf>,
    pub(super) data: PathBuf,
    /// The root folder of the file resources of the built-in server.
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
                // Written by users.
                settings.data.join("mcp.json"),
            ],
            data,
            root: settings.root.clone(),
        }
    }
}
