//! Routes that store and reload a session's objects.

use super::HttpState;
use super::progress_stream::{answer_long, stream_progress};
use super::stream::StreamFormat;
use crate::companion::cryo::CryoRefusal;
use crate::protocol::cryo::{
    CryoListing, CryoRemoved, CryoStore, CryoStored, GenerationDetails, ReloadReply, ReloadRequest,
    SessionSnapshot, SnapshotReply, SnapshotRequest, StoreReason,
};
use crate::protocol::error::FailedReply;
use crate::protocol::progress::ProgressEvent;
use axum::Json;
use axum::extract::State as Shared;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use osctl_support::api::{ApiResult, JsonBody, PathId, QueryParams};
use serde::Deserialize;
use utoipa::IntoParams;

/// Store the variables of a session
///
/// The reply reports the result for each variable.
/// With `Accept: text/event-stream` or `application/x-ndjson` the reply is a stream of progress events with the number
/// of bytes, then the result.
#[utoipa::path(post, path = "/cryo/store", request_body = Option<CryoStore>, responses(
    (status = 200, content(
        (CryoStored = "application/json"), (ProgressEvent<CryoStored> = "text/event-stream"), (ProgressEvent<CryoStored> = "application/x-ndjson"),
    )),
    (status = 404, description = "The session does not exist.", body = FailedReply),
    (status = 409, description = "A variable would be lost and `strict` is set, or the generation of the kernel is not `seen`.", body = FailedReply),
    (status = 429, description = "The session is executing code.", body = FailedReply),
    (status = 507, description = "The disk is full; earlier stored states are unchanged.", body = FailedReply),
))]
pub(super) async fn store(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CryoStore>,
) -> ApiResult {
    let cryo = state.cryo.clone();
    let session = request.session.clone();
    let measure = move || (cryo.transferred_bytes(&session), None);
    let work = async move { state.cryo.store(request, StoreReason::Requested).await };
    answer_long(&headers, measure, work, CryoRefusal::into_listed_refusal).await
}

/// Restore a stored state into a session
///
/// The reply reports for each variable what the session holds afterwards.
/// With `Accept: text/event-stream` or `application/x-ndjson` the reply is a stream of progress events with the number
/// of bytes, then the result.
#[utoipa::path(post, path = "/cryo/reload", request_body = Option<ReloadRequest>, responses(
    (status = 200, content(
        (ReloadReply = "application/json"), (ProgressEvent<ReloadReply> = "text/event-stream"), (ProgressEvent<ReloadReply> = "application/x-ndjson"),
    )),
    (status = 404, description = "The session or the stored state does not exist.", body = FailedReply),
    (status = 422, description = "The stored state is damaged; the hint names an intact generation if one exists.", body = FailedReply),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn reload(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ReloadRequest>,
) -> ApiResult {
    let cryo = state.cryo.clone();
    let (working, session) = (cryo.clone(), request.session.clone());
    let Some(format) = StreamFormat::from_accept_header(&headers) else {
        return Ok(Json(cryo.reload(request).await?).into_response());
    };
    let total = cryo.total_bytes(&request).await;
    let work = async move {
        working
            .reload(request)
            .await
            .map_err(CryoRefusal::into_listed_refusal)
    };
    let measure = move || (cryo.transferred_bytes(&session), total);
    Ok(stream_progress(format, measure, work))
}

/// Store every session that has unsaved state
///
/// The name of a stored state is the name of its session. The `reason` `down` or `restart` says how the container stops
/// afterwards.
#[utoipa::path(post, path = "/cryo/snapshot", request_body = SnapshotRequest, responses(
    (status = 200, body = SnapshotReply),
))]
pub(super) async fn snapshot(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<SnapshotRequest>,
) -> Json<SnapshotReply> {
    let done = state.cryo.snapshot_before_stop(request).await;
    let each = done.into_iter().map(|(session, stored)| match stored {
        Ok(stored) => SessionSnapshot {
            session,
            stored,
            error: None,
        },
        Err(refusal) => SessionSnapshot {
            session,
            stored: None,
            error: Some(refusal.into_listed_refusal().into_parts().1),
        },
    });
    let snapshots = each.collect();
    Json(SnapshotReply { snapshots })
}

/// List stored states
///
/// The list is sorted by name; the newest generation of a name is first.
#[utoipa::path(get, path = "/cryo", responses((status = 200, body = CryoListing)))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> ApiResult<Json<CryoListing>> {
    let cryo = state.cryo.list_generation_lists().await?;
    Ok(Json(CryoListing { cryo }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct CryoGenerationQuery {
    /// Number of the generation.
    generation: Option<u64>,
}

/// Show a stored state and its receipt
///
/// Without `generation` the newest one of the name is shown.
#[utoipa::path(get, path = "/cryo/{name}", params(("name" = String, Path, description = "Name of the stored state"), CryoGenerationQuery), responses(
    (status = 200, body = GenerationDetails),
    (status = 404, description = "The name or the generation does not exist.", body = FailedReply),
    (status = 422, description = "The stored state is damaged; the hint names an intact generation if one exists.", body = FailedReply),
))]
pub(super) async fn show(
    Shared(state): Shared<HttpState>,
    PathId(name): PathId,
    QueryParams(which): QueryParams<CryoGenerationQuery>,
) -> ApiResult<Json<GenerationDetails>> {
    let found = state.cryo.show_generation(name, which.generation).await?;
    Ok(Json(found))
}

/// Remove stored states
///
/// Without `generation` all generations of the name are removed.
#[utoipa::path(delete, path = "/cryo/{name}", params(("name" = String, Path, description = "Name of the stored state"), CryoGenerationQuery), responses(
    (status = 200, body = CryoRemoved),
    (status = 404, description = "The name or the generation does not exist.", body = FailedReply),
))]
pub(super) async fn remove(
    Shared(state): Shared<HttpState>,
    PathId(name): PathId,
    QueryParams(which): QueryParams<CryoGenerationQuery>,
) -> ApiResult<Json<CryoRemoved>> {
    let removed = state
        .cryo
        .remove_generations(name, which.generation)
        .await?;
    Ok(Json(removed))
}
