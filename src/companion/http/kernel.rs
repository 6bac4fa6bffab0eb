//! Executing code, over HTTP.

use super::answer::{Body, Id, Params, failed};
use super::{State, json};
use crate::companion::kernel::Run;
use crate::protocol::fault::Failed;
use crate::protocol::kernel::{Execute, Reply, Reset, ResetReply};
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;

/// A week: beyond it, a time limit is certainly a mistake of units.
const LONGEST: f64 = 7.0 * 24.0 * 3600.0;

/// Executes Python in the kernel, which keeps its state.
#[utoipa::path(post, path = "/exec", request_body = Execute, responses(
    (status = 200, description = "How the run ended, or stands after `wait` seconds. An exception of the code is `failed`.", body = Reply),
    (status = 400, description = "The body is no JSON, or a field does not fit.", body = Failed),
    (status = 404, description = "There is no such session.", body = Failed),
    (status = 409, description = "The id belongs to another request.", body = Failed),
    (status = 413, description = "The body is larger than 64 MiB.", body = Failed),
    (status = 429, description = "Other code runs, and `queue` is not set.", body = Failed),
    (status = 503, description = "The kernel can't be started, or the companion stops.", body = Failed),
))]
pub(super) async fn execute(
    Shared(state): Shared<State>,
    Body(request): Body<Execute>,
) -> Response {
    for (name, seconds) in [("timeout", request.timeout), ("wait", request.wait)] {
        if seconds.is_some_and(|s| !is_duration(s) || (name == "timeout" && s == 0.0)) {
            return no_duration(name);
        }
    }
    if let Some(id) = request.id.as_deref().filter(|id| !is_id(id)) {
        let message =
            format!("`{id}` can't be an id: use letters, digits, `-`, `_` and `.`, 128 at most");
        return failed(StatusCode::BAD_REQUEST, "invalid_field", message, None);
    }
    let wait = request.wait;
    match state.kernel.execute(request).await {
        Ok(run) => settle(&state, &run, wait).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn is_duration(seconds: f64) -> bool {
    (0.0..=LONGEST).contains(&seconds)
}

fn no_duration(name: &str) -> Response {
    let message = format!("`{name}` must be a number of seconds up to {LONGEST}");
    failed(StatusCode::BAD_REQUEST, "invalid_field", message, None)
}

fn is_id(id: &str) -> bool {
    (1..=128).contains(&id.len())
        && id
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct FindQuery {
    /// Wait up to this many seconds for the run's end.
    wait: Option<f64>,
}

/// How a run stands, also one that another client began.
#[utoipa::path(get, path = "/exec/{id}", params(("id" = String, Path, description = "The run's id"), FindQuery), responses(
    (status = 200, body = Reply),
    (status = 404, description = "There is no such run.", body = Failed),
))]
pub(super) async fn find(
    Shared(state): Shared<State>,
    Id(id): Id,
    Params(query): Params<FindQuery>,
) -> Response {
    let wait = query.wait.unwrap_or(0.0);
    if !is_duration(wait) {
        return no_duration("wait");
    }
    match state.kernel.run(&id) {
        Ok(run) => settle(&state, &run, Some(wait)).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Interrupts a run; the reply says what became of it and of the kernel's state.
#[utoipa::path(delete, path = "/exec/{id}", params(("id" = String, Path, description = "The run's id")), responses(
    (status = 200, body = Reply),
    (status = 404, description = "There is no such run.", body = Failed),
))]
pub(super) async fn interrupt(Shared(state): Shared<State>, Id(id): Id) -> Response {
    match state.kernel.interrupt(&id).await {
        Ok(run) => settle(&state, &run, None).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Empties the namespace; the working directory and the environment stay.
#[utoipa::path(post, path = "/reset", request_body = Option<Reset>, responses(
    (status = 200, body = ResetReply),
    (status = 429, description = "Code runs.", body = Failed),
))]
pub(super) async fn reset(Shared(state): Shared<State>, Body(request): Body<Reset>) -> Response {
    match state.kernel.reset(&request.session).await {
        Ok(kernel) => json(
            StatusCode::OK,
            ResetReply {
                status: "completed".into(),
                kernel,
            },
        ),
        Err(refusal) => refusal.into_response(),
    }
}

/// The run's reply when it has ended, or after `wait` seconds.
async fn settle(state: &State, run: &Run, wait: Option<f64>) -> Response {
    match wait {
        None => run.finished().await,
        // That it still runs is what the reply then says.
        Some(seconds) => {
            drop(tokio::time::timeout(Duration::from_secs_f64(seconds), run.finished()).await)
        }
    }
    let reply: Reply = run.reply(state.kernel.view().report);
    json(StatusCode::OK, reply)
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
