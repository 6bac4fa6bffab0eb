//! Executing code, over HTTP.

use super::answer::{Body, Id, Params, invalid, unexecuted};
use super::runs::{self, FindQuery, OutputQuery, is_id, page, settle};
use super::stream::{self, Form};
use super::{State, json};
use crate::protocol::fault::Failed;
use crate::protocol::kernel::{Event, Execute, Found, Page, Reply, Runs};
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

/// Executes Python in the kernel, which keeps its state.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the events come as they happen, to
/// `done`, or for `wait` seconds.
#[utoipa::path(post, path = "/exec", request_body = Execute, responses(
    (status = 200, description = "How the run ended, or stands after `wait` seconds. An exception of the code is `failed`.", content(
        (Reply = "application/json"), (Event = "text/event-stream"), (Event = "application/x-ndjson"),
    )),
    (status = 400, description = "The body is no JSON, or a field does not fit.", body = Failed),
    (status = 404, description = "There is no such session.", body = Failed),
    (status = 409, description = "The id belongs to another request.", body = Failed),
    (status = 413, description = "The body is larger than 64 MiB.", body = Failed),
    (status = 429, description = "Other code runs, and `queue` is not set.", body = Failed),
    (status = 507, description = "`durable` is `true`, and the disk does not take the run; nothing was executed.", body = Failed),
    (status = 503, description = "The kernel can't be started, or the companion stops; or it lies in a checkpoint, and then `is_checkpointed` is `true`.", body = Failed),
))]
pub(super) async fn execute(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Body(request): Body<Execute>,
) -> Response {
    if let Some(refusal) = runs::refused(request.timeout, request.wait) {
        return refusal;
    }
    if let Some(id) = request.id.as_deref().filter(|id| !is_id(id)) {
        return invalid(format!(
            "`{id}` can't be an id: use letters, digits, `-`, `_` and `.`, 128 at most"
        ));
    }
    let wait = request.wait;
    match (
        state.sessions.execute(request).await,
        Form::accepted(&headers),
    ) {
        (Ok(run), Some(form)) => {
            run.acknowledged().await;
            let reported = run.clone();
            let running = move || state.sessions.report(&reported);
            stream::respond(run.follow(0), running, wait, form)
        }
        (Ok(run), None) => {
            settle(&run, wait).await;
            json(StatusCode::OK, run.reply(state.sessions.report(&run)))
        }
        (Err(refusal), _) => unexecuted(refusal),
    }
}

/// The runs that can be found, the oldest first.
#[utoipa::path(get, path = "/exec", responses((status = 200, body = Runs)))]
pub(super) async fn list(Shared(state): Shared<State>) -> Response {
    let runs = state.sessions.runs();
    state.sessions.registry().settle().await;
    let runs = runs.iter().map(|run| run.summary()).collect();
    json(StatusCode::OK, Runs { runs })
}

/// How a run stands, and its events, also of one that another client began.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the events come as they happen, from
/// `offset`, or behind `Last-Event-ID`.
#[utoipa::path(get, path = "/exec/{id}", params(("id" = String, Path, description = "The run's id"), FindQuery), responses(
    (status = 200, content(
        (Found = "application/json"), (Event = "text/event-stream"), (Event = "application/x-ndjson"),
    )),
    (status = 404, description = "There is no such run.", body = Failed),
))]
pub(super) async fn find(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Id(id): Id,
    Params(query): Params<FindQuery>,
) -> Response {
    let run = state.sessions.run(&id);
    runs::found(run, move |run| state.sessions.report(run), &headers, query).await
}

/// A page of what a run has written.
#[utoipa::path(get, path = "/exec/{id}/output", params(("id" = String, Path, description = "The run's id"), OutputQuery), responses(
    (status = 200, body = Page),
    (status = 404, description = "There is no such run.", body = Failed),
))]
pub(super) async fn output(
    Shared(state): Shared<State>,
    Id(id): Id,
    Params(query): Params<OutputQuery>,
) -> Response {
    match state.sessions.run(&id) {
        Ok(run) => page(&run, query).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Interrupts a run; the reply says what became of it and of the kernel's state.
#[utoipa::path(delete, path = "/exec/{id}", params(("id" = String, Path, description = "The run's id")), responses(
    (status = 200, body = Reply),
    (status = 404, description = "There is no such run.", body = Failed),
))]
pub(super) async fn interrupt(Shared(state): Shared<State>, Id(id): Id) -> Response {
    match state.sessions.interrupt(&id).await {
        Ok(run) => json(StatusCode::OK, run.reply(state.sessions.report(&run))),
        Err(refusal) => refusal.into_response(),
    }
}
