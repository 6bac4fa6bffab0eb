//! Streamable HTTP with sessions: the revisions 2025-03-26 to 2025-11-25.

use super::events::{self, AtEnd, Form, Ids, Place};
use super::refusal::{self, failed};
use super::{Body, accepted, stateless, text};
use crate::companion::mcp::member::Reply;
use crate::companion::mcp::message::{self, Kind, Message};
use crate::companion::mcp::server::{NEWEST_WITH_HELLO, WITH_HELLO};
use crate::companion::mcp::session::Session;
use crate::companion::mcp::stream::Stream;
use crate::companion::mcp::{Hub, Refusal, Wish};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

const SESSION: &str = "mcp-session-id";

pub(super) async fn post(
    State(hub): State<Hub>,
    wish: Wish,
    headers: HeaderMap,
    Body(body): Body,
) -> Response {
    if let Some(kind) = text(&headers, "content-type")
        && !is_json_kind(kind)
    {
        let why = format!("the body is `{kind}`, and must be `application/json`");
        return failed(StatusCode::UNSUPPORTED_MEDIA_TYPE, "no_json", why, None);
    }
    let (messages, is_batch) = match Message::parse_all(body) {
        Ok((messages, _)) if messages.is_empty() => return refusal::empty_batch(),
        Ok(all) => all,
        Err(malformed) => return malformed.into_response(),
    };
    let id = refusal::only_id(&messages).filter(|_| !is_batch);
    let accepted = accepted(&headers);
    if !accepted.json && !accepted.events {
        return not_acceptable(id, "application/json, text/event-stream");
    }
    // Neither a handshake nor what the newest revision says comes in batches.
    if let (false, [message]) = (is_batch, &messages[..]) {
        if stateless::is_meant(&headers, message) {
            return stateless::post(hub, wish, &headers, message.clone(), accepted).await;
        }
        if message.kind == Kind::Request && message.method == "initialize" {
            return initialize(&hub, wish, message).await;
        }
    }
    let session = match session(&hub, &wish, &headers, id) {
        Ok(session) => session,
        Err(refusal) => return *refusal,
    };
    let requests = messages.iter().filter(|m| m.kind == Kind::Request);
    let ids: Vec<&str> = requests.map(|m| m.id().unwrap_or("null")).collect();
    let is_asked = !ids.is_empty();
    let stream = Arc::new(Stream::of_requests(hub.next(), &ids));
    // Who takes no events can hear nothing but answers.
    if is_asked && accepted.events {
        session.outlet.open(&stream);
    }
    for message in messages {
        match message.kind {
            Kind::Request => {
                hub.note_if_lasting(&session, &message);
                let reply = Reply::plain(stream.clone());
                session.backend().request(message, reply);
            }
            Kind::Notification | Kind::Answer => session.tell(message),
        }
    }
    if !is_asked {
        return refusal::accepted();
    }
    let form = Form {
        ids: Ids::OfCall,
        primed: is_primed(&headers, &session),
    };
    let number = stream.number;
    let response = events::answer(stream, form, accepted, is_batch, AtEnd::nothing()).await;
    if is_json(&response) {
        session.outlet.forget(number);
    }
    response
}

fn is_json(response: &Response) -> bool {
    text(response.headers(), "content-type") == Some("application/json")
}

async fn initialize(hub: &Hub, wish: Wish, message: &Message) -> Response {
    let id = message.id().unwrap_or("null");
    let hello = Bytes::copy_from_slice(message.params().unwrap_or("{}").as_bytes());
    match hub.open(wish, hello).await {
        Ok((session, result)) => {
            let result = std::str::from_utf8(&result).unwrap_or("{}");
            let mut response = refusal::json(StatusCode::OK, message::result(id, result));
            // Its id is hexadecimal digits.
            if let Ok(value) = HeaderValue::from_str(&session.id) {
                response
                    .headers_mut()
                    .insert(HeaderName::from_static(SESSION), value);
            }
            response
        }
        Err(refusal) => refusal.answer(Some(id)),
    }
}

fn is_json_kind(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// The session that the headers name, in a version that there is; `asked` is the id of the one request.
fn session(
    hub: &Hub,
    wish: &Wish,
    headers: &HeaderMap,
    asked: Option<&str>,
) -> Result<Arc<Session>, Box<Response>> {
    let bad = |why: &str| {
        let refused = refusal::of_session(StatusCode::BAD_REQUEST, asked, why);
        Err(Box::new(refused))
    };
    let Some(id) = text(headers, SESSION) else {
        return bad("the header `Mcp-Session-Id` is missing; say `initialize` first");
    };
    if let Some(version) = text(headers, "mcp-protocol-version")
        && !WITH_HELLO.contains(&version)
    {
        return bad(&format!(
            "the protocol version `{version}` has no sessions here"
        ));
    }
    let session = hub.session(id, wish.server.as_deref());
    session.map_err(|refusal| {
        let gone = wish
            .server
            .as_ref()
            .filter(|name| hub.server(name).is_none());
        let refusal = match (refusal, gone) {
            (Refusal::NoSession, Some(name)) => hub.no_server(name),
            (refusal, _) => refusal,
        };
        Box::new(refusal.answer(asked))
    })
}

/// Listens to what belongs to no call, or goes on where a connection was lost.
pub(super) async fn get(State(hub): State<Hub>, wish: Wish, headers: HeaderMap) -> Response {
    if !accepted(&headers).events {
        return not_acceptable(None, "text/event-stream");
    }
    let session = match session(&hub, &wish, &headers, None) {
        Ok(session) => session,
        Err(refusal) => return *refusal,
    };
    let primed = is_primed(&headers, &session);
    let seen = match text(&headers, "last-event-id") {
        None => 0,
        Some(id) => match events::place(id) {
            // An older one than there is: what was told on it is lost, what comes is not.
            Some(place) if place.is_general => match session.outlet.general.number {
                number if number == place.stream => place.seq,
                _ => 0,
            },
            place => return go_on(&hub, &session, place, primed),
        },
    };
    let stream = session.outlet.general.clone();
    let form = Form {
        ids: Ids::General,
        primed,
    };
    let reader = stream.take_over();
    session.outlet.set_listens(true);
    let at_end = AtEnd::new({
        let (session, stream) = (session.clone(), stream.clone());
        move || {
            session.touch();
            session.outlet.set_listens(stream.is_read_by_other(reader));
        }
    });
    events::respond(stream, reader, seen, form, at_end)
}

/// The rest of a call's stream. Where nothing more will come, clients need an answer that says so: they take
/// the end of a stream for one more lost connection.
fn go_on(hub: &Hub, session: &Session, place: Option<Place>, primed: bool) -> Response {
    let Some(place) = place else {
        return StatusCode::NO_CONTENT.into_response();
    };
    let (stream, seen) = match session.outlet.find(place.stream) {
        Some(stream) if !stream.is_over(place.seq) => (stream, place.seq),
        None if hub.is_of_before(place.stream) => return events::end(&place, message::lost),
        None => return events::end(&place, message::not_kept),
        _ => return StatusCode::NO_CONTENT.into_response(),
    };
    let form = Form {
        ids: Ids::OfCall,
        primed,
    };
    let reader = stream.take_over();
    events::respond(stream, reader, seen, form, AtEnd::nothing())
}

/// Whether streams begin with an empty event. What a request says of its version counts, not what was said before.
fn is_primed(headers: &HeaderMap, session: &Session) -> bool {
    let version = text(headers, "mcp-protocol-version").unwrap_or(&session.version);
    version >= NEWEST_WITH_HELLO
}

pub(super) async fn delete(State(hub): State<Hub>, wish: Wish, headers: HeaderMap) -> Response {
    match session(&hub, &wish, &headers, None) {
        Ok(session) => {
            hub.close(&session);
            StatusCode::OK.into_response()
        }
        Err(refusal) => *refusal,
    }
}

fn not_acceptable(id: Option<&str>, kinds: &str) -> Response {
    let why = format!("the client must accept `{kinds}`");
    let status = StatusCode::NOT_ACCEPTABLE;
    refusal::refused(status, "not_acceptable", (id, -32600), &why, None)
}
