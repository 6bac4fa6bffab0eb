//! Routes of sessions, and of kernel requests other than executing code.

use super::response::{JsonBody, PathId, QueryParams, error_response, invalid_field_response};
use super::{HttpState, json_response};
use crate::companion::kernel::{KernelAnswer, KernelQuery, KernelRefusal, KernelView, StopReason};
use crate::protocol::error::FailedReply;
use crate::protocol::kernel::{DEFAULT_SESSION, KernelReply, RunError, SessionRequest};
use crate::protocol::session::{
    CodeCursor, Completeness, CompletenessQuery, Completions, CreateSession, History, Inspection,
    SessionDeleted, SessionInfo, SessionList, Variable, VariableList,
};
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
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
) -> Response {
    let answer = state
        .sessions
        .query(&request.session, KernelQuery::Reset)
        .await;
    kernel_state_response(answer)
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
) -> Response {
    let kernel = match state.sessions.find_kernel(&request.session) {
        Ok(kernel) => kernel,
        Err(refusal) => return refusal.into_response(),
    };
    match kernel.interrupt().await {
        Ok(kernel) => kernel_report_response(kernel),
        Err(refusal) => refusal.into_response(),
    }
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
) -> Response {
    let kernel = match state.sessions.find_kernel(&request.session) {
        Ok(kernel) => kernel,
        Err(refusal) => return refusal.into_response(),
    };
    kernel_state_response(kernel.restart(StopReason::Restart).await)
}

fn kernel_state_response(answer: Result<KernelAnswer, KernelRefusal>) -> Response {
    match answer {
        Ok(KernelAnswer {
            value: Ok(_),
            report,
        }) => kernel_report_response(report),
        Ok(KernelAnswer {
            value: Err(error), ..
        }) => exception_response(error),
        Err(refusal) => refusal.into_response(),
    }
}

fn kernel_report_response(kernel: crate::protocol::kernel::KernelReport) -> Response {
    let status = "completed".into();
    json_response(StatusCode::OK, KernelReply { status, kernel })
}

/// The reply when user code that was run for the request has failed.
fn exception_response(error: RunError) -> Response {
    let status = match error.kind.as_str() {
        "UnknownExtension" => StatusCode::NOT_FOUND,
        "InvalidName" => StatusCode::BAD_REQUEST,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    error_response(status, &error.kind, error.message, None)
}

/// List sessions
///
/// The default session is first.
#[utoipa::path(get, path = "/sessions", responses((status = 200, body = SessionList)))]
pub(super) async fn list(Shared(state): Shared<HttpState>) -> Response {
    let mut sessions = Vec::new();
    for (name, view) in state.sessions.list_sessions() {
        let memory = state.sessions.measure_memory(&view).await;
        sessions.push(describe_session(name, view, memory));
    }
    json_response(StatusCode::OK, SessionList { sessions })
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
) -> Response {
    match state.sessions.create_session(request.name).await {
        Ok((name, kernel)) => {
            json_response(StatusCode::OK, describe_session(name, kernel.view(), None))
        }
        Err(refusal) => refusal.into_response(),
    }
}

/// Delete a session
///
/// The companion ends the kernel and all processes of the session.
#[utoipa::path(delete, path = "/sessions/{name}", params(("name" = String, Path, description = "Name of the session")), responses(
    (status = 200, body = SessionDeleted),
    (status = 404, description = "The session does not exist.", body = FailedReply),
))]
pub(super) async fn delete(Shared(state): Shared<HttpState>, PathId(name): PathId) -> Response {
    match state.sessions.delete_session(&name).await {
        Ok(()) => {
            let status = "completed".into();
            json_response(StatusCode::OK, SessionDeleted { status, name })
        }
        Err(refusal) => refusal.into_response(),
    }
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
) -> Response {
    let session = query.session_name();
    let question = KernelQuery::Variables { limit: None };
    let answer = state.sessions.query(session, question).await;
    let kernel = answer.as_ref().ok().map(|a| a.report.clone());
    kernel_answer_response(
        answer,
        |variables: Vec<Variable>| value!({"variables": variables, "kernel": kernel}),
    )
}

/// List completions at a cursor position
#[utoipa::path(post, path = "/complete", request_body = CodeCursor, responses(
    (status = 200, body = Completions),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn complete(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<CodeCursor>,
) -> Response {
    let question = KernelQuery::Complete {
        code: request.code,
        cursor: request.cursor,
    };
    let answer = state.sessions.query(&request.session, question).await;
    kernel_answer_response(answer, |found: Completions| found)
}

/// Show help for the name at a cursor position
#[utoipa::path(post, path = "/inspect", request_body = CodeCursor, responses(
    (status = 200, body = Inspection),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn inspect(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<CodeCursor>,
) -> Response {
    let detail = request.detail.unwrap_or(0);
    if detail > 1 {
        return invalid_field_response("`detail` must be 0 or 1".into());
    }
    let question = KernelQuery::Inspect {
        code: request.code,
        cursor: request.cursor,
        detail,
    };
    let answer = state.sessions.query(&request.session, question).await;
    kernel_answer_response(answer, |found: Inspection| found)
}

/// Check whether code is complete or needs more lines
#[utoipa::path(post, path = "/is_complete", request_body = CompletenessQuery, responses(
    (status = 200, body = Completeness),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn is_complete(
    Shared(state): Shared<HttpState>,
    JsonBody(request): JsonBody<CompletenessQuery>,
) -> Response {
    let question = KernelQuery::IsComplete { code: request.code };
    let answer = state.sessions.query(&request.session, question).await;
    kernel_answer_response(answer, |found: Completeness| found)
}

/// List the latest cells of a session
#[utoipa::path(get, path = "/history", params(KernelSessionQuery), responses(
    (status = 200, body = History),
    (status = 429, description = "The session is executing code.", body = FailedReply),
))]
pub(super) async fn history(
    Shared(state): Shared<HttpState>,
    QueryParams(query): QueryParams<KernelSessionQuery>,
) -> Response {
    let question = KernelQuery::History {
        n: query.n.unwrap_or(1000),
    };
    let answer = state.sessions.query(query.session_name(), question).await;
    kernel_answer_response(answer, |cells| History { cells })
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
) -> Response {
    let question = KernelQuery::Call { name, arguments };
    let answer = state.sessions.query(query.session_name(), question).await;
    kernel_answer_response(
        answer,
        |found: Value| value!({"status": "completed", "value": found}),
    )
}

/// Converts the kernel's answer to the reply of the API.
fn kernel_answer_response<T: DeserializeOwned, S: serde::Serialize>(
    answer: Result<KernelAnswer, KernelRefusal>,
    word: impl FnOnce(T) -> S,
) -> Response {
    let found = match answer {
        Ok(KernelAnswer {
            value: Ok(value), ..
        }) => serde_json::from_value(value),
        Ok(KernelAnswer {
            value: Err(error), ..
        }) => return exception_response(error),
        Err(refusal) => return refusal.into_response(),
    };
    match found {
        Ok(found) => json_response(StatusCode::OK, word(found)),
        Err(error) => {
            tracing::error!("unexpected reply from the kernel: {error}");
            let message = "the reply from the kernel has an unknown format";
            let hint = Some("`osctl up` replaces a container whose body has another version");
            error_response(StatusCode::BAD_GATEWAY, "unreadable_answer", message, hint)
        }
    }
}
