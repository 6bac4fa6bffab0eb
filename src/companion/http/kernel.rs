//! Routes that execute code.

use super::HttpState;
use super::run_response::{
    self, RunFindQuery, RunOutputQuery, is_run_id, output_page, wait_for_run,
};
use super::stream::{self, StreamFormat};
use crate::companion::activity::Caller;
use crate::companion::kernel::KernelRefusal;
use crate::protocol::activity::ActivityKind;
use crate::protocol::error::FailedReply;
use crate::protocol::kernel::{ExecReply, Execute, OutputPage, RunDetails, RunEvent, RunList};
use axum::extract::State as Shared;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use osctl_support::api::{ApiRefusal, ApiResult, JsonBody, PathId, QueryParams};

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
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<Execute>,
) -> ApiResult {
    run_response::check_durations(request.timeout, request.wait)?;
    if let Some(id) = request.id.as_deref().filter(|id| !is_run_id(id)) {
        return Err(ApiRefusal::invalid_field(format!(
            "`{id}` is not a valid ID: use at most 128 letters, digits, `-`, `_` and `.`"
        )));
    }
    let (wait, silent) = (request.wait, request.silent);
    let run = state.sessions.execute(request).await;
    let run = run.map_err(execution_refusal)?;
    // Front ends ask with silent runs; the user did nothing.
    if !silent {
        state.activity.record_run(ActivityKind::Exec, &caller, &run);
    }
    Ok(match StreamFormat::from_accept_header(&headers) {
        Some(format) => {
            run.wait_begin_synced().await;
            let reported = run.clone();
            let running = move || state.sessions.kernel_report(&reported);
            stream::stream_run_events(run.follow(0), running, wait, format)
        }
        None => {
            wait_for_run(&run, wait).await;
            Json(run.build_reply(state.sessions.kernel_report(&run))).into_response()
        }
    })
}

/// The refusal of code. Only code can be queued, so only this refusal suggests `queue`.
fn execution_refusal(refusal: KernelRefusal) -> ApiRefusal {
    let is_busy = refusal == KernelRefusal::Busy;
    let refusal = ApiRefusal::from(refusal);
    match is_busy {
        true => refusal.with_hint("send `\"queue\": true` to queue the code"),
        false => refusal,
    }
}

/// List retained runs
///
/// The oldest run is first.
#[utoipa::path(get, path = "/exec", responses((status = 200, body = RunList)))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> Json<RunList> {
    let runs = state.sessions.list_runs();
    state.sessions.run_registry().wait_synced().await;
    let runs = runs.iter().map(|run| run.summary()).collect();
    Json(RunList { runs })
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
) -> ApiResult {
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
) -> ApiResult<Json<OutputPage>> {
    let run = state.sessions.find_run(&id)?;
    output_page(&run, query).await
}

/// Interrupt a run
///
/// The reply reports how the run ended and whether the state of the kernel is kept.
#[utoipa::path(delete, path = "/exec/{id}", params(("id" = String, Path, description = "ID of the run")), responses(
    (status = 200, body = ExecReply),
    (status = 404, description = "The run does not exist.", body = FailedReply),
))]
pub(super) async fn interrupt(
    Shared(state): Shared<HttpState>,
    PathId(id): PathId,
) -> ApiResult<Json<ExecReply>> {
    let run = state.sessions.interrupt_run(&id).await?;
    let report = state.sessions.kernel_report(&run);
    Ok(Json(run.build_reply(report)))
}

#[cfg(test)]
mod tests {
    use super::{ApiRefusal, KernelRefusal, execution_refusal};

    #[test]
    fn only_refused_code_gets_the_queue_hint() {
        let hint = |refusal: ApiRefusal| refusal.into_parts().1.hint.unwrap_or_default();
        assert!(hint(execution_refusal(KernelRefusal::Busy)).contains("queue"));
        let other = hint(KernelRefusal::Busy.into());
        assert!(
            !other.contains("queue") && other.contains("`osctl interrupt`"),
            "{other}"
        );
        assert_eq!(hint(execution_refusal(KernelRefusal::ShuttingDown)), "");
    }
}
