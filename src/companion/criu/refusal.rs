//! The reasons why a kernel was not checkpointed or restored, and their messages.

use super::criu_cli::disk_full_failure;
use super::error_text::{CriuFailure, CriuFailureKind};
use super::store::CriuLookupError;
use crate::companion::kernel;
use std::io;

/// Differing files that a message lists at most.
const MAX_LISTED_CRIU_FILES: usize = 5;

/// Why a request was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CriuRefusal {
    Kernel(kernel::KernelRefusal),
    /// The name is not valid for a checkpoint.
    Invalid(String),
    /// Checkpoints are not possible in this container, for this reason.
    Unavailable(String),
    NoCheckpoint {
        name: String,
        generation: Option<u64>,
    },
    Damaged {
        path: String,
        why: String,
        other_generation: Option<u64>,
    },
    /// Files that the processes had mapped differ here.
    FilesChanged(Vec<String>),
    /// This companion can't communicate with the checkpointed kernel.
    ProtocolMismatch(String),
    /// Process IDs that are in use, with the processes that use them.
    PidsInUse(Vec<String>),
    /// The checkpoint holds a session's kernel.
    InUse {
        name: String,
        session: String,
    },
    /// The checkpoint could not be removed.
    NotRemoved(String),
    /// The kernel could not be checkpointed; it continues, unless `is_lost`.
    NotCheckpointed {
        reason: CriuFailure,
        is_lost: bool,
    },
    /// The kernel could not be restored.
    NotRestored {
        reason: CriuFailure,
        current_kernel: StateAfterFailedRestore,
    },
}

/// The state of the session's current kernel after a failed restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StateAfterFailedRestore {
    Unchanged,
    /// No kernel existed: the session is still checkpointed.
    Checkpointed,
    /// The kernel was ended before the restore; its objects were stored and are reloaded, except these.
    Reloaded(Vec<String>),
    Lost,
}

impl CriuRefusal {
    /// The refusal as one sentence.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Kernel(_) => "the kernel is not available".into(),
            Self::Invalid(message) => message.clone(),
            Self::Unavailable(why) => format!("kernels can't be checkpointed here: {why}"),
            Self::NoCheckpoint {
                name,
                generation: Some(number),
            } => format!("the checkpoint `{name}` has no generation {number}"),
            Self::NoCheckpoint { name, .. } => format!("the checkpoint `{name}` does not exist"),
            Self::Damaged { path, why, .. } => {
                format!("the checkpoint `{path}` is damaged: {why}")
            }
            Self::FilesChanged(files) => {
                let listed = files
                    .iter()
                    .take(MAX_LISTED_CRIU_FILES)
                    .cloned()
                    .collect::<Vec<_>>();
                let more = match files.len() - listed.len() {
                    0 => String::new(),
                    more => format!("; and {more} more"),
                };
                format!(
                    "files that the kernel had mapped have changed: {}{more}",
                    listed.join("; ")
                )
            }
            Self::ProtocolMismatch(why) => format!("the kernel can't be restored: {why}"),
            Self::PidsInUse(who) => {
                format!("process IDs of the kernel are in use: {}", who.join(", "))
            }
            Self::InUse { name, session } => format!(
                "the checkpoint `{name}` holds the kernel of session `{session}` and can't be removed"
            ),
            Self::NotRemoved(why) => format!("the checkpoint can't be removed: {why}"),
            Self::NotCheckpointed { reason, is_lost } => {
                let state = match is_lost {
                    true => "the kernel ended, and its variables are lost",
                    false => "the kernel keeps running",
                };
                format!(
                    "the kernel could not be checkpointed: {}; {state}",
                    reason.why
                )
            }
            Self::NotRestored {
                reason,
                current_kernel,
            } => format!(
                "the kernel could not be restored: {}; {}",
                reason.why,
                current_kernel.describe_state()
            ),
        }
    }

    /// Whether a retry can't help; the objects are reloaded instead. Otherwise the user can fix the cause and retry;
    /// until then nothing is lost.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::FilesChanged(_) | Self::ProtocolMismatch(_) => true,
            Self::NotRestored { current_kernel, .. } => {
                *current_kernel == StateAfterFailedRestore::Lost
            }
            _ => false,
        }
    }

    /// Whether the disk was full.
    pub(crate) fn is_disk_full(&self) -> bool {
        matches!(self, Self::NotCheckpointed { reason, .. } if reason.kind == CriuFailureKind::DiskFull)
    }

    /// Marks the refusal as one after which the kernel was lost.
    pub(super) fn with_kernel_lost(self) -> Self {
        match self {
            Self::NotCheckpointed { reason, .. } => Self::NotCheckpointed {
                reason,
                is_lost: true,
            },
            other => other,
        }
    }
}

impl StateAfterFailedRestore {
    /// The state as a part of a sentence.
    fn describe_state(&self) -> String {
        match self {
            Self::Unchanged => "the current kernel keeps running".into(),
            Self::Checkpointed => "the session stays in its checkpoint".into(),
            Self::Reloaded(lost) if lost.is_empty() => {
                "the current kernel was ended, and its objects were reloaded".into()
            }
            Self::Reloaded(lost) => format!(
                "the current kernel was ended, and its objects were reloaded, except {}",
                lost.join(", ")
            ),
            Self::Lost => "the current kernel was ended, and its variables are lost".into(),
        }
    }
}

impl From<kernel::KernelRefusal> for CriuRefusal {
    fn from(refusal: kernel::KernelRefusal) -> Self {
        Self::Kernel(refusal)
    }
}

pub(super) fn lookup_refusal(
    absent: CriuLookupError,
    name: &str,
    generation: Option<u64>,
) -> CriuRefusal {
    match absent {
        CriuLookupError::Unknown => CriuRefusal::NoCheckpoint {
            name: name.into(),
            generation,
        },
        CriuLookupError::Damaged {
            path,
            why,
            other_generation,
        } => CriuRefusal::Damaged {
            path: path.display().to_string(),
            why,
            other_generation,
        },
    }
}

impl From<CriuFailure> for CriuRefusal {
    fn from(reason: CriuFailure) -> Self {
        Self::NotCheckpointed {
            reason,
            is_lost: false,
        }
    }
}

impl From<io::Error> for CriuRefusal {
    fn from(error: io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => disk_full_failure(),
            _ => CriuFailure {
                why: error.to_string(),
                hint: None,
                kind: CriuFailureKind::Other,
            },
        };
        reason.into()
    }
}

#[cfg(test)]
mod tests {
    use super::{CriuFailure, CriuFailureKind, CriuRefusal, StateAfterFailedRestore};

    fn refused(current_kernel: StateAfterFailedRestore) -> CriuRefusal {
        let reason = CriuFailure {
            why: "why".into(),
            hint: None,
            kind: CriuFailureKind::Other,
        };
        CriuRefusal::NotRestored {
            reason,
            current_kernel,
        }
    }

    #[test]
    fn the_state_of_the_current_kernel_is_reported_and_only_its_loss_is_final() {
        for (present, suffix) in [
            (
                StateAfterFailedRestore::Unchanged,
                "why; the current kernel keeps running",
            ),
            (
                StateAfterFailedRestore::Checkpointed,
                "stays in its checkpoint",
            ),
            (
                StateAfterFailedRestore::Reloaded(Vec::new()),
                "its objects were reloaded",
            ),
            (
                StateAfterFailedRestore::Reloaded(vec!["`g` (a generator)".into()]),
                "its objects were reloaded, except `g` (a generator)",
            ),
        ] {
            let refusal = refused(present);
            assert!(!refusal.is_final());
            assert!(refusal.message().ends_with(suffix), "{}", refusal.message());
        }
        let lost = refused(StateAfterFailedRestore::Lost);
        assert!(lost.is_final() && lost.message().ends_with("its variables are lost"));
    }
}
