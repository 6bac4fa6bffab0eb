//! Responses from a message stream: server-sent events, or the only answer as JSON.

use super::{AcceptedTypes, refusal};
use crate::message;
use crate::message_stream::{MessageStream, MessageStreamEvent};
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::stream::unfold;
use osctl_protocol::mcp::STREAM_ID_HEADER;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// After this time without an event a comment is sent to keep the connection open.
const MCP_SSE_KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// The time from the loss of a stream to a client's attempt to resume it, which the stream tells the client.
const MCP_SSE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// A response that may be JSON becomes events after this time, so that the client receives its headers.
const MCP_JSON_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes of request ids in an event's id.
const MAX_REQUEST_IDS_BYTES: usize = 256;

/// The kind of event ids, with which a client can resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SseIdKind {
    None,
    Call,
    /// Ids of the general stream, which carries messages that belong to no call.
    General,
}

impl SseIdKind {
    fn id_prefix(self) -> &'static str {
        match self {
            Self::General => GENERAL_ID_PREFIX,
            Self::None | Self::Call => "",
        }
    }
}

/// The prefix of the general stream's event ids. That stream, unlike a call's, always exists and can be resumed.
const GENERAL_ID_PREFIX: &str = "g";

/// The format of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SseFormat {
    pub(super) id_kind: SseIdKind,
    /// Whether the first event is empty. A client can resume from its id before any message.
    pub(super) primed: bool,
}

/// Runs a function when a connection ends for any reason.
pub(super) struct OnDisconnect(pub(super) Option<Box<dyn FnOnce() + Send + Sync>>);

impl OnDisconnect {
    pub(super) fn new(end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(end)))
    }

    pub(super) fn no_action() -> Self {
        Self(None)
    }
}

impl Drop for OnDisconnect {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

/// The response to requests: JSON if the first message arrives soon and is the last, otherwise events.
pub(super) async fn answer_requests(
    stream: Arc<MessageStream>,
    format: SseFormat,
    accepted: AcceptedTypes,
    is_batch: bool,
    at_end: OnDisconnect,
) -> Response {
    let reader = stream.attach_reader();
    let AcceptedTypes {
        json,
        events,
        events_first,
    } = accepted;
    if !json || events_first || (is_batch && events) {
        return respond_with_events(stream, reader, 0, format, at_end);
    }
    if !events {
        return collect_json(&stream, reader, is_batch).await;
    }
    match timeout(MCP_JSON_ANSWER_TIMEOUT, stream.next_event(0, reader)).await {
        Ok(Some(event)) if event.is_last => refusal::json_response(StatusCode::OK, event.text),
        _ => respond_with_events(stream, reader, 0, format, at_end),
    }
}

/// All answers as JSON, for a client that does not accept events. Other messages are dropped.
async fn collect_json(stream: &MessageStream, reader: u64, is_batch: bool) -> Response {
    let mut answers = Vec::new();
    let mut seen = 0;
    while let Some(event) = stream.next_event(seen, reader).await {
        seen = event.seq;
        answers.push(event.text);
    }
    if !is_batch {
        return match answers.pop() {
            Some(answer) => refusal::json_response(StatusCode::OK, answer),
            None => refusal::accepted_response(),
        };
    }
    let mut text = vec![b'['];
    text.extend_from_slice(&answers.join(&b','));
    text.push(b']');
    refusal::json_response(StatusCode::OK, text.into())
}

/// The events after number `seen`.
pub(super) fn respond_with_events(
    stream: Arc<MessageStream>,
    reader: u64,
    seen: u64,
    format: SseFormat,
    at_end: OnDisconnect,
) -> Response {
    let first = match format.primed && seen == 0 {
        true => Bytes::from(format!(
            "id: {}{}.0{}\nretry: {}\ndata:\n\n",
            format.id_kind.id_prefix(),
            stream.number,
            encode_request_ids(&stream.request_ids),
            MCP_SSE_RETRY_INTERVAL.as_millis(),
        )),
        false => Bytes::new(),
    };
    sse_response(first, stream, reader, seen, format, at_end)
}

/// All events after the event `first`.
pub(super) fn respond_after_first_event(
    first: Bytes,
    stream: Arc<MessageStream>,
    reader: u64,
    format: SseFormat,
    at_end: OnDisconnect,
) -> Response {
    sse_response(first, stream, reader, 0, format, at_end)
}

fn sse_response(
    first: Bytes,
    stream: Arc<MessageStream>,
    reader: u64,
    seen: u64,
    format: SseFormat,
    at_end: OnDisconnect,
) -> Response {
    let number = stream.number;
    let rest = unfold(
        (stream, seen, at_end),
        move |(stream, seen, at_end)| async move {
            match timeout(MCP_SSE_KEEP_ALIVE_INTERVAL, stream.next_event(seen, reader)).await {
                Ok(Some(event)) => {
                    let chunk = format_event(&stream, &event, format);
                    Some((Ok(chunk), (stream, event.seq, at_end)))
                }
                Ok(None) => None,
                Err(_) => Some((Ok(Bytes::from_static(b":\n\n")), (stream, seen, at_end))),
            }
        },
    );
    let first = (!first.is_empty()).then_some(Ok::<_, Infallible>(first));
    let pieces = futures_util::StreamExt::chain(futures_util::stream::iter(first), rest);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream".to_owned()),
        // Buffering proxies would delay the events.
        (
            HeaderName::from_static("x-accel-buffering"),
            "no".to_owned(),
        ),
        (
            HeaderName::from_static(STREAM_ID_HEADER),
            number.to_string(),
        ),
    ];
    (headers, Body::from_stream(pieces)).into_response()
}

fn format_event(stream: &MessageStream, event: &MessageStreamEvent, format: SseFormat) -> Bytes {
    let (number, request_ids) = (stream.number, encode_request_ids(&stream.request_ids));
    let id = match format.id_kind {
        SseIdKind::None => String::new(),
        ids => format!(
            "id: {}{number}.{}{request_ids}\n",
            ids.id_prefix(),
            event.seq
        ),
    };
    // One buffer, so that an event is one write.
    let mut chunk = Vec::with_capacity(event.text.len() + id.len() + 24);
    chunk.extend_from_slice(b"event: message\n");
    chunk.extend_from_slice(id.as_bytes());
    chunk.extend_from_slice(b"data: ");
    chunk.extend_from_slice(&event.text);
    chunk.extend_from_slice(b"\n\n");
    chunk.into()
}

/// The parts of an event's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SseEventId {
    pub(super) is_general: bool,
    pub(super) stream_number: u64,
    pub(super) seq: u64,
    /// The raw ids of the requests that the stream answers, where they are known.
    pub(super) request_ids: Vec<String>,
}

pub(super) fn parse_event_id(id: &str) -> Option<SseEventId> {
    let id = id.trim();
    let rest = id.strip_prefix(GENERAL_ID_PREFIX);
    let mut parts = rest.unwrap_or(id).split('.');
    let event_id = SseEventId {
        is_general: rest.is_some(),
        stream_number: parts.next()?.parse().ok()?,
        seq: parts.next()?.parse().ok()?,
        request_ids: match parts.next() {
            Some(request_ids) => decode_request_ids(request_ids)?,
            None => Vec::new(),
        },
    };
    parts.next().is_none().then_some(event_id)
}

/// The suffix of an event's id. After a restart it identifies the requests that the stream answered.
fn encode_request_ids(request_ids: &str) -> String {
    match request_ids.len() {
        1..=MAX_REQUEST_IDS_BYTES => format!(".{}", URL_SAFE_NO_PAD.encode(request_ids)),
        _ => String::new(),
    }
}

fn decode_request_ids(encoded: &str) -> Option<Vec<String>> {
    let request_ids = String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()?;
    let ids = message::array_elements(&request_ids);
    let all_are_ids = !ids.is_empty() && ids.iter().all(|id| message::is_rpc_id(id));
    all_are_ids.then(|| ids.into_iter().map(str::to_owned).collect())
}

/// Ends a stream that does not exist any more, with one answer for each request. These events contain no request ids,
/// so another attempt to resume receives 204.
pub(super) fn ended_stream_response(
    event_id: &SseEventId,
    answer: impl Fn(&str) -> Bytes,
) -> Response {
    if event_id.request_ids.is_empty() {
        return StatusCode::NO_CONTENT.into_response();
    }
    let mut pieces = Vec::new();
    for (id, seq) in event_id.request_ids.iter().zip(event_id.seq + 1..) {
        let id_of_event = format!(
            "event: message\nid: {}.{seq}\ndata: ",
            event_id.stream_number
        );
        pieces.extend_from_slice(id_of_event.as_bytes());
        pieces.extend_from_slice(&answer(id));
        pieces.extend_from_slice(b"\n\n");
    }
    let headers = [(header::CONTENT_TYPE, "text/event-stream")];
    (headers, pieces).into_response()
}

#[cfg(test)]
mod tests {
    use super::{MAX_REQUEST_IDS_BYTES, SseEventId, encode_request_ids, parse_event_id};

    #[test]
    fn an_events_id_names_its_stream_and_place() {
        let of = |is_general| SseEventId {
            is_general,
            stream_number: 12,
            seq: 3,
            request_ids: Vec::new(),
        };
        assert_eq!(parse_event_id("12.3"), Some(of(false)));
        assert_eq!(parse_event_id("g12.3"), Some(of(true)));
        for other in ["", "12", "g", "a.b", "12.3.4", "-1.0"] {
            assert_eq!(parse_event_id(other), None, "{other}");
        }
        let odd = [r#""\u0041.é""#, "1.0", "null"];
        let marked = encode_request_ids(&format!("[{}]", odd.join(",")));
        assert_eq!(
            parse_event_id(&format!("12.3{marked}"))
                .unwrap()
                .request_ids,
            odd
        );
        for (no_ids, count) in [
            ("[{}]", 1),
            ("[]", 1),
            ("x", 1),
            ("1", MAX_REQUEST_IDS_BYTES + 1),
        ] {
            let marked = encode_request_ids(&no_ids.repeat(count));
            let event_id = parse_event_id(&format!("12.3{marked}"));
            assert!(event_id.is_none_or(|event_id| event_id.request_ids.is_empty()));
        }
    }
}
