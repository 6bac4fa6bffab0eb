//! Common parts of all routes about runs: ids, durations, waiting, events, pages.

use super::stream::{self, StreamFormat};
use crate::companion::runs::{RunKind, TrackedRun};
use crate::protocol::kernel::{OutputPage, OutputStream, RunDetails};
use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use osctl_support::api::{ApiRefusal, ApiResult};
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

/// Refuses a `timeout` or `wait` that is not a sensible number of seconds.
pub(super) fn check_durations(timeout: Option<f64>, wait: Option<f64>) -> ApiResult<()> {
    if timeout == Some(0.0) {
        let why = format!("`timeout` must be more than 0, and at most {MAX_WAIT_SECONDS} seconds");
        return Err(ApiRefusal::invalid_field(why));
    }
    check_duration("timeout", timeout)?;
    check_duration("wait", wait)
}

fn check_duration(name: &str, seconds: Option<f64>) -> ApiResult<()> {
    match seconds.is_none_or(|s| (0.0..=MAX_WAIT_SECONDS).contains(&s)) {
        true => Ok(()),
        false => Err(invalid_duration(name)),
    }
}

fn invalid_duration(name: &str) -> ApiRefusal {
    ApiRefusal::invalid_field(format!(
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
    run: Result<Arc<TrackedRun<W>>, impl Into<ApiRefusal>>,
    report: impl Fn(&TrackedRun<W>) -> W::Report + Send + Sync + 'static,
    headers: &HeaderMap,
    query: RunFindQuery,
) -> ApiResult {
    check_duration("wait", query.wait)?;
    let run = run.map_err(Into::into)?;
    let reported = run.clone();
    let running = move || report(&reported);
    if let Some(format) = StreamFormat::from_accept_header(headers) {
        run.wait_begin_synced().await;
        let from = query.offset.or_else(|| next_event_number(headers));
        let follower = run.follow(from.unwrap_or(0));
        return Ok(stream::stream_run_events(
            follower, running, query.wait, format,
        ));
    }
    wait_for_run(&run, Some(query.wait.unwrap_or(0.0))).await;
    let events = match query.offset {
        Some(offset) => Some(run.follow(offset).read_available(&running).await),
        None => None,
    };
    let reply = run.build_reply(running());
    Ok(Json(RunDetails { reply, events }).into_response())
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
) -> ApiResult<Json<OutputPage>> {
    let page = run.read_page(query.stream, query.offset, query.limit).await;
    page.map(Json).map_err(|error| {
        tracing::error!(run = %run.id, %error, "the companion can't read the output of a run");
        let (status, kind) = (StatusCode::INTERNAL_SERVER_ERROR, "unreadable_output");
        ApiRefusal::new(status, kind, "the output of the run can't be read")
            .with_hint("`osctl logs` shows more")
    })
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
