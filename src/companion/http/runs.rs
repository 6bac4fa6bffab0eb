//! What requests about runs have in common, whatever the runs do: ids, durations, waiting, events,
//! pages.

use super::answer::{failed, invalid};
use super::json;
use super::stream::{self, Form};
use crate::companion::runs::{Run, Work};
use crate::protocol::kernel::{Found, Stream};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;

/// A week: beyond it, a time limit is certainly a mistake of units.
const LONGEST: f64 = 7.0 * 24.0 * 3600.0;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct FindQuery {
    /// Wait up to this many seconds for the run's end.
    wait: Option<f64>,
    /// Bring the events from this number on.
    offset: Option<u64>,
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

/// The refusal of a `timeout` or `wait` that is no sensible number of seconds.
pub(super) fn refused(timeout: Option<f64>, wait: Option<f64>) -> Option<Response> {
    if timeout.is_some_and(|s| !is_duration(s) || s == 0.0) {
        return Some(no_duration("timeout"));
    }
    wait.is_some_and(|s| !is_duration(s))
        .then(|| no_duration("wait"))
}

fn is_duration(seconds: f64) -> bool {
    (0.0..=LONGEST).contains(&seconds)
}

fn no_duration(name: &str) -> Response {
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

/// How a run stands, and its events; `report` is what to say of it while it goes on.
pub(super) async fn found<W: Work<Reply: Serialize>>(
    run: Result<Arc<Run<W>>, impl IntoResponse>,
    report: impl Fn(&Run<W>) -> W::Report + Send + Sync + 'static,
    headers: &HeaderMap,
    query: FindQuery,
) -> Response {
    let wait = query.wait.unwrap_or(0.0);
    if !is_duration(wait) {
        return no_duration("wait");
    }
    let run = match run {
        Ok(run) => run,
        Err(refusal) => return refusal.into_response(),
    };
    let reported = run.clone();
    let running = move || report(&reported);
    if let Some(form) = Form::accepted(headers) {
        run.acknowledged().await;
        let from = query.offset.or_else(|| last_event(headers));
        let follower = run.follow(from.unwrap_or(0));
        return stream::respond(follower, running, query.wait, form);
    }
    settle(&run, Some(wait)).await;
    let events = match query.offset {
        Some(offset) => Some(run.follow(offset).rest(&running).await),
        None => None,
    };
    let reply = run.reply(running());
    json(StatusCode::OK, Found { reply, events })
}

/// The number behind the last event that a client of Server-Sent Events has seen.
fn last_event(headers: &HeaderMap) -> Option<u64> {
    let last = headers.get("last-event-id")?.to_str().ok()?;
    last.trim().parse::<u64>().ok()?.checked_add(1)
}

/// Waits until the run has ended, or `wait` seconds.
pub(super) async fn settle<W: Work>(run: &Run<W>, wait: Option<f64>) {
    match wait {
        None => run.finished().await,
        // That it still runs is what the reply then says.
        Some(seconds) => {
            drop(tokio::time::timeout(Duration::from_secs_f64(seconds), run.finished()).await)
        }
    }
    run.acknowledged().await;
}

pub(super) async fn page<W: Work>(run: &Run<W>, query: OutputQuery) -> Response {
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
