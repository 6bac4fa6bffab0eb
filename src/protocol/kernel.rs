//! Executing Python: the request, what happens meanwhile, and the reply.

use super::restored::RestoredFrom;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// The session that is always there.
pub(crate) const DEFAULT_SESSION: &str = "default";

fn default_session() -> String {
    DEFAULT_SESSION.into()
}

/// `POST /exec`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Execute {
    /// Python source, with notebook semantics. `command` is accepted as its name, too.
    #[serde(alias = "command")]
    pub(crate) code: String,
    /// Name of the run; made up when missing. The same id with the same body finds the run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(default = "default_session")]
    pub(crate) session: String,
    /// Interrupt the code after this many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<f64>,
    /// Answer `running` after this many seconds; the code goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wait: Option<f64>,
    /// Wait for one's turn instead of being refused while the kernel is busy.
    #[serde(default)]
    pub(crate) queue: bool,
    /// The kernel generation the caller last saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seen: Option<u64>,
    /// Show no result, and leave history and the count of executions as they are.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) silent: bool,
    /// Keep the code in the history and count it, which is done unless said otherwise.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub(crate) store_history: bool,
    /// `true` refuses the run when it can't be recorded on disk, `false` does not record it. Without it, the run is
    /// recorded where that is possible, and `durable` of the reply tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) durable: Option<bool>,
}

impl Execute {
    pub(crate) fn new(code: impl Into<String>) -> Self {
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
            durable: None,
        }
    }
}

/// A representation of one value by MIME type; binary types are base64.
pub(crate) type MimeBundle = Map<String, Value>;

/// One thing that happened in a run: a line of NDJSON, or an event of SSE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunEvent<R = ExecReply> {
    /// Counts the run's events from 0; a heartbeat repeats the number that comes next.
    pub(crate) seq: u64,
    #[serde(flatten)]
    pub(crate) happened: RunEventKind<R>,
}

/// What can happen, in the order in which it did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum RunEventKind<R = ExecReply> {
    /// Text was written, by the code, its child processes or C code.
    /// Bytes that are not UTF-8 are replaced by U+FFFD in `text`; `base64` then has the very bytes.
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
    /// `display()` and figures; `update` replaces what was shown under the same `display_id`.
    Display(DisplayData),
    /// The value of the last expression.
    Result(DisplayData),
    /// What was shown so far is to be cleared, at once or with the next output (`wait`).
    Clear {
        wait: bool,
    },
    Error {
        error: RunError,
    },
    /// Nothing happened for a while, and the code goes on.
    Heartbeat,
    /// The end, with the whole reply.
    Done {
        reply: Box<R>,
    },
}

/// A value as it is to be shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct DisplayData {
    #[schema(value_type = Object)]
    pub(crate) data: Arc<MimeBundle>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub(crate) metadata: MimeBundle,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) display_id: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) update: bool,
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

/// Which of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

/// `GET /exec/{id}/output`: a piece of what was written, from byte `offset` on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, JsonSchema)]
pub(crate) struct OutputPage {
    pub(crate) stream: OutputStream,
    /// Where the text begins; later than asked for when what was there is no longer kept.
    pub(crate) offset: u64,
    /// Where the next page begins.
    pub(crate) next: u64,
    /// Bytes written so far.
    pub(crate) total: u64,
    /// Bytes that are not UTF-8 are replaced by U+FFFD.
    pub(crate) text: String,
}

/// `GET /exec/{id}`: how the run stands and, where `offset` asks for them, its events.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunDetails<R = ExecReply> {
    #[serde(flatten)]
    pub(crate) reply: R,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) events: Option<Vec<RunEvent<R>>>,
}

/// A run in the list of those that can be found.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Summary {
    pub(crate) id: String,
    pub(crate) session: String,
    pub(crate) status: RunStatus,
    /// The first line of the code, or of the command, shortened.
    pub(crate) code: String,
    pub(crate) execution_count: Option<u64>,
    /// When it was asked for, in seconds since 1970.
    pub(crate) created: f64,
    pub(crate) timing_ms: f64,
    /// Bytes written.
    pub(crate) stdout: u64,
    pub(crate) stderr: u64,
}

/// `GET /exec` and `GET /shell/runs`: the runs that can be found, the oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunList {
    pub(crate) runs: Vec<Summary>,
}

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunStatus {
    /// Waits for its turn or is being executed.
    Running,
    /// Ended without an exception.
    Completed,
    /// Raised, or its kernel died.
    Failed,
    /// Ended by a timeout or at someone's wish.
    Interrupted,
    /// The companion ended before the run did: it may have been executed in part, and is not executed again.
    Lost,
}

/// The reply to `POST /exec` and `GET /exec/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ExecReply {
    pub(crate) id: String,
    pub(crate) status: RunStatus,
    /// What was written, as text; bytes that are not UTF-8 are replaced by U+FFFD.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// `text/plain` of the last expression.
    pub(crate) result: Option<String>,
    /// MIME bundles of every `display()` and of the result, in order.
    #[schema(value_type = Vec<Object>)]
    pub(crate) data: Vec<Arc<MimeBundle>>,
    pub(crate) error: Option<RunError>,
    pub(crate) execution_count: Option<u64>,
    /// From the start of the execution to its end, in milliseconds.
    pub(crate) timing_ms: f64,
    pub(crate) kernel: KernelReport,
    /// What did not fit: per stream, and `data` for MIME bundles.
    pub(crate) truncated: Option<BTreeMap<String, Truncated>>,
    /// Whether the run is recorded on disk, so that it is found again after the death of the companion, of the
    /// container or of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) durable: Option<bool>,
}

/// An exception, or the reason why a run ended without one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub(crate) struct RunError {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) traceback: Vec<String>,
}

/// The middle was left out: `kept` of `total` bytes are in the reply, head and tail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Truncated {
    pub(crate) total: u64,
    pub(crate) kept: u64,
    /// Where the whole is found, inside; `GET /exec/{id}/output` pages through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
}

/// Which life of the kernel answered, and what became of its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub(crate) struct KernelReport {
    /// Rises for ever, once per life of the namespace.
    pub(crate) generation: u64,
    pub(crate) state: KernelState,
    /// What the variables come from, with the state `restored`; missing where a whole process came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RestoredFrom>)]
    pub(crate) restored_from: Option<Arc<RestoredFrom>>,
    /// Whether that generation began with what an earlier one held.
    #[serde(skip)]
    pub(crate) restored: bool,
    /// What that generation began with, whatever the state is.
    #[serde(skip)]
    pub(crate) origin: Option<Arc<RestoredFrom>>,
}

impl KernelReport {
    /// Of a namespace that is gone.
    pub(crate) fn lost(generation: u64) -> Self {
        Self {
            generation,
            state: KernelState::Lost,
            restored_from: None,
            restored: false,
            origin: None,
        }
    }

    /// The same, for one who says which generation they last saw.
    pub(crate) fn seen_from(self, seen: Option<u64>) -> Self {
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

/// The namespace, seen from what the caller last knew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KernelState {
    Kept,
    Lost,
    Restored,
}

/// A request that concerns a session: `POST /reset`, `/interrupt` and `/restart`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionRequest {
    #[serde(default = "default_session")]
    pub(crate) session: String,
}

impl Default for SessionRequest {
    fn default() -> Self {
        Self {
            session: default_session(),
        }
    }
}

/// The reply to `POST /reset`, `/interrupt` and `/restart`: what became of the namespace.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct KernelReply {
    /// Always `completed`.
    pub(crate) status: String,
    pub(crate) kernel: KernelReport,
}
