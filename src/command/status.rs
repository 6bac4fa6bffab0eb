//! `osctl status`: shows the status of the instance.

use super::CommandContext;
use super::answers::StatusAnswer;
use super::restored_sessions::{self, SessionStatus};
use crate::config::{Config, EngineChoice};
use crate::engine::{ContainerPhase, Engine};
use crate::error::{EXIT_NEGATIVE, Error, Result, VerbOutcome};
use crate::host::client::CompanionClient;
use crate::host::engine_diagnosis::explain_by_engine;
use crate::host::instance::{Instance, InstanceRecord};
use crate::host::ports::endpoints;
use crate::protocol::service::{HealthStatus, ServiceStatus};
use crate::protocol::text_sanitizer;
use crate::ui::Tone;
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {}

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
    pub(crate) services: Vec<ServiceStatus>,
    pub(crate) sessions: Vec<SessionStatus>,
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

pub(crate) async fn run(args: StatusArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    let StatusArgs {} = args;
    let record = cx.require_record()?;
    let config = cx.lenient_config(Some(&record.project), Vec::new())?.config;
    let engine = cx.connect_engine(record.engine).await?;
    let status = gather_status(cx, &record, &config, &engine).await?;
    let outcome = if status.healthy {
        VerbOutcome::Done
    } else {
        VerbOutcome::Code(EXIT_NEGATIVE)
    };
    if cx.ui.json {
        cx.ui.print_json(&StatusAnswer::from(status))?;
        return Ok(outcome);
    }
    for warning in &status.warnings {
        cx.ui.print_warning(warning);
    }
    let (state, tone) = match (status.state, status.healthy) {
        (InstanceState::Running, true) => ("running, healthy", Tone::Good),
        (InstanceState::Running, false) => ("running, not healthy", Tone::Bad),
        (InstanceState::Restarting, _) => ("restarting", Tone::Doubtful),
        (InstanceState::Paused, _) => ("paused", Tone::Doubtful),
        (InstanceState::Stopped, _) => ("stopped", Tone::Doubtful),
        (InstanceState::Absent, _) => ("absent", Tone::Doubtful),
    };
    cx.ui
        .print_line(format!("{:<10}{}", "instance", status.instance));
    cx.ui
        .print_toned_line(&format!("{:<10}", "state"), tone, state, "");
    let mut rows = vec![
        ("engine", status.engine.to_owned()),
        ("project", status.project.display().to_string()),
    ];
    rows.extend(status.machine.map(|m| ("machine", m)));
    rows.extend(
        status
            .version
            .map(|v| ("version", text_sanitizer::sanitize_line(&v))),
    );
    rows.extend(status.image.map(|id| ("image", super::short_image_id(&id))));
    rows.extend(
        status
            .endpoints
            .iter()
            .map(|(what, address)| (*what, address.clone())),
    );
    rows.extend(status.services.iter().map(|s| {
        (
            "service",
            text_sanitizer::sanitize_line(&format!("{}: {}", s.name, s.detail)),
        )
    }));
    rows.extend(
        status
            .sessions
            .iter()
            .filter_map(|s| Some(("variables", text_sanitizer::sanitize_line(&s.status_row()?)))),
    );
    rows.push(("token", status.token_file.display().to_string()));
    let password = status.vnc_password_file.display();
    rows.push(("vnc pass", password.to_string()));
    for (what, value) in rows {
        cx.ui.print_line(format!("{what:<10}{value}"));
    }
    if !status.healthy {
        cx.ui
            .print_message(format!("next: {}", cx.instance.osctl_command("up")));
    }
    Ok(outcome)
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
    let mut sessions = Vec::new();
    let health = match state {
        InstanceState::Running | InstanceState::Restarting => {
            let client =
                CompanionClient::new(&cx.instance, record, record.bind_address(config.bind))?;
            match client.fetch_health().await {
                Ok(health) => {
                    if health.status == HealthStatus::Healthy {
                        sessions = restored_sessions::fetch_sessions(&client).await;
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
        services: health.map(|h| h.services).unwrap_or_default(),
        sessions,
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
