//! The paths of the hub's files, the variables of its servers, and the activity log.

use crate::companion::CompanionSettings;
use crate::companion::activity::ActivityLog;
use crate::companion::environment::EnvironmentHandle;
use std::path::PathBuf;

/// The paths and parts that the hub uses.
#[derive(Debug, Clone)]
pub(in crate::companion) struct HubSettings {
    /// The configuration files; later ones win.
    pub(super) config_files: Vec<PathBuf>,
    pub(super) data_folder: PathBuf,
    pub(super) environment: EnvironmentHandle,
    pub(super) activity: ActivityLog,
    /// The lists of the packaged servers, which come with the image.
    pub(super) packaged_lists_folder: PathBuf,
}

impl HubSettings {
    pub(in crate::companion) fn new(
        settings: &CompanionSettings,
        environment: EnvironmentHandle,
        activity: ActivityLog,
    ) -> Self {
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
            environment,
            activity,
            packaged_lists_folder: settings.body_folder.join("servers/lists"),
        }
    }
}
