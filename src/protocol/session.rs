//! Sessions, and requests to a kernel other than executing code.

use super::kernel::{DEFAULT_SESSION, KernelReport};
use super::restored::RestoredFrom;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

fn default_session() -> String {
    DEFAULT_SESSION.into()
}

/// One kernel with its namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SessionInfo {
    pub(crate) name: String,
    pub(crate) ready: bool,
    pub(crate) busy: bool,
    /// The status in words.
    pub(crate) detail: String,
    /// Queued runs.
    pub(crate) queued: u64,
    pub(crate) exec_count: u64,
    pub(crate) globals_count: u64,
    pub(crate) resources_count: u64,
    pub(crate) kernel: KernelReport,
    /// The stored generation from which the session was restored, until the kernel's generation changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restored_from: Option<RestoredFrom>,
    pub(crate) python: Option<String>,
    /// Seconds since the last request.
    pub(crate) idle: f64,
    /// Memory of the kernel with its child processes, in bytes. Memory shared with other kernels is counted in part.
    /// `null` if it is unknown.
    pub(crate) memory: Option<u64>,
}

/// `GET /sessions`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct SessionList {
    pub(crate) sessions: Vec<SessionInfo>,
}

/// `POST /sessions`. Returns an existing session of that name, too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSession {
    /// Letters, digits, `-`, `_` and `.`, 64 at most; generated when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

/// The reply to `DELETE /sessions/{name}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct SessionDeleted {
    /// Always `completed`.
    pub(crate) status: String,
    pub(crate) name: String,
}

/// A global variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Variable {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Size in bytes, if known.
    pub(crate) size: Option<u64>,
    /// The value in one line.
    pub(crate) preview: String,
}

/// `GET /variables`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct VariableList {
    pub(crate) variables: Vec<Variable>,
    pub(crate) kernel: KernelReport,
}

/// `POST /complete` and `POST /inspect`: code with a cursor in it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CodeCursor {
    pub(crate) code: String,
    /// Position in characters; the end of the code when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cursor: Option<u64>,
    /// `POST /inspect`: 1 includes the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<u8>,
    #[serde(default = "default_session")]
    pub(crate) session: String,
}

/// The reply to `POST /complete`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct Completions {
    pub(crate) matches: Vec<String>,
    /// Start of the text that the matches replace, in characters.
    pub(crate) cursor_start: u64,
    pub(crate) cursor_end: u64,
    /// For each match its type and, for functions, the signature.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    pub(crate) types: Vec<Map<String, Value>>,
}

/// The reply to `POST /inspect`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct Inspection {
    pub(crate) found: bool,
    #[schema(value_type = Object)]
    pub(crate) data: Map<String, Value>,
}

/// `POST /is_complete`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompletenessQuery {
    pub(crate) code: String,
    #[serde(default = "default_session")]
    pub(crate) session: String,
}

/// The reply to `POST /is_complete`: whether the code needs more lines before it can run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct Completeness {
    /// `complete`, `incomplete`, `invalid` or `unknown`.
    pub(crate) status: String,
    /// The indentation of the next line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) indent: Option<String>,
}

/// `GET /history`: the last cells of a session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct History {
    pub(crate) cells: Vec<(u64, String)>,
}
