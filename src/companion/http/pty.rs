//! Routes of terminals: list, end, and attach over a WebSocket.

use super::response::{PathId, QueryParams, error_response};
use super::{HttpState, json_response, pty_socket};
use crate::companion::pty::{PtyAttachRequest, PtyRefusal, PtyStart, TerminalSize};
use crate::protocol::error::FailedReply;
use crate::protocol::pty::{
    AttachQuery, FromTerminal, TerminalEnded, TerminalList, TerminalSummary, ToTerminal,
};
use axum::extract::State as Shared;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

/// Maximum bytes of one frame from a client; typing never needs more.
const MAX_PTY_FRAME_BYTES: usize = 1 << 20;

/// The subprotocol that browsers name beside the one with the token.
const PTY_SUBPROTOCOL: &str = "osctl";

/// List terminals, or attach to a terminal over a WebSocket
///
/// With `Upgrade: websocket` the query selects a terminal or opens a new one. Binary frames are raw bytes: output of
/// the terminal, and keys for it. Text frames are JSON: the companion sends `FromTerminal` messages, first a `hello`;
/// the client may send `ToTerminal` messages. A client that lost the connection attaches again with the `id`, the same
/// `client`, and `since` set to the offset after the last byte received, and sends the keys after the `typed` of the
/// `hello` again. The companion pings every 5 seconds and closes a connection after 15 seconds without a frame from the
/// client. Browsers, which can't set headers here, name two subprotocols: `osctl` and `osctl.token.TOKEN`.
#[utoipa::path(get, path = "/pty", params(AttachQuery), responses(
    (status = 101, description = "A WebSocket. Text frames are `FromTerminal` messages to the client and `ToTerminal` messages to the companion.", content(
        (FromTerminal = "application/json"), (ToTerminal = "application/json"),
    )),
    (status = 200, description = "Without an upgrade: the list of terminals.", body = TerminalList),
    (status = 400, description = "A field is invalid.", body = FailedReply),
    (status = 404, description = "The terminal or the session does not exist.", body = FailedReply),
    (status = 429, description = "The limit of terminals, or of connections to the terminal, is reached.", body = FailedReply),
))]
pub(super) async fn open(
    Shared(state): Shared<HttpState>,
    QueryParams(query): QueryParams<AttachQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(WebSocketUpgradeRejection::InvalidConnectionHeader(_)) => {
            return list_terminals(&state).await;
        }
        Err(rejection) => {
            let hint = Some("open a WebSocket as RFC 6455 describes");
            let message = rejection.body_text();
            return error_response(StatusCode::BAD_REQUEST, "no_websocket", message, hint);
        }
    };
    let size = TerminalSize {
        cols: query.cols.max(1),
        rows: query.rows.max(1),
    };
    let start = match query.id {
        Some(_) => None,
        None => match state.sessions.find_kernel(&query.session) {
            Ok(_) => Some(state.shells.session_cwd(&query.session)),
            Err(refusal) => return refusal.into_response(),
        },
    };
    let environment = match query.id {
        Some(_) => None,
        None => state.shells.session_environment(&query.session).await,
    };
    let start = PtyStart {
        size,
        term: query.term,
        cwd: start,
        environment,
        session: query.session,
    };
    let who = PtyAttachRequest {
        client: query.client,
        role: query.role,
        take_writer: query.take,
        from_offset: query.since,
        size,
    };
    let id = query.id.as_deref();
    match state.terminals.attach_client(id, &start, who).await {
        Ok(connection) => upgrade
            .protocols([PTY_SUBPROTOCOL])
            .max_frame_size(MAX_PTY_FRAME_BYTES)
            .max_message_size(MAX_PTY_FRAME_BYTES)
            .on_upgrade(|socket| pty_socket::serve_terminal(socket, connection)),
        Err(refusal) => refusal.into_response(),
    }
}

async fn list_terminals(state: &HttpState) -> Response {
    let mut terminals = Vec::new();
    for terminal in state.terminals.list_terminals() {
        let view = terminal.view();
        terminals.push(TerminalSummary {
            id: terminal.id().into(),
            program: terminal.foreground_program().await,
            exit: terminal.exit_status().map(|exit| exit.code),
            viewers: view.client_count as u64,
            writer: view.has_writer,
            cols: view.size.cols,
            rows: view.size.rows,
            offset: terminal.output_length(),
            idle: view.last_used.elapsed().as_secs_f64(),
        });
    }
    json_response(StatusCode::OK, TerminalList { terminals })
}

/// End a terminal and all its processes
#[utoipa::path(delete, path = "/pty/{id}", params(("id" = String, Path, description = "ID of the terminal")), responses(
    (status = 200, body = TerminalEnded),
    (status = 404, description = "The terminal does not exist.", body = FailedReply),
))]
pub(super) async fn end(Shared(state): Shared<HttpState>, PathId(id): PathId) -> Response {
    match state.terminals.end_terminal(&id).await {
        Ok(exit) => {
            let status = "completed".into();
            let code = exit.code;
            json_response(StatusCode::OK, TerminalEnded { status, id, code })
        }
        Err(refusal) => refusal.into_response(),
    }
}

impl IntoResponse for PtyRefusal {
    fn into_response(self) -> Response {
        let busy = StatusCode::TOO_MANY_REQUESTS;
        match self {
            Self::NoTerminal(id) => error_response(
                StatusCode::NOT_FOUND,
                "unknown_terminal",
                format!("there is no terminal `{id}`"),
                Some(
                    "`osctl shell --list` lists the terminals; the companion removes an ended terminal after two minutes",
                ),
            ),
            Self::TooManyTerminals(count) => error_response(
                busy,
                "too_many_terminals",
                format!("the limit of {count} terminals is reached"),
                Some(
                    "`osctl shell --end ID` ends a terminal; `terminals.max` in osctl.yaml sets the limit",
                ),
            ),
            Self::TooManyClients => error_response(
                busy,
                "too_many_clients",
                "the limit of connections to the terminal is reached",
                Some("close another connection to the terminal"),
            ),
            Self::Invalid(message) => super::response::invalid_field_response(message),
            Self::ShellNotStarted(why) => error_response(
                StatusCode::SERVICE_UNAVAILABLE,
                "no_shell",
                format!("the shell can't be started: {why}"),
                Some("`osctl logs` shows more"),
            ),
            Self::ShuttingDown => error_response(
                StatusCode::SERVICE_UNAVAILABLE,
                "stopping",
                "the companion is stopping",
                None,
            ),
        }
    }
}
