//! Every refusal of the hub as an HTTP answer.

use crate::companion::http::failed as failure;
use crate::companion::mcp::child::NoHello;
use crate::companion::mcp::message::{self, Malformed};
use crate::companion::mcp::{Hub, Refusal};
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

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

impl IntoResponse for Malformed {
    fn into_response(self) -> Response {
        let (code, why) = match self {
            Self::NotJson(why) => (-32700, format!("the body is no JSON: {why}")),
            Self::NotRpc(why) => (-32600, format!("the body is no JSON-RPC: {why}")),
        };
        rpc(StatusCode::BAD_REQUEST, "null", code, &why)
    }
}

impl Refusal {
    /// As a message on a stream.
    pub(super) fn message(self, id: &str) -> Bytes {
        match self {
            Self::NoServer(name) => {
                message::error(id, -32602, &format!("there is no server `{name}`"))
            }
            Self::NoSession => message::error(id, -32600, "there is no such session"),
            Self::Hello(NoHello::Refused(error)) => {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into()
            }
            Self::Hello(NoHello::Failed(why)) => message::error(id, -32603, &why),
        }
    }

    /// In answer to the request of that id.
    pub(super) fn answer(self, id: &str) -> Response {
        match self {
            Self::NoServer(name) => failed(
                StatusCode::NOT_FOUND,
                "unknown_server",
                format!("there is no server `{name}`"),
                Some("`GET /status` lists the servers"),
            ),
            Self::NoSession => rpc(
                StatusCode::NOT_FOUND,
                id,
                -32600,
                "there is no such session; say `initialize` again",
            ),
            hello @ Self::Hello(_) => json(StatusCode::OK, hello.message(id)),
        }
    }
}

/// Until the companion is there again nothing is asked of it: whoever comes then finds all as it was.
pub(super) async fn stopping(State(hub): State<Hub>, request: Request, next: Next) -> Response {
    if !hub.is_stopping() || request.uri().path() == "/ping" {
        return next.run(request).await;
    }
    let why = "the companion is stopping";
    let mut response = failed(StatusCode::SERVICE_UNAVAILABLE, "stopping", why, None);
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
