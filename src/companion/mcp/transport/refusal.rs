//! Refusals of the hub as HTTP responses.

use crate::companion::http::error_response as failure;
use crate::companion::mcp::child::HandshakeError;
use crate::companion::mcp::message::{self, RpcMessage, RpcMessageKind, RpcParseError};
use crate::companion::mcp::{Hub, HubRefusal};
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const INVALID_REQUEST_CODE: i64 = -32600;
const REFUSAL_INVALID_PARAMS_CODE: i64 = -32602;
const HUB_STOPPING_MESSAGE: &str = "the companion is stopping";

pub(super) fn api_error_response(
    status: StatusCode,
    kind: &str,
    message: impl Into<String>,
    hint: Option<&str>,
) -> Response {
    failure(status, kind, message, hint)
}

/// A response whose body is one JSON-RPC message.
pub(super) fn json_response(status: StatusCode, text: Bytes) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// A response whose body is a JSON-RPC error.
pub(super) fn rpc_error_response(status: StatusCode, id: &str, code: i64, why: &str) -> Response {
    json_response(status, message::error_response(id, code, why))
}

pub(super) fn accepted_response() -> Response {
    StatusCode::ACCEPTED.into_response()
}

/// The id of the only request in a body; an error about the whole body uses it.
pub(super) fn only_request_id(messages: &[RpcMessage]) -> Option<&str> {
    match messages {
        [message] if message.kind == RpcMessageKind::Request => message.id(),
        _ => None,
    }
}

/// A JSON-RPC error if there is a request to answer, otherwise an error of the HTTP API.
pub(super) fn refusal_response(
    status: StatusCode,
    kind: &str,
    (id, code): (Option<&str>, i64),
    why: &str,
    hint: Option<&str>,
) -> Response {
    match id {
        Some(id) => json_response(
            status,
            message::typed_error_response(id, code, why, kind, hint),
        ),
        None => api_error_response(status, kind, why, hint),
    }
}

/// The refusal of a message whose session is missing or unknown.
pub(super) fn session_refusal_response(
    status: StatusCode,
    id: Option<&str>,
    why: &str,
) -> Response {
    let kind = match status {
        StatusCode::NOT_FOUND => "unknown_session",
        _ => "no_session",
    };
    refusal_response(status, kind, (id, INVALID_REQUEST_CODE), why, None)
}

pub(super) fn empty_batch_response() -> Response {
    let why = "the batch is empty";
    api_error_response(StatusCode::BAD_REQUEST, "no_message", why, None)
}

impl IntoResponse for RpcParseError {
    fn into_response(self) -> Response {
        let status = StatusCode::BAD_REQUEST;
        match self {
            Self::NotJson(why) => {
                let why = format!("the body is not valid JSON: {why}");
                api_error_response(status, "malformed_json", why, None)
            }
            Self::NotRpc(why, id) => {
                let why = format!("the body is not JSON-RPC: {why}");
                let id = (id.as_deref(), INVALID_REQUEST_CODE);
                refusal_response(status, "no_message", id, &why, None)
            }
        }
    }
}

impl HubRefusal {
    /// An error message for a stream.
    pub(super) fn into_error_message(self, id: &str) -> Bytes {
        match self {
            Self::NoServer(why) => message::error_response(id, REFUSAL_INVALID_PARAMS_CODE, &why),
            Self::NoSession => {
                message::error_response(id, INVALID_REQUEST_CODE, "the session does not exist")
            }
            Self::Stopping => message::error_response(id, -32603, HUB_STOPPING_MESSAGE),
            Self::Handshake(HandshakeError::Refused(error)) => {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into()
            }
            Self::Handshake(HandshakeError::Failed(why)) => {
                message::error_response(id, -32603, &why)
            }
        }
    }

    /// An HTTP response, in answer to the request with this id if there is one.
    pub(super) fn into_http_response(self, id: Option<&str>) -> Response {
        let missing = StatusCode::NOT_FOUND;
        match self {
            Self::NoServer(why) => refusal_response(
                missing,
                "unknown_server",
                (id, REFUSAL_INVALID_PARAMS_CODE),
                &why,
                Some("`osctl mcp ls` shows the servers"),
            ),
            Self::NoSession => {
                let why = "the session does not exist; send `initialize` again";
                session_refusal_response(missing, id, why)
            }
            Self::Stopping => stopping_response(),
            initialize @ Self::Handshake(_) => json_response(
                StatusCode::OK,
                initialize.into_error_message(id.unwrap_or("null")),
            ),
        }
    }
}

/// Refuses all requests except `/ping` while the companion stops. A client that retries after the restart finds all
/// state as it was.
pub(super) async fn refuse_while_stopping(
    State(hub): State<Hub>,
    request: Request,
    next: Next,
) -> Response {
    if !hub.is_stopping() || request.uri().path() == "/ping" {
        return next.run(request).await;
    }
    stopping_response()
}

fn stopping_response() -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let mut response = api_error_response(status, "stopping", HUB_STOPPING_MESSAGE, None);
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

pub(super) async fn reject_unknown_hub_path(request: Request) -> Response {
    let message = format!("there is no `{}`", request.uri().path());
    let hint = Some("`GET /` lists the endpoints");
    api_error_response(StatusCode::NOT_FOUND, "unknown_path", message, hint)
}

pub(super) async fn reject_wrong_hub_method(method: Method, request: Request) -> Response {
    let message = format!("`{}` does not support {method}", request.uri().path());
    let hint = Some("`GET /` lists the endpoints");
    api_error_response(
        StatusCode::METHOD_NOT_ALLOWED,
        "wrong_method",
        message,
        hint,
    )
}
