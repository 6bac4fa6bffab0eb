//! Kernels frozen as whole processes: what is asked, and what came of it.

use super::kernel::{DEFAULT_SESSION, KernelReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

fn default_session() -> String {
    DEFAULT_SESSION.into()
}

/// `POST /criu/checkpoint`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Checkpoint {
    #[serde(default = "default_session")]
    pub(crate) session: String,
    /// The checkpoint's name; the session's when missing. Each name keeps its last generations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Whether the kernel goes on afterwards; else it is ended, and requests are refused until it is
    /// restored.
    #[serde(default)]
    pub(crate) leave_running: bool,
}

/// `POST /criu/restore`. The kernel comes back in the session that it was taken from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Restore {
    #[serde(default = "default_session")]
    pub(crate) session: String,
    /// The checkpoint's name; the session's when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Which of its generations; the last one when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<u64>,
}

/// The reply to `POST /criu/checkpoint`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Checkpointed {
    /// Always `completed`.
    pub(crate) status: String,
    pub(crate) name: String,
    pub(crate) generation: u64,
    pub(crate) session: String,
    pub(crate) checkpoint_path: String,
    pub(crate) checkpoint_size_bytes: u64,
    pub(crate) timing_ms: f64,
    /// Whether the kernel went on; else it was ended.
    pub(crate) is_running: bool,
    /// What is not in the checkpoint, in words.
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
    /// What came back otherwise than it was, in words.
    pub(crate) notes: Vec<String>,
}

/// `GET /criu/status`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct CriuStatus {
    /// Whether kernels can be frozen and thawed here.
    pub(crate) available: bool,
    /// The same in a sentence, with what is missing.
    pub(crate) message: String,
    /// Every precondition.
    pub(crate) checks: Vec<CriuCheck>,
    /// What a person must know.
    pub(crate) warnings: Vec<String>,
    /// Whether the default session's kernel lies in a checkpoint.
    pub(crate) is_checkpointed: bool,
    /// The sessions whose kernels do.
    pub(crate) checkpointed: Vec<String>,
    /// What is stored, the newest first.
    pub(crate) checkpoints: Vec<StoredCheckpoint>,
}

/// `GET /criu`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Checkpoints {
    /// The newest first.
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
    pub(crate) what: String,
    pub(crate) fine: bool,
    pub(crate) detail: String,
    /// Whether nothing works without it.
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
