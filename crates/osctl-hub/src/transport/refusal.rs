//! Refusals of the hub as HTTP responses.

use crate::child::HandshakeError;
use crate::message::{self, RpcMessage, RpcMessageKind, RpcParseError};
use crate::{Hub, HubRefusal};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use osctl_protocol::PROTOCOL_VERSION_HEADER;
use osctl_support::api::ApiRefusal;
use std::time::Duration;
use tokio::time::timeout;

pub(super) const INVALID_REQUEST_CODE: i64 = -32600;
pub(super) const INTERNAL_ERROR_CODE: i64 = -32603;
const PARSE_ERROR_CODE: i64 = -32700;
const REFUSAL_INVALID_PARAMS_CODE: i64 = -32602;
const HUB_STOPPING_MESSAGE: &str = "the companion is stopping";

/// Limits for reading the body of a request that is refused; its client may have no token.
const MAX_REFUSED_MESSAGE_BYTES: usize = 64 << 10;
const REFUSED_MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// A response whose body is one JSON-RPC message.
pub(super) fn json_response(status: StatusCode, text: Bytes) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// A response whose body is a JSON-RPC error.
pub(super) fn rpc_error_response(status: StatusCode, id: &str, code: i64, why: &str) -> Response {
    json_response(status, message::error_response(id, code, why).into_text())
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
pub(super) fn refusal_response(refusal: ApiRefusal, id: Option<&str>, code: i64) -> Response {
    let Some(id) = id else {
        return refusal.into_response();
    };
    let (status, error) = refusal.into_parts();
    let (why, kind) = (&error.message, &error.kind);
    let text = message::typed_error_response(id, code, why, kind, error.hint.as_deref());
    json_response(status, text)
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
    refusal_response(ApiRefusal::new(status, kind, why), id, INVALID_REQUEST_CODE)
}

pub(super) fn empty_batch_refusal() -> ApiRefusal {
    ApiRefusal::new(StatusCode::BAD_REQUEST, "no_message", "the batch is empty")
}

impl IntoResponse for RpcParseError {
    fn into_response(self) -> Response {
        let status = StatusCode::BAD_REQUEST;
        match self {
            Self::NotJson(why) => {
                let why = format!("the body is not valid JSON: {why}");
                let refusal = ApiRefusal::new(status, "malformed_json", why);
                // The id of the request is unknown, which JSON-RPC writes as null.
                refusal_response(refusal, Some("null"), PARSE_ERROR_CODE)
            }
            Self::NotRpc(why, id) => {
                let why = format!("the body is not JSON-RPC: {why}");
                let refusal = ApiRefusal::new(status, "no_message", why);
                refusal_response(refusal, id.as_deref(), INVALID_REQUEST_CODE)
            }
        }
    }
}

impl HubRefusal {
    /// An error message for a stream.
    pub(super) fn into_error_message(self, id: &str) -> RpcMessage {
        match self {
            Self::NoServer(why) => message::error_response(id, REFUSAL_INVALID_PARAMS_CODE, &why),
            Self::NoSession => {
                message::error_response(id, INVALID_REQUEST_CODE, "the session does not exist")
            }
            Self::Stopping => {
                message::error_response(id, INTERNAL_ERROR_CODE, HUB_STOPPING_MESSAGE)
            }
            Self::Handshake(HandshakeError::Refused(error)) => {
                message::raw_error_response(id, &error)
            }
            Self::Handshake(HandshakeError::Failed(why)) => {
                message::error_response(id, INTERNAL_ERROR_CODE, &why)
            }
        }
    }

    /// An HTTP response, in answer to the request with this id if there is one.
    pub(super) fn into_http_response(self, id: Option<&str>) -> Response {
        let missing = StatusCode::NOT_FOUND;
        match self {
            Self::NoServer(why) => {
                let refusal = ApiRefusal::new(missing, "unknown_server", why)
                    .with_hint("`osctl mcp ls` shows the servers");
                refusal_response(refusal, id, REFUSAL_INVALID_PARAMS_CODE)
            }
            Self::NoSession => {
                let why = "the session does not exist; send `initialize` again";
                session_refusal_response(missing, id, why)
            }
            Self::Stopping => stopping_refusal().into_response(),
            initialize @ Self::Handshake(_) => json_response(
                StatusCode::OK,
                initialize
                    .into_error_message(id.unwrap_or("null"))
                    .into_text(),
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
    refuse_request(request, stopping_refusal()).await
}

fn stopping_refusal() -> ApiRefusal {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    ApiRefusal::new(status, "stopping", HUB_STOPPING_MESSAGE).with_retry_after(1)
}

pub(super) async fn reject_unknown_hub_path(request: Request) -> ApiRefusal {
    let message = format!("there is no `{}`", request.uri().path());
    ApiRefusal::new(StatusCode::NOT_FOUND, "unknown_path", message)
        .with_hint("`GET /` lists the endpoints")
}

/// Refuses a request that the hub has not read, such as one without a token: with an error of JSON-RPC if it is one,
/// because clients of MCP show no other. osctl's own clients read the error of the HTTP API.
pub async fn refuse_request(request: Request, refusal: ApiRefusal) -> Response {
    if request.headers().contains_key(PROTOCOL_VERSION_HEADER) {
        return refusal.into_response();
    }
    let (_, message) = read_message(request).await;
    let id = message.as_ref().and_then(RpcMessage::id);
    let plain = refusal.clone().into_response();
    let code = match plain.status().is_server_error() {
        true => INTERNAL_ERROR_CODE,
        false => INVALID_REQUEST_CODE,
    };
    let mut response = refusal_response(refusal, id, code);
    if let Some(seconds) = plain.headers().get(header::RETRY_AFTER) {
        let seconds = seconds.clone();
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

/// Reads the tool that a request calls, as `SERVER__TOOL`. The request can be handled afterwards.
pub async fn read_called_tool(request: Request) -> (Request, Option<String>) {
    let path = request.uri().path().to_owned();
    let (request, message) = read_message(request).await;
    let call = message.filter(|message| message.method == "tools/call");
    let name = call.and_then(|call| call.text_param(&["name"]));
    let server = path.strip_prefix("/servers/");
    let server = server.and_then(|rest| rest.strip_suffix("/mcp"));
    let tool = name.map(|name| match server {
        Some(server) => format!("{server}__{name}"),
        None => name,
    });
    (request, tool)
}

/// Reads the only request of JSON-RPC in a body.
async fn read_message(request: Request) -> (Request, Option<RpcMessage>) {
    if request.method() != Method::POST || !request.uri().path().ends_with("/mcp") {
        return (request, None);
    }
    let (parts, body) = request.into_parts();
    let read = timeout(
        REFUSED_MESSAGE_TIMEOUT,
        to_bytes(body, MAX_REFUSED_MESSAGE_BYTES),
    );
    let body: Bytes = match read.await {
        Ok(Ok(body)) => body,
        _ => Bytes::new(),
    };
    let message = RpcMessage::parse(body.clone()).ok();
    let message = message.filter(|message| message.kind == RpcMessageKind::Request);
    (Request::from_parts(parts, Body::from(body)), message)
}
