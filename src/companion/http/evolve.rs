//! Routes of evolving: they forward requests to the keeper. What the keeper asks of the container arrives only over the
//! private socket.

use super::response::{JsonBody, PathId, QueryParams, error_response, invalid_field_response};
use super::stream::StreamFormat;
use super::{HttpState, json_response};
use crate::companion::evolve::{EvolveRefusal, KeeperReplyStream, unexpected_reply};
use crate::protocol::error::{ApiError, FailedReply};
use crate::protocol::evolve::container_reports::ExpectedState;
use crate::protocol::evolve::{
    EvolveEvent, EvolveLog, EvolveRequest, EvolveRun, EvolveRunId, EvolveRuns, EvolveStarted,
    EvolveStatus, KeeperReply, KeeperRequest, RollbackRequest, refusal,
};
use axum::body::{Body as Streamed, Bytes};
use axum::extract::State as Shared;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::stream::unfold;
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
) -> Response {
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
) -> Response {
    start_evolve_run(&state, &KeeperRequest::Rollback(request)).await
}

async fn start_evolve_run(state: &HttpState, request: &KeeperRequest) -> Response {
    match state.evolve.request_keeper(request).await {
        Ok((KeeperReply::Started { run }, _)) => {
            state.evolve.record_runs();
            let status = "started".into();
            json_response(StatusCode::OK, EvolveStarted { status, run })
        }
        Ok((other, _)) => unexpected_reply(&other).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// Show the current and the last run of evolve
#[utoipa::path(get, path = "/evolve/status", responses(
    (status = 200, body = EvolveStatus),
    (status = 503, description = "No keeper is available, or the keeper does not answer.", body = FailedReply),
))]
pub(super) async fn status(Shared(state): Shared<HttpState>) -> Response {
    match state.evolve.request_keeper(&KeeperRequest::Status {}).await {
        Ok((KeeperReply::Status(status), _)) => json_response(StatusCode::OK, status),
        Ok((other, _)) => unexpected_reply(&other).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// List the runs of evolve
///
/// The newest run is first. The entries have no checks and no receipts.
#[utoipa::path(get, path = "/evolve/runs", responses(
    (status = 200, body = EvolveRuns),
    (status = 503, description = "No keeper is available, or the keeper does not answer.", body = FailedReply),
))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> Response {
    match state.evolve.fetch_history().await {
        Ok(runs) => json_response(StatusCode::OK, EvolveRuns { runs }),
        Err(refusal) => refusal.into_response(),
    }
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
) -> Response {
    let run: EvolveRunId = match run.parse() {
        Ok(run) => run,
        Err(why) => return invalid_field_response(why),
    };
    let format = StreamFormat::from_accept_header(&headers);
    let follow = format.is_some();
    let request = KeeperRequest::Log {
        run,
        offset,
        follow,
    };
    match (state.evolve.request_keeper(&request).await, format) {
        (Ok((first, rest)), Some(format)) => stream_log(first, rest, format),
        (Ok((first, rest)), None) => match collect_log(first, rest, offset).await {
            Ok(found) => json_response(StatusCode::OK, found),
            Err(refusal) => refusal.into_response(),
        },
        (Err(refusal), _) => refusal.into_response(),
    }
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

impl IntoResponse for EvolveRefusal {
    fn into_response(self) -> Response {
        use StatusCode as S;
        match self {
            Self::NoKeeper(why) => error_response(
                S::SERVICE_UNAVAILABLE,
                "no_keeper",
                format!("no keeper is available: {why}"),
                Some("`osctl up` on the host starts the keeper"),
            ),
            Self::NoReply(why) => error_response(
                S::SERVICE_UNAVAILABLE,
                "no_keeper_reply",
                format!("no valid reply from the keeper: {why}"),
                Some("`osctl evolve status` on the host shows details"),
            ),
            Self::Busy(run) => error_response(
                S::CONFLICT,
                "evolving",
                format!("evolve {run} is in progress"),
                Some("`GET /evolve/status` reports its progress"),
            ),
            Self::Invalid(message) => invalid_field_response(message),
            Self::Keeper(ApiError {
                kind,
                message,
                hint,
            }) => {
                let status = match kind.as_str() {
                    refusal::KEEPER_BAD_REQUEST => S::BAD_REQUEST,
                    refusal::KEEPER_FORBIDDEN => S::FORBIDDEN,
                    refusal::KEEPER_NO_SUCH_RUN => S::NOT_FOUND,
                    refusal::KEEPER_RATE_LIMITED | refusal::FORMER_KEEPER_RATE_LIMITED => {
                        S::TOO_MANY_REQUESTS
                    }
                    _ => S::SERVICE_UNAVAILABLE,
                };
                let mut response = error_response(status, &kind, message, hint.as_deref());
                if status == S::TOO_MANY_REQUESTS {
                    let later = HeaderValue::from_static("30");
                    response.headers_mut().insert(header::RETRY_AFTER, later);
                }
                response
            }
        }
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

async fn store_and_pin(Shared(state): Shared<HttpState>) -> Response {
    json_response(StatusCode::OK, state.evolve.store_and_pin().await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SelftestRequest {
    /// State to restore, in the format of the data folder.
    snapshot: Option<PathBuf>,
}

async fn selftest(
    Shared(state): Shared<HttpState>,
    JsonBody(prove): JsonBody<SelftestRequest>,
) -> Response {
    json_response(StatusCode::OK, state.evolve.selftest(prove.snapshot).await)
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
) -> Response {
    let grace = rest.grace.unwrap_or(DEFAULT_QUIESCE_SECONDS);
    if !(0.0..=MAX_QUIESCE_SECONDS).contains(&grace) {
        return invalid_field_response(format!(
            "`grace` must be from 0 to {MAX_QUIESCE_SECONDS} seconds"
        ));
    }
    let grace = Duration::from_secs_f64(grace);
    json_response(
        StatusCode::OK,
        state.evolve.quiesce(grace, rest.force).await,
    )
}

async fn resume(Shared(state): Shared<HttpState>) -> Response {
    json_response(StatusCode::OK, state.evolve.resume().await)
}

async fn verify(
    Shared(state): Shared<HttpState>,
    JsonBody(expected): JsonBody<ExpectedState>,
) -> Response {
    json_response(StatusCode::OK, state.evolve.verify(&expected).await)
}

#[cfg(test)]
mod tests {
    use super::{ApiError, EvolveRefusal, IntoResponse, StatusCode, refusal};

    #[test]
    fn both_words_of_the_rate_limit_have_its_status() {
        for kind in [
            refusal::KEEPER_RATE_LIMITED,
            refusal::FORMER_KEEPER_RATE_LIMITED,
        ] {
            let refused = EvolveRefusal::Keeper(ApiError::new(kind, "no more runs"));
            let status = refused.into_response().status();
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        }
    }
}
