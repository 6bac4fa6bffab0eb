//! A run's events as they come: Server-Sent Events, or one JSON object per line.

use super::text::string;
use crate::companion::runs::{Follower, Work};
use crate::protocol::kernel::{Event, Happened};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde::Serialize;
use std::convert::Infallible;
use std::io::Write;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// After so long without an event clients and proxies are told that the run goes on.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(10);

/// How the events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Sse,
    Ndjson,
}

impl Form {
    /// What the client accepts; `None` for one reply at the end.
    pub(super) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let accepted = headers.get_all(header::ACCEPT).iter();
        let mut types = accepted
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|kind| kind.split(';').next().unwrap_or_default().trim());
        types.find_map(|kind| match kind {
            "text/event-stream" => Some(Self::Sse),
            "application/x-ndjson" => Some(Self::Ndjson),
            _ => None,
        })
    }

    /// One line of what is told meanwhile.
    pub(super) fn line(self, words: &impl Serialize) -> Bytes {
        let words = serde_json::to_string(words).unwrap_or_default();
        Bytes::from(match self {
            Self::Sse => format!("data: {words}\n\n"),
            Self::Ndjson => format!("{words}\n"),
        })
    }

    pub(super) fn mime(self) -> &'static str {
        match self {
            Self::Sse => "text/event-stream",
            Self::Ndjson => "application/x-ndjson",
        }
    }

    fn write<R: Serialize>(self, event: &Event<R>, to: &mut Vec<u8>) -> std::io::Result<()> {
        match self {
            Self::Ndjson => {
                words(event, to)?;
                to.write_all(b"\n")
            }
            Self::Sse => {
                // A heartbeat is nothing that was seen: whoever resumes behind it would miss the
                // event whose number it repeats.
                if !matches!(event.happened, Happened::Heartbeat) {
                    writeln!(to, "id: {}", event.seq)?;
                }
                to.write_all(b"data: ")?;
                // JSON has no line breaks of its own.
                words(event, to)?;
                to.write_all(b"\n\n")
            }
        }
    }
}

/// The event as JSON.
fn words<R: Serialize>(event: &Event<R>, to: &mut Vec<u8>) -> std::io::Result<()> {
    let (kind, text) = match &event.happened {
        Happened::Stdout { text, base64: None } => ("stdout", text),
        Happened::Stderr { text, base64: None } => ("stderr", text),
        _ => return Ok(serde_json::to_writer(to, event)?),
    };
    // Floods are text, and there are few other bytes between.
    to.reserve(text.len() + text.len() / 16 + 64);
    write!(to, r#"{{"seq":{},"type":"{kind}","text":"#, event.seq)?;
    string(text, to);
    to.push(b'}');
    Ok(())
}

/// What a follower is told, to the end of the run or of `wait`: without a `done` the run
/// goes on, and can be followed further from there.
///
/// `running` is what to report of a run that goes on.
pub(super) fn respond<W: Work<Reply: Serialize>>(
    follower: Follower<W>,
    running: impl Fn() -> W::Report + Send + Sync + 'static,
    wait: Option<f64>,
    form: Form,
) -> Response {
    let end = wait.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let pieces = unfold(
        (follower, running),
        move |(mut follower, running)| async move {
            let beat = Instant::now() + HEARTBEAT;
            let until = end.map_or(beat, |end| end.min(beat));
            let events = match timeout_at(until, follower.next(&running)).await {
                Ok(events) if events.is_empty() => return None,
                Ok(events) => events,
                Err(_) if end.is_some_and(|end| end <= Instant::now()) => return None,
                Err(_) => vec![follower.heartbeat()],
            };
            // What came together goes together: one write, one packet.
            let mut bytes = Vec::new();
            for event in &events {
                if let Err(error) = form.write(event, &mut bytes) {
                    tracing::error!("an event can't be written: {error}");
                }
            }
            let piece = Ok::<_, Infallible>(Bytes::from(bytes));
            Some((piece, (follower, running)))
        },
    );
    let headers = [
        (header::CONTENT_TYPE, form.mime()),
        // Proxies that gather answers would hold the events back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(pieces)).into_response()
}

#[cfg(test)]
mod tests {
    use super::{Form, words};
    use crate::protocol::kernel::{Event, Happened};
    use proptest::prelude::*;

    #[test]
    fn a_heartbeat_is_no_event_to_resume_behind() {
        let written = |happened: Happened| {
            let mut bytes = Vec::new();
            Form::Sse
                .write(&Event { seq: 7, happened }, &mut bytes)
                .unwrap();
            String::from_utf8(bytes).unwrap()
        };
        let beat = written(Happened::Heartbeat);
        assert_eq!(beat, "data: {\"seq\":7,\"type\":\"heartbeat\"}\n\n");
        assert!(written(Happened::Clear { wait: false }).starts_with("id: 7\n"));
    }
    proptest! {
        #[test]
        fn every_event_is_written_as_everything_else_is(
            seq in any::<u64>(),
            text in any::<String>(),
            base64 in prop::option::of("[a-z]{0,9}"),
            is_err in any::<bool>(),
        ) {
            let happened: Happened<()> = match is_err {
                true => Happened::Stderr { text, base64 },
                false => Happened::Stdout { text, base64 },
            };
            let event = Event { seq, happened };
            let mut written = Vec::new();
            words(&event, &mut written).unwrap();
            prop_assert_eq!(written, serde_json::to_vec(&event).unwrap());
        }
    }
}
