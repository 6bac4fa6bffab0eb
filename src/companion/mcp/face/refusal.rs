//! Every refusal of the hub as an HTTP answer.

use crate::companion::http::failed as failure;
use crate::companion::mcp::child::NoHello;
use crate::companion::mcp::message::{self, Kind, Malformed, Message};
use crate::companion::mcp::{Hub, Refusal};
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;
const STOPPING: &str = "the companion is stopping";

pub(super) fn failed(
    status: StatusCode,
    kind: &str,
    message: impl Into<String>,
    hint: Option<&str>,
) -> Response {
    failure(status, kind, message, hint)
}

/// One JSON-RPC message as the whole answer.
pub(super) fn json(status: StatusCode, text: Bytes) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// A JSON-RPC error as the whole answer.
pub(super) fn rpc(status: StatusCode, id: &str, code: i64, why: &str) -> Response {
    json(status, message::error(id, code, why))
}

pub(super) fn accepted() -> Response {
    StatusCode::ACCEPTED.into_response()
}

/// The one request among the messages, whose id the refusal of all has.
pub(super) fn only_id(messages: &[Message]) -> Option<&str> {
    match messages {
        [message] if message.kind == Kind::Request => message.id(),
        _ => None,
    }
}

/// A refusal in JSON-RPC, where there is a request that it answers; otherwise as the API has it.
pub(super) fn refused(
    status: StatusCode,
    kind: &str,
    (id, code): (Option<&str>, i64),
    why: &str,
    hint: Option<&str>,
) -> Response {
    match id {
        Some(id) => json(status, message::error_of(id, code, why, kind, hint)),
        None => failed(status, kind, why, hint),
    }
}

/// What can't be said without a session, or not in this one.
pub(super) fn of_session(status: StatusCode, id: Option<&str>, why: &str) -> Response {
    let kind = match status {
        StatusCode::NOT_FOUND => "unknown_session",
        _ => "no_session",
    };
    refused(status, kind, (id, INVALID_REQUEST), why, None)
}

pub(super) fn empty_batch() -> Response {
    let why = "the batch is empty";
    failed(StatusCode::BAD_REQUEST, "no_message", why, None)
}

impl IntoResponse for Malformed {
    fn into_response(self) -> Response {
        let status = StatusCode::BAD_REQUEST;
        match self {
            Self::NotJson(why) => {
                let why = format!("the body is no JSON: {why}");
                failed(status, "malformed_json", why, None)
            }
            Self::NotRpc(why, id) => {
                let why = format!("the body is no JSON-RPC: {why}");
                let id = (id.as_deref(), INVALID_REQUEST);
                refused(status, "no_message", id, &why, None)
            }
        }
    }
}

impl Refusal {
    /// As a message on a stream.
    pub(super) fn message(self, id: &str) -> Bytes {
        match self {
            Self::NoServer(why) => message::error(id, INVALID_PARAMS, &why),
            Self::NoSession => message::error(id, INVALID_REQUEST, "there is no such session"),
            Self::Stopping => message::error(id, -32603, STOPPING),
            Self::Hello(NoHello::Refused(error)) => {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into()
            }
            Self::Hello(NoHello::Failed(why)) => message::error(id, -32603, &why),
        }
    }

    /// In answer to the request of that id, should there be one.
    pub(super) fn answer(self, id: Option<&str>) -> Response {
        let missing = StatusCode::NOT_FOUND;
        match self {
            Self::NoServer(why) => refused(
                missing,
                "unknown_server",
                (id, INVALID_PARAMS),
                &why,
                Some("`osctl mcp list` shows the servers (`GET /status`)"),
            ),
            Self::NoSession => {
                let why = "there is no such session; say `initialize` again";
                of_session(missing, id, why)
            }
            Self::Stopping => stopped(),
            hello @ Self::Hello(_) => json(StatusCode::OK, hello.message(id.unwrap_or("null"))),
        }
    }
}

/// Until the companion is there again nothing is asked of it: whoever comes then finds all as it was.
pub(super) async fn stopping(State(hub): State<Hub>, request: Request, next: Next) -> Response {
    if !hub.is_stopping() || request.uri().path() == "/ping" {
        return next.run(request).await;
    }
    stopped()
}

fn stopped() -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let mut response = failed(status, "stopping", STOPPING, None);
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

pub(super) async fn unknown_path(request: Request) -> Response {
    let message = format!("there is no `{}`", request.uri().path());
    let hint = Some("`GET /` lists the endpoints");
    failed(StatusCode::NOT_FOUND, "unknown_path", message, hint)
}

pub(super) async fn wrong_method(method: Method, request: Request) -> Response {
    let message = format!("`{}` can't be asked with {method}", request.uri().path());
    let hint = Some("`GET /` lists the endpoints");
    failed(
        StatusCode::METHOD_NOT_ALLOWED,
        "wrong_method",
        message,
        hint,
    )
}
