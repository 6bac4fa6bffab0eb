//! What the companion provides to the hub of MCP servers: paths, variables and the activity log.

use super::activity::ActivityLog;
use super::environment::EnvironmentHandle;
use super::settings::{CompanionSettings, inherited_environment};
use crate::protocol::activity::ActivityRecord;
use crate::protocol::environment::UserEnvironment;
use osctl_hub::{HubContext, HubSettings};
use std::sync::Arc;

#[derive(Debug)]
struct CompanionContext {
    environment: EnvironmentHandle,
    activity: ActivityLog,
}

impl HubContext for CompanionContext {
    fn user_environment(&self) -> Arc<UserEnvironment> {
        self.environment.current()
    }

    fn record_activity(&self, record: ActivityRecord) {
        self.activity.push(record);
    }
}

pub(super) fn hub_settings(
    settings: &CompanionSettings,
    environment: EnvironmentHandle,
    activity: ActivityLog,
) -> HubSettings {
    let data_folder = settings.data_folder.join("mcp");
    HubSettings {
        config_files: vec![
            settings.body_folder.join("mcp.json"),
            // Written by `osctl up` from `servers` in osctl.yaml.
            data_folder.join("servers.json"),
            // Written by users.
            settings.data_folder.join("mcp.json"),
        ],
        data_folder,
        packaged_lists_folder: settings.body_folder.join("servers/lists"),
        inherited_environment: inherited_environment().collect(),
        context: Arc::new(CompanionContext {
            environment,
            activity,
        }),
    }
}
