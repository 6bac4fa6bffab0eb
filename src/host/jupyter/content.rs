//! Contents of the requests that this kernel supports, and errors in Jupyter's format.

use crate::error::Error;
use crate::protocol::kernel::{Execute, RunError};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The companion's error kind for an interrupted run.
pub(super) const JUPYTER_INTERRUPTED_KIND: &str = "Interrupted";

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
pub(super) struct ExecuteRequest {
    pub(super) code: String,
    #[serde(default)]
    pub(super) silent: bool,
    #[serde(default = "yes")]
    pub(super) store_history: bool,
    /// Expressions, by the name under which each value is returned.
    #[serde(default)]
    pub(super) user_expressions: Option<Map<String, Value>>,
    #[serde(default = "yes")]
    pub(super) stop_on_error: bool,
}

impl From<&ExecuteRequest> for Execute {
    fn from(content: &ExecuteRequest) -> Self {
        Self {
            silent: content.silent,
            store_history: content.store_history,
            ..Self::new(&content.code)
        }
    }
}

/// `complete_request` and `inspect_request`.
#[derive(Debug, Deserialize)]
pub(super) struct CursorRequest {
    pub(super) code: String,
    /// In characters.
    #[serde(default)]
    pub(super) cursor_pos: Option<u64>,
    #[serde(default)]
    pub(super) detail_level: u8,
}

#[derive(Debug, Deserialize)]
pub(super) struct IsCompleteRequest {
    pub(super) code: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct HistoryRequest {
    #[serde(default)]
    pub(super) output: bool,
    pub(super) hist_access_type: HistoryAccess,
    #[serde(default)]
    pub(super) session: i64,
    #[serde(default)]
    pub(super) start: Option<i64>,
    #[serde(default)]
    pub(super) stop: Option<i64>,
    #[serde(default)]
    pub(super) n: Option<u64>,
    #[serde(default)]
    pub(super) pattern: Option<String>,
    #[serde(default)]
    pub(super) unique: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HistoryAccess {
    Range,
    Tail,
    Search,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ShutdownRequest {
    #[serde(default)]
    pub(super) restart: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct CommOpen {
    pub(super) comm_id: String,
}

/// An exception in Jupyter's format.
pub(super) fn error_content(error: &RunError) -> Value {
    let traceback: Vec<&str> = error
        .traceback
        .iter()
        .map(|line| line.trim_end_matches('\n'))
        .collect();
    // Front ends recognise an interrupt by Python's name.
    let name = match error.kind.as_str() {
        JUPYTER_INTERRUPTED_KIND => "KeyboardInterrupt",
        kind => kind,
    };
    json!({"ename": name, "evalue": error.message, "traceback": traceback})
}

/// The same as a reply.
pub(super) fn error_reply(error: &RunError) -> Value {
    let mut reply = error_content(error);
    reply["status"] = "error".into();
    reply
}

/// An osctl error with its hint, shown instead of a traceback.
pub(super) fn error_to_run_error(error: &anyhow::Error) -> RunError {
    let expected = error.downcast_ref::<Error>();
    let message = match expected {
        Some(expected) => expected.to_string(),
        None => format!("{error:#}"),
    };
    let hint = expected.and_then(Error::hint);
    let hint = hint.map(|hint| format!("hint: {hint}"));
    RunError {
        kind: expected.map_or("bug", Error::kind).into(),
        traceback: std::iter::once(message.clone()).chain(hint).collect(),
        message,
    }
}
