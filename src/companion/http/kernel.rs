//! Executing code, over HTTP.

use super::answer::{Body, Id, Params, failed, invalid};
use super::stream::{self, Form};
use super::{State, json};
use crate::companion::kernel::{Run, summary};
use crate::companion::runs::{self, Work};
use crate::protocol::fault::Failed;
use crate::protocol::kernel::{Event, Execute, Found, Page, Reply, Runs, Stream};
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;

/// A week: beyond it, a time limit is certainly a mistake of units.
const LONGEST: f64 = 7.0 * 24.0 * 3600.0;

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
    (status = 503, description = "The kernel can't be started, or the companion stops.", body = Failed),
))]
pub(super) async fn execute(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Body(request): Body<Execute>,
) -> Response {
    for (name, seconds) in [("timeout", request.timeout), ("wait", request.wait)] {
        if seconds.is_some_and(|s| !is_duration(s) || (name == "timeout" && s == 0.0)) {
            return no_duration(name);
        }
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
        (Ok(run), Some(form)) => follow(state, run, 0, wait, form),
        (Ok(run), None) => {
            settle(&run, wait).await;
            json(StatusCode::OK, run.reply(state.sessions.report(&run)))
        }
        (Err(refusal), _) => refusal.into_response(),
    }
}

fn follow(state: State, run: Arc<Run>, from: u64, wait: Option<f64>, form: Form) -> Response {
    let reported = run.clone();
    let running = move || state.sessions.report(&reported);
    stream::respond(run.follow(from), running, wait, form)
}

/// The runs that can be found, the oldest first.
#[utoipa::path(get, path = "/exec", responses((status = 200, body = Runs)))]
pub(super) async fn list(Shared(state): Shared<State>) -> Response {
    let runs = state.sessions.runs();
    let runs = runs.iter().map(|run| summary(run)).collect();
    json(StatusCode::OK, Runs { runs })
}

pub(super) fn is_duration(seconds: f64) -> bool {
    (0.0..=LONGEST).contains(&seconds)
}

pub(super) fn no_duration(name: &str) -> Response {
    invalid(format!(
        "`{name}` must be a number of seconds up to {LONGEST}"
    ))
}

pub(super) fn is_id(id: &str) -> bool {
    (1..=128).contains(&id.len())
        && !id.starts_with('.')
        && id
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct FindQuery {
    /// Wait up to this many seconds for the run's end.
    pub(super) wait: Option<f64>,
    /// Bring the events from this number on.
    pub(super) offset: Option<u64>,
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
    let wait = query.wait.unwrap_or(0.0);
    if !is_duration(wait) {
        return no_duration("wait");
    }
    let run = match state.sessions.run(&id) {
        Ok(run) => run,
        Err(refusal) => return refusal.into_response(),
    };
    if let Some(form) = Form::accepted(&headers) {
        let from = query.offset.or_else(|| last_event(&headers));
        return follow(state, run, from.unwrap_or(0), query.wait, form);
    }
    settle(&run, Some(wait)).await;
    let running = || state.sessions.report(&run);
    let events = match query.offset {
        Some(offset) => Some(run.follow(offset).rest(running).await),
        None => None,
    };
    let reply = run.reply(running());
    json(StatusCode::OK, Found { reply, events })
}

/// The number behind the last event that a client of Server-Sent Events has seen.
pub(super) fn last_event(headers: &HeaderMap) -> Option<u64> {
    let last = headers.get("last-event-id")?.to_str().ok()?;
    last.trim().parse::<u64>().ok()?.checked_add(1)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputQuery {
    /// `stdout`, unless said otherwise.
    #[serde(default = "stdout")]
    #[param(inline)]
    stream: Stream,
    /// The first byte.
    #[serde(default)]
    offset: u64,
    /// Bytes, a MiB at most.
    limit: Option<u64>,
}

fn stdout() -> Stream {
    Stream::Stdout
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
    let run = match state.sessions.run(&id) {
        Ok(run) => run,
        Err(refusal) => return refusal.into_response(),
    };
    page(&run, query).await
}

pub(super) async fn page<W: Work>(run: &runs::Run<W>, query: OutputQuery) -> Response {
    match run.page(query.stream, query.offset, query.limit).await {
        Ok(page) => json(StatusCode::OK, page),
        Err(error) => {
            tracing::error!("output of run `{}` can't be read: {error}", run.id);
            let message = "what was written can't be read any more";
            failed(
                StatusCode::INTERNAL_SERVER_ERROR,
                "unreadable_output",
                message,
                Some("`osctl logs` shows more"),
            )
        }
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

/// Waits until the run has ended, or `wait` seconds.
pub(super) async fn settle<W: Work>(run: &runs::Run<W>, wait: Option<f64>) {
    match wait {
        None => run.finished().await,
        // That it still runs is what the reply then says.
        Some(seconds) => {
            drop(tokio::time::timeout(Duration::from_secs_f64(seconds), run.finished()).await)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_id;

    #[test]
    fn ids_fit_into_paths_and_file_names() {
        assert!(is_id("run-1.a_B"));
        for id in ["", "a/b", "ä", "a b", &"x".repeat(129)] {
            assert!(!is_id(id), "{id}");
        }
    }
}
