//! Routes that store and reload a session's objects.

use super::progress_stream::stream_progress;
use super::response::{JsonBody, PathId, QueryParams};
use super::stream::StreamFormat;
use super::{HttpState, json_response};
use crate::companion::cryo::CryoRefusal;
use crate::companion::kernel;
use crate::protocol::cryo::{
    CryoListing, CryoRemoved, CryoStore, CryoStored, GenerationDetails, ReloadReply, ReloadRequest,
    SessionSnapshot, SnapshotReply, SnapshotRequest, StoreReason,
};
use crate::protocol::error::{ApiError, FailedReply};
use crate::protocol::progress::ProgressEvent;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
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
) -> Response {
    let cryo = state.cryo.clone();
    let (working, session) = (cryo.clone(), request.session.clone());
    let work = async move { working.store(request, StoreReason::Requested).await };
    match StreamFormat::from_accept_header(&headers) {
        Some(format) => {
            let measure = move || (cryo.transferred_bytes(&session), None);
            stream_progress(format, measure, async {
                work.await.map_err(CryoRefusal::into_http_error)
            })
        }
        None => result_response(work.await),
    }
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
) -> Response {
    let cryo = state.cryo.clone();
    let (working, session) = (cryo.clone(), request.session.clone());
    let Some(format) = StreamFormat::from_accept_header(&headers) else {
        return result_response(cryo.reload(request).await);
    };
    let total = cryo.total_bytes(&request).await;
    let work = async move {
        working
            .reload(request)
            .await
            .map_err(CryoRefusal::into_http_error)
    };
    stream_progress(
        format,
        move || (cryo.transferred_bytes(&session), total),
        work,
    )
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
) -> Response {
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
            error: Some(refusal.into_http_error().1),
        },
    });
    let snapshots = each.collect();
    json_response(StatusCode::OK, SnapshotReply { snapshots })
}

/// List stored states
///
/// The list is sorted by name; the newest generation of a name is first.
#[utoipa::path(get, path = "/cryo", responses((status = 200, body = CryoListing)))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> Response {
    result_response(
        state
            .cryo
            .list_generation_lists()
            .await
            .map(|cryo| CryoListing { cryo }),
    )
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
) -> Response {
    result_response(state.cryo.show_generation(name, which.generation).await)
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
) -> Response {
    result_response(state.cryo.remove_generations(name, which.generation).await)
}

fn result_response(done: Result<impl Serialize, CryoRefusal>) -> Response {
    match done {
        Ok(reply) => json_response(StatusCode::OK, reply),
        Err(refusal) => refusal.into_response(),
    }
}

impl CryoRefusal {
    /// Returns the HTTP status and the error text.
    pub(in crate::companion) fn into_http_error(self) -> (StatusCode, ApiError) {
        use StatusCode as S;
        match self {
            Self::Kernel(kernel::KernelRefusal::Busy) => (
                S::TOO_MANY_REQUESTS,
                ApiError::new("busy", "the kernel executes code")
                    .with_hint("wait, or interrupt the code with `osctl interrupt`"),
            ),
            Self::Kernel(kernel::KernelRefusal::NoSession(name)) => (
                S::NOT_FOUND,
                ApiError::new("unknown_session", format!("there is no session `{name}`"))
                    .with_hint("`osctl sessions ls` lists the sessions"),
            ),
            Self::Kernel(refusal) => refusal.into_http_error(),
            Self::Invalid(message) => (S::BAD_REQUEST, ApiError::new("invalid_field", message)),
            Self::NoName(name) => (
                S::NOT_FOUND,
                ApiError::new("nothing_stored", format!("nothing is stored as `{name}`"))
                    .with_hint("`osctl cryo ls` lists the stored states"),
            ),
            Self::NoGeneration {
                name,
                generation,
                newest,
            } => (
                S::NOT_FOUND,
                ApiError::new(
                    "unknown_generation",
                    format!("`{name}` has no generation {generation}; its newest is {newest}"),
                )
                .with_hint("`osctl cryo ls` lists all generations"),
            ),
            Self::Damaged {
                name,
                generation,
                why,
                previous,
            } => {
                let message = format!("generation {generation} of `{name}` can't be used: {why}");
                let hint = match previous {
                    Some(previous) => format!(
                        "`osctl cryo reload {name} --generation {previous}` restores the previous generation"
                    ),
                    None => format!(
                        "no earlier generation exists; `osctl cryo rm {name} --generation {generation}` removes this one"
                    ),
                };
                (
                    S::UNPROCESSABLE_ENTITY,
                    ApiError::new("damaged", message).with_hint(hint),
                )
            }
            Self::StrictLosses(message) => (
                S::CONFLICT,
                ApiError::new("losses", message)
                    .with_hint("omit `--strict` to store the rest; `--dry-run` shows the receipt"),
            ),
            Self::DiskFull => (
                S::INSUFFICIENT_STORAGE,
                ApiError::new(
                    "disk_full",
                    "the disk is full; earlier stored states are unchanged",
                )
                .with_hint(
                    "`osctl cryo ls` lists the stored states, and `osctl cryo rm NAME` removes one",
                ),
            ),
            Self::UserError(raised) => (
                S::UNPROCESSABLE_ENTITY,
                ApiError::new(&raised.kind, raised.message),
            ),
            Self::Failed(why) => {
                tracing::error!("cryo failed: {why}");
                (
                    S::INTERNAL_SERVER_ERROR,
                    ApiError::new("cryo", why).with_hint("`osctl logs` shows more"),
                )
            }
        }
    }
}
