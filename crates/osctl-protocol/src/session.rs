//! Sessions, and requests to a kernel other than executing code.

use super::kernel::{DEFAULT_SESSION, KernelReport};
use super::restored::RestoredFrom;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The status of a session whose kernel starts.
pub const STARTING_DETAIL: &str = "starting";
/// The status of a session whose stored variables are reloaded.
pub const RELOADING_DETAIL: &str = "reloading variables";

fn default_session() -> String {
    DEFAULT_SESSION.into()
}

/// One kernel with its namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionInfo {
    pub name: String,
    pub ready: bool,
    pub busy: bool,
    /// The status in words.
    pub detail: String,
    /// Queued runs.
    pub queued: u64,
    pub exec_count: u64,
    pub globals_count: u64,
    pub resources_count: u64,
    pub kernel: KernelReport,
    /// The stored generation from which the session was restored, until the kernel's generation changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<RestoredFrom>,
    pub python: Option<String>,
    /// Seconds since the last request.
    pub idle: f64,
    /// Memory of the kernel with its child processes, in bytes. Memory shared with other kernels is counted in part.
    /// `null` if it is unknown.
    pub memory: Option<u64>,
}

/// `GET /sessions`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    pub sessions: Vec<SessionInfo>,
}

/// `POST /sessions`. Returns an existing session of that name, too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// Letters, digits, `-`, `_` and `.`, 64 at most; generated when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The reply to `DELETE /sessions/{name}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionDeleted {
    /// Always `completed`.
    pub status: String,
    pub name: String,
}

/// A global variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Variable {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    /// Size in bytes, if known.
    pub size: Option<u64>,
    /// The value in one line.
    pub preview: String,
}

/// `GET /variables`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct VariableList {
    pub variables: Vec<Variable>,
    pub kernel: KernelReport,
}

/// `POST /complete` and `POST /inspect`: code with a cursor in it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CodeCursor {
    pub code: String,
    /// Position in characters; the end of the code when missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<u64>,
    /// `POST /inspect`: 1 includes the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<u8>,
    #[serde(default = "default_session")]
    pub session: String,
}

/// The reply to `POST /complete`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Completions {
    pub matches: Vec<String>,
    /// Start of the text that the matches replace, in characters.
    pub cursor_start: u64,
    pub cursor_end: u64,
    /// For each match its type and, for functions, the signature.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    pub types: Vec<Map<String, Value>>,
}

/// The reply to `POST /inspect`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Inspection {
    pub found: bool,
    #[schema(value_type = Object)]
    pub data: Map<String, Value>,
}

/// `POST /is_complete`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletenessQuery {
    pub code: String,
    #[serde(default = "default_session")]
    pub session: String,
}

/// The reply to `POST /is_complete`: whether the code needs more lines before it can run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Completeness {
    /// `complete`, `incomplete`, `invalid` or `unknown`.
    pub status: String,
    /// The indentation of the next line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indent: Option<String>,
}

/// `GET /history`: the last cells of a session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct History {
    pub cells: Vec<(u64, String)>,
}
