//! Sessions, and what can be asked of a kernel besides executing code, over HTTP.

use super::answer::{Body, Id, Params, failed, invalid};
use super::{State, json};
use crate::companion::kernel::{Answer, Question, Refusal, Stop, View};
use crate::protocol::fault::Failed;
use crate::protocol::kernel::{Became, DEFAULT_SESSION, OfSession, Raised};
use crate::protocol::session::{
    At, Code, Completeness, Completions, Create, Deleted, History, Inspection, Session, Sessions,
    Variable, Variables,
};
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json as value};
use utoipa::IntoParams;

/// Empties the namespace; `runtime`, the working directory and the environment stay.
#[utoipa::path(post, path = "/reset", request_body = Option<OfSession>, responses(
    (status = 200, body = Became),
    (status = 404, description = "There is no such session.", body = Failed),
    (status = 429, description = "Code runs.", body = Failed),
))]
pub(super) async fn reset(
    Shared(state): Shared<State>,
    Body(request): Body<OfSession>,
) -> Response {
    let answer = state.sessions.ask(&request.session, Question::Reset).await;
    became(answer)
}

/// Interrupts what a session runs, and says what became of its state.
#[utoipa::path(post, path = "/interrupt", request_body = Option<OfSession>, responses(
    (status = 200, body = Became),
    (status = 404, description = "There is no such session.", body = Failed),
))]
pub(super) async fn interrupt(
    Shared(state): Shared<State>,
    Body(request): Body<OfSession>,
) -> Response {
    let kernel = match state.sessions.kernel(&request.session) {
        Ok(kernel) => kernel,
        Err(refusal) => return refusal.into_response(),
    };
    match kernel.interrupt().await {
        Ok(kernel) => completed(kernel),
        Err(refusal) => refusal.into_response(),
    }
}

/// Ends a session's kernel, whatever it does, and starts another.
#[utoipa::path(post, path = "/restart", request_body = Option<OfSession>, responses(
    (status = 200, body = Became),
    (status = 404, description = "There is no such session.", body = Failed),
))]
pub(super) async fn restart(
    Shared(state): Shared<State>,
    Body(request): Body<OfSession>,
) -> Response {
    let kernel = match state.sessions.kernel(&request.session) {
        Ok(kernel) => kernel,
        Err(refusal) => return refusal.into_response(),
    };
    became(kernel.restart(Stop::Restart).await)
}

fn became(answer: Result<Answer, Refusal>) -> Response {
    match answer {
        Ok(Answer {
            value: Ok(_),
            report,
        }) => completed(report),
        Ok(Answer {
            value: Err(error), ..
        }) => raised(error),
        Err(refusal) => refusal.into_response(),
    }
}

fn completed(kernel: crate::protocol::kernel::KernelReport) -> Response {
    let status = "completed".into();
    json(StatusCode::OK, Became { status, kernel })
}

/// User code that was run to find the answer has failed.
fn raised(error: Raised) -> Response {
    let status = match error.kind.as_str() {
        "UnknownExtension" => StatusCode::NOT_FOUND,
        "InvalidName" => StatusCode::BAD_REQUEST,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    failed(status, &error.kind, error.message, None)
}

/// All sessions, the default one first.
#[utoipa::path(get, path = "/sessions", responses((status = 200, body = Sessions)))]
pub(super) async fn list(Shared(state): Shared<State>) -> Response {
    let mut sessions = Vec::new();
    for (name, view) in state.sessions.all() {
        let memory = state.sessions.memory(&view).await;
        sessions.push(session(name, view, memory));
    }
    json(StatusCode::OK, Sessions { sessions })
}

pub(super) fn session(name: String, view: View, memory: Option<u64>) -> Session {
    Session {
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
            false => view.used.elapsed().as_secs_f64(),
        },
        memory,
    }
}

/// Makes a session: a kernel with a process and a namespace of its own.
#[utoipa::path(post, path = "/sessions", request_body = Option<Create>, responses(
    (status = 200, description = "It is there, made now or before.", body = Session),
    (status = 400, description = "That can't be a name.", body = Failed),
    (status = 429, description = "There are as many sessions as there may be.", body = Failed),
))]
pub(super) async fn create(Shared(state): Shared<State>, Body(request): Body<Create>) -> Response {
    match state.sessions.create(request.name).await {
        Ok((name, kernel)) => json(StatusCode::OK, session(name, kernel.view(), None)),
        Err(refusal) => refusal.into_response(),
    }
}

/// Ends a session and everything that it runs.
#[utoipa::path(delete, path = "/sessions/{name}", params(("name" = String, Path, description = "The session's name")), responses(
    (status = 200, body = Deleted),
    (status = 404, description = "There is no such session.", body = Failed),
))]
pub(super) async fn delete(Shared(state): Shared<State>, Id(name): Id) -> Response {
    match state.sessions.delete(&name).await {
        Ok(()) => {
            let status = "completed".into();
            json(StatusCode::OK, Deleted { status, name })
        }
        Err(refusal) => refusal.into_response(),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionQuery {
    /// The session, `default` when missing.
    session: Option<String>,
    /// The last so many cells.
    n: Option<u64>,
}

impl SessionQuery {
    fn session(&self) -> &str {
        self.session.as_deref().unwrap_or(DEFAULT_SESSION)
    }
}

/// Name, type, size and preview of each global variable.
#[utoipa::path(get, path = "/variables", params(SessionQuery), responses(
    (status = 200, body = Variables),
    (status = 429, description = "Code runs.", body = Failed),
))]
pub(super) async fn variables(
    Shared(state): Shared<State>,
    Params(query): Params<SessionQuery>,
) -> Response {
    let session = query.session();
    let question = Question::Variables { limit: None };
    let answer = state.sessions.ask(session, question).await;
    let kernel = answer.as_ref().ok().map(|a| a.report.clone());
    told(
        answer,
        |variables: Vec<Variable>| value!({"variables": variables, "kernel": kernel}),
    )
}

/// What could stand at a cursor.
#[utoipa::path(post, path = "/complete", request_body = At, responses(
    (status = 200, body = Completions),
    (status = 429, description = "Code runs.", body = Failed),
))]
pub(super) async fn complete(Shared(state): Shared<State>, Body(request): Body<At>) -> Response {
    let question = Question::Complete {
        code: request.code,
        cursor: request.cursor,
    };
    let answer = state.sessions.ask(&request.session, question).await;
    told(answer, |found: Completions| found)
}

/// Help on what stands at a cursor.
#[utoipa::path(post, path = "/inspect", request_body = At, responses(
    (status = 200, body = Inspection),
    (status = 429, description = "Code runs.", body = Failed),
))]
pub(super) async fn inspect(Shared(state): Shared<State>, Body(request): Body<At>) -> Response {
    let detail = request.detail.unwrap_or(0);
    if detail > 1 {
        return invalid("`detail` is 0 or 1".into());
    }
    let question = Question::Inspect {
        code: request.code,
        cursor: request.cursor,
        detail,
    };
    let answer = state.sessions.ask(&request.session, question).await;
    told(answer, |found: Inspection| found)
}

/// Whether code is whole, or more lines are to come.
#[utoipa::path(post, path = "/is_complete", request_body = Code, responses(
    (status = 200, body = Completeness),
    (status = 429, description = "Code runs.", body = Failed),
))]
pub(super) async fn is_complete(
    Shared(state): Shared<State>,
    Body(request): Body<Code>,
) -> Response {
    let question = Question::IsComplete { code: request.code };
    let answer = state.sessions.ask(&request.session, question).await;
    told(answer, |found: Completeness| found)
}

/// The last cells of a session.
#[utoipa::path(get, path = "/history", params(SessionQuery), responses(
    (status = 200, body = History),
    (status = 429, description = "Code runs.", body = Failed),
))]
pub(super) async fn history(
    Shared(state): Shared<State>,
    Params(query): Params<SessionQuery>,
) -> Response {
    let question = Question::History {
        n: query.n.unwrap_or(1000),
    };
    let answer = state.sessions.ask(query.session(), question).await;
    told(answer, |cells| History { cells })
}

/// Calls an operation of the body's own, from `kernel/extensions/`.
#[utoipa::path(post, path = "/x/{name}", params(("name" = String, Path, description = "The extension's name"), SessionQuery), request_body = Option<Value>, responses(
    (status = 200, description = "`{\"status\":\"completed\",\"value\":…}`", body = Value),
    (status = 404, description = "There is no such extension.", body = Failed),
    (status = 422, description = "It raised an exception.", body = Failed),
    (status = 429, description = "Code runs.", body = Failed),
))]
pub(super) async fn call(
    Shared(state): Shared<State>,
    Id(name): Id,
    Params(query): Params<SessionQuery>,
    Body(arguments): Body<Value>,
) -> Response {
    let question = Question::Call { name, arguments };
    let answer = state.sessions.ask(query.session(), question).await;
    told(
        answer,
        |found: Value| value!({"status": "completed", "value": found}),
    )
}

/// The kernel's answer in the words of the API.
fn told<T: DeserializeOwned, S: serde::Serialize>(
    answer: Result<Answer, Refusal>,
    word: impl FnOnce(T) -> S,
) -> Response {
    let found = match answer {
        Ok(Answer {
            value: Ok(value), ..
        }) => serde_json::from_value(value),
        Ok(Answer {
            value: Err(error), ..
        }) => return raised(error),
        Err(refusal) => return refusal.into_response(),
    };
    match found {
        Ok(found) => json(StatusCode::OK, word(found)),
        Err(error) => {
            tracing::error!("the kernel answered something else: {error}");
            let message = "the kernel answered what this companion does not understand";
            let hint = Some("`osctl up` replaces a body of another version");
            failed(StatusCode::BAD_GATEWAY, "unreadable_answer", message, hint)
        }
    }
}
