//! Answers about instances.

use super::UtcTime;
use super::runs::{RestoredEntry, RunEntry};
use crate::command::format::{parse_time, seconds_since};
use crate::command::instance_status::{InstanceState, InstanceStatus};
use crate::command::restored_sessions::SessionStatus;
use crate::config::EngineChoice;
use crate::engine::ContainerUsage;
use crate::protocol::kernel::KernelState;
use crate::protocol::mcp::HubClientStatus;
use crate::protocol::service::ServiceStatus;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;

/// The status of the instance.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StatusAnswer {
    instance: String,
    engine: String,
    state: InstanceState,
    healthy: bool,
    /// The id of the container's image.
    image: Option<String>,
    /// The version of the companion.
    version: Option<String>,
    project: PathBuf,
    /// The machine of the engine and of the addresses; `null` if it is this machine.
    machine: Option<String>,
    endpoints: EndpointEntry,
    token_file: PathBuf,
    vnc_password_file: PathBuf,
    /// The time of the container's latest start, if the engine reports it.
    started_at: Option<UtcTime>,
    uptime_seconds: Option<f64>,
    /// The memory that the container uses, if the engine reports it.
    memory_bytes: Option<u64>,
    services: Vec<ServiceEntry>,
    sessions: Vec<SessionStatusEntry>,
    /// The connected MCP clients, the latest used first.
    clients: Vec<HubClientStatus>,
    /// Code and commands that are queued or running, newest first.
    runs: Vec<RunEntry>,
    warnings: Vec<String>,
}

/// The addresses of the instance.
#[derive(Debug, Serialize, JsonSchema)]
struct EndpointEntry {
    /// The URL of the HTTP API.
    kernel: Option<String>,
    /// The URL of the MCP servers.
    mcp: Option<String>,
    /// `ADDRESS:PORT` of the VNC server.
    vnc: Option<String>,
}

/// A service that runs inside.
#[derive(Debug, Serialize, JsonSchema)]
struct ServiceEntry {
    name: String,
    state: ServiceReadiness,
    /// The status in words.
    detail: String,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ServiceReadiness {
    Ready,
    /// The service is not needed now, and starts on demand.
    Idle,
    NotReady,
}

/// A session, and the state that its next caller finds.
#[derive(Debug, Serialize, JsonSchema)]
struct SessionStatusEntry {
    name: String,
    /// The generation of the kernel.
    generation: u64,
    state: KernelState,
    ready: bool,
    /// The status in words.
    detail: String,
    /// The stored generation from which the session was restored, until the kernel's generation changes.
    restored_from: Option<RestoredEntry>,
}

impl From<ServiceStatus> for ServiceEntry {
    fn from(service: ServiceStatus) -> Self {
        let ServiceStatus {
            name,
            ready,
            idle,
            detail,
        } = service;
        Self {
            name,
            state: match (ready, idle) {
                (true, _) => ServiceReadiness::Ready,
                (false, true) => ServiceReadiness::Idle,
                (false, false) => ServiceReadiness::NotReady,
            },
            detail,
        }
    }
}

impl From<SessionStatus> for SessionStatusEntry {
    fn from(session: SessionStatus) -> Self {
        let SessionStatus {
            name,
            generation,
            state,
            ready,
            detail,
            restored_from,
        } = session;
        Self {
            name,
            generation,
            state,
            ready,
            detail,
            restored_from: restored_from.map(RestoredEntry::from),
        }
    }
}

impl From<InstanceStatus> for StatusAnswer {
    fn from(status: InstanceStatus) -> Self {
        let InstanceStatus {
            instance,
            engine,
            state,
            healthy,
            image,
            version,
            project,
            machine,
            mut endpoints,
            token_file,
            vnc_password_file,
            usage: ContainerUsage { started_at, memory },
            services,
            sessions,
            clients,
            runs,
            warnings,
        } = status;
        let started_at = started_at.as_deref().and_then(parse_time);
        Self {
            instance,
            engine: engine.into(),
            state,
            healthy,
            image,
            version,
            project,
            machine,
            endpoints: EndpointEntry {
                kernel: endpoints.remove("kernel"),
                mcp: endpoints.remove("mcp"),
                vnc: endpoints.remove("vnc"),
            },
            token_file,
            vnc_password_file,
            started_at: started_at.map(UtcTime::from_seconds),
            uptime_seconds: started_at.map(seconds_since),
            memory_bytes: memory,
            services: services.into_iter().map(ServiceEntry::from).collect(),
            sessions: sessions.into_iter().map(SessionStatusEntry::from).collect(),
            clients,
            runs: runs.into_iter().map(RunEntry::from).collect(),
            warnings,
        }
    }
}

/// The instances that have been up.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InstancesAnswer {
    pub(crate) instances: Vec<InstanceEntry>,
}

/// An instance.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InstanceEntry {
    pub(crate) instance: String,
    /// Whether commands in the current folder use this instance.
    pub(crate) current: bool,
    pub(crate) state: InstanceEntryState,
    pub(crate) engine: Option<EngineChoice>,
    /// The machine of the engine and of the address; `null` if it is this machine.
    pub(crate) machine: Option<String>,
    /// The URL of the HTTP API.
    pub(crate) kernel_url: Option<String>,
    /// The URL of the MCP servers.
    pub(crate) mcp_url: Option<String>,
    /// `ADDRESS:PORT` of the VNC server.
    pub(crate) vnc_address: Option<String>,
    pub(crate) project: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InstanceEntryState {
    Running,
    Restarting,
    Paused,
    Stopped,
    Absent,
    /// The record of the instance can't be read.
    Unreadable,
    /// The engine does not answer.
    Unknown,
}

/// The instance that was stopped.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DownAnswer {
    pub(crate) instance: String,
    /// Whether there was a container.
    pub(crate) removed: bool,
    /// Whether the state, the image and the token were removed, too.
    pub(crate) purged: bool,
}

/// The image of the instance.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BuildAnswer {
    /// The name of the image.
    pub(crate) image: String,
    pub(crate) id: String,
    pub(crate) size_bytes: u64,
    /// Whether the image was built now; otherwise it was up to date.
    pub(crate) built: bool,
}

/// The checked preconditions.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DoctorAnswer {
    pub(crate) findings: Vec<DoctorEntry>,
}

/// The result of one check.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DoctorEntry {
    /// What was checked; a check can have several findings.
    pub(crate) name: String,
    pub(crate) verdict: CheckVerdict,
    pub(crate) detail: String,
    /// How to fix it.
    pub(crate) hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CheckVerdict {
    Ok,
    Warning,
    Broken,
}

/// A line of a log.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct LogLine {
    /// The time at the start of the line.
    logged_at: Option<UtcTime>,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    level: Option<String>,
    /// The line without its time and its level.
    message: String,
}

impl From<&str> for LogLine {
    /// Lines of osctl begin with a time and a level; programs inside write other lines, too.
    fn from(line: &str) -> Self {
        let line = line.trim_end_matches(['\r', '\n']);
        let parsed = line
            .split_once(char::is_whitespace)
            .and_then(|(time, rest)| {
                let time = DateTime::parse_from_rfc3339(time).ok()?;
                let (level, message) = rest.trim_start().split_once(' ')?;
                let levels = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];
                levels.contains(&level).then_some((time, level, message))
            });
        match parsed {
            Some((time, level, message)) => Self {
                logged_at: Some(UtcTime::from_date(time.with_timezone(&Utc))),
                level: Some(level.to_ascii_lowercase()),
                message: message.into(),
            },
            None => Self {
                logged_at: None,
                level: None,
                message: line.into(),
            },
        }
    }
}
