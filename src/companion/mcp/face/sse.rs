//! The transport of 2024-11-05: one stream of events down, and a path to send up.

use super::events::{self, AtEnd, Form, Ids};
use super::refusal::{self, failed};
use super::{Asked, Body};
use crate::companion::mcp::member::Reply;
use crate::companion::mcp::message::{self, Kind, Message};
use crate::companion::mcp::{Hub, Wish};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct Of {
    session_id: Option<String>,
}

/// Opens the stream, and says where to send.
pub(super) async fn open(State(hub): State<Hub>, wish: Wish) -> Response {
    let base = match &wish.server {
        Some(name) if hub.server(name).is_some() => format!("/servers/{name}"),
        Some(name) => return hub.no_server(name).answer(None),
        None => String::new(),
    };
    let Ok((id, stream)) = hub.begin(wish) else {
        let why = "no id can be made";
        return failed(StatusCode::INTERNAL_SERVER_ERROR, "no_id", why, None);
    };
    let reader = stream.take_over();
    let at_end = AtEnd::new({
        let id = id.clone();
        move || hub.leave(&id)
    });
    let form = Form {
        ids: Ids::None,
        primed: false,
    };
    let first = format!("event: endpoint\ndata: {base}/messages?session_id={id}\n\n");
    events::respond_after(first.into(), stream, reader, form, at_end)
}

/// Takes a message; what it brings is told on the stream.
pub(super) async fn post(
    State(hub): State<Hub>,
    Asked(of): Asked<Of>,
    Body(body): Body,
) -> Response {
    let messages = match Message::parse_all(body) {
        Ok((messages, _)) if messages.is_empty() => return refusal::empty_batch(),
        Ok((messages, _)) => messages,
        Err(malformed) => return malformed.into_response(),
    };
    let Some(visit) = of.session_id.as_deref().and_then(|id| hub.visit(id)) else {
        let why = "there is no such session; open the stream first";
        let id = refusal::only_id(&messages);
        return refusal::of_session(StatusCode::NOT_FOUND, id, why);
    };
    for message in messages {
        let reply = Reply::plain(visit.stream.clone());
        let id = message.id().unwrap_or("null").to_owned();
        if message.kind == Kind::Request {
            visit.stream.expect();
        }
        if message.kind == Kind::Request && message.method == "initialize" {
            let hub = hub.clone();
            // It may have to start a server, which the client need not wait for here.
            tokio::spawn(async move {
                match hub.greet(&visit, &message).await {
                    Ok(result) => {
                        let result = String::from_utf8_lossy(&result).into_owned();
                        reply.result(&id, &result);
                    }
                    Err(refusal) => reply.stream.answer(refusal.message(&id)),
                }
            });
            return refusal::accepted();
        }
        let Some(session) = visit.session() else {
            if message.kind == Kind::Request {
                let why = "say `initialize` first";
                visit.stream.answer(message::error(&id, -32600, why));
            }
            continue;
        };
        match message.kind {
            Kind::Request => {
                hub.note_if_lasting(session, &message);
                session.backend().request(message, reply);
            }
            Kind::Notification | Kind::Answer => session.tell(message),
        }
    }
    refusal::accepted()
}
