//! Routes of terminals: list, end, and attach over a WebSocket.

use super::{HttpState, pty_socket};
use crate::companion::pty::{PtyAttachRequest, PtyStart, TerminalSize};
use crate::protocol::error::FailedReply;
use crate::protocol::pty::{
    AttachQuery, FromTerminal, TerminalEnded, TerminalList, TerminalSummary, ToTerminal,
};
use axum::Json;
use axum::extract::State as Shared;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use osctl_support::api::{ApiRefusal, ApiResult, PathId, QueryParams};

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
) -> ApiResult {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(WebSocketUpgradeRejection::InvalidConnectionHeader(_)) => {
            return Ok(list_terminals(&state).await.into_response());
        }
        Err(rejection) => {
            let (status, message) = (StatusCode::BAD_REQUEST, rejection.body_text());
            return Err(ApiRefusal::new(status, "no_websocket", message)
                .with_hint("open a WebSocket as RFC 6455 describes"));
        }
    };
    let size = TerminalSize {
        cols: query.cols.max(1),
        rows: query.rows.max(1),
    };
    let start = match query.id {
        Some(_) => None,
        None => {
            state.sessions.find_kernel(&query.session)?;
            Some(state.shells.session_cwd(&query.session))
        }
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
    let connection = state.terminals.attach_client(id, &start, who).await?;
    Ok(upgrade
        .protocols([PTY_SUBPROTOCOL])
        .max_frame_size(MAX_PTY_FRAME_BYTES)
        .max_message_size(MAX_PTY_FRAME_BYTES)
        .on_upgrade(|socket| pty_socket::serve_terminal(socket, connection)))
}

async fn list_terminals(state: &HttpState) -> Json<TerminalList> {
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
    Json(TerminalList { terminals })
}

/// End a terminal and all its processes
#[utoipa::path(delete, path = "/pty/{id}", params(("id" = String, Path, description = "ID of the terminal")), responses(
    (status = 200, body = TerminalEnded),
    (status = 404, description = "The terminal does not exist.", body = FailedReply),
))]
pub(super) async fn end(
    Shared(state): Shared<HttpState>,
    PathId(id): PathId,
) -> ApiResult<Json<TerminalEnded>> {
    let code = state.terminals.end_terminal(&id).await?.code;
    let status = "completed".into();
    Ok(Json(TerminalEnded { status, id, code }))
}
