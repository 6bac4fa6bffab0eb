//! Requests, events and replies of Python execution.

use super::restored::RestoredFrom;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// The session that always exists.
pub const DEFAULT_SESSION: &str = "default";

fn default_session() -> String {
    DEFAULT_SESSION.into()
}

/// `POST /exec`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Execute {
    /// Python source, with notebook semantics. The field may also be called `command`.
    #[serde(alias = "command")]
    pub code: String,
    /// The id of the run; generated when missing. While the run is kept, a request with the same id, code, session,
    /// `timeout`, `silent`, `store_history` and `argv` returns this run and executes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default = "default_session")]
    pub session: String,
    /// Interrupt the code after this many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// Answer `running` after this many seconds; the code keeps running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<f64>,
    /// Wait for earlier runs instead of being refused while the kernel is busy.
    #[serde(default)]
    pub queue: bool,
    /// The kernel generation that the caller last saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
    /// Show no result, and leave the history and the execution count unchanged.
    #[serde(default, skip_serializing_if = "is_false")]
    pub silent: bool,
    /// Keep the code in the history and count it; the default.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub store_history: bool,
    /// Run the code as a program: `sys.argv` and, unless the first is `-` or `-c`, `__file__` while it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// `true` refuses the run if it can't be recorded on disk, `false` does not record it. If missing, the run is
    /// recorded if possible, and `durable` in the reply says whether it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
}

impl Execute {
    pub fn new(code: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            id: None,
            session: default_session(),
            timeout: None,
            wait: None,
            queue: false,
            seen: None,
            silent: false,
            store_history: true,
            argv: Vec::new(),
            durable: None,
        }
    }
}

/// A representation of one value by MIME type; binary types are base64.
pub type MimeBundle = Map<String, Value>;

/// An event of a run: a line of NDJSON, or an SSE event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunEvent<R = ExecReply> {
    /// Number of the event in the run, from 0. A heartbeat repeats the number of the next event.
    pub seq: u64,
    #[serde(flatten)]
    pub happened: RunEventKind<R>,
}

/// The types of events, which are sent in the order in which they happen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RunEventKind<R = ExecReply> {
    /// Text written by the code, its child processes or C code. Bytes that are not UTF-8 are replaced by U+FFFD in
    /// `text`; `base64` then holds the original bytes.
    Stdout {
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    Stderr {
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    /// Output of `display()` and figures; `update` replaces the output with the same `display_id`.
    Display(DisplayData),
    /// The value of the last expression.
    Result(DisplayData),
    /// Clear the previous output, immediately or with the next output (`wait`).
    Clear {
        wait: bool,
    },
    Error {
        error: RunError,
    },
    /// No event for a while; the code is still running.
    Heartbeat,
    /// The end of the run, with the complete reply.
    Done {
        reply: Box<R>,
    },
}

/// A value to display.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DisplayData {
    #[schema(value_type = Object)]
    pub data: Arc<MimeBundle>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub metadata: MimeBundle,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_id: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub update: bool,
}

fn yes() -> bool {
    true
}

fn is_true(flag: &bool) -> bool {
    *flag
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// The output stream: stdout or stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// `GET /exec/{id}/output`: a part of the output, from byte `offset` on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct OutputPage {
    pub stream: OutputStream,
    /// Offset of the text; larger than requested if the earlier output is no longer retained.
    pub offset: u64,
    /// Offset of the next page.
    pub next: u64,
    /// Bytes written up to now.
    pub total: u64,
    /// Bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: String,
}

/// `GET /exec/{id}`: the status of the run and, with `offset`, its events.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunDetails<R = ExecReply> {
    #[serde(flatten)]
    pub reply: R,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<RunEvent<R>>>,
}

/// An entry in the list of runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunSummary {
    pub id: String,
    pub session: String,
    pub status: RunStatus,
    /// The first line of the code or of the command, shortened; `-f NAME` for the file of a program.
    pub code: String,
    pub execution_count: Option<u64>,
    /// Time of the request, in seconds since 1970.
    pub created: f64,
    pub timing_ms: f64,
    /// Bytes written to stdout.
    #[serde(alias = "stdout")]
    pub stdout_bytes: u64,
    #[serde(alias = "stderr")]
    pub stderr_bytes: u64,
}

/// `GET /exec` and `GET /shell/runs`: the retained runs, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    pub runs: Vec<RunSummary>,
}

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Queued or running.
    Running,
    /// Ended without an exception.
    Completed,
    /// Ended by an exception, or because its kernel exited.
    Failed,
    /// Ended by a timeout or an interrupt request.
    Interrupted,
    /// The companion ended before the run did. The run may have been executed in part, and is not executed again.
    Lost,
}

impl RunStatus {
    /// Whether a run with this status and time waits for other work: the time begins at the start.
    pub fn is_queued(self, timing_ms: f64) -> bool {
        self == Self::Running && timing_ms <= 0.0
    }
}

/// The reply to `POST /exec` and `GET /exec/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecReply {
    pub id: String,
    pub status: RunStatus,
    /// The output as text; bytes that are not UTF-8 are replaced by U+FFFD.
    pub stdout: String,
    pub stderr: String,
    /// `text/plain` of the last expression.
    pub result: Option<String>,
    /// MIME bundles of all `display()` calls and of the result, in order.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<Arc<MimeBundle>>,
    pub error: Option<RunError>,
    pub execution_count: Option<u64>,
    /// Execution time in milliseconds.
    pub timing_ms: f64,
    pub kernel: KernelReport,
    /// Truncated parts: per stream, and `data` for MIME bundles.
    pub truncated: Option<BTreeMap<String, TruncatedOutput>>,
    /// Whether the run is recorded on disk, and therefore survives the end of the companion, of the container or of the
    /// machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
}

/// An exception, or the reason why a run ended without an exception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct RunError {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    #[serde(default)]
    pub traceback: Vec<String>,
}

/// The middle was left out: the reply holds `kept` of `total` bytes, head and tail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TruncatedOutput {
    pub total: u64,
    pub kept: u64,
    /// The file in the container with the complete output; `GET /exec/{id}/output` returns it in pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// The kernel generation that answered, and the state of its namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct KernelReport {
    /// The number of the namespace's generation; it only increases.
    pub generation: u64,
    pub state: KernelState,
    /// The source of the variables, with the state `restored`; missing if the whole process was restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RestoredFrom>)]
    pub restored_from: Option<Arc<RestoredFrom>>,
    /// Whether that generation started with the variables of an earlier one.
    #[serde(skip)]
    pub restored: bool,
    /// The source of the variables with which that generation started, independent of `state`.
    #[serde(skip)]
    pub origin: Option<Arc<RestoredFrom>>,
}

impl KernelReport {
    /// The report for a lost namespace.
    pub fn lost(generation: u64) -> Self {
        Self {
            generation,
            state: KernelState::Lost,
            restored_from: None,
            restored: false,
            origin: None,
        }
    }

    /// The report for a caller who last saw the generation `seen`.
    pub fn relative_to(self, seen: Option<u64>) -> Self {
        let state = match seen {
            Some(seen) if seen == self.generation => KernelState::Kept,
            Some(_) if self.restored => KernelState::Restored,
            Some(_) => KernelState::Lost,
            None => self.state,
        };
        let restored_from = match state {
            KernelState::Restored => self.origin.clone(),
            KernelState::Kept | KernelState::Lost => None,
        };
        Self {
            state,
            restored_from,
            ..self
        }
    }
}

/// The state of the namespace compared with the generation `seen`, or else the last generation reported to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KernelState {
    /// The namespace is the one that the caller saw.
    Kept,
    /// The namespace is new and has no variables of the former one.
    Lost,
    /// The namespace is new and has stored variables.
    Restored,
}

/// A request that concerns a session: `POST /reset`, `/interrupt` and `/restart`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    #[serde(default = "default_session")]
    pub session: String,
}

impl Default for SessionRequest {
    fn default() -> Self {
        Self {
            session: default_session(),
        }
    }
}

/// The reply to `POST /reset`, `/interrupt` and `/restart`: the state of the namespace.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KernelReply {
    /// Always `completed`.
    pub status: String,
    pub kernel: KernelReport,
}

#[cfg(test)]
mod tests {
    use super::RunStatus;

    #[test]
    fn a_run_without_time_is_queued_until_it_ends() {
        assert!(RunStatus::Running.is_queued(0.0));
        assert!(!RunStatus::Running.is_queued(0.001));
        assert!(!RunStatus::Interrupted.is_queued(0.0));
    }
}
