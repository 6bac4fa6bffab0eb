//! Routes of the screen: screenshot, input, clipboard, windows, resolution and browser.

use super::HttpState;
use super::stream::{EVENT_HEARTBEAT_INTERVAL, StreamFormat};
use crate::companion::desktop::ClipboardWatcher;
use crate::companion::display;
use crate::protocol::display::{
    Browser, BrowserOpenQuery, ClipboardEvent, ClipboardText, FocusRequest, InputReply,
    InputRequest, PICTURE_SIZE_HEADER, Resolution, SCREEN_SIZE_HEADER, SCREENSHOT_TIME_HEADER,
    ScreenSize, ScreenshotQuery, Windows,
};
use crate::protocol::error::FailedReply;
use axum::Json;
use axum::body::Body as Streamed;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use osctl_support::api::{ApiRefusal, ApiResult, JsonBody, QueryParams};
use std::convert::Infallible;
use std::time::Instant;
use tokio::time::timeout;

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
) -> ApiResult {
    let region = query.region.as_deref().map(|text| {
        display::ScreenRegion::parse(text).ok_or_else(|| {
            let message = format!("`{text}` is not a region: give `X,Y,WIDTH,HEIGHT`");
            ApiRefusal::invalid_field(message)
        })
    });
    let shot = state
        .desktop
        .take_screenshot(region.transpose()?, query.scale.unwrap_or(1.0));
    let shot = shot.await?;
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
    Ok(response)
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
) -> ApiResult<Json<InputReply>> {
    let begin = Instant::now();
    let pointer = state.desktop.perform_actions(input.actions).await?;
    Ok(Json(InputReply {
        status: "completed".into(),
        pointer,
        timing_ms: begin.elapsed().as_secs_f64() * 1e3,
    }))
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
) -> ApiResult {
    let Some(format) = StreamFormat::from_accept_header(&headers) else {
        let text = state.desktop.read_clipboard().await?;
        return Ok(Json(ClipboardText { text }).into_response());
    };
    let watcher = state.desktop.watch_clipboard_texts().await?;
    Ok(stream_clipboard(watcher, format))
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
) -> ApiResult<Json<ClipboardText>> {
    state.desktop.write_clipboard(text.clone()).await?;
    Ok(Json(ClipboardText { text }))
}

/// List windows
///
/// The lowest window is first.
#[utoipa::path(get, path = "/display/windows", responses((status = 200, body = Windows)))]
pub(super) async fn windows(Shared(state): Shared<HttpState>) -> ApiResult<Json<Windows>> {
    let windows = state.desktop.list_windows().await?;
    Ok(Json(Windows { windows }))
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
) -> ApiResult<Json<Windows>> {
    state.desktop.focus_window(id).await?;
    let windows = state.desktop.list_windows().await?;
    Ok(Json(Windows { windows }))
}

/// Show the size of the screen
#[utoipa::path(get, path = "/display/resolution", responses((status = 200, body = ScreenSize)))]
pub(super) async fn resolution(Shared(state): Shared<HttpState>) -> ApiResult<Json<ScreenSize>> {
    Ok(Json(state.desktop.screen_info().await?))
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
) -> ApiResult<Json<ScreenSize>> {
    Ok(Json(state.desktop.resize_screen(width, height).await?))
}

/// Show the state of the browser
#[utoipa::path(get, path = "/display/browser", responses((status = 200, body = Browser)))]
pub(super) async fn browser(Shared(state): Shared<HttpState>) -> ApiResult<Json<Browser>> {
    Ok(Json(state.desktop.browser_status()?))
}

/// Start the browser and open a page
///
/// A running browser is not restarted. Users at the screen and agents over the debugger protocol share the browser.
#[utoipa::path(post, path = "/display/browser", params(BrowserOpenQuery), responses((status = 200, body = Browser)))]
pub(super) async fn browse(
    Shared(state): Shared<HttpState>,
    QueryParams(BrowserOpenQuery { url }): QueryParams<BrowserOpenQuery>,
) -> ApiResult<Json<Browser>> {
    Ok(Json(state.desktop.open_url(&url).await?))
}

/// Stop the browser
///
/// The profile is kept.
#[utoipa::path(delete, path = "/display/browser", responses((status = 200, body = Browser)))]
pub(super) async fn close_browser(Shared(state): Shared<HttpState>) -> ApiResult<Json<Browser>> {
    Ok(Json(state.desktop.close_browser()?))
}
