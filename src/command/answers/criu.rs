//! Answers about checkpoints of kernel processes.

use super::instance::CheckVerdict;
use super::runs::KernelEntry;
use super::{UtcTime, seconds_from_ms};
use crate::protocol::criu::{
    CheckpointReply, CriuCheck, CriuRemoved, CriuRestored, CriuStatus, StoredCheckpoint,
};
use schemars::JsonSchema;
use serde::Serialize;

/// The checkpoint that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CheckpointAnswer {
    /// Always `completed`.
    status: String,
    name: String,
    generation: u64,
    session: String,
    path: String,
    size_bytes: u64,
    duration_seconds: f64,
    /// Whether the kernel keeps running; otherwise it was ended.
    is_running: bool,
    /// Parts of the state that the checkpoint does not contain, in words.
    left_out: Vec<String>,
}

impl From<CheckpointReply> for CheckpointAnswer {
    fn from(done: CheckpointReply) -> Self {
        let CheckpointReply {
            status,
            name,
            generation,
            session,
            checkpoint_path,
            checkpoint_size_bytes,
            timing_ms,
            is_running,
            left_out,
        } = done;
        Self {
            status,
            name,
            generation,
            session,
            path: checkpoint_path,
            size_bytes: checkpoint_size_bytes,
            duration_seconds: seconds_from_ms(timing_ms),
            is_running,
            left_out,
        }
    }
}

/// The kernel that was restored.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RestoreAnswer {
    /// Always `completed`.
    status: String,
    name: String,
    generation: u64,
    session: String,
    path: String,
    size_bytes: u64,
    duration_seconds: f64,
    kernel: KernelEntry,
    /// Differences between the restored kernel and the checkpointed one, in words.
    notes: Vec<String>,
}

impl From<CriuRestored> for RestoreAnswer {
    fn from(done: CriuRestored) -> Self {
        let CriuRestored {
            status,
            name,
            generation,
            session,
            checkpoint_path,
            checkpoint_size_bytes,
            timing_ms,
            kernel,
            notes,
        } = done;
        Self {
            status,
            name,
            generation,
            session,
            path: checkpoint_path,
            size_bytes: checkpoint_size_bytes,
            duration_seconds: seconds_from_ms(timing_ms),
            kernel: kernel.into(),
            notes,
        }
    }
}

/// Whether kernels can be checkpointed, and the stored checkpoints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CriuStatusAnswer {
    /// Whether kernels can be checkpointed and restored on this system.
    available: bool,
    /// The same as a sentence, with the missing preconditions.
    message: String,
    /// All preconditions.
    checks: Vec<CriuCheckEntry>,
    warnings: Vec<String>,
    /// The sessions whose kernels are checkpointed.
    checkpointed_sessions: Vec<String>,
    /// The stored checkpoints, newest first.
    checkpoints: Vec<CheckpointEntry>,
}

/// One precondition.
#[derive(Debug, Serialize, JsonSchema)]
struct CriuCheckEntry {
    name: String,
    /// `broken`: checkpoints are impossible. `warning`: they are possible without this precondition.
    verdict: CheckVerdict,
    detail: String,
}

/// A stored checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
struct CheckpointEntry {
    name: String,
    generation: u64,
    session: String,
    created_at: UtcTime,
    size_bytes: u64,
    path: String,
}

impl From<CriuCheck> for CriuCheckEntry {
    fn from(check: CriuCheck) -> Self {
        let CriuCheck {
            name,
            passed,
            detail,
            needed,
        } = check;
        Self {
            name,
            verdict: match (passed, needed) {
                (true, _) => CheckVerdict::Ok,
                (false, true) => CheckVerdict::Broken,
                (false, false) => CheckVerdict::Warning,
            },
            detail,
        }
    }
}

impl From<StoredCheckpoint> for CheckpointEntry {
    fn from(stored: StoredCheckpoint) -> Self {
        let StoredCheckpoint {
            name,
            generation,
            session,
            created,
            size_bytes,
            path,
        } = stored;
        Self {
            name,
            generation,
            session,
            created_at: UtcTime::from_seconds(created as f64),
            size_bytes,
            path,
        }
    }
}

impl From<CriuStatus> for CriuStatusAnswer {
    fn from(status: CriuStatus) -> Self {
        let CriuStatus {
            available,
            message,
            checks,
            warnings,
            // `checkpointed_sessions` contains the default session.
            is_checkpointed: _,
            checkpointed,
            checkpoints,
        } = status;
        Self {
            available,
            message,
            checks: checks.into_iter().map(CriuCheckEntry::from).collect(),
            warnings,
            checkpointed_sessions: checkpointed,
            checkpoints: checkpoints.into_iter().map(CheckpointEntry::from).collect(),
        }
    }
}

/// The stored checkpoints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CheckpointsAnswer {
    /// Newest first.
    checkpoints: Vec<CheckpointEntry>,
}

impl From<Vec<StoredCheckpoint>> for CheckpointsAnswer {
    fn from(stored: Vec<StoredCheckpoint>) -> Self {
        let checkpoints = stored.into_iter().map(CheckpointEntry::from).collect();
        Self { checkpoints }
    }
}

/// The checkpoint whose generations were removed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CheckpointRemovedAnswer {
    /// Always `completed`.
    status: String,
    name: String,
}

impl From<CriuRemoved> for CheckpointRemovedAnswer {
    fn from(removed: CriuRemoved) -> Self {
        let CriuRemoved { status, name } = removed;
        Self { status, name }
    }
}
