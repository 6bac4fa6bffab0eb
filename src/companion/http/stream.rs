//! A stream of a run's events: Server-Sent Events, or one JSON object per line.

use super::json_text::write_json_string;
use crate::companion::runs::{RunFollower, RunKind};
use crate::protocol::kernel::{RunEvent, RunEventKind};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde::Serialize;
use std::convert::Infallible;
use std::io::Write;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// After this time without an event a heartbeat shows clients and proxies that the run is still active.
pub(super) const EVENT_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// The format of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamFormat {
    Sse,
    Ndjson,
}

impl StreamFormat {
    /// The format that the client accepts; `None` for one reply at the end.
    pub(super) fn from_accept_header(headers: &HeaderMap) -> Option<Self> {
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

    /// Encodes one message as a Server-Sent Event or a line.
    pub(super) fn encode_message(self, message: &impl Serialize) -> Bytes {
        let message = serde_json::to_string(message).unwrap_or_default();
        Bytes::from(match self {
            Self::Sse => format!("data: {message}\n\n"),
            Self::Ndjson => format!("{message}\n"),
        })
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Sse => "text/event-stream",
            Self::Ndjson => "application/x-ndjson",
        }
    }

    fn write_event<R: Serialize>(
        self,
        event: &RunEvent<R>,
        to: &mut Vec<u8>,
    ) -> std::io::Result<()> {
        match self {
            Self::Ndjson => {
                write_event_json(event, to)?;
                to.write_all(b"\n")
            }
            Self::Sse => {
                // A heartbeat carries no number: a client that resumes after it would miss the event whose number the
                // heartbeat repeats.
                if !matches!(event.happened, RunEventKind::Heartbeat) {
                    writeln!(to, "id: {}", event.seq)?;
                }
                to.write_all(b"data: ")?;
                // Serialized JSON contains no line breaks.
                write_event_json(event, to)?;
                to.write_all(b"\n\n")
            }
        }
    }
}

/// Writes the event as JSON.
fn write_event_json<R: Serialize>(event: &RunEvent<R>, to: &mut Vec<u8>) -> std::io::Result<()> {
    let (kind, text) = match &event.happened {
        RunEventKind::Stdout { text, base64: None } => ("stdout", text),
        RunEventKind::Stderr { text, base64: None } => ("stderr", text),
        _ => return Ok(serde_json::to_writer(to, event)?),
    };
    // Output events are mostly text; few bytes need an escape.
    to.reserve(text.len() + text.len() / 16 + 64);
    write!(to, r#"{{"seq":{},"type":"{kind}","text":"#, event.seq)?;
    write_json_string(text, to);
    to.push(b'}');
    Ok(())
}

/// Streams events to a follower, to the end of the run or of `wait`: a stream without `done` means that the run is
/// still active, and the client can follow the run from there.
///
/// `running` is the report of a run that is still active.
pub(super) fn stream_run_events<W: RunKind<Reply: Serialize>>(
    follower: RunFollower<W>,
    running: impl Fn() -> W::Report + Send + Sync + 'static,
    wait: Option<f64>,
    format: StreamFormat,
) -> Response {
    let end = wait.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let pieces = unfold(
        (follower, running),
        move |(mut follower, running)| async move {
            let beat = Instant::now() + EVENT_HEARTBEAT_INTERVAL;
            let until = end.map_or(beat, |end| end.min(beat));
            let events = match timeout_at(until, follower.next_events(&running)).await {
                Ok(events) if events.is_empty() => return None,
                Ok(events) => events,
                Err(_) if end.is_some_and(|end| end <= Instant::now()) => return None,
                Err(_) => vec![follower.heartbeat_event()],
            };
            // Events that arrive together are sent together: one write, one packet.
            let mut bytes = Vec::new();
            for event in &events {
                if let Err(error) = format.write_event(event, &mut bytes) {
                    tracing::error!(%error, "the companion can't write an event of a run");
                }
            }
            let piece = Ok::<_, Infallible>(Bytes::from(bytes));
            Some((piece, (follower, running)))
        },
    );
    let headers = [
        (header::CONTENT_TYPE, format.content_type()),
        // Without this header, proxies that buffer replies would hold the events back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(pieces)).into_response()
}

#[cfg(test)]
mod tests {
    use super::{StreamFormat, write_event_json};
    use crate::protocol::kernel::{RunEvent, RunEventKind};
    use proptest::prelude::*;

    #[test]
    fn no_client_resumes_after_a_heartbeat() {
        let written = |happened: RunEventKind| {
            let mut bytes = Vec::new();
            StreamFormat::Sse
                .write_event(&RunEvent { seq: 7, happened }, &mut bytes)
                .unwrap();
            String::from_utf8(bytes).unwrap()
        };
        let beat = written(RunEventKind::Heartbeat);
        assert_eq!(beat, "data: {\"seq\":7,\"type\":\"heartbeat\"}\n\n");
        assert!(written(RunEventKind::Clear { wait: false }).starts_with("id: 7\n"));
    }
    proptest! {
        #[test]
        fn every_event_is_written_as_serde_json_writes_it(
            seq in any::<u64>(),
            text in any::<String>(),
            base64 in prop::option::of("[a-z]{0,9}"),
            is_err in any::<bool>(),
        ) {
            let happened: RunEventKind<()> = match is_err {
                true => RunEventKind::Stderr { text, base64 },
                false => RunEventKind::Stdout { text, base64 },
            };
            let event = RunEvent { seq, happened };
            let mut written = Vec::new();
            write_event_json(&event, &mut written).unwrap();
            prop_assert_eq!(written, serde_json::to_vec(&event).unwrap());
        }
    }
}
