//! What the companion provides to the hub of MCP servers: paths, variables and the activity log.

use super::activity::{ActivityLog, Caller};
use super::environment::EnvironmentHandle;
use super::kernel::KernelSessions;
use super::settings::{CompanionSettings, inherited_environment};
use super::shell::Shells;
use crate::protocol::activity::{ActivityKind, ActivityRecord};
use crate::protocol::environment::UserEnvironment;
use osctl_hub::{HubContext, HubSettings};
use std::sync::Arc;

#[derive(Debug)]
struct CompanionContext {
    environment: EnvironmentHandle,
    activity: ActivityLog,
    sessions: KernelSessions,
    shells: Shells,
}

impl HubContext for CompanionContext {
    fn user_environment(&self) -> Arc<UserEnvironment> {
        self.environment.current()
    }

    fn record_activity(&self, record: ActivityRecord) {
        self.activity.push(record);
    }

    fn record_end_of_run(&self, run: &str, client: Arc<str>) {
        let (log, caller) = (&self.activity, Caller(client));
        if let Ok(run) = self.sessions.find_run(run) {
            log.record_run(ActivityKind::Exec, &caller, &run);
        } else if let Ok(run) = self.shells.find_run(run) {
            log.record_run(ActivityKind::Shell, &caller, &run);
        }
    }
}

pub(super) fn hub_settings(
    settings: &CompanionSettings,
    environment: EnvironmentHandle,
    activity: ActivityLog,
    sessions: KernelSessions,
    shells: Shells,
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
            sessions,
            shells,
        }),
    }
}
