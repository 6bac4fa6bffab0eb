//! The paths of the hub's files.

use crate::companion::CompanionSettings;
use std::path::PathBuf;

/// The paths that the hub uses.
#[derive(Debug, Clone)]
pub(in crate::companion) struct HubSettings {
    /// The configuration files; later ones win.
    pub(super) config_files: Vec<PathBuf>,
    pub(super) data_folder: PathBuf,
    /// The lists of the packaged servers, which come with the image.
    pub(super) packaged_lists_folder: PathBuf,
}

impl From<&CompanionSettings> for HubSettings {
    fn from(settings: &CompanionSettings) -> Self {
        let data_folder = settings.data_folder.join("mcp");
        Self {
            config_files: vec![
                settings.body_folder.join("mcp.json"),
                // Written by `osctl up` from `servers` in osctl.yaml.
                data_folder.join("servers.json"),
                // Written by users.
                settings.data_folder.join("mcp.json"),
            ],
            data_folder,
            packaged_lists_folder: settings.body_folder.join("servers/lists"),
        }
    }
}
