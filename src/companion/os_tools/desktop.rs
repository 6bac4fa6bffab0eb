//! Desktop tools: screenshot, mouse and keyboard, clipboard, windows, and pages of the browser.

use super::server::OsServer;
use super::tool_error::ToolError;
use super::tool_result::{ToolResult, structured_result, text_result};
use crate::companion::display;
use crate::protocol::display::{
    ClipboardText, FocusRequest, InputAction, ScreenPoint, Window, Windows, format_taken_time,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::ContentBlock;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::spawn_blocking;

/// The default time limit for a page to load.
const TOOL_PAGE_LOAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The default number of characters of a page's text.
const DEFAULT_PAGE_TEXT_CHARS: usize = 50_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ScreenshotToolArgs {
    /// Part of the screen to capture: `X,Y,WIDTH,HEIGHT` in pixels.
    region: Option<String>,
    /// Factor by which the picture is larger than the screen: above 0, at most 4. Divide positions in the picture by
    /// this factor to get positions on the screen.
    scale: Option<f64>,
}

/// The properties of the picture in the content.
#[derive(Debug, Serialize)]
struct ScreenshotReport {
    /// Width in pixels.
    width: u32,
    height: u32,
    screen_width: u16,
    screen_height: u16,
    /// Time of the capture by the container's clock: RFC 3339, in UTC.
    taken: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InputArgs {
    /// Actions in order. All are performed, or none if one is invalid.
    actions: Vec<InputAction>,
}

/// The position of the pointer afterwards.
#[derive(Debug, Serialize)]
struct Pointer {
    pointer: ScreenPoint,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CopyArgs {
    /// Text to put into the clipboard.
    text: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PageArgs {
    /// URL, with `http://` or `https://`.
    url: String,
    /// Seconds to wait for the page to load; then its current text is read. 30 if omitted.
    timeout: Option<f64>,
    /// Number of characters to skip, for example `next` of an earlier call.
    #[serde(default)]
    offset: usize,
    /// Maximum characters to return; 50000 if omitted.
    limit: Option<usize>,
}

/// The visible content of a page.
#[derive(Debug, Serialize)]
struct PageText {
    /// Final URL of the browser, after redirects.
    url: String,
    title: String,
    /// HTTP status of the page, such as 200 or 404.
    status: Option<u16>,
    /// Visible text, starting at `offset`.
    text: String,
    offset: usize,
    /// Offset of the next part; missing at the end.
    next: Option<usize>,
    /// Whether the page finished loading in time.
    loaded: bool,
    /// Texts of the page's dialogs; each dialog was dismissed.
    dialogs: Vec<String>,
}

#[tool_router(router = desktop_tools, vis = "pub(super)")]
impl OsServer {
    /// Take a screenshot of the desktop. The desktop starts if it does not run.
    #[tool(
        title = "Screenshot",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn desktop_screenshot(
        &self,
        Parameters(args): Parameters<ScreenshotToolArgs>,
    ) -> ToolResult {
        let region = match args.region.as_deref() {
            None => None,
            Some(text) => Some(display::ScreenRegion::parse(text).ok_or_else(|| {
                ToolError(format!("`{text}` is not a region: give `X,Y,WIDTH,HEIGHT`"))
            })?),
        };
        let (picture, shot) = self
            .take_screenshot(region, args.scale.unwrap_or(1.0))
            .await?;
        let summary = shot.summary_text();
        let picture = ContentBlock::image(picture, "image/png");
        structured_result(shot, vec![picture, ContentBlock::text(summary)])
    }

    /// Move the pointer, click, drag, turn the wheel, press keys and type on the desktop, in the given order. A
    /// screenshot shows the effect.
    #[tool(
        title = "Mouse and keyboard",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = false,
            open_world_hint = true
        )
    )]
    async fn desktop_input(&self, Parameters(args): Parameters<InputArgs>) -> ToolResult {
        let pointer = self
            .factory
            .0
            .handles
            .desktop
            .perform_actions(args.actions)
            .await?;
        let text = format!("done; the pointer is at {}, {}", pointer.x, pointer.y);
        text_result(Pointer { pointer }, text)
    }

    /// Read the text that was copied last on the desktop.
    #[tool(
        title = "Read the clipboard",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn desktop_read_clipboard(&self, _: Parameters<Nothing>) -> ToolResult {
        let text = self.factory.0.handles.desktop.read_clipboard().await?;
        text_result(ClipboardText { text: text.clone() }, text)
    }

    /// Copy a text to the desktop's clipboard, so that it can be pasted there.
    #[tool(
        title = "Write the clipboard",
        annotations(
            read_only_hint = false,
            destructive_hint = false,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn desktop_write_clipboard(
        &self,
        Parameters(CopyArgs { text }): Parameters<CopyArgs>,
    ) -> ToolResult {
        let desktop = &self.factory.0.handles.desktop;
        desktop.write_clipboard(text.clone()).await?;
        text_result(ClipboardText { text }, "the text is in the clipboard")
    }

    /// List the desktop's windows, the lowest first, with their positions, titles and ids.
    #[tool(
        title = "Windows",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn desktop_windows(&self, _: Parameters<Nothing>) -> ToolResult {
        windows_result(self.factory.0.handles.desktop.list_windows().await?)
    }

    /// Bring a window of the desktop to the front, and list all windows.
    #[tool(
        title = "Focus a window",
        annotations(
            read_only_hint = false,
            destructive_hint = false,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn desktop_focus(
        &self,
        Parameters(FocusRequest { id }): Parameters<FocusRequest>,
    ) -> ToolResult {
        let desktop = &self.factory.0.handles.desktop;
        desktop.focus_window(id).await?;
        windows_result(desktop.list_windows().await?)
    }

    /// Open a page in the desktop's browser, which people also see, wait until the page has settled, and return all
    /// visible text of its main frame. The next page opens in the same tab, which can be viewed and clicked.
    #[tool(
        title = "Read a web page",
        annotations(
            read_only_hint = false,
            destructive_hint = false,
            idempotent_hint = true,
            open_world_hint = true
        )
    )]
    async fn navigate_and_get_all_visible_text(
        &self,
        Parameters(args): Parameters<PageArgs>,
        cx: RequestContext<RoleServer>,
    ) -> ToolResult {
        let timeout = super::run_wait::parse_seconds("timeout", args.timeout)?
            .unwrap_or(TOOL_PAGE_LOAD_TIMEOUT);
        let read = self.factory.0.handles.desktop.read_page(&args.url, timeout);
        let page = tokio::select! {
            page = read => page?,
            () = cx.ct.cancelled() => return Err(ToolError::new("the call was cancelled")),
        };
        let (text, next) = text_page(
            &page.text,
            args.offset,
            args.limit.unwrap_or(DEFAULT_PAGE_TEXT_CHARS),
        );
        let page_text = PageText {
            url: page.url,
            title: page.title,
            status: page.status,
            text: text.into(),
            offset: args.offset,
            next,
            loaded: page.loaded,
            dialogs: page.dialogs,
        };
        let mut summary = format!(
            "{}\n{}\n\n{}",
            page_text.title, page_text.url, page_text.text
        );
        if let Some(next) = next {
            summary.push_str(&format!("\n… more text: pass `offset` {next} …"));
        }
        for dialog in &page_text.dialogs {
            summary.push_str(&format!("\n(a dialog was dismissed: {dialog})"));
        }
        if !page_text.loaded {
            summary
                .push_str("\n(the page did not finish loading in time; this is its current text)");
        }
        text_result(page_text, summary)
    }
}

impl OsServer {
    /// The screen, or a part of it, as PNG in base64.
    async fn take_screenshot(
        &self,
        region: Option<display::ScreenRegion>,
        scale: f64,
    ) -> Result<(String, ScreenshotReport), ToolError> {
        let screenshot = self
            .factory
            .0
            .handles
            .desktop
            .take_screenshot(region, scale)
            .await?;
        let ((width, height), screen) = (screenshot.size, screenshot.screen);
        let shot = ScreenshotReport {
            width,
            height,
            screen_width: screen.0,
            screen_height: screen.1,
            taken: format_taken_time(screenshot.taken_ms()),
        };
        // Encoding seldom takes more than a few milliseconds; other tasks need not wait for it.
        let file = spawn_blocking(move || STANDARD.encode(screenshot.file)).await;
        let file = file.map_err(|e| ToolError(format!("the picture can't be encoded: {e}")))?;
        Ok((file, shot))
    }

    /// The whole screen as PNG in base64, with its size and time.
    pub(super) async fn whole_screen(&self) -> Result<(String, Value), ToolError> {
        let (picture, shot) = self.take_screenshot(None, 1.0).await?;
        Ok((picture, json!(shot)))
    }
}

impl ScreenshotReport {
    /// A summary for models that do not receive the structured fields.
    fn summary_text(&self) -> String {
        let Self {
            width,
            height,
            screen_width,
            screen_height,
            taken,
        } = self;
        format!("{width}x{height} pixels of a screen of {screen_width}x{screen_height}, at {taken}")
    }
}

fn windows_result(windows: Vec<Window>) -> ToolResult {
    let line = |window: &Window| {
        let Window {
            id,
            title,
            x,
            y,
            width,
            height,
            focused,
            minimized,
            ..
        } = window;
        let state = match (focused, minimized) {
            (true, _) => ", focused",
            (_, true) => ", minimized",
            _ => "",
        };
        format!("{id}: {title} ({width}x{height} at {x}, {y}{state})")
    };
    let mut text = windows.iter().map(line).collect::<Vec<_>>().join("\n");
    if windows.is_empty() {
        text.push_str("(no windows)");
    }
    text_result(Windows { windows }, text)
}

/// The characters from `offset` on, at most `limit`, and the offset of the next part.
fn text_page(text: &str, offset: usize, limit: usize) -> (&str, Option<usize>) {
    let place = |count: usize| text.char_indices().nth(count).map(|(place, _)| place);
    let start = place(offset).unwrap_or(text.len());
    let end = offset.checked_add(limit).and_then(place);
    (
        &text[start..end.unwrap_or(text.len())],
        end.map(|_| offset + limit),
    )
}

#[cfg(test)]
mod tests {
    use super::text_page;

    #[test]
    fn text_is_returned_in_pages() {
        assert_eq!(text_page("aéb", 0, 2), ("aé", Some(2)));
        assert_eq!(text_page("aéb", 2, 2), ("b", None));
        assert_eq!(text_page("aéb", 0, 3), ("aéb", None));
        assert_eq!(text_page("aéb", 9, usize::MAX), ("", None));
    }
}
