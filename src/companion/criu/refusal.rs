//! Why a kernel was not frozen or brought back, in sentences.

use super::criu_cli::disk_full_failure;
use super::error_text::{CriuFailure, CriuFailureKind};
use super::store::CriuLookupError;
use crate::companion::kernel;
use std::io;

/// Files that differ, told at most.
const MAX_LISTED_CRIU_FILES: usize = 5;

/// Why a request was not fulfilled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CriuRefusal {
    Kernel(kernel::KernelRefusal),
    /// That can't be a checkpoint's name.
    Invalid(String),
    /// It can't be done in this container, for that reason.
    Unavailable(String),
    NoCheckpoint {
        name: String,
        generation: Option<u64>,
    },
    Damaged {
        path: String,
        why: String,
        other: Option<u64>,
    },
    /// The files that were mapped are not those that are here.
    OtherFiles(Vec<String>),
    /// This companion could not speak with it.
    OtherProtocol(String),
    /// Ids that are taken, with who has them.
    TakenIds(Vec<String>),
    /// A session's kernel lies in it.
    InUse {
        name: String,
        session: String,
    },
    /// It can't be removed.
    Stays(String),
    /// The kernel could not be frozen; it goes on, unless it was lost thereby.
    NotFrozen {
        reason: CriuFailure,
        is_lost: bool,
    },
    /// The kernel could not be brought back.
    NotRestored {
        reason: CriuFailure,
        present: PresentKernelState,
    },
}

/// What became of the session's present kernel when another one was not brought back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PresentKernelState {
    GoesOn,
    /// There was none: the session lies in a checkpoint, as before.
    Frozen,
    /// It had to end before, and what it held was stored and is back, but for these.
    Back(Vec<String>),
    Lost,
}

impl CriuRefusal {
    /// In a sentence.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Kernel(_) => "the kernel can't be had".into(),
            Self::Invalid(message) => message.clone(),
            Self::Unavailable(why) => format!("kernels can't be frozen here: {why}"),
            Self::NoCheckpoint {
                name,
                generation: Some(number),
            } => format!("there is no generation {number} of a checkpoint `{name}`"),
            Self::NoCheckpoint { name, .. } => format!("there is no checkpoint `{name}`"),
            Self::Damaged { path, why, .. } => {
                format!("the checkpoint `{path}` is damaged: {why}")
            }
            Self::OtherFiles(files) => {
                let told = files
                    .iter()
                    .take(MAX_LISTED_CRIU_FILES)
                    .cloned()
                    .collect::<Vec<_>>();
                let more = match files.len() - told.len() {
                    0 => String::new(),
                    more => format!("; and {more} more"),
                };
                format!(
                    "files that the kernel had mapped are not the same here: {}{more}",
                    told.join("; ")
                )
            }
            Self::OtherProtocol(why) => format!("the kernel could not be brought back: {why}"),
            Self::TakenIds(who) => {
                format!(
                    "ids of the kernel's processes are taken: {}",
                    who.join(", ")
                )
            }
            Self::InUse { name, session } => format!(
                "the kernel of session `{session}` lies in the checkpoint `{name}`, which stays"
            ),
            Self::Stays(why) => format!("the checkpoint can't be removed: {why}"),
            Self::NotFrozen { reason, is_lost } => {
                let fate = match is_lost {
                    true => "it did not survive that, and its state is lost",
                    false => "it goes on",
                };
                format!("the kernel could not be frozen: {}; {fate}", reason.why)
            }
            Self::NotRestored { reason, present } => format!(
                "the kernel could not be brought back: {}; {}",
                reason.why,
                present.describe()
            ),
        }
    }

    /// Whether trying again can't help: then the objects are what comes back. Else people put right
    /// what is wrong, and lose nothing meanwhile.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::OtherFiles(_) | Self::OtherProtocol(_) => true,
            Self::NotRestored { present, .. } => *present == PresentKernelState::Lost,
            _ => false,
        }
    }

    /// Whether there was no room on the disk.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::NotFrozen { reason, .. } if reason.kind == CriuFailureKind::Full)
    }

    /// The same, of a kernel that did not go on.
    pub(super) fn and_lost(self) -> Self {
        match self {
            Self::NotFrozen { reason, .. } => Self::NotFrozen {
                reason,
                is_lost: true,
            },
            other => other,
        }
    }
}

impl PresentKernelState {
    /// In a sentence.
    fn describe(&self) -> String {
        match self {
            Self::GoesOn => "the present one goes on".into(),
            Self::Frozen => "the session lies in its checkpoint, as before".into(),
            Self::Back(lost) if lost.is_empty() => {
                "the one that was there had to end before, and its objects are back".into()
            }
            Self::Back(lost) => format!(
                "the one that was there had to end before; its objects are back, but for {}",
                lost.join(", ")
            ),
            Self::Lost => "the one that was there had to end before, and its state is lost".into(),
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
        CriuLookupError::Damaged { path, why, other } => CriuRefusal::Damaged {
            path: path.display().to_string(),
            why,
            other,
        },
    }
}

impl From<CriuFailure> for CriuRefusal {
    fn from(reason: CriuFailure) -> Self {
        Self::NotFrozen {
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
    use super::{CriuFailure, CriuFailureKind, CriuRefusal, PresentKernelState};

    fn refused(present: PresentKernelState) -> CriuRefusal {
        let reason = CriuFailure {
            why: "why".into(),
            hint: None,
            kind: CriuFailureKind::Other,
        };
        CriuRefusal::NotRestored { reason, present }
    }

    #[test]
    fn what_became_of_the_present_kernel_is_told_and_only_its_loss_is_final() {
        for (present, words) in [
            (PresentKernelState::GoesOn, "why; the present one goes on"),
            (
                PresentKernelState::Frozen,
                "lies in its checkpoint, as before",
            ),
            (PresentKernelState::Back(Vec::new()), "its objects are back"),
            (
                PresentKernelState::Back(vec!["`g` (a generator)".into()]),
                "its objects are back, but for `g` (a generator)",
            ),
        ] {
            let refusal = refused(present);
            assert!(!refusal.is_final());
            assert!(refusal.message().ends_with(words), "{}", refusal.message());
        }
        let lost = refused(PresentKernelState::Lost);
        assert!(lost.is_final() && lost.message().ends_with("its state is lost"));
    }
}
