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
pub(crate) struct CheckpointRequest {
    #[serde(default = "default_session")]
    pub(crate) session: String,
    /// The checkpoint's name; the session's name when missing. Each name keeps its last generations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Whether the kernel keeps running after the checkpoint. Otherwise it is ended, and requests are refused until it
    /// is restored.
    #[serde(default)]
    pub(crate) leave_running: bool,
}

/// `POST /criu/restore`. Restores the kernel into the session from which it was checkpointed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestoreRequest {
    #[serde(default = "default_session")]
    pub(crate) session: String,
    /// The checkpoint's name; the session's name when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The generation of the checkpoint; the last one when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<u64>,
}

/// The reply to `POST /criu/checkpoint`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct CheckpointReply {
    /// Always `completed`.
    pub(crate) status: String,
    pub(crate) name: String,
    pub(crate) generation: u64,
    pub(crate) session: String,
    pub(crate) checkpoint_path: String,
    pub(crate) checkpoint_size_bytes: u64,
    pub(crate) timing_ms: f64,
    /// Whether the kernel keeps running; otherwise it was ended.
    pub(crate) is_running: bool,
    /// Parts of the state that the checkpoint does not contain, in words.
    pub(crate) left_out: Vec<String>,
}

/// The reply to `POST /criu/restore`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct CriuRestored {
    /// Always `completed`.
    pub(crate) status: String,
    pub(crate) name: String,
    pub(crate) generation: u64,
    pub(crate) session: String,
    pub(crate) checkpoint_path: String,
    pub(crate) checkpoint_size_bytes: u64,
    pub(crate) timing_ms: f64,
    pub(crate) kernel: KernelReport,
    /// Differences between the restored kernel and the checkpointed one, in words.
    pub(crate) notes: Vec<String>,
}

/// `GET /criu/status`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct CriuStatus {
    /// Whether kernels can be checkpointed and restored on this system.
    pub(crate) available: bool,
    /// The same as a sentence, with the missing preconditions.
    pub(crate) message: String,
    /// All preconditions.
    pub(crate) checks: Vec<CriuCheck>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
    /// Whether the default session's kernel is checkpointed.
    pub(crate) is_checkpointed: bool,
    /// The sessions whose kernels are checkpointed.
    pub(crate) checkpointed: Vec<String>,
    /// The stored checkpoints, newest first.
    pub(crate) checkpoints: Vec<StoredCheckpoint>,
}

/// `GET /criu`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct CheckpointList {
    /// The stored checkpoints, newest first.
    pub(crate) checkpoints: Vec<StoredCheckpoint>,
}

/// The reply to `DELETE /criu/{name}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct CriuRemoved {
    /// Always `completed`.
    pub(crate) status: String,
    pub(crate) name: String,
}

/// One precondition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct CriuCheck {
    #[serde(alias = "what")]
    pub(crate) name: String,
    #[serde(alias = "fine")]
    pub(crate) passed: bool,
    pub(crate) detail: String,
    /// Whether checkpoints are impossible without this precondition.
    pub(crate) needed: bool,
}

/// A stored checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct StoredCheckpoint {
    pub(crate) name: String,
    pub(crate) generation: u64,
    pub(crate) session: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) size_bytes: u64,
    pub(crate) path: String,
}
