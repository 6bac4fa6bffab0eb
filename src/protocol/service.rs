//! Status and description of the companion.

use super::kernel::KernelReport;
use super::restored::RestoredFrom;
use super::session::SessionInfo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// `GET /ping`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Ping {
    /// Always `ok`.
    pub(crate) status: String,
    /// With `?nonce=HEX`: HMAC-SHA256 of `osctl ping\0HEX` under the hexadecimal SHA-256 of the token, which proves
    /// that this is the companion of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) proof: Option<String>,
}

/// The query of `GET /ping`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
pub(crate) struct PingQuery {
    /// The nonce to be signed with the token's digest.
    pub(crate) nonce: Option<String>,
}

/// `GET /status`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct CompanionStatus {
    /// Always `ok`.
    pub(crate) status: String,
    pub(crate) exec_count: u64,
    pub(crate) globals_count: u64,
    pub(crate) resources_count: u64,
    pub(crate) busy: bool,
    pub(crate) kernel: KernelReport,
    /// The stored generation from which the default session was restored, until the kernel's generation changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restored_from: Option<RestoredFrom>,
    pub(crate) sessions: Vec<SessionInfo>,
    pub(crate) version: String,
}

/// `GET /health`: 200 when `healthy`, else 503.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Health {
    pub(crate) status: HealthStatus,
    /// Whether the container is being evolved or not verified yet; requests that change anything are answered 503
    /// `evolving`.
    #[serde(default)]
    pub(crate) evolving: bool,
    pub(crate) version: String,
    pub(crate) services: Vec<ServiceStatus>,
    /// Why waiting does not help: the kernel has failed to start several times in succession.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HealthStatus {
    Healthy,
    Starting,
}

/// A service of the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ServiceStatus {
    pub(crate) name: String,
    pub(crate) ready: bool,
    /// Whether the service is currently not needed, so that it does not have to be ready.
    #[serde(default)]
    pub(crate) idle: bool,
    /// The status in words.
    pub(crate) detail: String,
}

/// `GET /`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct ApiDescription {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) protocol: u32,
    /// `"POST /exec"` → a description of the endpoint.
    pub(crate) endpoints: BTreeMap<String, String>,
}
