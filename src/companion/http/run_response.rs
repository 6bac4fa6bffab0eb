//! Common parts of all routes about runs: ids, durations, waiting, events, pages.

use super::json_response;
use super::response::{error_response, invalid_field_response};
use super::stream::{self, StreamFormat};
use crate::companion::runs::{RunKind, TrackedRun};
use crate::protocol::kernel::{OutputStream, RunDetails};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;

/// A week: a longer time limit is certainly a mistake of units.
const MAX_WAIT_SECONDS: f64 = 7.0 * 24.0 * 3600.0;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct RunFindQuery {
    /// Wait up to this many seconds for the run's end.
    wait: Option<f64>,
    /// Return the events from this number on.
    offset: Option<u64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct RunOutputQuery {
    /// Defaults to `stdout`.
    #[serde(default = "stdout")]
    #[param(inline)]
    stream: OutputStream,
    /// Offset of the first byte.
    #[serde(default)]
    offset: u64,
    /// Number of bytes, at most 1 MiB.
    limit: Option<u64>,
}

fn stdout() -> OutputStream {
    OutputStream::Stdout
}

/// The refusal of a `timeout` or `wait` that is not a sensible number of seconds.
pub(super) fn check_durations(timeout: Option<f64>, wait: Option<f64>) -> Option<Response> {
    if timeout.is_some_and(|s| !is_valid_duration(s) || s == 0.0) {
        return Some(invalid_duration_response("timeout"));
    }
    wait.is_some_and(|s| !is_valid_duration(s))
        .then(|| invalid_duration_response("wait"))
}

fn is_valid_duration(seconds: f64) -> bool {
    (0.0..=MAX_WAIT_SECONDS).contains(&seconds)
}

fn invalid_duration_response(name: &str) -> Response {
    invalid_field_response(format!(
        "`{name}` must be a number of seconds up to {MAX_WAIT_SECONDS}"
    ))
}

pub(super) fn is_run_id(id: &str) -> bool {
    (1..=128).contains(&id.len())
        && !id.starts_with('.')
        && id
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// The state of a run, and its events; `report` is the reply for a run that is still active.
pub(super) async fn run_response<W: RunKind<Reply: Serialize>>(
    run: Result<Arc<TrackedRun<W>>, impl IntoResponse>,
    report: impl Fn(&TrackedRun<W>) -> W::Report + Send + Sync + 'static,
    headers: &HeaderMap,
    query: RunFindQuery,
) -> Response {
    let wait = query.wait.unwrap_or(0.0);
    if !is_valid_duration(wait) {
        return invalid_duration_response("wait");
    }
    let run = match run {
        Ok(run) => run,
        Err(refusal) => return refusal.into_response(),
    };
    let reported = run.clone();
    let running = move || report(&reported);
    if let Some(format) = StreamFormat::from_accept_header(headers) {
        run.wait_begin_synced().await;
        let from = query.offset.or_else(|| next_event_number(headers));
        let follower = run.follow(from.unwrap_or(0));
        return stream::stream_run_events(follower, running, query.wait, format);
    }
    wait_for_run(&run, Some(wait)).await;
    let events = match query.offset {
        Some(offset) => Some(run.follow(offset).read_available(&running).await),
        None => None,
    };
    let reply = run.build_reply(running());
    json_response(StatusCode::OK, RunDetails { reply, events })
}

/// The number after the last event that a client of Server-Sent Events has received.
fn next_event_number(headers: &HeaderMap) -> Option<u64> {
    let last = headers.get("last-event-id")?.to_str().ok()?;
    last.trim().parse::<u64>().ok()?.checked_add(1)
}

/// Waits until the run has ended, or `wait` seconds.
pub(super) async fn wait_for_run<W: RunKind>(run: &TrackedRun<W>, wait: Option<f64>) {
    match wait {
        None => run.wait_finished().await,
        // After a timeout the reply says that the run is still active.
        Some(seconds) => {
            drop(tokio::time::timeout(Duration::from_secs_f64(seconds), run.wait_finished()).await)
        }
    }
    run.wait_begin_synced().await;
}

pub(super) async fn output_page<W: RunKind>(
    run: &TrackedRun<W>,
    query: RunOutputQuery,
) -> Response {
    match run.read_page(query.stream, query.offset, query.limit).await {
        Ok(page) => json_response(StatusCode::OK, page),
        Err(error) => {
            tracing::error!("cannot read the output of run `{}`: {error}", run.id);
            let message = "the output of the run can't be read";
            error_response(
                StatusCode::INTERNAL_SERVER_ERROR,
                "unreadable_output",
                message,
                Some("`osctl logs` shows more"),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_run_id;

    #[test]
    fn ids_fit_into_paths_and_file_names() {
        assert!(is_run_id("run-1.a_B"));
        for id in ["", "a/b", "ä", "a b", &"x".repeat(129)] {
            assert!(!is_run_id(id), "{id}");
        }
    }
}
