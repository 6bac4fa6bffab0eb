//! Routes of sessions, and of kernel requests other than executing code.

use super::HttpState;
use crate::companion::kernel::{KernelAnswer, KernelQuery, KernelView, StopReason};
use crate::protocol::error::FailedReply;
use crate::protocol::kernel::{
    DEFAULT_SESSION, KernelReply, KernelReport, RunError, SessionRequest,
};
use crate::protocol::session::{
    CodeCursor, Completeness, CompletenessQuery, Completions, CreateSession, History, Inspection,
    SessionDeleted, SessionInfo, SessionList, Variable, VariableList,
};
use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use osctl_support::api::{ApiRefusal, ApiResult, JsonBody, PathId, QueryParams};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json as value};
use utoipa::IntoParams;

/// Remove all variables of a session
///
/// `runtime`, the working directory and the environment are kept.
#[utoipa::path(post, path = "/reset", request_body = Option<SessionRequest>, responses(
    (status = 200, body = KernelReply),
    (status = 404, description = "The session does not exist.", body = FailedReply),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn reset(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<SessionRequest>,
) -> ApiResult<Json<KernelReply>> {
    let answer = state
        .sessions
        .query(&request.session, KernelQuery::Reset)
        .await?;
    kernel_state_reply(answer)
}

/// Interrupt the running code of a session
///
/// The reply reports whether the state of the kernel is kept.
#[utoipa::path(post, path = "/interrupt", request_body = Option<SessionRequest>, responses(
    (status = 200, body = KernelReply),
    (status = 404, description = "The session does not exist.", body = FailedReply),
))]
pub(super) async fn interrupt(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<SessionRequest>,
) -> ApiResult<Json<KernelReply>> {
    let kernel = state.sessions.find_kernel(&request.session)?;
    Ok(kernel_report_reply(kernel.interrupt().await?))
}

/// Restart the kernel of a session
///
/// The companion ends the kernel, even while the kernel executes code, and starts another.
#[utoipa::path(post, path = "/restart", request_body = Option<SessionRequest>, responses(
    (status = 200, body = KernelReply),
    (status = 404, description = "The session does not exist.", body = FailedReply),
))]
pub(super) async fn restart(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<SessionRequest>,
) -> ApiResult<Json<KernelReply>> {
    let kernel = state.sessions.find_kernel(&request.session)?;
    kernel_state_reply(kernel.restart(StopReason::Restart).await?)
}

fn kernel_state_reply(answer: KernelAnswer) -> ApiResult<Json<KernelReply>> {
    answer.value.map_err(exception_refusal)?;
    Ok(kernel_report_reply(answer.report))
}

fn kernel_report_reply(kernel: KernelReport) -> Json<KernelReply> {
    let status = "completed".into();
    Json(KernelReply { status, kernel })
}

/// The refusal when user code that was run for the request has failed.
fn exception_refusal(error: RunError) -> ApiRefusal {
    let status = match error.kind.as_str() {
        "UnknownExtension" => StatusCode::NOT_FOUND,
        "InvalidName" => StatusCode::BAD_REQUEST,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    ApiRefusal::new(status, &error.kind, error.message)
}

/// List sessions
///
/// The default session is first.
#[utoipa::path(get, path = "/sessions", responses((status = 200, body = SessionList)))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> Json<SessionList> {
    let mut sessions = Vec::new();
    for (name, view) in state.sessions.list_sessions() {
        let memory = state.sessions.measure_memory(&view).await;
        sessions.push(describe_session(name, view, memory));
    }
    Json(SessionList { sessions })
}

pub(super) fn describe_session(name: String, view: KernelView, memory: Option<u64>) -> SessionInfo {
    SessionInfo {
        name,
        ready: view.ready,
        busy: view.busy,
        detail: view.detail,
        queued: view.queued as u64,
        exec_count: view.counts.execution_count,
        globals_count: view.counts.globals_count,
        resources_count: view.counts.resources_count,
        restored_from: view.report.origin.as_deref().cloned(),
        kernel: view.report,
        python: view.python,
        idle: match view.busy {
            true => 0.0,
            false => view.last_used.elapsed().as_secs_f64(),
        },
        memory,
    }
}

/// Create a session
///
/// A session is a kernel with its own process and namespace.
#[utoipa::path(post, path = "/sessions", request_body = Option<CreateSession>, responses(
    (status = 200, description = "The session, which may have existed before.", body = SessionInfo),
    (status = 400, description = "The name is invalid.", body = FailedReply),
    (status = 429, description = "The limit of sessions is reached.", body = FailedReply),
))]
pub(super) async fn create(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<CreateSession>,
) -> ApiResult<Json<SessionInfo>> {
    let (name, kernel) = state.sessions.create_session(request.name).await?;
    Ok(Json(describe_session(name, kernel.view(), None)))
}

/// Delete a session
///
/// The companion ends the kernel and all processes of the session.
#[utoipa::path(delete, path = "/sessions/{name}", params(("name" = String, Path, description = "Name of the session")), responses(
    (status = 200, body = SessionDeleted),
    (status = 404, description = "The session does not exist.", body = FailedReply),
))]
pub(super) async fn delete(
    Shared(state): Shared<HttpState>,
    PathId(name): PathId,
) -> ApiResult<Json<SessionDeleted>> {
    state.sessions.delete_session(&name).await?;
    let status = "completed".into();
    Ok(Json(SessionDeleted { status, name }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct KernelSessionQuery {
    /// Name of the session; `default` if missing.
    session: Option<String>,
    /// Number of latest cells to return.
    n: Option<u64>,
}

impl KernelSessionQuery {
    fn session_name(&self) -> &str {
        self.session.as_deref().unwrap_or(DEFAULT_SESSION)
    }
}

/// List the global variables of a session
///
/// Each entry has the name, the type, the size and a preview of the value.
#[utoipa::path(get, path = "/variables", params(KernelSessionQuery), responses(
    (status = 200, body = VariableList),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn variables(
    Shared(state): Shared<HttpState>,
    QueryParams(query): QueryParams<KernelSessionQuery>,
) -> ApiResult<Json<Value>> {
    let session = query.session_name();
    let question = KernelQuery::Variables { limit: None };
    let answer = state.sessions.query(session, question).await?;
    let kernel = answer.report.clone();
    let variables: Vec<Variable> = parse_answer(answer)?;
    Ok(Json(value!({"variables": variables, "kernel": kernel})))
}

/// List completions at a cursor position
#[utoipa::path(post, path = "/complete", request_body = CodeCursor, responses(
    (status = 200, body = Completions),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn complete(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<CodeCursor>,
) -> ApiResult<Json<Completions>> {
    let question = KernelQuery::Complete {
        code: request.code,
        cursor: request.cursor,
    };
    let answer = state.sessions.query(&request.session, question).await?;
    parse_answer(answer).map(Json)
}

/// Show help for the name at a cursor position
#[utoipa::path(post, path = "/inspect", request_body = CodeCursor, responses(
    (status = 200, body = Inspection),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn inspect(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<CodeCursor>,
) -> ApiResult<Json<Inspection>> {
    let detail = request.detail.unwrap_or(0);
    if detail > 1 {
        return Err(ApiRefusal::invalid_field("`detail` must be 0 or 1"));
    }
    let question = KernelQuery::Inspect {
        code: request.code,
        cursor: request.cursor,
        detail,
    };
    let answer = state.sessions.query(&request.session, question).await?;
    parse_answer(answer).map(Json)
}

/// Check whether code is complete or needs more lines
#[utoipa::path(post, path = "/is_complete", request_body = CompletenessQuery, responses(
    (status = 200, body = Completeness),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn is_complete(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<CompletenessQuery>,
) -> ApiResult<Json<Completeness>> {
    let question = KernelQuery::IsComplete { code: request.code };
    let answer = state.sessions.query(&request.session, question).await?;
    parse_answer(answer).map(Json)
}

/// List the latest cells of a session
#[utoipa::path(get, path = "/history", params(KernelSessionQuery), responses(
    (status = 200, body = History),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn history(
    Shared(state): Shared<HttpState>,
    QueryParams(query): QueryParams<KernelSessionQuery>,
) -> ApiResult<Json<History>> {
    let question = KernelQuery::History {
        n: query.n.unwrap_or(1000),
    };
    let answer = state.sessions.query(query.session_name(), question).await?;
    let cells = parse_answer(answer)?;
    Ok(Json(History { cells }))
}

/// Call an extension of the body
///
/// Extensions are in `kernel/extensions/` of the body.
#[utoipa::path(post, path = "/x/{name}", params(("name" = String, Path, description = "Name of the extension"), KernelSessionQuery), request_body = Option<Value>, responses(
    (status = 200, description = "`{\"status\":\"completed\",\"value\":…}`", body = Value),
    (status = 404, description = "The extension does not exist.", body = FailedReply),
    (status = 422, description = "The extension raised an exception.", body = FailedReply),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn call(
    Shared(state): Shared<HttpState>,
    PathId(name): PathId,
    QueryParams(query): QueryParams<KernelSessionQuery>,
    JsonBody(arguments): JsonBody<Value>,
) -> ApiResult<Json<Value>> {
    let question = KernelQuery::Call { name, arguments };
    let answer = state.sessions.query(query.session_name(), question).await?;
    let found: Value = parse_answer(answer)?;
    Ok(Json(value!({"status": "completed", "value": found})))
}

/// Parses the value of the kernel's answer.
fn parse_answer<T: DeserializeOwned>(answer: KernelAnswer) -> ApiResult<T> {
    let value = answer.value.map_err(exception_refusal)?;
    serde_json::from_value(value).map_err(|error| {
        tracing::error!(%error, "the kernel sent an unexpected reply");
        let message = "the reply from the kernel has an unknown format";
        ApiRefusal::new(StatusCode::BAD_GATEWAY, "unreadable_answer", message)
            .with_hint("`osctl up` replaces a container whose body has another version")
    })
}
