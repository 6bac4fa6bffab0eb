//! The transport of 2024-11-05: one stream of events down, and a path to send up.

use super::events::{self, AtEnd, Form, Ids};
use super::refusal::{self, failed, rpc};
use crate::companion::mcp::member::Reply;
use crate::companion::mcp::message::{self, Kind, Message};
use crate::companion::mcp::{Hub, Wish};
use axum::body::Bytes;
use axum::extract::{Query, State};
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
        Some(name) => {
            let why = format!("there is no server `{name}`");
            let hint = Some("`GET /status` lists the servers");
            return failed(StatusCode::NOT_FOUND, "unknown_server", why, hint);
        }
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
pub(super) async fn post(State(hub): State<Hub>, Query(of): Query<Of>, body: Bytes) -> Response {
    let Some(visit) = of.session_id.as_deref().and_then(|id| hub.visit(id)) else {
        let why = "there is no such session; open the stream first";
        return rpc(StatusCode::NOT_FOUND, "null", -32600, why);
    };
    let messages = match Message::parse_all(body) {
        Ok((messages, _)) => messages,
        Err(malformed) => return malformed.into_response(),
    };
    for message in messages {
        let reply = Reply::plain(visit.stream.clone());
        let id = message.id().unwrap_or("null").to_owned();
        if message.kind == Kind::Request && message.method == "initialize" {
            let hub = hub.clone();
            // It may have to start a server, which the client need not wait for here.
            tokio::spawn(async move {
                match hub.greet(&visit, &message).await {
                    Ok(result) => {
                        let result = String::from_utf8_lossy(&result).into_owned();
                        reply.result(&id, &result);
                    }
                    Err(refusal) => reply.stream.tell(refusal.message(&id)),
                }
            });
            return refusal::accepted();
        }
        let Some(session) = visit.session() else {
            if message.kind == Kind::Request {
                let why = "say `initialize` first";
                visit.stream.tell(message::error(&id, -32600, why));
            }
            continue;
        };
        match message.kind {
            Kind::Request => session.backend.request(message, reply),
            Kind::Notification | Kind::Answer => session.backend.tell(message),
        }
    }
    refusal::accepted()
}
