//! Terminals: requests, and the frames of their WebSocket connections.
//!
//! Binary frames are bytes of the terminal: output in one direction, keys in the other. Text frames are control
//! messages: [`FromTerminal`] to the client, [`ToTerminal`] to the terminal. Every byte of output has an offset from
//! the start of the terminal. Every byte that a client types has an offset from that client's first byte. A client that
//! lost its connection can therefore resume.

use super::kernel::DEFAULT_SESSION;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Bytes that a client may type ahead of the last [`FromTerminal::Typed`].
pub const MAX_TYPE_AHEAD_BYTES: u64 = 64 << 10;

/// The query of `GET /pty` as a WebSocket.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct AttachQuery {
    /// The id of an existing terminal; a new terminal when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// A name that the client chooses, up to 64 letters, digits, `-`, `_` and `.`. With it, a client that lost its
    /// connection finds its new terminal, its role as the writer and its count of typed bytes again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Output from this byte on. When missing, the terminal sends the current screen in `screen` frames, then output
    /// from there on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    #[serde(default = "columns")]
    pub cols: u16,
    #[serde(default = "rows")]
    pub rows: u16,
    /// The value of `TERM` for a new terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<String>,
    /// The session in whose working directory a new terminal opens.
    #[serde(default = "default_session")]
    pub session: String,
    #[serde(default)]
    pub role: TerminalRole,
    /// Take over input from the current writer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub take: bool,
}

fn columns() -> u16 {
    80
}

fn rows() -> u16 {
    24
}

fn default_session() -> String {
    DEFAULT_SESSION.into()
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TerminalRole {
    /// Types if no other client is the writer; otherwise only views.
    #[default]
    Write,
    /// Only views.
    View,
}

/// A text frame from a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromTerminal {
    /// The first frame.
    Hello {
        protocol: u32,
        id: String,
        /// Offset of the first byte of output that follows.
        offset: u64,
        /// Bytes of this client that have arrived; `null` if the client is unknown.
        typed: Option<u64>,
        /// Whether this client is the writer.
        writer: bool,
        cols: u16,
        rows: u16,
    },
    /// Lines and screen for a client without `since`. The client writes the text to its terminal before the output that
    /// follows; the text does not count in the offset. It contains no terminal query.
    Screen { text: String },
    /// The size has changed.
    Resize { cols: u16, rows: u16 },
    /// Whether this client is the writer from now on.
    Writer { held: bool },
    /// This client read too slowly: this many bytes of output are skipped here.
    Lost { bytes: u64 },
    /// Bytes of this client that the terminal has accepted, from its first byte on.
    Typed { offset: u64 },
    /// Keys of this client were discarded because another client is the writer.
    Ignored { bytes: u64 },
    /// The end, after all output: the shell's exit code, 128+n for signal n.
    Exit { code: u8, why: TerminalEndReason },
}

/// Why a terminal has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TerminalEndReason {
    /// Its shell exited.
    Exited,
    /// A client ended it: `DELETE /pty/{id}`.
    Ended,
    /// It had no connection and no output for a long time.
    Idle,
    /// The companion was stopped.
    Stopped,
}

/// A text frame to a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ToTerminal {
    /// The size of the client's window; it applies if the client is the writer.
    Resize { cols: u16, rows: u16 },
    /// Take over input from the current writer. The size stays until this client sends its own.
    Take {},
    /// All output up to this offset was shown. For a writer that sends this frame, the terminal holds output back that
    /// is more than 256 KiB ahead, for up to 15 seconds, so that a lost connection loses no output.
    Seen { offset: u64 },
    /// Make the foreground program redraw the screen.
    Repaint {},
}

/// `GET /pty`: the terminals, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TerminalList {
    pub terminals: Vec<TerminalSummary>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TerminalSummary {
    pub id: String,
    /// The foreground program, such as `vim`; `null` after the end.
    pub program: Option<String>,
    /// The shell's exit code, after the end.
    pub exit: Option<u8>,
    /// The number of connected clients.
    pub viewers: u64,
    /// Whether one of them is the writer.
    pub writer: bool,
    pub cols: u16,
    pub rows: u16,
    /// Bytes of output up to now.
    pub offset: u64,
    /// Seconds since the last input or output.
    pub idle: f64,
}

/// The reply to `DELETE /pty/{id}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TerminalEnded {
    /// Always `completed`.
    pub status: String,
    pub id: String,
    /// The shell's exit code, 128+n for signal n.
    pub code: u8,
}
