//! The screen over HTTP.

use super::answer::{Body, Params, failed, invalid};
use super::stream::{Form, HEARTBEAT};
use super::{State, json};
use crate::companion::desktop::{Copied, Refusal};
use crate::companion::display;
use crate::protocol::display::{
    Browser, Clipboard, ClipboardEvent, Done, Focus, Input, Open, PICTURE_HEADER, Resolution,
    SCREEN_HEADER, Screen, Screenshot, TAKEN_HEADER, Windows,
};
use crate::protocol::fault::Failed;
use axum::body::Body as Streamed;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use std::convert::Infallible;
use std::time::Instant;
use tokio::time::timeout;

/// Where it does not run by somebody's choice.
const ABSENT: &str = "`desktop.run: lazy` in osctl.yaml and `osctl up` bring one, in a container";

/// What is on the screen now, as PNG. It starts the desktop where it does not run, and is never a
/// picture of before.
#[utoipa::path(get, path = "/display/screenshot", params(Screenshot), responses(
    (status = 200, description = "The picture; `osctl-picture` and `osctl-screen` tell its and the screen's size as `WIDTHxHEIGHT`, `osctl-taken` when it was taken, in milliseconds since 1970.", content_type = "image/png"),
    (status = 400, description = "The region or the scale does not fit.", body = Failed),
    (status = 503, description = "There is no picture, and why.", body = Failed),
))]
pub(super) async fn screenshot(
    Shared(state): Shared<State>,
    Params(query): Params<Screenshot>,
) -> Response {
    let region = match query.region.as_deref() {
        None => None,
        Some(text) => match display::Region::parse(text) {
            Some(region) => Some(region),
            None => return invalid(format!("`{text}` is no region: give `X,Y,WIDTH,HEIGHT`")),
        },
    };
    let shot = state.desktop.shoot(region, query.scale.unwrap_or(1.0));
    let shot = match shot.await {
        Ok(shot) => shot,
        Err(refusal) => return refusal.into_response(),
    };
    let (size, screen, taken) = (shot.size, shot.screen, shot.taken_ms());
    let mut response = ([(header::CONTENT_TYPE, "image/png")], shot.file).into_response();
    for (name, value) in [
        (PICTURE_HEADER, format!("{}x{}", size.0, size.1)),
        (SCREEN_HEADER, format!("{}x{}", screen.0, screen.1)),
        (TAKEN_HEADER, taken.to_string()),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            let name = HeaderName::from_static(name);
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Moves, clicks, turns the wheel, presses keys and types, in the order given.
#[utoipa::path(post, path = "/display/input", request_body = Input, responses(
    (status = 200, body = Done),
    (status = 400, description = "An action does not fit, or all take longer than 10 seconds; nothing was done.", body = Failed),
    (status = 503, description = "There is no screen, and why.", body = Failed),
))]
pub(super) async fn input(Shared(state): Shared<State>, Body(input): Body<Input>) -> Response {
    let begin = Instant::now();
    answer(state.desktop.act(input.actions).await.map(|pointer| Done {
        status: "completed".into(),
        pointer,
        timing_ms: begin.elapsed().as_secs_f64() * 1e3,
    }))
}

/// The text that was copied last.
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the text comes now, and again whenever
/// another one is copied.
#[utoipa::path(get, path = "/display/clipboard", responses(
    (status = 200, content(
        (Clipboard = "application/json"), (ClipboardEvent = "text/event-stream"), (ClipboardEvent = "application/x-ndjson"),
    )),
    (status = 503, description = "There is no screen, and why.", body = Failed),
))]
pub(super) async fn read_clipboard(Shared(state): Shared<State>, headers: HeaderMap) -> Response {
    let Some(form) = Form::accepted(&headers) else {
        let text = state.desktop.read_clipboard().await;
        return answer(text.map(|text| Clipboard { text }));
    };
    match state.desktop.listen_to_clipboard().await {
        Ok(copied) => tell(copied, form),
        Err(refusal) => refusal.into_response(),
    }
}

/// What is copied, for as long as somebody listens.
fn tell(copied: Copied, form: Form) -> Response {
    let events = unfold(copied, move |mut copied| async move {
        let event = match timeout(HEARTBEAT, copied.next()).await {
            Ok(text) => ClipboardEvent::Copied { text: text? },
            Err(_) => ClipboardEvent::Heartbeat,
        };
        Some((Ok::<_, Infallible>(form.line(&event)), copied))
    });
    let kind = [(header::CONTENT_TYPE, form.mime())];
    (kind, Streamed::from_stream(events)).into_response()
}

/// Copies a text, so that it can be pasted inside.
#[utoipa::path(put, path = "/display/clipboard", request_body = Clipboard, responses((status = 200, body = Clipboard)))]
pub(super) async fn write_clipboard(
    Shared(state): Shared<State>,
    Body(Clipboard { text }): Body<Clipboard>,
) -> Response {
    let written = state.desktop.write_clipboard(text.clone()).await;
    answer(written.map(|()| Clipboard { text }))
}

/// The windows, the lowest first.
#[utoipa::path(get, path = "/display/windows", responses((status = 200, body = Windows)))]
pub(super) async fn windows(Shared(state): Shared<State>) -> Response {
    let windows = state.desktop.windows().await;
    answer(windows.map(|windows| Windows { windows }))
}

/// Brings a window to the front, and answers with all.
#[utoipa::path(post, path = "/display/focus", request_body = Focus, responses(
    (status = 200, body = Windows),
    (status = 404, description = "There is no such window.", body = Failed),
))]
pub(super) async fn focus(
    Shared(state): Shared<State>,
    Body(Focus { id }): Body<Focus>,
) -> Response {
    if let Err(refusal) = state.desktop.focus(id).await {
        return refusal.into_response();
    }
    let windows = state.desktop.windows().await;
    answer(windows.map(|windows| Windows { windows }))
}

/// The screen's size.
#[utoipa::path(get, path = "/display/resolution", responses((status = 200, body = Screen)))]
pub(super) async fn resolution(Shared(state): Shared<State>) -> Response {
    answer(state.desktop.screen().await)
}

/// Changes the screen's size while it runs. It answers when the desktop fills the new one.
#[utoipa::path(put, path = "/display/resolution", request_body = Resolution, responses(
    (status = 200, body = Screen),
    (status = 400, description = "The screen can't be so large, or so small.", body = Failed),
))]
pub(super) async fn resize(
    Shared(state): Shared<State>,
    Body(Resolution { width, height }): Body<Resolution>,
) -> Response {
    answer(state.desktop.resize(width, height).await)
}

/// How the browser inside stands.
#[utoipa::path(get, path = "/display/browser", responses((status = 200, body = Browser)))]
pub(super) async fn browser(Shared(state): Shared<State>) -> Response {
    answer(state.desktop.look_at_browser())
}

/// Starts the browser unless it runs, and opens a page. All share it: people at the screen, and
/// agents by its debugger's protocol.
#[utoipa::path(post, path = "/display/browser", params(Open), responses((status = 200, body = Browser)))]
pub(super) async fn browse(
    Shared(state): Shared<State>,
    Params(Open { url }): Params<Open>,
) -> Response {
    answer(state.desktop.browse(&url).await)
}

/// Ends the browser, which keeps its profile.
#[utoipa::path(delete, path = "/display/browser", responses((status = 200, body = Browser)))]
pub(super) async fn close_browser(Shared(state): Shared<State>) -> Response {
    answer(state.desktop.close_browser())
}

fn answer(result: Result<impl serde::Serialize, Refusal>) -> Response {
    match result {
        Ok(value) => json(StatusCode::OK, value),
        Err(refusal) => refusal.into_response(),
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        let logs = Some("`osctl logs` shows more; try again in a moment");
        let message = self.to_string();
        match self {
            Self::Absent(_) => failed(unavailable, "no_desktop", message, Some(ABSENT)),
            Self::Unready(_) => failed(unavailable, "desktop_not_ready", message, logs),
            Self::Display(display::Refusal::Gone(_)) => {
                failed(unavailable, "no_screen", message, logs)
            }
            Self::Display(display::Refusal::Invalid(message)) => invalid(message),
            Self::Display(display::Refusal::NoWindow(_)) => failed(
                StatusCode::NOT_FOUND,
                "unknown_window",
                message,
                Some("`GET /display/windows` lists them"),
            ),
            Self::Display(display::Refusal::Unmoved(_)) => {
                failed(StatusCode::GATEWAY_TIMEOUT, "not_done", message, logs)
            }
        }
    }
}
