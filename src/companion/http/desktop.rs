//! Routes of the desktop in a browser: the link, the page and its WebSocket.

use super::{HttpState, auth};
use crate::companion::desktop::{DESKTOP_COOKIE_TIMEOUT, ONE_TIME_TOKEN_TIMEOUT};
use crate::protocol::desktop::{DesktopEnterQuery, DesktopLinkReply};
use crate::protocol::error::FailedReply;
use axum::Json;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Request, State as Shared};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use osctl_support::api::{ApiRefusal, ApiResult, QueryParams};
use std::path::{Component, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// The page, embedded in the binary; the VNC client is part of the image.
const DESKTOP_PAGE: &str = include_str!("../../../assets/desktop/index.html");
const START_SCRIPT: &str = include_str!("../../../assets/desktop/start.js");
const DESKTOP_SCRIPT: &str = include_str!("../../../assets/desktop/desktop.js");
const CLIPBOARD_SCRIPT: &str = include_str!("../../../assets/desktop/clipboard.js");
const DESKTOP_STYLE: &str = include_str!("../../../assets/desktop/desktop.css");

/// The subprotocol that VNC clients in browsers request.
const VNC_SUBPROTOCOL: &str = "binary";

/// Maximum bytes of one frame to the browser.
const VNC_FRAME_BYTES: usize = 64 << 10;

/// Interval of pings; a lost connection is detected within twice this interval.
const VNC_SOCKET_PING_INTERVAL: Duration = Duration::from_secs(20);

/// The page loads nothing from other hosts, runs no inline script and cannot be framed.
const DESKTOP_PAGE_CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Create a one-time link to the desktop
#[utoipa::path(post, path = "/desktop/link", responses(
    (status = 200, body = DesktopLinkReply),
    (status = 503, description = "The desktop is not available; the message has the reason.", body = FailedReply),
))]
pub(super) async fn link(Shared(state): Shared<HttpState>) -> ApiResult<Json<DesktopLinkReply>> {
    state.desktop.check_available()?;
    let code = state.one_time_tokens.issue_token().ok_or_else(|| {
        let message = "the system returned no random bytes";
        ApiRefusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_randomness", message)
    })?;
    Ok(Json(DesktopLinkReply {
        path: format!("/desktop/enter?code={code}"),
        expires: ONE_TIME_TOKEN_TIMEOUT.as_secs(),
    }))
}

/// Sign in with a one-time ticket
///
/// The reply sets a cookie and redirects to the desktop.
#[utoipa::path(get, path = "/desktop/enter", params(DesktopEnterQuery), responses(
    (status = 303, description = "A cookie, and a redirect to `/desktop/`."),
    (status = 403, description = "The link was already used or has expired.", body = FailedReply),
))]
pub(super) async fn enter(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
    QueryParams(DesktopEnterQuery { code }): QueryParams<DesktopEnterQuery>,
) -> ApiResult {
    let pass = state.one_time_tokens.redeem_token(&code).ok_or_else(|| {
        let message = "the link was already used or has expired";
        ApiRefusal::new(StatusCode::FORBIDDEN, "used_link", message)
            .with_hint("`osctl desktop` creates another link")
    })?;
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let name = auth::cookie_name(host.unwrap_or_default());
    let age = DESKTOP_COOKIE_TIMEOUT.as_secs();
    let cookie = format!("{name}={pass}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict");
    let mut response = Redirect::to("/desktop/").into_response();
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

pub(super) async fn redirect_to_page() -> Redirect {
    Redirect::to("/desktop/")
}

/// Get the page of the desktop
#[utoipa::path(get, path = "/desktop/", responses((status = 200, description = "The page.", content_type = "text/html")))]
pub(super) async fn page() -> Response {
    asset_response("text/html; charset=utf-8", DESKTOP_PAGE)
}

/// Serves the files that the page loads.
pub(super) async fn serve_asset(
    Shared(state): Shared<HttpState>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    match name.as_str() {
        "start.js" => return asset_response("text/javascript; charset=utf-8", START_SCRIPT),
        "desktop.js" => return asset_response("text/javascript; charset=utf-8", DESKTOP_SCRIPT),
        "clipboard.js" => {
            return asset_response("text/javascript; charset=utf-8", CLIPBOARD_SCRIPT);
        }
        "desktop.css" => return asset_response("text/css; charset=utf-8", DESKTOP_STYLE),
        _ => {}
    }
    let Some(path) = novnc_module_path(&name) else {
        return super::reject_unknown_path(request).await.into_response();
    };
    match tokio::fs::read(state.desktop.novnc_folder().join(path)).await {
        Ok(bytes) => asset_response("text/javascript; charset=utf-8", bytes),
        Err(_) => super::reject_unknown_path(request).await.into_response(),
    }
}

/// The path of a module of the VNC client: only scripts, and nothing outside of its folder.
fn novnc_module_path(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(name.strip_prefix("novnc/")?);
    let is_plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    let is_script = path.extension().is_some_and(|extension| extension == "js");
    (is_plain && is_script).then_some(path)
}

fn asset_response(kind: &'static str, body: impl IntoResponse) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, DESKTOP_PAGE_CSP),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, body).into_response()
}

/// Open a VNC connection over a WebSocket
///
/// The cookie or the token is sufficient; the endpoint asks for no VNC password.
#[utoipa::path(get, path = "/desktop/socket", responses(
    (status = 101, description = "A WebSocket. Binary frames carry the bytes of VNC in both directions."),
    (status = 503, description = "The desktop can't be shown; the message has the reason.", body = FailedReply),
))]
pub(super) async fn socket(
    Shared(state): Shared<HttpState>,
    upgrade: WebSocketUpgrade,
) -> ApiResult {
    let (server, stay) = state.desktop.connect_viewer().await?;
    Ok(upgrade
        .protocols([VNC_SUBPROTOCOL])
        .on_upgrade(async move |socket| {
            bridge_vnc(socket, server).await;
            drop(stay);
        }))
}

/// Copies in both directions until either side closes.
async fn bridge_vnc(socket: WebSocket, server: UnixStream) {
    let (sink, stream) = socket.split();
    let (reader, writer) = server.into_split();
    tokio::select! {
        () = send_frames(sink, reader) => {}
        () = receive_frames(stream, writer) => {}
    }
}

async fn send_frames(mut sink: SplitSink<WebSocket, Message>, mut server: OwnedReadHalf) {
    let mut pings = tokio::time::interval(VNC_SOCKET_PING_INTERVAL);
    loop {
        let mut bytes = Vec::with_capacity(VNC_FRAME_BYTES);
        let message = tokio::select! {
            read = server.read_buf(&mut bytes) => match read {
                Ok(0) | Err(_) => break,
                Ok(_) => Message::Binary(bytes.into()),
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        // A browser that accepts no data for this interval is disconnected.
        let sent = timeout(VNC_SOCKET_PING_INTERVAL, sink.send(message)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
    // The page reconnects automatically, so a lost close frame does no harm.
    let _ = sink.send(Message::Close(None)).await;
}

async fn receive_frames(mut stream: SplitStream<WebSocket>, mut server: OwnedWriteHalf) {
    // A connected browser answers each ping.
    while let Ok(Some(Ok(message))) = timeout(2 * VNC_SOCKET_PING_INTERVAL, stream.next()).await {
        match message {
            Message::Binary(bytes) => {
                if server.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Message::Close(_) => return,
            // The protocol has no other messages.
            Message::Text(_) | Message::Ping(_) | Message::Pong(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::novnc_module_path;

    #[test]
    fn only_scripts_of_the_client_are_served() {
        assert_eq!(
            novnc_module_path("novnc/core/rfb.js"),
            Some("core/rfb.js".into())
        );
        for name in [
            "core/rfb.js",
            "novnc/../secret.js",
            "novnc//etc/x.js",
            "novnc/package.json",
            "novnc/",
        ] {
            assert_eq!(novnc_module_path(name), None, "{name}");
        }
    }
}
