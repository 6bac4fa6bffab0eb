//! The HTTP+SSE transport of 2024-11-05 for clients: one event stream carries all messages to the client, and the
//! client posts its messages to a second path.

use super::refusal;
use super::stream_response::{self, OnDisconnect, SseFormat, SseIdKind};
use crate::client::ReplySender;
use crate::message::{RpcMessage, RpcMessageKind};
use crate::{Hub, HubTarget};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use osctl_support::api::{ApiRefusal, QueryParams, RawBody};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct SseSessionQuery {
    session_id: Option<String>,
}

/// Opens the event stream; its first event is the path for the client's messages.
pub(super) async fn open_stream(State(hub): State<Hub>, target: HubTarget) -> Response {
    let base = match &target.server {
        Some(name) if hub.find_server(name).is_some() => format!("/servers/{name}"),
        Some(name) => return hub.no_server(name).into_http_response(None),
        None => String::new(),
    };
    let Ok((id, stream)) = hub.open_connection(target) else {
        let why = "the hub can't create a session id";
        return ApiRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no_id", why).into_response();
    };
    let reader = stream.attach_reader();
    let at_end = OnDisconnect::new({
        let id = id.clone();
        move || hub.remove_connection(&id)
    });
    let format = SseFormat {
        id_kind: SseIdKind::None,
        primed: false,
    };
    let first = format!("event: endpoint\ndata: {base}/messages?session_id={id}\n\n");
    stream_response::respond_after_first_event(first.into(), stream, reader, format, at_end)
}

/// Accepts a message of the client; answers to it are sent on the stream.
pub(super) async fn post_message(
    State(hub): State<Hub>,
    QueryParams(of): QueryParams<SseSessionQuery>,
    RawBody(body): RawBody,
) -> Response {
    let messages = match RpcMessage::parse_all(body) {
        Ok((messages, _)) if messages.is_empty() => {
            return refusal::empty_batch_refusal().into_response();
        }
        Ok((messages, _)) => messages,
        Err(malformed) => return malformed.into_response(),
    };
    let Some(connection) = of
        .session_id
        .as_deref()
        .and_then(|id| hub.find_connection(id))
    else {
        let why = "the session does not exist; open the stream first";
        let id = refusal::only_request_id(&messages);
        return refusal::session_refusal_response(StatusCode::NOT_FOUND, id, why);
    };
    for message in messages {
        let reply = ReplySender::unshaped(connection.stream.clone());
        let id = message.id().unwrap_or("null").to_owned();
        if message.kind == RpcMessageKind::Request {
            connection.stream.expect_answer();
        }
        if message.kind == RpcMessageKind::Request && message.method == "initialize" {
            let hub = hub.clone();
            // The handshake may start a server; the client's POST does not wait for it.
            tokio::spawn(async move {
                match hub.initialize_connection(&connection, &message).await {
                    Ok(result) => {
                        let result = String::from_utf8_lossy(&result).into_owned();
                        reply.send_result(&id, &result);
                    }
                    Err(refusal) => reply.send_answer(refusal.into_error_message(&id)),
                }
            });
            return refusal::accepted_response();
        }
        let Some(session) = connection.session() else {
            if message.kind == RpcMessageKind::Request {
                reply.send_error(&id, -32600, "send `initialize` first");
            }
            continue;
        };
        match message.kind {
            RpcMessageKind::Request => {
                hub.persist_subscription(session, &message);
                session.send_request(hub.context(), message, reply);
            }
            RpcMessageKind::Notification | RpcMessageKind::Answer => session.send_message(message),
        }
    }
    refusal::accepted_response()
}
