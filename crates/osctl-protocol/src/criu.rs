//! Requests and replies of CRIU checkpoints, which store whole kernel processes.

use super::kernel::{DEFAULT_SESSION, KernelReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

fn default_session() -> String {
    DEFAULT_SESSION.into()
}

/// `POST /criu/checkpoint`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    #[serde(default = "default_session")]
    pub session: String,
    /// The checkpoint's name; the session's name when missing. Each name keeps its last generations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether the kernel keeps running after the checkpoint. Otherwise it is ended, and requests are refused until it
    /// is restored.
    #[serde(default)]
    pub leave_running: bool,
}

/// `POST /criu/restore`. Restores the kernel into the session from which it was checkpointed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreRequest {
    #[serde(default = "default_session")]
    pub session: String,
    /// The checkpoint's name; the session's name when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The generation of the checkpoint; the last one when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// The reply to `POST /criu/checkpoint`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CheckpointReply {
    /// Always `completed`.
    pub status: String,
    pub name: String,
    pub generation: u64,
    pub session: String,
    pub checkpoint_path: String,
    pub checkpoint_size_bytes: u64,
    pub timing_ms: f64,
    /// Whether the kernel keeps running; otherwise it was ended.
    pub is_running: bool,
    /// Parts of the state that the checkpoint does not contain, in words.
    pub left_out: Vec<String>,
}

/// The reply to `POST /criu/restore`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CriuRestored {
    /// Always `completed`.
    pub status: String,
    pub name: String,
    pub generation: u64,
    pub session: String,
    pub checkpoint_path: String,
    pub checkpoint_size_bytes: u64,
    pub timing_ms: f64,
    pub kernel: KernelReport,
    /// Differences between the restored kernel and the checkpointed one, in words.
    pub notes: Vec<String>,
}

/// `GET /criu/status`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CriuStatus {
    /// Whether kernels can be checkpointed and restored on this system.
    pub available: bool,
    /// The same as a sentence, with the missing preconditions.
    pub message: String,
    /// All preconditions.
    pub checks: Vec<CriuCheck>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Whether the default session's kernel is checkpointed.
    pub is_checkpointed: bool,
    /// The sessions whose kernels are checkpointed.
    pub checkpointed: Vec<String>,
    /// The stored checkpoints, newest first.
    pub checkpoints: Vec<StoredCheckpoint>,
}

/// `GET /criu`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CheckpointList {
    /// The stored checkpoints, newest first.
    pub checkpoints: Vec<StoredCheckpoint>,
}

/// The reply to `DELETE /criu/{name}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CriuRemoved {
    /// Always `completed`.
    pub status: String,
    pub name: String,
}

/// One precondition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CriuCheck {
    #[serde(alias = "what")]
    pub name: String,
    #[serde(alias = "fine")]
    pub passed: bool,
    pub detail: String,
    /// Whether checkpoints are impossible without this precondition.
    pub needed: bool,
}

/// A stored checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredCheckpoint {
    pub name: String,
    pub generation: u64,
    pub session: String,
    /// Seconds since 1970.
    pub created: u64,
    pub size_bytes: u64,
    pub path: String,
}
