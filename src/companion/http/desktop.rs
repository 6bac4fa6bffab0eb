//! The desktop in a browser: the way in, the page, and its connection.

use super::answer::{Params, failed};
use super::{State, guard, json};
use crate::companion::desktop::{CODE, PASS};
use crate::protocol::desktop::{Enter, Link};
use crate::protocol::fault::Failed;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Request, State as Shared};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use std::path::{Component, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// The page, which is the binary's own; the VNC client comes with the image.
const PAGE: &str = include_str!("../../../assets/desktop/index.html");
const SCRIPT: &str = include_str!("../../../assets/desktop/desktop.js");
const CLIPBOARD: &str = include_str!("../../../assets/desktop/clipboard.js");
const STYLE: &str = include_str!("../../../assets/desktop/desktop.css");

/// What VNC clients in browsers call their protocol.
const PROTOCOL: &str = "binary";

/// Bytes of one frame to the browser.
const PIECE: usize = 64 << 10;

/// A browser that went away without a word is noticed within twice that.
const PING: Duration = Duration::from_secs(20);

/// The page loads nothing from elsewhere, runs nothing that stands in it, and lies in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A link that opens the desktop in a browser, once.
#[utoipa::path(post, path = "/desktop/link", responses(
    (status = 200, body = Link),
    (status = 503, description = "There is no desktop, and why.", body = Failed),
))]
pub(super) async fn link(Shared(state): Shared<State>) -> Response {
    if let Err(refusal) = state.desktop.exists() {
        return refusal.into_response();
    }
    match state.tickets.issue() {
        Some(code) => json(
            StatusCode::OK,
            Link {
                path: format!("/desktop/enter?code={code}"),
                expires: CODE.as_secs(),
            },
        ),
        None => failed(
            StatusCode::SERVICE_UNAVAILABLE,
            "no_randomness",
            "the system gives no randomness",
            None,
        ),
    }
}

/// Exchanges a link's code for a cookie, and leads to the desktop.
#[utoipa::path(get, path = "/desktop/enter", params(Enter), responses(
    (status = 303, description = "Come in."),
    (status = 403, description = "The link was used already, or is too old.", body = Failed),
))]
pub(super) async fn enter(
    Shared(state): Shared<State>,
    headers: HeaderMap,
    Params(Enter { code }): Params<Enter>,
) -> Response {
    let Some(pass) = state.tickets.redeem(&code) else {
        return failed(
            StatusCode::FORBIDDEN,
            "used_link",
            "the link was used already, or is too old",
            Some("`osctl desktop` makes another one"),
        );
    };
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let name = guard::cookie(host.unwrap_or_default());
    let age = PASS.as_secs();
    let cookie = format!("{name}={pass}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict");
    let mut response = Redirect::to("/desktop/").into_response();
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

pub(super) async fn lead_in() -> Redirect {
    Redirect::to("/desktop/")
}

/// The desktop, for people with a browser.
#[utoipa::path(get, path = "/desktop/", responses((status = 200, description = "A page.", content_type = "text/html")))]
pub(super) async fn page() -> Response {
    shown("text/html; charset=utf-8", PAGE)
}

/// What the page loads.
pub(super) async fn file(
    Shared(state): Shared<State>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    match name.as_str() {
        "desktop.js" => return shown("text/javascript; charset=utf-8", SCRIPT),
        "clipboard.js" => return shown("text/javascript; charset=utf-8", CLIPBOARD),
        "desktop.css" => return shown("text/css; charset=utf-8", STYLE),
        _ => {}
    }
    let Some(path) = module(&name) else {
        return super::unknown_path(request).await;
    };
    match tokio::fs::read(state.desktop.novnc().join(path)).await {
        Ok(bytes) => shown("text/javascript; charset=utf-8", bytes),
        Err(_) => super::unknown_path(request).await,
    }
}

/// A module of the VNC client: a script, and nothing outside of its folder.
fn module(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(name.strip_prefix("novnc/")?);
    let is_plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    let is_script = path.extension().is_some_and(|extension| extension == "js");
    (is_plain && is_script).then_some(path)
}

fn shown(kind: &'static str, body: impl IntoResponse) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, body).into_response()
}

/// The desktop as a WebSocket that speaks VNC's protocol; the cookie or the token is enough, no
/// password is asked for.
#[utoipa::path(get, path = "/desktop/socket", responses(
    (status = 101, description = "Binary frames: VNC's bytes, both ways."),
    (status = 503, description = "The desktop can't be shown, and why.", body = Failed),
))]
pub(super) async fn socket(Shared(state): Shared<State>, upgrade: WebSocketUpgrade) -> Response {
    match state.desktop.visit().await {
        Ok((server, stay)) => upgrade
            .protocols([PROTOCOL])
            .on_upgrade(async move |socket| {
                bridge(socket, server).await;
                drop(stay);
            }),
        Err(refusal) => refusal.into_response(),
    }
}

/// Until either side has enough.
async fn bridge(socket: WebSocket, server: UnixStream) {
    let (sink, stream) = socket.split();
    let (reader, writer) = server.into_split();
    tokio::select! {
        () = show(sink, reader) => {}
        () = hear(stream, writer) => {}
    }
}

async fn show(mut sink: SplitSink<WebSocket, Message>, mut server: OwnedReadHalf) {
    let mut pings = tokio::time::interval(PING);
    loop {
        let mut bytes = Vec::with_capacity(PIECE);
        let message = tokio::select! {
            read = server.read_buf(&mut bytes) => match read {
                Ok(0) | Err(_) => break,
                Ok(_) => Message::Binary(bytes.into()),
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        // A browser that takes nothing for so long is gone.
        let sent = timeout(PING, sink.send(message)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
    // It comes again by itself; what it was told last is not lost.
    let _ = sink.send(Message::Close(None)).await;
}

async fn hear(mut stream: SplitStream<WebSocket>, mut server: OwnedWriteHalf) {
    // Whoever is there answers each ping.
    while let Ok(Some(Ok(message))) = timeout(2 * PING, stream.next()).await {
        match message {
            Message::Binary(bytes) => {
                if server.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Message::Close(_) => return,
            // Nothing else belongs to the protocol.
            Message::Text(_) | Message::Ping(_) | Message::Pong(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::module;

    #[test]
    fn only_scripts_of_the_client_are_served() {
        assert_eq!(module("novnc/core/rfb.js"), Some("core/rfb.js".into()));
        for name in [
            "core/rfb.js",
            "novnc/../secret.js",
            "novnc//etc/x.js",
            "novnc/package.json",
            "novnc/",
        ] {
            assert_eq!(module(name), None, "{name}");
        }
    }
}
