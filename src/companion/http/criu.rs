//! Routes that checkpoint and restore whole kernels.

use super::progress_stream::stream_progress;
use super::response::{FIELD_DOCS_HINT, JsonBody, PathId};
use super::stream::StreamFormat;
use super::{HttpState, json_response};
use crate::companion::criu::CriuRefusal;
use crate::companion::cryo::CHECKPOINT_STATE_PREFIX;
use crate::protocol::criu::{
    CheckpointList, CheckpointReply, CheckpointRequest, CriuRemoved, CriuRestored, CriuStatus,
    RestoreRequest,
};
use crate::protocol::error::{ApiError, FailedReply};
use crate::protocol::kernel::DEFAULT_SESSION;
use crate::protocol::progress::ProgressEvent;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::path::Path;

/// Checkpoint the kernel process of a session
///
/// The kernel must be idle. The checkpoint contains variables, threads, generators and open files.
/// With `Accept: text/event-stream` or `application/x-ndjson` the reply is a stream of progress events with the number
/// of bytes written, then the result.
#[utoipa::path(post, path = "/criu/checkpoint", request_body = Option<CheckpointRequest>, responses(
    (status = 200, content(
        (CheckpointReply = "application/json"), (ProgressEvent<CheckpointReply> = "text/event-stream"), (ProgressEvent<CheckpointReply> = "application/x-ndjson"),
    )),
    (status = 409, description = "The kernel holds something that can't be checkpointed; the kernel continues.", body = FailedReply),
    (status = 429, description = "The session is executing code.", body = FailedReply),
    (status = 501, description = "This host does not support checkpoints.", body = FailedReply),
    (status = 507, description = "The disk is full; the kernel continues.", body = FailedReply),
))]
pub(super) async fn checkpoint(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CheckpointRequest>,
) -> Response {
    let (criu, session) = (state.criu.clone(), request.session.clone());
    let working = criu.clone();
    let work = async move { working.checkpoint(request).await };
    match StreamFormat::from_accept_header(&headers) {
        Some(format) => {
            let work = async { work.await.map_err(CriuRefusal::into_http_error) };
            stream_progress(format, move || criu.transferred_bytes(&session), work)
        }
        None => result_response(work.await),
    }
}

/// Restore a kernel process from a checkpoint
///
/// The restored kernel replaces the current kernel of the session.
/// With `Accept: text/event-stream` or `application/x-ndjson` the reply is a stream of progress events with the number
/// of bytes read, then the result.
#[utoipa::path(post, path = "/criu/restore", request_body = Option<RestoreRequest>, responses(
    (status = 200, content(
        (CriuRestored = "application/json"), (ProgressEvent<CriuRestored> = "text/event-stream"), (ProgressEvent<CriuRestored> = "application/x-ndjson"),
    )),
    (status = 404, description = "The checkpoint does not exist.", body = FailedReply),
    (status = 409, description = "The checkpoint can't be restored in this container, or can no longer be restored.", body = FailedReply),
    (status = 422, description = "The checkpoint is damaged; the hint names an intact copy of the state.", body = FailedReply),
    (status = 429, description = "The session is executing code.", body = FailedReply),
    (status = 501, description = "This host does not support checkpoints.", body = FailedReply),
))]
pub(super) async fn restore(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<RestoreRequest>,
) -> Response {
    let (criu, session) = (state.criu.clone(), request.session.clone());
    let working = criu.clone();
    let work = async move { working.restore(request).await };
    match StreamFormat::from_accept_header(&headers) {
        Some(format) => {
            let work = async { work.await.map_err(CriuRefusal::into_http_error) };
            stream_progress(format, move || criu.transferred_bytes(&session), work)
        }
        None => result_response(work.await),
    }
}

/// List stored checkpoints
#[utoipa::path(get, path = "/criu", responses((status = 200, body = CheckpointList)))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> Response {
    let checkpoints = state.criu.list_checkpoints().await;
    json_response(StatusCode::OK, CheckpointList { checkpoints })
}

/// Remove a checkpoint
///
/// All generations of the checkpoint are removed.
#[utoipa::path(delete, path = "/criu/{name}", params(("name" = String, Path, description = "Name of the checkpoint")), responses(
    (status = 200, body = CriuRemoved),
    (status = 404, description = "The checkpoint does not exist.", body = FailedReply),
    (status = 409, description = "A kernel is in the checkpoint.", body = FailedReply),
))]
pub(super) async fn remove(Shared(state): Shared<HttpState>, PathId(name): PathId) -> Response {
    result_response(state.criu.remove_checkpoint(name).await)
}

/// Show checkpoint support and stored checkpoints
///
/// If the host does not support checkpoints, the reply has the reason.
#[utoipa::path(get, path = "/criu/status", responses((status = 200, body = CriuStatus)))]
pub(super) async fn status(Shared(state): Shared<HttpState>) -> Response {
    json_response(StatusCode::OK, state.criu.status().await)
}

fn result_response(done: Result<impl Serialize, CriuRefusal>) -> Response {
    match done {
        Ok(reply) => json_response(StatusCode::OK, reply),
        Err(refusal) => refusal.into_response(),
    }
}

impl IntoResponse for CriuRefusal {
    fn into_response(self) -> Response {
        match self {
            Self::Kernel(refusal) => refusal.into_response(),
            other => {
                let (status, error) = other.into_http_error();
                json_response(status, FailedReply::from(error))
            }
        }
    }
}

/// The name in the path of a checkpoint, `…/NAME/NUMBER`.
fn checkpoint_name(checkpoint: &str) -> String {
    let name = Path::new(checkpoint).parent().and_then(Path::file_name);
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// The command that restores the generation beside a damaged one.
fn intact_generation_hint(damaged: &str, other: u64) -> String {
    let name = checkpoint_name(damaged);
    format!("`osctl criu restore {name} --generation {other}` restores an intact generation")
}

/// The command that replaces a session by an empty one.
fn reset_command(session: &str) -> String {
    match session {
        DEFAULT_SESSION => "`osctl reset`".into(),
        other => format!("`osctl reset --session {other}`"),
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

impl CriuRefusal {
    /// Returns the HTTP status and the error text.
    fn into_http_error(self) -> (StatusCode, ApiError) {
        let message = self.message();
        let (status, kind, hint): (_, _, String) = match self {
            Self::Kernel(refusal) => return refusal.into_http_error(),
            Self::Invalid(_) => (
                StatusCode::BAD_REQUEST,
                "invalid_field",
                FIELD_DOCS_HINT.into(),
            ),
            Self::Unavailable(_) => (
                StatusCode::NOT_IMPLEMENTED,
                "criu_unavailable",
                "`osctl up --criu` enables checkpoints; `osctl criu status` shows what is missing"
                    .into(),
            ),
            Self::NoCheckpoint { .. } => (
                StatusCode::NOT_FOUND,
                "unknown_checkpoint",
                "`osctl criu status` lists the checkpoints".into(),
            ),
            Self::Damaged {
                path,
                other_generation,
                ..
            } => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "damaged_checkpoint",
                match other_generation {
                    Some(other_generation) => intact_generation_hint(&path, other_generation),
                    None => format!(
                        "`osctl cryo reload {CHECKPOINT_STATE_PREFIX}{}` restores the variables that were stored with the checkpoint",
                        checkpoint_name(&path)
                    ),
                },
            ),
            Self::FilesChanged(_) => (
                StatusCode::CONFLICT,
                "files_changed",
                "restore the checkpoint in a container of the image that it was made in".into(),
            ),
            Self::ProtocolMismatch(_) => (
                StatusCode::CONFLICT,
                "other_protocol",
                "restore the checkpoint with the version of osctl that made it".into(),
            ),
            Self::PidsInUse(_) => (
                StatusCode::CONFLICT,
                "process_ids_in_use",
                "end the processes with these IDs, or run `osctl restart`".into(),
            ),
            refusal if refusal.is_disk_full() => (
                StatusCode::INSUFFICIENT_STORAGE,
                "disk_full",
                "remove files in the container; `osctl shell df -h` shows the disk usage".into(),
            ),
            Self::InUse { name, session } => {
                let reset = reset_command(&session);
                let hint =
                    format!("`osctl criu restore {name}` restores the kernel, {reset} discards it");
                (StatusCode::CONFLICT, "in_use", hint)
            }
            Self::NotRemoved(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "stays",
                "`osctl logs` shows more".into(),
            ),
            Self::NotCheckpointed { reason, .. } => (
                StatusCode::CONFLICT,
                "not_checkpointed",
                reason
                    .hint
                    .unwrap_or("`osctl logs` shows the output of CRIU")
                    .into(),
            ),
            Self::NotRestored { reason, .. } => (
                StatusCode::CONFLICT,
                "not_restored",
                reason
                    .hint
                    .unwrap_or("`osctl logs` shows the output of CRIU")
                    .into(),
            ),
        };
        (status, ApiError::new(kind, message).with_hint(hint))
    }
}

#[cfg(test)]
mod tests {
    use super::checkpoint_hint;
    use crate::companion::criu::CriuRefusal;

    #[test]
    fn checkpoint_hint_names_both_commands() {
        let hint = checkpoint_hint("default", "/data/criu/work/4");
        assert!(
            hint.contains("`osctl criu restore work --generation 4`"),
            "{hint}"
        );
        assert!(hint.contains("`osctl reset`"), "{hint}");
        let other = checkpoint_hint("second", "/data/criu/second/1");
        assert!(other.contains("`osctl reset --session second`"), "{other}");
    }

    #[test]
    fn the_hint_of_a_damaged_checkpoint_is_the_command_for_a_whole_one() {
        let hint = |other_generation| {
            let damaged = CriuRefusal::Damaged {
                path: "/data/criu/work/4".into(),
                why: "`pages-1.img` is missing".into(),
                other_generation,
            };
            damaged.into_http_error().1.hint.unwrap()
        };
        let hint_text = hint(None);
        assert!(
            hint_text.contains("`osctl cryo reload criu-work`"),
            "{hint_text}"
        );
        let hint = hint(Some(3));
        assert!(
            hint.contains("`osctl criu restore work --generation 3`"),
            "{hint}"
        );
    }
}
