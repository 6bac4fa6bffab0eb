//! Configuration and status of MCP servers.

use super::kernel::RunStatus;
use super::nearest_name::nearest_name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Response header of an SSE stream: the number of the stream, with which the ids of its events begin. A client that
/// wants to resume after an event can see whether the stream still exists.
pub const STREAM_ID_HEADER: &str = "osctl-stream";

/// Read-only tools of the server `os`: a repeated call does no harm.
pub const READ_ONLY_TOOLS: [&str; 11] = [
    "desktop_read_clipboard",
    "desktop_screenshot",
    "desktop_windows",
    "evolve_status",
    "find_files",
    "list_files",
    "list_sessions",
    "read_file",
    "read_output",
    "search_files",
    "wait_for_run",
];

/// How many tools of all servers a client lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolProfile {
    /// Few tools of the packaged servers, and all of other servers. A call can name every tool.
    Lean,
    Full,
}

impl ToolProfile {
    pub const ALL_PROFILES: [Self; 2] = [Self::Lean, Self::Full];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lean => "lean",
            Self::Full => "full",
        }
    }
}

/// In the `_meta` of a call of a tool of `os`: whether the result also has its fields as `structuredContent`. Clients that
/// show both forms would show everything twice.
pub const STRUCTURED_RESULT_KEY: &str = "osctl/structured";

/// In the `_meta` of a tool's result: the [`UnfinishedRun`] that the call started or waited for.
pub const UNFINISHED_RUN_KEY: &str = "osctl/run";

/// A run that did not reach its own end within the call, or a command that ended with an exit code other than 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedRun {
    pub id: String,
    /// `running`, `interrupted` or `lost`; `failed` for the command.
    pub status: RunStatus,
}

/// In the `_meta` of a list request to all servers: seconds to wait for servers that have not answered yet.
pub const LIST_WAIT_KEY: &str = "osctl/wait";
/// In the `_meta` of the result: the servers whose items are missing.
pub const LIST_MISSING_KEY: &str = "osctl/missing";

/// The `_meta` of a list over all servers.
#[derive(Debug, Default, Deserialize)]
pub struct ListMeta {
    #[serde(default, rename = "osctl/missing")]
    pub missing: Vec<String>,
}

/// The error of a call whose outcome is unknown because the companion was stopped while the call ran: the `type` in its
/// `data`, and its code, from the range for implementations.
pub const CALL_LOST_TYPE: &str = "lost";
pub const CALL_LOST_CODE: i64 = -32000;

/// A file of server entries in the format that MCP clients share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct McpServersFile {
    /// Each value is an [`McpServerEntry`] and is parsed separately: an invalid entry does not affect the others.
    pub mcp_servers: BTreeMap<String, Value>,
}

/// One server: a command, or a URL. Fields that only clients use are ignored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct McpServerEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub disabled: bool,
    #[serde(default)]
    pub start: ServerStart,
    /// Whether one child process serves all clients. Otherwise each client has its own, so that no client sees
    /// another's state.
    #[serde(default)]
    pub shared: bool,
    /// Timeout of a call in seconds; a progress notification restarts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// Seconds without a call after which the server is stopped; 0 means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<f64>,
    /// The tools that are offered; `*` matches any part of a name; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The tools that the lean profile lists; all if missing, none if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lean: Option<Vec<String>>,
    /// Whether the server receives cancellations of calls; yes if missing. Some servers end at a cancellation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
}

/// The keys of an [`McpServerEntry`].
const SERVER_ENTRY_KEYS: [&str; 14] = [
    "args", "cancel", "command", "cwd", "disabled", "env", "headers", "idle", "lean", "shared",
    "start", "timeout", "tools", "url",
];

/// Characters of a key per edit, up to which an unknown key counts as a mistyped one.
const CHARS_PER_ENTRY_KEY_EDIT: usize = 3;

/// When a server is started.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ServerStart {
    /// With the first call that the cache can't answer.
    #[default]
    Lazy,
    /// With the container; if each session has its own child, with the session.
    Eager,
}

/// `GET /status` of the hub.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HubStatus {
    /// Always `ok`.
    pub status: String,
    pub version: String,
    pub sessions: usize,
    /// The clients with a session, and those without one that sent a request in the last 5 minutes; the latest used
    /// first.
    #[serde(default)]
    pub clients: Vec<HubClientStatus>,
    pub servers: Vec<ServerStatus>,
    /// Errors in the configuration.
    pub problems: Vec<String>,
}

/// A connected client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
pub struct HubClientStatus {
    /// The name that the client gives itself.
    pub name: String,
    pub version: String,
    /// The server that the client uses; missing for all servers.
    pub server: Option<String>,
    /// The revision of the protocol.
    pub revision: String,
    /// Seconds since the last request.
    pub idle_seconds: u64,
}

/// The status of one server.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ServerStatus {
    pub name: String,
    /// `child`, `remote`, `built_in`, or `unknown` for a refused entry.
    pub kind: String,
    pub state: ServerState,
    /// The status in words; of a server that failed, the reason.
    pub detail: String,
    pub start: ServerStart,
    pub shared: bool,
    /// The ids of the running processes.
    pub pids: Vec<i32>,
    /// Calls that are not answered yet.
    pub calls: usize,
    /// Calls of tools since the configuration of the server was read.
    #[serde(default)]
    pub total_calls: u64,
    /// The number of unexpected exits.
    pub crashes: u64,
    /// The title that the server reports, once it is known.
    pub title: Option<String>,
    /// The number of tools that are offered, once it is known.
    pub tools: Option<usize>,
    /// The path of its Streamable HTTP endpoint.
    pub path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// The server starts with the first call.
    Unstarted,
    Starting,
    Running,
    /// The server failed, and its restart is delayed.
    #[serde(alias = "resting")]
    BackingOff,
    /// The last start failed, or the server ended unexpectedly. The next call starts the server.
    Failed,
    /// The configuration of the server is invalid.
    Refused,
}

impl McpServerEntry {
    /// # Errors
    /// When a field is invalid: which field, and why.
    pub fn parse_entry(entry: &Value) -> Result<Self, String> {
        let fields = entry.as_object().ok_or("the entry is not an object")?;
        if let Some((key, meant)) = Self::find_misspelt_key(entry) {
            return Err(format!("unknown key `{key}`; did you mean `{meant}`?"));
        }
        // serde's error texts quote values, which may be secrets.
        Self::deserialize(entry).map_err(|_| {
            let mut wrong = fields
                .iter()
                .filter_map(|(name, value)| describe_wrong_field(name, value));
            let first = wrong.next();
            first.unwrap_or_else(|| "a field has an invalid value".into())
        })
    }

    /// A key that is probably a mistyped one, and the key that it probably means. Other unknown keys, which only MCP
    /// clients use, are ignored.
    pub fn find_misspelt_key(entry: &Value) -> Option<(&str, &'static str)> {
        let keys = entry.as_object()?.keys().map(String::as_str);
        let mut unknown = keys.filter(|key| !SERVER_ENTRY_KEYS.contains(key));
        let nearest = |key| match key {
            // The letters are nearer to `cwd`.
            "cmd" => Some("command"),
            key => nearest_name(key, SERVER_ENTRY_KEYS, CHARS_PER_ENTRY_KEY_EDIT),
        };
        unknown.find_map(|key| Some((key, nearest(key)?)))
    }
}

/// The part of a field that has the wrong type; the text never contains the value.
fn describe_wrong_field(name: &str, value: &Value) -> Option<String> {
    let mismatch = |part: &str, value: &Value, wanted: &str| {
        let found = json_kind(value);
        Some(format!("`{name}{part}` must be {wanted}, not {found}"))
    };
    match (name, value) {
        ("cancel" | "command" | "cwd" | "url" | "timeout" | "idle" | "lean", Value::Null) => None,
        ("command" | "cwd" | "url", Value::String(_)) => None,
        ("command" | "cwd" | "url", other) => mismatch("", other, "a string"),
        ("timeout" | "idle", Value::Number(_)) => None,
        ("timeout" | "idle", other) => mismatch("", other, "a number"),
        ("cancel" | "disabled" | "shared", Value::Bool(_)) => None,
        ("cancel" | "disabled" | "shared", other) => mismatch("", other, "`true` or `false`"),
        ("start", Value::String(start)) if ["lazy", "eager"].contains(&&**start) => None,
        ("start", Value::String(_)) => Some("`start` must be `lazy` or `eager`".into()),
        ("start", other) => mismatch("", other, "`lazy` or `eager`"),
        ("args" | "lean" | "tools", Value::Array(all)) => {
            let at = all.iter().position(|one| !one.is_string())?;
            mismatch(&format!("[{at}]"), &all[at], "a string")
        }
        ("args" | "lean" | "tools", other) => mismatch("", other, "a list of strings"),
        ("env" | "headers", Value::Object(all)) => {
            let (key, other) = all.iter().find(|(_, one)| !one.is_string())?;
            mismatch(&format!(".{key}"), other, "a string")
        }
        ("env" | "headers", other) => mismatch("", other, "an object of strings"),
        _ => None,
    }
}

/// The JSON type of a value, with its article.
pub fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl ServerState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unstarted => "unstarted",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::BackingOff => "backing_off",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{McpServerEntry, SERVER_ENTRY_KEYS};
    use serde_json::json;

    #[test]
    fn a_mistyped_key_is_found_and_a_key_of_clients_is_ignored() {
        for (entry, expected) in [
            (json!({"comand": "x"}), Some(("comand", "command"))),
            (json!({"command": "x", "argz": []}), Some(("argz", "args"))),
            (
                json!({"command": "x", "tiemout": 3}),
                Some(("tiemout", "timeout")),
            ),
            (json!({"cmd": "x"}), Some(("cmd", "command"))),
            (
                json!({
                    "command": "x", "type": "stdio", "alwaysAllow": [], "name": "n", "description": "d",
                    "enabled": true, "id": "i", "title": "t", "tags": [], "roots": [],
                }),
                None,
            ),
            (json!("text"), None),
        ] {
            let found = McpServerEntry::find_misspelt_key(&entry);
            assert_eq!(found, expected, "{entry}");
        }
        let refused = McpServerEntry::parse_entry(&json!({"comand": "sk-1"}));
        let why = "unknown key `comand`; did you mean `command`?";
        assert_eq!(refused.unwrap_err(), why);
    }

    #[test]
    fn the_keys_are_those_of_the_entry() {
        let entry = json!({
            "command": "c", "args": ["a"], "env": {"A": "b"}, "cwd": "/", "url": "u", "headers": {"A": "b"},
            "disabled": true, "start": "eager", "shared": true, "timeout": 1.0, "idle": 1.0, "tools": ["t"],
            "lean": ["t"], "cancel": false,
        });
        let entry: McpServerEntry = serde_json::from_value(entry).unwrap();
        let written = serde_json::to_value(entry).unwrap();
        let written = written.as_object().unwrap();
        let mut keys: Vec<&str> = written.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, SERVER_ENTRY_KEYS);
    }

    #[test]
    fn a_wrong_field_is_named_without_its_value() {
        for (wrong, why) in [
            (
                json!({"args": "-y server --api-key sk-1"}),
                "`args` must be a list of strings, not a string",
            ),
            (
                json!({"args": ["a", {"sk-1": "sk-1"}]}),
                "`args[1]` must be a string, not an object",
            ),
            (
                json!({"headers": "Authorization: Bearer sk-1"}),
                "`headers` must be an object of strings, not a string",
            ),
            (
                json!({"env": {"TOKEN": 1234}}),
                "`env.TOKEN` must be a string, not a number",
            ),
            (
                json!({"url": ["sk-1"]}),
                "`url` must be a string, not a list",
            ),
            (
                json!({"start": "sk-1"}),
                "`start` must be `lazy` or `eager`",
            ),
            (
                json!({"start": {"eager": "sk-1"}}),
                "`start` must be `lazy` or `eager`, not an object",
            ),
            (
                json!({"shared": "sk-1"}),
                "`shared` must be `true` or `false`, not a string",
            ),
            (
                json!({"timeout": "sk-1"}),
                "`timeout` must be a number, not a string",
            ),
            (
                json!({"lean": [1]}),
                "`lean[0]` must be a string, not a number",
            ),
            (
                json!({"cancel": "sk-1"}),
                "`cancel` must be `true` or `false`, not a string",
            ),
            (
                json!({"tools": null}),
                "`tools` must be a list of strings, not null",
            ),
        ] {
            assert_eq!(McpServerEntry::parse_entry(&wrong).unwrap_err(), why);
        }
        let fine = json!({"command": "x", "cwd": null, "idle": null, "type": "stdio"});
        assert!(McpServerEntry::parse_entry(&fine).is_ok());
    }
}
