//! Refusals of stored variables and of checkpoints.

use crate::companion::criu::CriuRefusal;
use crate::companion::cryo::{CHECKPOINT_STATE_PREFIX, CryoRefusal};
use crate::companion::kernel::KernelRefusal;
use crate::protocol::kernel::DEFAULT_SESSION;
use axum::http::StatusCode as S;
use osctl_support::api::{ApiRefusal, FIELD_DOCS_HINT};
use std::path::Path;

impl From<CryoRefusal> for ApiRefusal {
    fn from(refusal: CryoRefusal) -> Self {
        use CryoRefusal as R;
        match refusal {
            R::Kernel(refusal) => refusal.into(),
            R::Invalid(message) => Self::new(S::BAD_REQUEST, "invalid_field", message),
            R::NoName(name) => {
                let message = format!("nothing is stored as `{name}`");
                Self::new(S::NOT_FOUND, "nothing_stored", message)
                    .with_hint("`osctl cryo ls` lists the stored states")
            }
            R::NoGeneration {
                name,
                generation,
                newest,
            } => {
                let missing = format!("`{name}` has no generation {generation}");
                let message = format!("{missing}; its newest is {newest}");
                Self::new(S::NOT_FOUND, "unknown_generation", message)
                    .with_hint("`osctl cryo ls` lists all generations")
                    .with_tool_text(format!("{missing}; the newest generation is {newest}"))
            }
            R::Damaged {
                name,
                generation,
                why,
                previous,
            } => {
                let message = format!("generation {generation} of `{name}` can't be used: {why}");
                let refusal = Self::new(S::UNPROCESSABLE_ENTITY, "damaged", message.clone());
                match previous {
                    Some(previous) => refusal
                        .with_hint(format!(
                            "`osctl cryo reload {name} --generation {previous}` restores the previous generation"
                        ))
                        .with_tool_text(format!(
                            "{message}; the previous generation is {previous}"
                        )),
                    None => refusal.with_hint(format!(
                        "no earlier generation exists; `osctl cryo rm {name} --generation {generation}` removes this one"
                    )),
                }
            }
            R::StrictLosses(message) => Self::new(S::CONFLICT, "losses", message)
                .with_hint("omit `--strict` to store the rest; `--dry-run` shows the receipt"),
            R::DiskFull => {
                let message = "the disk is full; earlier stored states are unchanged";
                Self::new(S::INSUFFICIENT_STORAGE, "disk_full", message)
                    .with_hint(
                        "`osctl cryo ls` lists the stored states, and `osctl cryo rm NAME` removes one",
                    )
                    .with_tool_text("the disk is full; earlier stores are unchanged")
            }
            R::UserError(raised) => {
                let text = format!("{}: {}", raised.kind, raised.message);
                Self::new(S::UNPROCESSABLE_ENTITY, &raised.kind, raised.message)
                    .with_tool_text(text)
            }
            R::Failed(why) => {
                tracing::error!(%why, "cryo failed");
                Self::new(S::INTERNAL_SERVER_ERROR, "cryo", why)
                    .with_hint("`osctl logs` shows more")
            }
        }
    }
}

impl CryoRefusal {
    /// The refusal in a progress stream or in a list of sessions, where two texts differ from those of a reply.
    pub(in crate::companion) fn into_listed_refusal(self) -> ApiRefusal {
        match self {
            Self::Kernel(KernelRefusal::Busy) => {
                ApiRefusal::new(S::TOO_MANY_REQUESTS, "busy", "the kernel executes code")
                    .with_hint("wait, or interrupt the code with `osctl interrupt`")
            }
            Self::Kernel(refusal @ KernelRefusal::NoSession(_)) => {
                ApiRefusal::from(refusal).with_hint("`osctl sessions ls` lists the sessions")
            }
            other => other.into(),
        }
    }
}

impl From<CriuRefusal> for ApiRefusal {
    fn from(refusal: CriuRefusal) -> Self {
        use CriuRefusal as R;
        let message = refusal.message();
        let is_disk_full = refusal.is_disk_full();
        let (status, kind, hint): (S, &str, String) = match refusal {
            R::Kernel(refusal) => return refusal.into(),
            R::Invalid(_) => (S::BAD_REQUEST, "invalid_field", FIELD_DOCS_HINT.into()),
            R::Unavailable(_) => (
                S::NOT_IMPLEMENTED,
                "criu_unavailable",
                "`osctl up --criu` enables checkpoints; `osctl criu status` shows what is missing"
                    .into(),
            ),
            R::NoCheckpoint { .. } => (
                S::NOT_FOUND,
                "unknown_checkpoint",
                "`osctl criu status` lists the checkpoints".into(),
            ),
            R::Damaged {
                path,
                other_generation,
                ..
            } => (
                S::UNPROCESSABLE_ENTITY,
                "damaged_checkpoint",
                damaged_checkpoint_hint(&checkpoint_name(&path), other_generation),
            ),
            R::FilesChanged(_) => (
                S::CONFLICT,
                "files_changed",
                "restore the checkpoint in a container of the image that it was made in".into(),
            ),
            R::ProtocolMismatch(_) => (
                S::CONFLICT,
                "other_protocol",
                "restore the checkpoint with the version of osctl that made it".into(),
            ),
            R::PidsInUse(_) => (
                S::CONFLICT,
                "process_ids_in_use",
                "end the processes with these IDs, or run `osctl restart`".into(),
            ),
            R::InUse { name, session } => {
                let reset = reset_command(&session);
                let hint =
                    format!("`osctl criu restore {name}` restores the kernel, {reset} discards it");
                (S::CONFLICT, "in_use", hint)
            }
            R::NotRemoved(_) => (
                S::INTERNAL_SERVER_ERROR,
                "stays",
                "`osctl logs` shows more".into(),
            ),
            R::NotCheckpointed { .. } if is_disk_full => (
                S::INSUFFICIENT_STORAGE,
                "disk_full",
                "remove files in the container; `osctl shell df -h` shows the disk usage".into(),
            ),
            R::NotCheckpointed { reason, .. } => {
                (S::CONFLICT, "not_checkpointed", criu_hint(reason.hint))
            }
            R::NotRestored { reason, .. } => (S::CONFLICT, "not_restored", criu_hint(reason.hint)),
        };
        Self::new(status, kind, message).with_hint(hint)
    }
}

fn criu_hint(hint: Option<&str>) -> String {
    hint.unwrap_or("`osctl logs` shows the output of CRIU")
        .into()
}

/// The possible fix for a damaged generation of a checkpoint.
fn damaged_checkpoint_hint(name: &str, other_generation: Option<u64>) -> String {
    match other_generation {
        Some(other) => {
            format!(
                "`osctl criu restore {name} --generation {other}` restores an intact generation"
            )
        }
        None => format!(
            "`osctl cryo reload {CHECKPOINT_STATE_PREFIX}{name}` restores the variables that were stored with the checkpoint"
        ),
    }
}

/// The possible fixes for a session whose kernel is in a checkpoint, `…/NAME/NUMBER`.
pub(super) fn checkpoint_hint(session: &str, checkpoint: &str) -> String {
    let path = Path::new(checkpoint);
    let number = path.file_name().unwrap_or_default().to_string_lossy();
    let (name, reset) = (checkpoint_name(checkpoint), reset_command(session));
    format!(
        "`osctl criu restore {name} --generation {number}` restores the kernel, {reset} starts an empty kernel"
    )
}

/// The name in the path of a checkpoint, `…/NAME/NUMBER`.
fn checkpoint_name(checkpoint: &str) -> String {
    let name = Path::new(checkpoint).parent().and_then(Path::file_name);
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// The command that replaces a session by an empty one.
fn reset_command(session: &str) -> String {
    match session {
        DEFAULT_SESSION => "`osctl reset`".into(),
        other => format!("`osctl reset --session {other}`"),
    }
}
