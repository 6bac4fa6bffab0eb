//! The status of an instance: its container, the companion's health, and warnings.

use super::CommandContext;
use super::listed_runs::{ListedRun, list_runs};
use super::restored_sessions::{self, SessionStatus};
use crate::config::{Config, EngineChoice};
use crate::engine::{ContainerPhase, ContainerUsage, Engine};
use crate::error::{Error, Result};
use crate::host::client::CompanionClient;
use crate::host::engine_diagnosis::explain_by_engine;
use crate::host::instance::{Instance, InstanceRecord};
use crate::host::ports::endpoints;
use crate::protocol::mcp::HubClientStatus;
use crate::protocol::service::{HealthStatus, ServiceStatus};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Debug)]
pub(crate) struct InstanceStatus {
    pub(crate) instance: String,
    pub(crate) engine: &'static str,
    pub(crate) state: InstanceState,
    pub(crate) healthy: bool,
    pub(crate) image: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) project: PathBuf,
    /// The machine of the engine and of the addresses, unless it is this machine.
    pub(crate) machine: Option<String>,
    pub(crate) endpoints: BTreeMap<&'static str, String>,
    pub(crate) token_file: PathBuf,
    pub(crate) vnc_password_file: PathBuf,
    pub(crate) usage: ContainerUsage,
    pub(crate) services: Vec<ServiceStatus>,
    pub(crate) sessions: Vec<SessionStatus>,
    /// The connected MCP clients.
    pub(crate) clients: Vec<HubClientStatus>,
    /// Code and commands that are queued or running.
    pub(crate) runs: Vec<ListedRun>,
    pub(crate) warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InstanceState {
    Running,
    Restarting,
    Paused,
    Stopped,
    Absent,
}

pub(crate) async fn gather_status(
    cx: &CommandContext,
    record: &InstanceRecord,
    config: &Config,
    engine: &Engine,
) -> Result<InstanceStatus> {
    let container = engine.inspect(&cx.instance.container_name()).await?;
    let state = match &container {
        None => InstanceState::Absent,
        Some(container) => match container.phase {
            ContainerPhase::Running => InstanceState::Running,
            ContainerPhase::Restarting => InstanceState::Restarting,
            ContainerPhase::Paused => InstanceState::Paused,
            ContainerPhase::Created | ContainerPhase::Stopped | ContainerPhase::Dead => {
                InstanceState::Stopped
            }
        },
    };
    let mut warnings = isolation_warnings(record.engine, config, record.criu, &cx.instance);
    if state == InstanceState::Paused {
        let (container, up) = (
            cx.instance.container_name(),
            cx.instance.osctl_command("up"),
        );
        let paused = Error::Paused { container, up };
        let hint = paused.hint().unwrap_or_default();
        warnings.push(format!("{paused}: no process in it runs; {hint}"));
    }
    let (mut sessions, mut clients, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    let health = match state {
        InstanceState::Running | InstanceState::Restarting => {
            let client =
                CompanionClient::new(&cx.instance, record, record.bind_address(config.bind))?;
            match client.fetch_health().await {
                Ok(health) => {
                    if health.status == HealthStatus::Healthy {
                        let (hub, listed);
                        (sessions, hub, listed) = tokio::join!(
                            restored_sessions::fetch_sessions(&client),
                            client.fetch_hub_status(),
                            list_runs(&client, true),
                        );
                        // Without an answer, nothing is known of them.
                        clients = hub.map(|hub| hub.clients).unwrap_or_default();
                        runs = listed.unwrap_or_default();
                    }
                    Some(health)
                }
                // A companion that does not answer is a valid status.
                Err(error) => {
                    let error = explain_by_engine(error, &cx.instance, engine).await;
                    if let Some(older @ Error::OlderCompanion { .. }) = error.downcast_ref() {
                        warnings.push(older.to_string());
                    }
                    None
                }
            }
        }
        _ => None,
    };
    let usage = match state {
        InstanceState::Running => engine.usage(&cx.instance.container_name()).await,
        _ => ContainerUsage::default(),
    };
    Ok(InstanceStatus {
        instance: cx.instance.name.clone(),
        engine: engine.name(),
        state,
        healthy: health
            .as_ref()
            .is_some_and(|h| h.status == HealthStatus::Healthy),
        image: container.map(|c| c.image),
        version: health.as_ref().map(|h| h.version.clone()),
        project: record.project.clone(),
        machine: record.engine_machine().map(str::to_owned),
        endpoints: endpoints(record, record.bind_address(config.bind)),
        token_file: cx.instance.token_file(),
        vnc_password_file: cx.instance.vnc_password_file(),
        usage,
        services: health.map(|h| h.services).unwrap_or_default(),
        sessions,
        clients,
        runs,
        warnings,
    })
}

/// Warnings for users who rely on isolation.
pub(crate) fn isolation_warnings(
    engine: EngineChoice,
    config: &Config,
    criu: bool,
    instance: &Instance,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if engine == EngineChoice::Embedded {
        warnings.push("no isolation: the embedded engine runs the agent's code as your own processes, with all your permissions".into());
    } else if config.docker_socket {
        warnings.push(
            "docker_socket is on: code in the container can become root on this machine".into(),
        );
    }
    if criu && engine == EngineChoice::Docker {
        let up = instance.osctl_command("up --criu=false");
        warnings.push(format!("criu is on: the container has SYS_ADMIN and SYS_PTRACE and no seccomp profile, and code in the container can become root on this machine; `{up}` turns criu off"));
    }
    if !config.auth {
        warnings
            .push("authentication is off: every process on this machine can use the kernel".into());
    }
    warnings
}
