//! Requests and replies of the container's screen.
//!
//! Coordinates are pixels from the screen's upper left corner.

use chrono::{DateTime, SecondsFormat};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Response headers of a screenshot: the size of the picture and of the screen in pixels, and the time when it was
/// taken in milliseconds since 1970 by the container's clock.
pub const PICTURE_SIZE_HEADER: &str = "osctl-picture";
pub const SCREEN_SIZE_HEADER: &str = "osctl-screen";
pub const SCREENSHOT_TIME_HEADER: &str = "osctl-taken";

/// Formats the time when a picture was taken; `taken` is in milliseconds since 1970.
pub fn format_taken_time(taken: u64) -> String {
    let taken = i64::try_from(taken).ok();
    let taken = taken.and_then(DateTime::from_timestamp_millis);
    let taken = taken.map(|taken| taken.to_rfc3339_opts(SecondsFormat::Millis, true));
    taken.unwrap_or_else(|| "an invalid time".into())
}

/// The query of `GET /display/screenshot`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ScreenshotQuery {
    /// Only this part: `X,Y,WIDTH,HEIGHT` in pixels of the screen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Scale factor of the picture: above 0, at most 4; `0.5` gives a quarter of the pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
}

/// `POST /display/input`: actions that are executed in this order. If one of them is invalid, none is executed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputRequest {
    pub actions: Vec<InputAction>,
}

/// One action of mouse or keyboard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum InputAction {
    /// Moves the pointer.
    Move {
        x: i32,
        y: i32,
    },
    /// Presses and releases a button, `count` times, where the pointer is or at `x`, `y`.
    Click {
        x: Option<i32>,
        y: Option<i32>,
        #[serde(default)]
        button: Button,
        #[serde(default = "one")]
        count: u8,
        /// Keys held during the click, such as `ctrl+shift`.
        keys: Option<String>,
    },
    /// Presses a button and holds it.
    ButtonDown {
        #[serde(default)]
        button: Button,
    },
    ButtonUp {
        #[serde(default)]
        button: Button,
    },
    /// Moves the pointer with the left button held.
    Drag {
        from: ScreenPoint,
        to: ScreenPoint,
    },
    /// Turns the wheel by this many notches; down and right are positive.
    Scroll {
        x: Option<i32>,
        y: Option<i32>,
        #[serde(default)]
        down: i16,
        #[serde(default)]
        right: i16,
    },
    /// Presses keys together and releases them, such as `Return`, `ctrl+l` or `alt+F4`.
    Key {
        keys: String,
    },
    /// Presses keys and holds them.
    KeyDown {
        keys: String,
    },
    KeyUp {
        keys: String,
    },
    /// Types text in any script, line breaks and tabs included.
    Text {
        text: String,
    },
}

fn one() -> u8 {
    1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScreenPoint {
    pub x: i32,
    pub y: i32,
}

#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Button {
    #[default]
    Left,
    Middle,
    Right,
}

/// The reply to `POST /display/input`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct InputReply {
    /// Always `completed`: the screen has received the input. A screenshot shows the reaction of the program.
    pub status: String,
    /// The current position of the pointer.
    pub pointer: ScreenPoint,
    pub timing_ms: f64,
}

/// `GET` and `PUT /display/clipboard`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClipboardText {
    /// Empty when the clipboard is empty or holds no text.
    pub text: String,
}

/// An event of `GET /display/clipboard` as a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ClipboardEvent {
    /// The text that is now on the clipboard.
    Copied { text: String },
    /// Nothing new was copied for a while.
    Heartbeat,
}

/// `GET /display/windows`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Windows {
    /// The windows from bottom to top.
    pub windows: Vec<Window>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct Window {
    pub id: u32,
    pub title: String,
    /// The program's name for its windows, such as `Chromium`.
    pub class: String,
    pub pid: Option<u32>,
    /// Position and size without the frame.
    pub x: i32,
    pub y: i32,
    pub width: u32,
    pub height: u32,
    pub focused: bool,
    pub minimized: bool,
}

/// `POST /display/focus`: brings a window to the front.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FocusRequest {
    /// The id of the window in the list of windows.
    pub id: u32,
}

/// `GET` and `PUT /display/resolution`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resolution {
    pub width: u16,
    pub height: u16,
}

/// The size of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct ScreenSize {
    pub width: u16,
    pub height: u16,
    /// Bits per pixel.
    pub depth: u8,
    /// The largest size that can be requested.
    pub max_width: u16,
    pub max_height: u16,
}

/// The query of `POST /display/browser`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct BrowserOpenQuery {
    /// The URL of a page to open in a new tab.
    #[serde(default)]
    pub url: String,
}

/// The reply to `GET`, `POST` and `DELETE /display/browser`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Browser {
    pub running: bool,
    /// The address of the Chrome DevTools Protocol, reachable only in the container. A connection starts the browser.
    /// The address stays the same when the browser restarts.
    pub cdp_url: Option<String>,
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::format_taken_time;

    #[test]
    fn the_time_of_a_picture_is_rfc_3339() {
        assert_eq!(
            format_taken_time(1_700_000_000_042),
            "2023-11-14T22:13:20.042Z"
        );
        assert_eq!(format_taken_time(u64::MAX), "an invalid time");
    }
}
