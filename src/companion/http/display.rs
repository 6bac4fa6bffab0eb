//! Routes of the screen: screenshot, input, clipboard, windows, resolution and browser.

use super::response::{JsonBody, QueryParams, error_response, invalid_field_response};
use super::stream::{EVENT_HEARTBEAT_INTERVAL, StreamFormat};
use super::{HttpState, json_response};
use crate::companion::desktop::{ClipboardWatcher, DesktopRefusal};
use crate::companion::display;
use crate::protocol::display::{
    Browser, BrowserOpenQuery, ClipboardEvent, ClipboardText, FocusRequest, InputReply,
    InputRequest, PICTURE_SIZE_HEADER, Resolution, SCREEN_SIZE_HEADER, SCREENSHOT_TIME_HEADER,
    ScreenSize, ScreenshotQuery, Windows,
};
use crate::protocol::error::FailedReply;
use axum::body::Body as Streamed;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use std::convert::Infallible;
use std::time::Instant;
use tokio::time::timeout;

/// Hint for a desktop that is switched off by configuration.
const NO_DESKTOP_HINT: &str =
    "set `desktop.run: lazy` in osctl.yaml and run `osctl up`; only containers have a desktop";

/// Take a screenshot as PNG
///
/// The companion starts the desktop if it does not run. The picture is always the current content of the screen.
#[utoipa::path(get, path = "/display/screenshot", params(ScreenshotQuery), responses(
    (status = 200, description = "The picture. `osctl-picture` and `osctl-screen` are the sizes of the picture and of the screen as `WIDTHxHEIGHT`; `osctl-taken` is the time of the screenshot in milliseconds since 1970.", content_type = "image/png"),
    (status = 400, description = "The region or the scale is invalid.", body = FailedReply),
    (status = 503, description = "No picture is available; the message has the reason.", body = FailedReply),
))]
pub(super) async fn screenshot(
    Shared(state): Shared<HttpState>,
    QueryParams(query): QueryParams<ScreenshotQuery>,
) -> Response {
    let region = match query.region.as_deref() {
        None => None,
        Some(text) => match display::ScreenRegion::parse(text) {
            Some(region) => Some(region),
            None => {
                return invalid_field_response(format!(
                    "`{text}` is not a region: give `X,Y,WIDTH,HEIGHT`"
                ));
            }
        },
    };
    let shot = state
        .desktop
        .take_screenshot(region, query.scale.unwrap_or(1.0));
    let shot = match shot.await {
        Ok(shot) => shot,
        Err(refusal) => return refusal.into_response(),
    };
    let (size, screen, taken) = (shot.size, shot.screen, shot.taken_ms());
    let mut response = ([(header::CONTENT_TYPE, "image/png")], shot.file).into_response();
    for (name, value) in [
        (PICTURE_SIZE_HEADER, format!("{}x{}", size.0, size.1)),
        (SCREEN_SIZE_HEADER, format!("{}x{}", screen.0, screen.1)),
        (SCREENSHOT_TIME_HEADER, taken.to_string()),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            let name = HeaderName::from_static(name);
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Send pointer and keyboard input to the screen
///
/// The actions move the pointer, click, scroll, press keys and type, in the order given.
#[utoipa::path(post, path = "/display/input", request_body = InputRequest, responses(
    (status = 200, body = InputReply),
    (status = 400, description = "An action is invalid, or the actions take longer than 10 seconds; nothing was done.", body = FailedReply),
    (status = 503, description = "The screen is not available; the message has the reason.", body = FailedReply),
))]
pub(super) async fn input(
    Shared(state): Shared<HttpState>,
    JsonBody(input): JsonBody<InputRequest>,
) -> Response {
    let begin = Instant::now();
    result_response(
        state
            .desktop
            .perform_actions(input.actions)
            .await
            .map(|pointer| InputReply {
                status: "completed".into(),
                pointer,
                timing_ms: begin.elapsed().as_secs_f64() * 1e3,
            }),
    )
}

/// Read the clipboard
///
/// With `Accept: text/event-stream` or `application/x-ndjson` the reply is a stream: the current text, then each new
/// text.
#[utoipa::path(get, path = "/display/clipboard", responses(
    (status = 200, content(
        (ClipboardText = "application/json"), (ClipboardEvent = "text/event-stream"), (ClipboardEvent = "application/x-ndjson"),
    )),
    (status = 503, description = "The screen is not available; the message has the reason.", body = FailedReply),
))]
pub(super) async fn read_clipboard(
    Shared(state): Shared<HttpState>,
    headers: HeaderMap,
) -> Response {
    let Some(format) = StreamFormat::from_accept_header(&headers) else {
        let text = state.desktop.read_clipboard().await;
        return result_response(text.map(|text| ClipboardText { text }));
    };
    match state.desktop.watch_clipboard_texts().await {
        Ok(watcher) => stream_clipboard(watcher, format),
        Err(refusal) => refusal.into_response(),
    }
}

/// Streams copied texts until the client disconnects.
fn stream_clipboard(watcher: ClipboardWatcher, format: StreamFormat) -> Response {
    let events = unfold(watcher, move |mut watcher| async move {
        let event = match timeout(EVENT_HEARTBEAT_INTERVAL, watcher.next_text()).await {
            Ok(text) => ClipboardEvent::Copied { text: text? },
            Err(_) => ClipboardEvent::Heartbeat,
        };
        Some((Ok::<_, Infallible>(format.encode_message(&event)), watcher))
    });
    let kind = [(header::CONTENT_TYPE, format.content_type())];
    (kind, Streamed::from_stream(events)).into_response()
}

/// Write a text to the clipboard
#[utoipa::path(put, path = "/display/clipboard", request_body = ClipboardText, responses((status = 200, body = ClipboardText)))]
pub(super) async fn write_clipboard(
    Shared(state): Shared<HttpState>,
    JsonBody(ClipboardText { text }): JsonBody<ClipboardText>,
) -> Response {
    let written = state.desktop.write_clipboard(text.clone()).await;
    result_response(written.map(|()| ClipboardText { text }))
}

/// List windows
///
/// The lowest window is first.
#[utoipa::path(get, path = "/display/windows", responses((status = 200, body = Windows)))]
pub(super) async fn windows(Shared(state): Shared<HttpState>) -> Response {
    let windows = state.desktop.list_windows().await;
    result_response(windows.map(|windows| Windows { windows }))
}

/// Bring a window to the front
///
/// The reply lists all windows.
#[utoipa::path(post, path = "/display/focus", request_body = FocusRequest, responses(
    (status = 200, body = Windows),
    (status = 404, description = "The window does not exist.", body = FailedReply),
))]
pub(super) async fn focus(
    Shared(state): Shared<HttpState>,
    JsonBody(FocusRequest { id }): JsonBody<FocusRequest>,
) -> Response {
    if let Err(refusal) = state.desktop.focus_window(id).await {
        return refusal.into_response();
    }
    let windows = state.desktop.list_windows().await;
    result_response(windows.map(|windows| Windows { windows }))
}

/// Show the size of the screen
#[utoipa::path(get, path = "/display/resolution", responses((status = 200, body = ScreenSize)))]
pub(super) async fn resolution(Shared(state): Shared<HttpState>) -> Response {
    result_response(state.desktop.screen_info().await)
}

/// Change the size of the screen
///
/// The desktop keeps running. The reply comes when the desktop fills the new size.
#[utoipa::path(put, path = "/display/resolution", request_body = Resolution, responses(
    (status = 200, body = ScreenSize),
    (status = 400, description = "The screen does not support this size.", body = FailedReply),
))]
pub(super) async fn resize(
    Shared(state): Shared<HttpState>,
    JsonBody(Resolution { width, height }): JsonBody<Resolution>,
) -> Response {
    result_response(state.desktop.resize_screen(width, height).await)
}

/// Show the state of the browser
#[utoipa::path(get, path = "/display/browser", responses((status = 200, body = Browser)))]
pub(super) async fn browser(Shared(state): Shared<HttpState>) -> Response {
    result_response(state.desktop.browser_status())
}

/// Start the browser and open a page
///
/// A running browser is not restarted. Users at the screen and agents over the debugger protocol share the browser.
#[utoipa::path(post, path = "/display/browser", params(BrowserOpenQuery), responses((status = 200, body = Browser)))]
pub(super) async fn browse(
    Shared(state): Shared<HttpState>,
    QueryParams(BrowserOpenQuery { url }): QueryParams<BrowserOpenQuery>,
) -> Response {
    result_response(state.desktop.open_url(&url).await)
}

/// Stop the browser
///
/// The profile is kept.
#[utoipa::path(delete, path = "/display/browser", responses((status = 200, body = Browser)))]
pub(super) async fn close_browser(Shared(state): Shared<HttpState>) -> Response {
    result_response(state.desktop.close_browser())
}

fn result_response(result: Result<impl serde::Serialize, DesktopRefusal>) -> Response {
    match result {
        Ok(value) => json_response(StatusCode::OK, value),
        Err(refusal) => refusal.into_response(),
    }
}

impl IntoResponse for DesktopRefusal {
    fn into_response(self) -> Response {
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        let logs = Some("`osctl logs` shows more; try again in a moment");
        let message = self.to_string();
        match self {
            Self::NotAvailable(_) => {
                error_response(unavailable, "no_desktop", message, Some(NO_DESKTOP_HINT))
            }
            Self::NotReady(_) => error_response(unavailable, "desktop_not_ready", message, logs),
            Self::Display(display::DisplayRefusal::Unavailable(_)) => {
                error_response(unavailable, "no_screen", message, logs)
            }
            Self::Display(display::DisplayRefusal::Invalid(message)) => {
                invalid_field_response(message)
            }
            Self::Display(display::DisplayRefusal::NoWindow(_)) => error_response(
                StatusCode::NOT_FOUND,
                "unknown_window",
                message,
                Some("`GET /display/windows` lists the windows"),
            ),
            Self::Display(display::DisplayRefusal::NotApplied(_)) => {
                error_response(StatusCode::GATEWAY_TIMEOUT, "not_done", message, logs)
            }
        }
    }
}
