//! The state of the servers, and their logs.

use super::PathServerName;
use crate::Hub;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use osctl_protocol as protocol;
use osctl_protocol::service::{ApiDescription, Ping};
use osctl_support::api::{ApiRefusal, QueryParams};
use serde::Deserialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// The interval at which a followed log is read.
const MCP_LOG_POLL_INTERVAL: Duration = Duration::from_millis(200);

const HUB_ENDPOINTS: [(&str, &str); 9] = [
    ("GET /ping", "Check that the hub answers; needs no token."),
    ("GET /status", "The state of each server."),
    (
        "GET /servers/{name}/log",
        "The log of a server: `?tail=N`, `?follow=true`.",
    ),
    (
        "POST /servers/{name}/mcp",
        "Streamable HTTP with one server; `?tools=PATTERN,…` selects tools.",
    ),
    (
        "GET /servers/{name}/mcp",
        "Messages that belong to no call; resumes after `Last-Event-ID`.",
    ),
    ("DELETE /servers/{name}/mcp", "End the session."),
    (
        "GET /servers/{name}/sse",
        "The HTTP+SSE transport; `POST /servers/{name}/messages` sends a message.",
    ),
    (
        "POST /mcp",
        "All servers as one; `?servers=NAME,…&tools=PATTERN,…` selects servers and tools.",
    ),
    ("GET /sse", "All servers as one, by the HTTP+SSE transport."),
];

pub(super) async fn describe_endpoints() -> Response {
    let endpoints = HUB_ENDPOINTS.map(|(what, does)| (what.to_owned(), does.to_owned()));
    Json(ApiDescription {
        name: "osctl MCP hub".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        protocol: protocol::PROTOCOL_VERSION,
        endpoints: endpoints.into(),
    })
    .into_response()
}

pub(super) async fn ping() -> Response {
    let status = "ok".into();
    Json(Ping {
        status,
        proof: None,
    })
    .into_response()
}

pub(super) async fn get_status(State(hub): State<Hub>) -> Response {
    // The status belongs to the files as they are now.
    hub.reload_changed_config();
    Json(hub.status()).into_response()
}

#[derive(Debug, Deserialize)]
pub(super) struct McpLogQuery {
    #[serde(default)]
    follow: bool,
    tail: Option<usize>,
}

pub(super) async fn get_log(
    State(hub): State<Hub>,
    PathServerName(name): PathServerName,
    QueryParams(wanted): QueryParams<McpLogQuery>,
) -> Response {
    let name = name.unwrap_or_default();
    let Some(entry) = hub.find_server(&name) else {
        return hub.no_server(&name).into_http_response(None);
    };
    let log = entry.spec.log.clone();
    let piece = match log.read_from(None) {
        Ok(piece) => piece,
        Err(error) => {
            tracing::error!(error = %format_args!("{error:#}"), "the hub can't read the log of a server");
            let (status, why) = (StatusCode::INTERNAL_SERVER_ERROR, "the log can't be read");
            return ApiRefusal::new(status, "log", why).into_response();
        }
    };
    let text = last_lines(piece.text, wanted.tail);
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    if !wanted.follow {
        return (kind, text).into_response();
    }
    let rest = unfold((log, piece.end_offset), |(log, end)| async move {
        loop {
            tokio::time::sleep(MCP_LOG_POLL_INTERVAL).await;
            let piece = Arc::clone(&log).read_from(Some(end)).ok()?;
            if !piece.text.is_empty() {
                return Some((Bytes::from(piece.text), (log, piece.end_offset)));
            }
        }
    });
    let first = futures_util::stream::iter([Bytes::from(text)]);
    let all = futures_util::StreamExt::chain(first, rest);
    let all = futures_util::StreamExt::map(all, Ok::<_, Infallible>);
    (kind, Body::from_stream(all)).into_response()
}

/// The last `count` lines.
fn last_lines(text: Vec<u8>, count: Option<usize>) -> Vec<u8> {
    let Some(count) = count else {
        return text;
    };
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    lines[lines.len().saturating_sub(count)..].concat()
}
