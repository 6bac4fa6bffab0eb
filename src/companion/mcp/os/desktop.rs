//! Tools of the desktop: what is on its screen, hands, the clipboard, windows, and pages of its browser.

use super::server::OsServer;
use super::tool_error::ToolError;
use super::tool_result::{ToolResult, structured_result, text_result};
use crate::companion::display;
use crate::protocol::display::{
    ClipboardText, Focus, InputAction, ScreenPoint, Window, Windows, format_taken_time,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::ContentBlock;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::spawn_blocking;

/// For a page to load, unless the caller says otherwise.
const TOOL_PAGE_LOAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Characters of a page's text, unless the caller says otherwise.
const DEFAULT_PAGE_TEXT_CHARS: usize = 50_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ScreenshotToolArgs {
    /// Only this part: `X,Y,WIDTH,HEIGHT` in pixels of the screen.
    region: Option<String>,
    /// By how much the picture is larger than the screen: above 0, at most 4. Places on the screen are the
    /// picture's, divided by this.
    scale: Option<f64>,
}

/// The picture that is in the content.
#[derive(Debug, Serialize, JsonSchema)]
struct ScreenshotReport {
    /// Pixels.
    width: u32,
    height: u32,
    screen_width: u16,
    screen_height: u16,
    /// When it was taken, by the container's clock: RFC 3339, in UTC.
    taken: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InputArgs {
    /// Done in this order: all or, where one does not fit, none.
    actions: Vec<InputAction>,
}

/// Where the pointer is then.
#[derive(Debug, Serialize, JsonSchema)]
struct Pointer {
    pointer: ScreenPoint,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CopyArgs {
    /// What is to be pasted.
    text: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PageArgs {
    /// With `http://` or `https://`.
    url: String,
    /// Seconds for the page to load; what is there then is read. 30 unless this is given.
    timeout: Option<f64>,
    /// Characters of the text to leave out, as those that an earlier call has brought.
    #[serde(default)]
    offset: usize,
    /// Characters; 50000 unless this is given.
    limit: Option<usize>,
}

/// A page as a person sees it.
#[derive(Debug, Serialize, JsonSchema)]
struct PageText {
    /// Where the browser is in the end.
    url: String,
    title: String,
    /// What the web server said, such as 200 or 404.
    status: Option<u16>,
    /// The visible text, from `offset` on.
    text: String,
    offset: usize,
    /// Where the next part begins; none at the end.
    next: Option<usize>,
    /// Whether the page came to its end in time.
    loaded: bool,
    /// What the page asked by dialogs, each of which was dismissed.
    dialogs: Vec<String>,
}

#[tool_router(router = desktop_tools, vis = "pub(super)")]
impl OsServer {
    /// What is on the desktop's screen at this moment, as a picture. It starts the desktop where it does not
    /// run.
    #[tool(
        title = "Screenshot",
        annotations(read_only_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<ScreenshotReport>()
    )]
    async fn desktop_screenshot(
        &self,
        Parameters(args): Parameters<ScreenshotToolArgs>,
    ) -> ToolResult {
        let region = match args.region.as_deref() {
            None => None,
            Some(text) => Some(display::ScreenRegion::parse(text).ok_or_else(|| {
                ToolError(format!("`{text}` is no region: give `X,Y,WIDTH,HEIGHT`"))
            })?),
        };
        let (picture, shot) = self
            .take_screenshot(region, args.scale.unwrap_or(1.0))
            .await?;
        let words = shot.summary_text();
        let picture = ContentBlock::image(picture, "image/png");
        structured_result(shot, vec![picture, ContentBlock::text(words)])
    }

    /// Moves the pointer, clicks, drags, turns the wheel, presses keys and types on the desktop, in the order
    /// given. A screenshot shows what came of it.
    #[tool(
        title = "Mouse and keyboard",
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = false, open_world_hint = true),
        output_schema = schema_for_output::<Pointer>()
    )]
    async fn desktop_input(&self, Parameters(args): Parameters<InputArgs>) -> ToolResult {
        let pointer = self
            .os
            .0
            .handles
            .desktop
            .perform_actions(args.actions)
            .await?;
        let text = format!("done; the pointer is at {}, {}", pointer.x, pointer.y);
        text_result(Pointer { pointer }, text)
    }

    /// The text that was copied last on the desktop.
    #[tool(
        title = "Read the clipboard",
        annotations(read_only_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<ClipboardText>()
    )]
    async fn desktop_read_clipboard(&self, _: Parameters<Nothing>) -> ToolResult {
        let text = self.os.0.handles.desktop.read_clipboard().await?;
        text_result(ClipboardText { text: text.clone() }, text)
    }

    /// Copies a text on the desktop, so that it can be pasted there.
    #[tool(
        title = "Fill the clipboard",
        annotations(read_only_hint = false, destructive_hint = false, idempotent_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<ClipboardText>()
    )]
    async fn desktop_write_clipboard(
        &self,
        Parameters(CopyArgs { text }): Parameters<CopyArgs>,
    ) -> ToolResult {
        let desktop = &self.os.0.handles.desktop;
        desktop.write_clipboard(text.clone()).await?;
        text_result(ClipboardText { text }, "it can be pasted now")
    }

    /// The desktop's windows, the lowest first, with their places, titles and ids.
    #[tool(
        title = "Windows",
        annotations(read_only_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Windows>()
    )]
    async fn desktop_windows(&self, _: Parameters<Nothing>) -> ToolResult {
        windows_result(self.os.0.handles.desktop.list_windows().await?)
    }

    /// Brings a window of the desktop to the front, and lists all.
    #[tool(
        title = "Focus a window",
        annotations(read_only_hint = false, destructive_hint = false, idempotent_hint = true, open_world_hint = false),
        output_schema = schema_for_output::<Windows>()
    )]
    async fn desktop_focus(&self, Parameters(Focus { id }): Parameters<Focus>) -> ToolResult {
        let desktop = &self.os.0.handles.desktop;
        desktop.focus_window(id).await?;
        windows_result(desktop.list_windows().await?)
    }

    /// Opens a page in the desktop's browser, which people see, too, waits until it has settled, and tells all
    /// visible text of its main frame. The tab is kept for the next page, and can be looked at and clicked in.
    #[tool(
        title = "Read a web page",
        annotations(read_only_hint = false, destructive_hint = false, idempotent_hint = true, open_world_hint = true),
        output_schema = schema_for_output::<PageText>()
    )]
    async fn navigate_and_get_all_visible_text(
        &self,
        Parameters(args): Parameters<PageArgs>,
        cx: RequestContext<RoleServer>,
    ) -> ToolResult {
        let patience = super::run_wait::parse_seconds("timeout", args.timeout)?
            .unwrap_or(TOOL_PAGE_LOAD_TIMEOUT);
        let read = self.os.0.handles.desktop.read_page(&args.url, patience);
        let page = tokio::select! {
            page = read => page?,
            () = cx.ct.cancelled() => return Err(ToolError::new("the call was taken back")),
        };
        let (text, next) = text_part(
            &page.text,
            args.offset,
            args.limit.unwrap_or(DEFAULT_PAGE_TEXT_CHARS),
        );
        let told = PageText {
            url: page.url,
            title: page.title,
            status: page.status,
            text: text.into(),
            offset: args.offset,
            next,
            loaded: page.loaded,
            dialogs: page.dialogs,
        };
        let mut words = format!("{}\n{}\n\n{}", told.title, told.url, told.text);
        if let Some(next) = next {
            words.push_str(&format!("\n… more follows: give `offset` {next} …"));
        }
        for dialog in &told.dialogs {
            words.push_str(&format!("\n(a dialog was dismissed: {dialog})"));
        }
        if !told.loaded {
            words.push_str("\n(the page has not come to its end; this is what is there)");
        }
        text_result(told, words)
    }
}

impl OsServer {
    /// The screen as PNG in base64.
    async fn take_screenshot(
        &self,
        region: Option<display::ScreenRegion>,
        scale: f64,
    ) -> Result<(String, ScreenshotReport), ToolError> {
        let taken = self
            .os
            .0
            .handles
            .desktop
            .take_screenshot(region, scale)
            .await?;
        let ((width, height), screen) = (taken.size, taken.screen);
        let shot = ScreenshotReport {
            width,
            height,
            screen_width: screen.0,
            screen_height: screen.1,
            taken: format_taken_time(taken.taken_ms()),
        };
        // Seldom more than a few milliseconds, which others need not wait.
        let file = spawn_blocking(move || STANDARD.encode(taken.file)).await;
        let file = file.map_err(|e| ToolError(format!("the picture can't be made: {e}")))?;
        Ok((file, shot))
    }

    /// The whole screen as PNG in base64, and its size and time.
    pub(super) async fn whole_screen(&self) -> Result<(String, Value), ToolError> {
        let (picture, shot) = self.take_screenshot(None, 1.0).await?;
        Ok((picture, json!(shot)))
    }
}

impl ScreenshotReport {
    /// For who sees no fields.
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

/// So many characters from one on, and where the next part begins.
fn text_part(text: &str, offset: usize, limit: usize) -> (&str, Option<usize>) {
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
    use super::text_part;

    #[test]
    fn a_text_is_handed_out_in_parts() {
        assert_eq!(text_part("aéb", 0, 2), ("aé", Some(2)));
        assert_eq!(text_part("aéb", 2, 2), ("b", None));
        assert_eq!(text_part("aéb", 0, 3), ("aéb", None));
        assert_eq!(text_part("aéb", 9, usize::MAX), ("", None));
    }
}
