//! Routes that checkpoint and restore whole kernels.

use super::HttpState;
use super::progress_stream::answer_long;
use crate::protocol::criu::{
    CheckpointList, CheckpointReply, CheckpointRequest, CriuRemoved, CriuRestored, CriuStatus,
    RestoreRequest,
};
use crate::protocol::error::FailedReply;
use crate::protocol::progress::ProgressEvent;
use axum::Json;
use axum::extract::State as Shared;
use axum::http::HeaderMap;
use osctl_support::api::{ApiRefusal, ApiResult, JsonBody, PathId};

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
) -> ApiResult {
    let (criu, session) = (state.criu.clone(), request.session.clone());
    let measure = move || criu.transferred_bytes(&session);
    let work = async move { state.criu.checkpoint(request).await };
    answer_long(&headers, measure, work, ApiRefusal::from).await
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
) -> ApiResult {
    let (criu, session) = (state.criu.clone(), request.session.clone());
    let measure = move || criu.transferred_bytes(&session);
    let work = async move { state.criu.restore(request).await };
    answer_long(&headers, measure, work, ApiRefusal::from).await
}

/// List stored checkpoints
#[utoipa::path(get, path = "/criu", responses((status = 200, body = CheckpointList)))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> Json<CheckpointList> {
    let checkpoints = state.criu.list_checkpoints().await;
    Json(CheckpointList { checkpoints })
}

/// Remove a checkpoint
///
/// All generations of the checkpoint are removed.
#[utoipa::path(delete, path = "/criu/{name}", params(("name" = String, Path, description = "Name of the checkpoint")), responses(
    (status = 200, body = CriuRemoved),
    (status = 404, description = "The checkpoint does not exist.", body = FailedReply),
    (status = 409, description = "A kernel is in the checkpoint.", body = FailedReply),
))]
pub(super) async fn remove(
    Shared(state): Shared<HttpState>,
    PathId(name): PathId,
) -> ApiResult<Json<CriuRemoved>> {
    Ok(Json(state.criu.remove_checkpoint(name).await?))
}

/// Show checkpoint support and stored checkpoints
///
/// If the host does not support checkpoints, the reply has the reason.
#[utoipa::path(get, path = "/criu/status", responses((status = 200, body = CriuStatus)))]
pub(super) async fn status(Shared(state): Shared<HttpState>) -> Json<CriuStatus> {
    Json(state.criu.status().await)
}
