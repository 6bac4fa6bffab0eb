//! Streamable HTTP with sessions, which the revisions 2025-03-26 to 2025-11-25 specify. A session may also use
//! 2024-11-05, although that revision specifies only HTTP+SSE ([`super::legacy_sse`]).

use super::refusal;
use super::stream_response::{self, OnDisconnect, SseEventId, SseFormat, SseIdKind};
use super::{header_text, parse_accept, stateless};
use crate::child::protocol_revision::{HANDSHAKE_REVISIONS, NEWEST_HANDSHAKE_REVISION};
use crate::client::ReplySender;
use crate::message::{self, RpcMessage, RpcMessageKind};
use crate::message_stream::MessageStream;
use crate::session::HubSession;
use crate::{Hub, HubRefusal, HubTarget};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use osctl_support::api::{ApiRefusal, RawBody};
use std::sync::Arc;

const HUB_SESSION_HEADER: &str = "mcp-session-id";

pub(super) async fn post_messages(
    State(hub): State<Hub>,
    target: HubTarget,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Response {
    if let Some(kind) = header_text(&headers, "content-type")
        && !is_json_content_type(kind)
    {
        let why = format!("the body is `{kind}`, but must be `application/json`");
        return ApiRefusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "no_json", why).into_response();
    }
    let (messages, is_batch) = match RpcMessage::parse_all(body) {
        Ok((messages, _)) if messages.is_empty() => {
            return refusal::empty_batch_refusal().into_response();
        }
        Ok(all) => all,
        Err(malformed) => return malformed.into_response(),
    };
    let id = refusal::only_request_id(&messages).filter(|_| !is_batch);
    let accepted = parse_accept(&headers);
    if !accepted.json && !accepted.events {
        return not_acceptable_response(id, "application/json, text/event-stream");
    }
    // A handshake and messages of the newest revision are never in a batch.
    if let (false, [message]) = (is_batch, &messages[..]) {
        if stateless::is_stateless_request(&headers, message) {
            return stateless::handle_message(hub, target, &headers, message.clone(), accepted)
                .await;
        }
        if message.kind == RpcMessageKind::Request && message.method == "initialize" {
            return initialize_session(&hub, target, message).await;
        }
    }
    let session = match require_session(&hub, &target, &headers, id) {
        Ok(session) => session,
        Err(refusal) => return *refusal,
    };
    let requests = messages
        .iter()
        .filter(|m| m.kind == RpcMessageKind::Request);
    let ids: Vec<&str> = requests.map(|m| m.id().unwrap_or("null")).collect();
    let is_asked = !ids.is_empty();
    let stream = Arc::new(MessageStream::of_requests(hub.next_number(), &ids));
    // A client that accepts no events receives only the answers.
    if is_asked && accepted.events {
        session.streams.add_stream(&stream);
    }
    for message in messages {
        match message.kind {
            RpcMessageKind::Request => {
                hub.persist_subscription(&session, &message);
                let reply = ReplySender::unshaped(stream.clone());
                session.send_request(hub.context(), message, reply);
            }
            RpcMessageKind::Notification | RpcMessageKind::Answer => session.send_message(message),
        }
    }
    if !is_asked {
        return refusal::accepted_response();
    }
    let format = SseFormat {
        id_kind: SseIdKind::Call,
        primed: is_primed(&headers, &session),
    };
    let number = stream.number;
    let response = stream_response::answer_requests(
        stream,
        format,
        accepted,
        is_batch,
        OnDisconnect::no_action(),
    )
    .await;
    if is_json(&response) {
        session.streams.remove_stream(number);
    }
    response
}

fn is_json(response: &Response) -> bool {
    header_text(response.headers(), "content-type") == Some("application/json")
}

async fn initialize_session(hub: &Hub, target: HubTarget, message: &RpcMessage) -> Response {
    let id = message.id().unwrap_or("null");
    let initialize_params = Bytes::copy_from_slice(message.params().unwrap_or("{}").as_bytes());
    match hub.open_session(target, initialize_params).await {
        Ok((session, result)) => {
            let result = std::str::from_utf8(&result).unwrap_or("{}");
            let answer = message::result_response(id, result).into_text();
            let mut response = refusal::json_response(StatusCode::OK, answer);
            // The id is hexadecimal, so it is a valid header value.
            if let Ok(value) = HeaderValue::from_str(&session.id) {
                response
                    .headers_mut()
                    .insert(HeaderName::from_static(HUB_SESSION_HEADER), value);
            }
            response
        }
        Err(refusal) => refusal.into_http_response(Some(id)),
    }
}

fn is_json_content_type(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// The session that the headers name, in a supported version. `request_id` is the id of the only request.
fn require_session(
    hub: &Hub,
    target: &HubTarget,
    headers: &HeaderMap,
    request_id: Option<&str>,
) -> Result<Arc<HubSession>, Box<Response>> {
    let bad = |why: &str| {
        let refused = refusal::session_refusal_response(StatusCode::BAD_REQUEST, request_id, why);
        Err(Box::new(refused))
    };
    let Some(id) = header_text(headers, HUB_SESSION_HEADER) else {
        return bad("the header `Mcp-Session-Id` is missing; send `initialize` first");
    };
    if let Some(version) = header_text(headers, "mcp-protocol-version")
        && !HANDSHAKE_REVISIONS.contains(&version)
    {
        return bad(&format!(
            "the hub does not support sessions of the protocol version `{version}`"
        ));
    }
    let session = hub.find_session(id, target.server.as_deref());
    session.map_err(|refusal| {
        let removed = target
            .server
            .as_ref()
            .filter(|name| hub.find_server(name).is_none());
        let refusal = match (refusal, removed) {
            (HubRefusal::NoSession, Some(name)) => hub.no_server(name),
            (refusal, _) => refusal,
        };
        Box::new(refusal.into_http_response(request_id))
    })
}

/// Opens the general stream, or resumes a stream after a lost connection.
pub(super) async fn open_event_stream(
    State(hub): State<Hub>,
    target: HubTarget,
    headers: HeaderMap,
) -> Response {
    if !parse_accept(&headers).events {
        return not_acceptable_response(None, "text/event-stream");
    }
    let session = match require_session(&hub, &target, &headers, None) {
        Ok(session) => session,
        Err(refusal) => return *refusal,
    };
    let primed = is_primed(&headers, &session);
    let seen = match header_text(&headers, "last-event-id") {
        None => 0,
        Some(id) => match stream_response::parse_event_id(id) {
            // The event belongs to an earlier general stream: its messages are lost, new ones follow.
            Some(event_id) if event_id.is_general => match session.streams.general_stream.number {
                number if number == event_id.stream_number => event_id.seq,
                _ => 0,
            },
            event_id => return resume_call_stream(&hub, &session, event_id, primed),
        },
    };
    let stream = session.streams.general_stream.clone();
    let format = SseFormat {
        id_kind: SseIdKind::General,
        primed,
    };
    let reader = stream.attach_reader();
    session.streams.set_listening(true);
    let at_end = OnDisconnect::new({
        let (session, stream) = (session.clone(), stream.clone());
        move || {
            session.record_use();
            session
                .streams
                .set_listening(stream.has_newer_reader(reader));
        }
    });
    stream_response::respond_with_events(stream, reader, seen, format, at_end)
}

/// Resumes a call's stream. If no event can follow, the client receives an explicit end, because clients treat the
/// end of a stream as another lost connection.
fn resume_call_stream(
    hub: &Hub,
    session: &HubSession,
    event_id: Option<SseEventId>,
    primed: bool,
) -> Response {
    let Some(event_id) = event_id else {
        return StatusCode::NO_CONTENT.into_response();
    };
    let (stream, seen) = match session.streams.find_stream(event_id.stream_number) {
        Some(stream) if !stream.is_exhausted_after(event_id.seq) => (stream, event_id.seq),
        None if hub.is_from_previous_run(event_id.stream_number) => {
            return stream_response::ended_stream_response(&event_id, message::lost_response);
        }
        None => {
            return stream_response::ended_stream_response(
                &event_id,
                message::answer_dropped_response,
            );
        }
        _ => return StatusCode::NO_CONTENT.into_response(),
    };
    let format = SseFormat {
        id_kind: SseIdKind::Call,
        primed,
    };
    let reader = stream.attach_reader();
    stream_response::respond_with_events(stream, reader, seen, format, OnDisconnect::no_action())
}

/// Whether streams start with an empty event. The version in the request's header takes precedence over the
/// session's.
fn is_primed(headers: &HeaderMap, session: &HubSession) -> bool {
    let version = header_text(headers, "mcp-protocol-version").unwrap_or(&session.protocol_version);
    version >= NEWEST_HANDSHAKE_REVISION
}

pub(super) async fn delete_session(
    State(hub): State<Hub>,
    target: HubTarget,
    headers: HeaderMap,
) -> Response {
    match require_session(&hub, &target, &headers, None) {
        Ok(session) => {
            hub.close_session(&session);
            StatusCode::OK.into_response()
        }
        Err(refusal) => *refusal,
    }
}

fn not_acceptable_response(id: Option<&str>, kinds: &str) -> Response {
    let why = format!("the client must accept `{kinds}`");
    let refused = ApiRefusal::new(StatusCode::NOT_ACCEPTABLE, "not_acceptable", why);
    refusal::refusal_response(refused, id, refusal::INVALID_REQUEST_CODE)
}
