//! Routes that execute code.

use super::response::{
    JsonBody, PathId, QueryParams, execution_refusal_response, invalid_field_response,
};
use super::run_response::{
    self, RunFindQuery, RunOutputQuery, is_run_id, output_page, wait_for_run,
};
use super::stream::{self, StreamFormat};
use super::{HttpState, json_response};
use crate::protocol::error::FailedReply;
use crate::protocol::kernel::{ExecReply, Execute, OutputPage, RunDetails, RunEvent, RunList};
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

/// Execute Python code in a session
///
/// The kernel of the session keeps its variables.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the reply is a stream of events until `done`, or for
/// `wait` seconds.
#[utoipa::path(post, path = "/exec", request_body = Execute, responses(
    (status = 200, description = "The run at its end or after `wait` seconds. After an exception of the code the status is `failed`.", content(
        (ExecReply = "application/json"), (RunEvent = "text/event-stream"), (RunEvent = "application/x-ndjson"),
    )),
    (status = 400, description = "The request body is not valid JSON, or a field is invalid.", body = FailedReply),
    (status = 404, description = "The session does not exist.", body = FailedReply),
    (status = 409, description = "The ID belongs to another request.", body = FailedReply),
    (status = 413, description = "The body is larger than 64 MiB.", body = FailedReply),
    (status = 429, description = "The kernel executes other code, and `queue` is not set.", body = FailedReply),
    (status = 507, description = "`durable` is `true`, and the run can't be written to disk; nothing was executed.", body = FailedReply),
    (status = 503, description = "The kernel can't be started, the companion is stopping, or the kernel is in a checkpoint (`is_checkpointed` is `true`).", body = FailedReply),
))]
pub(super) async fn execute(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<Execute>,
) -> Response {
    if let Some(refusal) = run_response::check_durations(request.timeout, request.wait) {
        return refusal;
    }
    if let Some(id) = request.id.as_deref().filter(|id| !is_run_id(id)) {
        return invalid_field_response(format!(
            "`{id}` is not a valid ID: use at most 128 letters, digits, `-`, `_` and `.`"
        ));
    }
    let wait = request.wait;
    match (
        state.sessions.execute(request).await,
        StreamFormat::from_accept_header(&headers),
    ) {
        (Ok(run), Some(format)) => {
            run.wait_begin_synced().await;
            let reported = run.clone();
            let running = move || state.sessions.kernel_report(&reported);
            stream::stream_run_events(run.follow(0), running, wait, format)
        }
        (Ok(run), None) => {
            wait_for_run(&run, wait).await;
            json_response(
                StatusCode::OK,
                run.build_reply(state.sessions.kernel_report(&run)),
            )
        }
        (Err(refusal), _) => execution_refusal_response(refusal),
    }
}

/// List retained runs
///
/// The oldest run is first.
#[utoipa::path(get, path = "/exec", responses((status = 200, body = RunList)))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> Response {
    let runs = state.sessions.list_runs();
    state.sessions.run_registry().wait_synced().await;
    let runs = runs.iter().map(|run| run.summary()).collect();
    json_response(StatusCode::OK, RunList { runs })
}

/// Show a run and its events
///
/// Any client can read any run.
/// With `Accept: text/event-stream` or `application/x-ndjson` the reply is a stream of events from `offset`, or after
/// `Last-Event-ID`.
#[utoipa::path(get, path = "/exec/{id}", params(("id" = String, Path, description = "ID of the run"), RunFindQuery), responses(
    (status = 200, content(
        (RunDetails = "application/json"), (RunEvent = "text/event-stream"), (RunEvent = "application/x-ndjson"),
    )),
    (status = 404, description = "The run does not exist.", body = FailedReply),
))]
pub(super) async fn find(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
    PathId(id): PathId,
    QueryParams(query): QueryParams<RunFindQuery>,
) -> Response {
    let run = state.sessions.find_run(&id);
    run_response::run_response(
        run,
        move |run| state.sessions.kernel_report(run),
        &headers,
        query,
    )
    .await
}

/// Read a page of the output of a run
#[utoipa::path(get, path = "/exec/{id}/output", params(("id" = String, Path, description = "ID of the run"), RunOutputQuery), responses(
    (status = 200, body = OutputPage),
    (status = 404, description = "The run does not exist.", body = FailedReply),
))]
pub(super) async fn output(
    Shared(state): Shared<HttpState>,
    PathId(id): PathId,
    QueryParams(query): QueryParams<RunOutputQuery>,
) -> Response {
    match state.sessions.find_run(&id) {
        Ok(run) => output_page(&run, query).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Interrupt a run
///
/// The reply reports how the run ended and whether the state of the kernel is kept.
#[utoipa::path(delete, path = "/exec/{id}", params(("id" = String, Path, description = "ID of the run")), responses(
    (status = 200, body = ExecReply),
    (status = 404, description = "The run does not exist.", body = FailedReply),
))]
pub(super) async fn interrupt(Shared(state): Shared<HttpState>, PathId(id): PathId) -> Response {
    match state.sessions.interrupt_run(&id).await {
        Ok(run) => json_response(
            StatusCode::OK,
            run.build_reply(state.sessions.kernel_report(&run)),
        ),
        Err(refusal) => refusal.into_response(),
    }
}
