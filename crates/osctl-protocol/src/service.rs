//! Status and description of the companion.

use super::kernel::KernelReport;
use super::restored::RestoredFrom;
use super::session::SessionInfo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// `GET /ping`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Ping {
    /// Always `ok`.
    pub status: String,
    /// With `?nonce=HEX`: HMAC-SHA256 of `osctl ping\0HEX` under the hexadecimal SHA-256 of the token, which proves
    /// that this is the companion of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
}

/// The query of `GET /ping`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
pub struct PingQuery {
    /// The nonce to be signed with the token's digest.
    pub nonce: Option<String>,
}

/// `GET /status`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CompanionStatus {
    /// Always `ok`.
    pub status: String,
    pub exec_count: u64,
    pub globals_count: u64,
    pub resources_count: u64,
    pub busy: bool,
    pub kernel: KernelReport,
    /// The stored generation from which the default session was restored, until the kernel's generation changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<RestoredFrom>,
    pub sessions: Vec<SessionInfo>,
    pub version: String,
}

/// `GET /health`: 200 when `healthy`, else 503.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Health {
    pub status: HealthStatus,
    /// Whether the container is being evolved or not verified yet; requests that change anything are answered 503
    /// `evolving`.
    #[serde(default)]
    pub evolving: bool,
    pub version: String,
    pub services: Vec<ServiceStatus>,
    /// Why waiting does not help: the kernel has failed to start several times in succession.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    Healthy,
    Starting,
}

/// A service of the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceStatus {
    pub name: String,
    pub ready: bool,
    /// Whether the service is currently not needed, so that it does not have to be ready.
    #[serde(default)]
    pub idle: bool,
    /// The status in words.
    pub detail: String,
}

/// `GET /`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ApiDescription {
    pub name: String,
    pub version: String,
    pub protocol: u32,
    /// `"POST /exec"` → a description of the endpoint.
    pub endpoints: BTreeMap<String, String>,
}
