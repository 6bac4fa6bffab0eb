//! MCP servers: how they are configured, and how they stand.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Response header of a stream: its number, with which the ids of its events begin. Who wants to go on behind
/// an event learns by it whether the stream is still there.
pub(crate) const STREAM_HEADER: &str = "osctl-stream";

/// Tools of the server `os` that only look: asking twice does no harm.
pub(crate) const READ_ONLY_TOOLS: [&str; 8] = [
    "desktop_read_clipboard",
    "desktop_screenshot",
    "desktop_windows",
    "evolve_status",
    "list_files",
    "read_file",
    "read_output",
    "wait_for_run",
];

/// In the `_meta` of a list of all servers: seconds to wait for servers that have not answered yet.
pub(crate) const LIST_WAIT: &str = "osctl/wait";
/// In the `_meta` of its result: the servers whose part is missing.
pub(crate) const LIST_MISSING: &str = "osctl/missing";

/// What a list of all servers says beside its items.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ListMeta {
    #[serde(default, rename = "osctl/missing")]
    pub(crate) missing: Vec<String>,
}

/// Of the error of a call that nobody knows the end of, because the companion was stopped while it ran: the
/// `type` in its `data`, and its code, one of those that implementations choose.
pub(crate) const CALL_LOST_TYPE: &str = "lost";
pub(crate) const CALL_LOST_CODE: i64 = -32000;

/// A file of servers in the form that MCP's clients share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct McpServersFile {
    /// Each is an [`McpServerEntry`], and read by itself: one that makes no sense takes no other with it.
    pub(crate) mcp_servers: BTreeMap<String, Value>,
}

/// One server: a command, or a URL. Fields that only clients know are skipped.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct McpServerEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) args: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) disabled: bool,
    #[serde(default)]
    pub(crate) start: ServerStart,
    /// One child for all clients; otherwise each has its own, so that none sees another's state.
    #[serde(default)]
    pub(crate) shared: bool,
    /// Seconds for one call, which progress begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<f64>,
    /// Seconds without a call after which it is ended; 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle: Option<f64>,
    /// The tools that are offered, with `*` for any part of a name; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tools: Vec<String>,
}

/// When a server is started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServerStart {
    /// With the first call that the cache can't answer.
    #[default]
    Lazy,
    /// With the container; with each session, where that has a child of its own.
    Eager,
}

/// `GET /status` of the hub.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct HubStatus {
    /// Always `ok`.
    pub(crate) status: String,
    pub(crate) version: String,
    pub(crate) sessions: usize,
    pub(crate) servers: Vec<ServerStatus>,
    /// What is wrong with the configuration.
    pub(crate) problems: Vec<String>,
}

/// How one server stands.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct ServerStatus {
    pub(crate) name: String,
    /// `child`, `remote`, `built in`, or `unknown` of one that is refused.
    pub(crate) kind: String,
    pub(crate) state: ServerState,
    /// How it stands, in words.
    pub(crate) detail: String,
    pub(crate) start: ServerStart,
    pub(crate) shared: bool,
    /// The processes that run.
    pub(crate) pids: Vec<i32>,
    /// Calls that are not answered yet.
    pub(crate) calls: usize,
    /// How often it ended that nobody had ended.
    pub(crate) crashes: u64,
    /// What it calls itself, once it was known.
    pub(crate) title: Option<String>,
    /// How many tools it has, once it was known.
    pub(crate) tools: Option<usize>,
    /// Where Streamable HTTP is spoken with it.
    pub(crate) path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServerState {
    /// It starts with the first call.
    Unstarted,
    Starting,
    Running,
    /// It failed, and is not started again yet.
    Resting,
    /// What the configuration says of it makes no sense.
    Refused,
}

impl McpServerEntry {
    /// # Errors
    /// Which field does not fit, and why.
    pub(crate) fn parse_entry(said: &Value) -> Result<Self, String> {
        let fields = said.as_object().ok_or("it is no object")?;
        // serde's own words quote values, which may be secrets.
        Self::deserialize(said).map_err(|_| {
            let mut wrong = fields
                .iter()
                .filter_map(|(name, value)| wrong_field(name, value));
            let first = wrong.next();
            first.unwrap_or_else(|| "a field does not fit".into())
        })
    }
}

/// Which part of a field is of another kind than it must be; never what it says.
fn wrong_field(name: &str, value: &Value) -> Option<String> {
    let told = |part: &str, value: &Value, wanted: &str| {
        let found = json_kind(value);
        Some(format!(
            "`{name}{part}`: it is {found}, and must be {wanted}"
        ))
    };
    match (name, value) {
        ("command" | "cwd" | "url" | "timeout" | "idle", Value::Null) => None,
        ("command" | "cwd" | "url", Value::String(_)) => None,
        ("command" | "cwd" | "url", other) => told("", other, "a text"),
        ("timeout" | "idle", Value::Number(_)) => None,
        ("timeout" | "idle", other) => told("", other, "a number"),
        ("disabled" | "shared", Value::Bool(_)) => None,
        ("disabled" | "shared", other) => told("", other, "`true` or `false`"),
        ("start", Value::String(start)) if ["lazy", "eager"].contains(&&**start) => None,
        ("start", Value::String(_)) => Some("`start`: it must be `lazy` or `eager`".into()),
        ("start", other) => told("", other, "`lazy` or `eager`"),
        ("args" | "tools", Value::Array(all)) => {
            let at = all.iter().position(|one| !one.is_string())?;
            told(&format!("[{at}]"), &all[at], "a text")
        }
        ("args" | "tools", other) => told("", other, "a list of texts"),
        ("env" | "headers", Value::Object(all)) => {
            let (key, other) = all.iter().find(|(_, one)| !one.is_string())?;
            told(&format!(".{key}"), other, "a text")
        }
        ("env" | "headers", other) => told("", other, "an object of texts"),
        _ => None,
    }
}

fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl ServerState {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Unstarted => "unstarted",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Resting => "resting",
            Self::Refused => "refused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::McpServerEntry;
    use serde_json::json;

    #[test]
    fn a_wrong_field_is_named_and_what_it_says_is_not() {
        for (wrong, why) in [
            (
                json!({"args": "-y server --api-key sk-1"}),
                "`args`: it is a text, and must be a list of texts",
            ),
            (
                json!({"args": ["a", {"sk-1": "sk-1"}]}),
                "`args[1]`: it is an object, and must be a text",
            ),
            (
                json!({"headers": "Authorization: Bearer sk-1"}),
                "`headers`: it is a text, and must be an object of texts",
            ),
            (
                json!({"env": {"TOKEN": 1234}}),
                "`env.TOKEN`: it is a number, and must be a text",
            ),
            (
                json!({"url": ["sk-1"]}),
                "`url`: it is a list, and must be a text",
            ),
            (
                json!({"start": "sk-1"}),
                "`start`: it must be `lazy` or `eager`",
            ),
            (
                json!({"start": {"eager": "sk-1"}}),
                "`start`: it is an object, and must be `lazy` or `eager`",
            ),
            (
                json!({"shared": "sk-1"}),
                "`shared`: it is a text, and must be `true` or `false`",
            ),
            (
                json!({"timeout": "sk-1"}),
                "`timeout`: it is a text, and must be a number",
            ),
            (
                json!({"tools": null}),
                "`tools`: it is null, and must be a list of texts",
            ),
        ] {
            assert_eq!(McpServerEntry::parse_entry(&wrong).unwrap_err(), why);
        }
        let fine = json!({"command": "x", "cwd": null, "idle": null, "type": "stdio"});
        assert!(McpServerEntry::parse_entry(&fine).is_ok());
    }
}
