//! Executing Python: the request, what happens meanwhile, and the reply.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
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
        }
    }
}

/// A representation of one value by MIME type; binary types are base64.
pub(crate) type Bundle = Map<String, Value>;

/// What happens while a run goes on, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Event {
    Stdout { bytes: Vec<u8> },
    Stderr { bytes: Vec<u8> },
    Display { data: Bundle },
    Result { data: Bundle },
    Error { error: Raised },
}

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
}

/// The reply to `POST /exec` and `GET /exec/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Reply {
    pub(crate) id: String,
    pub(crate) status: RunStatus,
    /// What was written, as text; bytes that are not UTF-8 are replaced by U+FFFD.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// `text/plain` of the last expression.
    pub(crate) result: Option<String>,
    /// MIME bundles of every `display()` and of the result, in order.
    #[schema(value_type = Vec<Object>)]
    pub(crate) data: Vec<Bundle>,
    pub(crate) error: Option<Raised>,
    pub(crate) execution_count: Option<u64>,
    /// From the start of the execution to its end, in milliseconds.
    pub(crate) timing_ms: f64,
    pub(crate) kernel: KernelReport,
    /// What did not fit: per stream, and `data` for MIME bundles.
    pub(crate) truncated: Option<BTreeMap<String, Truncated>>,
}

/// An exception, or the reason why a run ended without one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Raised {
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
}

/// Which life of the kernel answered, and what became of its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct KernelReport {
    /// Rises for ever, once per life of the namespace.
    pub(crate) generation: u64,
    pub(crate) state: KernelState,
}

impl KernelReport {
    /// The same, for one who says which generation they last saw.
    pub(crate) fn to(self, seen: Option<u64>) -> Self {
        let state = match seen {
            Some(seen) if seen == self.generation => KernelState::Kept,
            Some(_) => KernelState::Lost,
            None => self.state,
        };
        Self { state, ..self }
    }
}

/// The namespace, seen from what the caller last knew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KernelState {
    Kept,
    Lost,
    Restored,
}

/// `POST /reset`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reset {
    #[serde(default = "default_session")]
    pub(crate) session: String,
}

impl Default for Reset {
    fn default() -> Self {
        Self {
            session: default_session(),
        }
    }
}

/// The reply to `POST /reset`; the namespace is empty, which the generation tells others.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct ResetReply {
    /// Always `completed`.
    pub(crate) status: String,
    pub(crate) kernel: KernelReport,
}
