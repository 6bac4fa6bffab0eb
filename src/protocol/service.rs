//! What the companion says of itself.

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
    /// What to prove the knowledge of the token's digest over.
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
    /// What the variables of the default session were brought back from, while this generation of the kernel lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restored_from: Option<RestoredFrom>,
    pub(crate) sessions: Vec<SessionInfo>,
    pub(crate) version: String,
}

/// `GET /health`: 200 when `healthy`, else 503.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Health {
    pub(crate) status: HealthStatus,
    /// Whether it is being evolved, or not proved yet: what changes anything is answered 503 `evolving`.
    #[serde(default)]
    pub(crate) evolving: bool,
    pub(crate) version: String,
    pub(crate) services: Vec<Service>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HealthStatus {
    Healthy,
    Starting,
}

/// One thing that runs inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) ready: bool,
    /// Nobody needs it now, so that it need not be ready.
    #[serde(default)]
    pub(crate) idle: bool,
    /// How it stands, in words.
    pub(crate) detail: String,
}

/// `GET /`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) protocol: u32,
    /// `"POST /exec"` → what it does.
    pub(crate) endpoints: BTreeMap<String, String>,
}
