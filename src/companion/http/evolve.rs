//! Routes of evolving: they forward requests to the keeper. What the keeper asks of the container arrives only over the
//! private socket.

use super::HttpState;
use super::stream::StreamFormat;
use crate::companion::evolve::{EvolveRefusal, KeeperReplyStream, unexpected_reply};
use crate::protocol::error::FailedReply;
use crate::protocol::evolve::container_reports::ExpectedState;
use crate::protocol::evolve::{
    EvolveEvent, EvolveLog, EvolveRequest, EvolveRun, EvolveRunId, EvolveRuns, EvolveStarted,
    EvolveStatus, KeeperReply, KeeperRequest, RollbackRequest,
};
use axum::Json;
use axum::body::{Body as Streamed, Bytes};
use axum::extract::State as Shared;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::stream::unfold;
use osctl_support::api::{ApiRefusal, ApiResult, JsonBody, PathId, QueryParams};
use serde::Deserialize;
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;
use utoipa::IntoParams;

/// Seconds that running code gets to finish, unless the keeper names another number.
const DEFAULT_QUIESCE_SECONDS: f64 = 30.0;

/// Maximum seconds that the keeper may name.
const MAX_QUIESCE_SECONDS: f64 = 24.0 * 3600.0;

/// Start an evolve
///
/// The keeper builds an image from `body/` of the project and replaces the container. The new container receives the
/// state of the kernels. The keeper rolls back if the new container fails its checks.
///
/// The reply does not wait for the run; `GET /evolve/status` reports the run.
#[utoipa::path(post, path = "/evolve", request_body = Option<EvolveRequest>, responses(
    (status = 200, description = "The run has started.", body = EvolveStarted),
    (status = 400, description = "A field is invalid. A request can't set an image, a mount, a command or an environment.", body = FailedReply),
    (status = 409, description = "Another run is in progress.", body = FailedReply),
    (status = 429, description = "The agent has reached its limit of runs per hour.", body = FailedReply),
    (status = 503, description = "No keeper is available, or the keeper does not answer.", body = FailedReply),
))]
pub(super) async fn begin(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<EvolveRequest>,
) -> ApiResult<Json<EvolveStarted>> {
    start_evolve_run(&state, &KeeperRequest::Evolve(request)).await
}

/// Roll back to an earlier image
///
/// The target is the previous image, or the image of `run`. The checks are those of an evolve.
#[utoipa::path(post, path = "/evolve/rollback", request_body = Option<RollbackRequest>, responses(
    (status = 200, description = "The run has started.", body = EvolveStarted),
    (status = 404, description = "No earlier image exists.", body = FailedReply),
    (status = 409, description = "Another run is in progress.", body = FailedReply),
    (status = 429, description = "The agent has reached its limit of runs per hour.", body = FailedReply),
    (status = 503, description = "No keeper is available, or the keeper does not answer.", body = FailedReply),
))]
pub(super) async fn rollback(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<RollbackRequest>,
) -> ApiResult<Json<EvolveStarted>> {
    start_evolve_run(&state, &KeeperRequest::Rollback(request)).await
}

async fn start_evolve_run(
    state: &HttpState,
    request: &KeeperRequest,
) -> ApiResult<Json<EvolveStarted>> {
    match state.evolve.request_keeper(request).await? {
        (KeeperReply::Started { run }, _) => {
            state.evolve.record_runs();
            let status = "started".into();
            Ok(Json(EvolveStarted { status, run }))
        }
        (other, _) => Err(unexpected_reply(&other).into()),
    }
}

/// Show the current and the last run of evolve
#[utoipa::path(get, path = "/evolve/status", responses(
    (status = 200, body = EvolveStatus),
    (status = 503, description = "No keeper is available, or the keeper does not answer.", body = FailedReply),
))]
pub(super) async fn status(Shared(state): Shared<HttpState>) -> ApiResult<Json<EvolveStatus>> {
    match state
        .evolve
        .request_keeper(&KeeperRequest::Status {})
        .await?
    {
        (KeeperReply::Status(status), _) => Ok(Json(status)),
        (other, _) => Err(unexpected_reply(&other).into()),
    }
}

/// List the runs of evolve
///
/// The newest run is first. The entries have no checks and no receipts.
#[utoipa::path(get, path = "/evolve/runs", responses(
    (status = 200, body = EvolveRuns),
    (status = 503, description = "No keeper is available, or the keeper does not answer.", body = FailedReply),
))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> ApiResult<Json<EvolveRuns>> {
    let runs = state.evolve.fetch_history().await?;
    Ok(Json(EvolveRuns { runs }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct EvolveLogQuery {
    /// Offset in the log in bytes.
    #[serde(default)]
    offset: u64,
}

/// Show a run of evolve and its log
///
/// The log starts at byte `offset`. With `Accept: text/event-stream` or `application/x-ndjson` the reply is a stream of
/// changes of the run and of the log until the run ends.
#[utoipa::path(get, path = "/evolve/runs/{run}", params(("run" = String, Path, description = "ID of the run"), EvolveLogQuery), responses(
    (status = 200, content(
        (EvolveRun = "application/json"), (EvolveEvent = "text/event-stream"), (EvolveEvent = "application/x-ndjson"),
    )),
    (status = 404, description = "The run does not exist.", body = FailedReply),
    (status = 503, description = "No keeper is available, or the keeper does not answer.", body = FailedReply),
))]
pub(super) async fn find(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
    PathId(run): PathId,
    QueryParams(EvolveLogQuery { offset }): QueryParams<EvolveLogQuery>,
) -> ApiResult {
    let run: EvolveRunId = run.parse().map_err(ApiRefusal::invalid_field)?;
    let format = StreamFormat::from_accept_header(&headers);
    let follow = format.is_some();
    let request = KeeperRequest::Log {
        run,
        offset,
        follow,
    };
    let (first, rest) = state.evolve.request_keeper(&request).await?;
    Ok(match format {
        Some(format) => stream_log(first, rest, format),
        None => Json(collect_log(first, rest, offset).await?).into_response(),
    })
}

async fn collect_log(
    first: KeeperReply,
    mut rest: KeeperReplyStream,
    offset: u64,
) -> Result<EvolveRun, EvolveRefusal> {
    let mut log = EvolveLog {
        offset,
        text: String::new(),
        next: offset,
    };
    let mut next = Some(first);
    while let Some(reply) = next {
        match evolve_event(reply)? {
            EvolveEvent::Log(piece) => {
                if log.text.is_empty() {
                    log.offset = piece.offset;
                }
                log.text += &piece.text;
                log.next = piece.next;
            }
            EvolveEvent::Record(record) => {
                return Ok(EvolveRun {
                    record: *record,
                    log,
                });
            }
        }
        next = rest
            .next_reply()
            .await
            .map_err(|error| EvolveRefusal::NoReply(error.to_string()))?;
    }
    Err(EvolveRefusal::NoReply(
        "the keeper closed the connection".into(),
    ))
}

fn stream_log(first: KeeperReply, rest: KeeperReplyStream, format: StreamFormat) -> Response {
    let pieces = unfold((Some(first), rest), move |(first, mut rest)| async move {
        let reply = match first {
            Some(reply) => reply,
            None => rest.next_reply().await.ok()??,
        };
        let line = format.encode_message(&evolve_event(reply).ok()?);
        Some((Ok::<Bytes, Infallible>(line), (None, rest)))
    });
    let headers = [(header::CONTENT_TYPE, format.content_type())];
    (headers, Streamed::from_stream(pieces)).into_response()
}

fn evolve_event(reply: KeeperReply) -> Result<EvolveEvent, EvolveRefusal> {
    match reply {
        KeeperReply::Log { offset, text, next } => {
            Ok(EvolveEvent::Log(EvolveLog { offset, text, next }))
        }
        KeeperReply::Record(record) => Ok(EvolveEvent::Record(record)),
        other => Err(unexpected_reply(&other)),
    }
}

/// Routes for the keeper, which calls them through hidden verbs inside the container.
pub(super) fn private_routes() -> axum::Router<HttpState> {
    axum::Router::new()
        .route("/evolve/remember", post(store_and_pin))
        .route("/evolve/selftest", post(selftest))
        .route("/evolve/quiesce", post(quiesce))
        .route("/evolve/resume", post(resume))
        .route("/evolve/verify", post(verify))
}

async fn store_and_pin(Shared(state): Shared<HttpState>) -> impl IntoResponse {
    Json(state.evolve.store_and_pin().await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SelftestRequest {
    /// State to restore, in the format of the data folder.
    snapshot: Option<PathBuf>,
    /// Whether the image is that of the current container.
    #[serde(default)]
    same_image: bool,
}

async fn selftest(
    Shared(state): Shared<HttpState>,
    JsonBody(prove): JsonBody<SelftestRequest>,
) -> impl IntoResponse {
    Json(
        state
            .evolve
            .selftest(prove.snapshot, prove.same_image)
            .await,
    )
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuiesceRequest {
    /// Seconds that running code gets to finish.
    grace: Option<f64>,
    #[serde(default)]
    force: bool,
}

async fn quiesce(
    Shared(state): Shared<HttpState>,
    JsonBody(rest): JsonBody<QuiesceRequest>,
) -> ApiResult<impl IntoResponse> {
    let grace = rest.grace.unwrap_or(DEFAULT_QUIESCE_SECONDS);
    if !(0.0..=MAX_QUIESCE_SECONDS).contains(&grace) {
        return Err(ApiRefusal::invalid_field(format!(
            "`grace` must be from 0 to {MAX_QUIESCE_SECONDS} seconds"
        )));
    }
    let grace = Duration::from_secs_f64(grace);
    Ok(Json(state.evolve.quiesce(grace, rest.force).await))
}

async fn resume(Shared(state): Shared<HttpState>) -> impl IntoResponse {
    Json(state.evolve.resume().await)
}

async fn verify(
    Shared(state): Shared<HttpState>,
    JsonBody(expected): JsonBody<ExpectedState>,
) -> impl IntoResponse {
    Json(state.evolve.verify(&expected).await)
}
