//! Terminals: how one is asked for, and what both sides of its connection say.
//!
//! Binary frames are bytes of the terminal, output one way and keys the other. Text frames are
//! control: [`FromTerminal`] one way, [`ToTerminal`] the other. Every byte of output has an offset,
//! counted from the terminal's begin, and every byte that a client typed has one, counted from
//! that client's first; so whoever lost a connection goes on where it was.

use super::kernel::DEFAULT_SESSION;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Bytes that a client may type ahead of what was [`FromTerminal::Typed`].
pub(crate) const MAX_TYPE_AHEAD_BYTES: u64 = 64 << 10;

/// The query of `GET /pty` as a WebSocket.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachQuery {
    /// A terminal that exists; a new one when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// A name that the client gives itself, up to 64 letters, digits, `-`, `_` and `.`. With it, a
    /// client that lost its connection finds its new terminal, its place as the writer and its
    /// count of typed bytes again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<String>,
    /// Output from this byte on; the screen as it is, in frames of `screen`, and output from there on when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<u64>,
    #[serde(default = "columns")]
    pub(crate) cols: u16,
    #[serde(default = "rows")]
    pub(crate) rows: u16,
    /// The kind of the client's terminal, as `TERM` names it; for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) term: Option<String>,
    /// The session in whose working directory a new one opens.
    #[serde(default = "default_session")]
    pub(crate) session: String,
    #[serde(default)]
    pub(crate) role: TerminalRole,
    /// Write, whoever writes so far.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) take: bool,
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
pub(crate) enum TerminalRole {
    /// Types, where nobody else does; sees, else.
    #[default]
    Write,
    /// Sees only.
    View,
}

/// A text frame from a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum FromTerminal {
    /// The first frame.
    Hello {
        protocol: u32,
        id: String,
        /// Of the first byte of output that follows.
        offset: u64,
        /// Bytes of this client that have arrived; `null` when nothing is known of it any more.
        typed: Option<u64>,
        /// Whether this client writes.
        writer: bool,
        cols: u16,
        rows: u16,
    },
    /// Shows a client without `since` the lines and the screen as they are: to be written to its terminal before
    /// the output that follows, and not counted by its offset. It holds no query.
    Screen { text: String },
    /// The size is another one now.
    Resize { cols: u16, rows: u16 },
    /// Whether this client writes from now on.
    Writer { held: bool },
    /// This client read too slowly: so many bytes of output are skipped here.
    Lost { bytes: u64 },
    /// Bytes of this client that the terminal has taken, from its first on.
    Typed { offset: u64 },
    /// Keys of this client were not typed, because another one writes.
    Ignored { bytes: u64 },
    /// The end, after all output: the shell's exit code, 128+n for signal n.
    Exit { code: u8, why: TerminalEndReason },
}

/// Why a terminal has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TerminalEndReason {
    /// Its shell did.
    Exited,
    /// Somebody ended it: `DELETE /pty/{id}`.
    Ended,
    /// Nobody was connected and nothing was shown for long.
    Idle,
    /// The companion stops.
    Stopped,
}

/// A text frame to a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ToTerminal {
    /// The size of the client's window; counts when it writes.
    Resize { cols: u16, rows: u16 },
    /// Write from now on, whoever does so far. The size stays until this client says its own.
    Take {},
    /// All output up to this offset was shown. Of a writer that says so, output is never more than
    /// 256 KiB ahead for 15 seconds, so that nothing is lost with its connection.
    Seen { offset: u64 },
    /// Let the program that has the screen draw it again.
    Repaint {},
}

/// `GET /pty`: the terminals, the oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct TerminalList {
    pub(crate) terminals: Vec<TerminalSummary>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct TerminalSummary {
    pub(crate) id: String,
    /// What has the screen now, such as `vim`; `null` when it has ended.
    pub(crate) program: Option<String>,
    /// The shell's exit code, once it has ended.
    pub(crate) exit: Option<u8>,
    /// How many are connected.
    pub(crate) viewers: u64,
    /// Whether one of them writes.
    pub(crate) writer: bool,
    pub(crate) cols: u16,
    pub(crate) rows: u16,
    /// Bytes that were shown so far.
    pub(crate) offset: u64,
    /// Seconds since something was typed or shown.
    pub(crate) idle: f64,
}

/// The reply to `DELETE /pty/{id}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct TerminalEnded {
    /// Always `completed`.
    pub(crate) status: String,
    pub(crate) id: String,
    /// The shell's exit code, 128+n for signal n.
    pub(crate) code: u8,
}
