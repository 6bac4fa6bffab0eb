//! Answers about MCP servers and clients.

use crate::protocol::mcp::{HubClientStatus, HubStatus, ServerStart, ServerState, ServerStatus};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::path::PathBuf;

/// The MCP servers inside.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ServersAnswer {
    /// The version of the companion.
    version: String,
    /// The number of connected clients.
    session_count: usize,
    /// The connected clients, the latest used first.
    clients: Vec<HubClientStatus>,
    servers: Vec<McpServerStatusEntry>,
    /// Errors in the configuration.
    problems: Vec<String>,
}

/// The status of one server.
#[derive(Debug, Serialize, JsonSchema)]
struct McpServerStatusEntry {
    name: String,
    /// `child`, `remote`, `built_in`, or `unknown` for a refused entry.
    kind: String,
    state: ServerState,
    /// The status in words; of a server that failed, the reason.
    detail: String,
    start: ServerStart,
    shared: bool,
    /// The ids of the running processes.
    pids: Vec<i32>,
    /// Calls that are not answered yet.
    call_count: usize,
    /// Calls of tools since the configuration of the server was read.
    total_call_count: u64,
    /// The number of unexpected exits.
    crash_count: u64,
    /// The title that the server reports, once it is known.
    title: Option<String>,
    /// The number of tools that are offered, once it is known.
    tool_count: Option<usize>,
    /// The path of its Streamable HTTP endpoint.
    path: String,
}

impl From<ServerStatus> for McpServerStatusEntry {
    fn from(server: ServerStatus) -> Self {
        let ServerStatus {
            name,
            kind,
            state,
            detail,
            start,
            shared,
            pids,
            calls,
            total_calls,
            crashes,
            title,
            tools,
            path,
        } = server;
        Self {
            name,
            kind: kind.replace(' ', "_"),
            state,
            detail,
            start,
            shared,
            pids,
            call_count: calls,
            total_call_count: total_calls,
            crash_count: crashes,
            title,
            tool_count: tools,
            path,
        }
    }
}

impl From<HubStatus> for ServersAnswer {
    fn from(hub: HubStatus) -> Self {
        let HubStatus {
            status: _,
            version,
            sessions,
            clients,
            servers,
            problems,
        } = hub;
        let servers = servers.into_iter().map(McpServerStatusEntry::from);
        Self {
            version,
            session_count: sessions,
            clients,
            servers: servers.collect(),
            problems,
        }
    }
}

/// The tools of one or all servers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ToolsAnswer {
    /// Each tool as MCP's `tools/list` describes it.
    pub(crate) tools: Vec<Value>,
    /// The servers that have not listed their tools in time.
    pub(crate) missing_servers: Vec<String>,
}

/// The result of a tool call.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ToolResultAnswer {
    pub(crate) server: String,
    pub(crate) tool: String,
    /// Whether the tool reports an error.
    pub(crate) is_error: bool,
    /// The result of MCP's `tools/call`, as the server sent it.
    #[schemars(with = "serde_json::Map<String, Value>")]
    pub(crate) result: Box<RawValue>,
}

/// The change in the configuration of an MCP client.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ClientAnswer {
    pub(crate) client: String,
    /// The name of the server in the client's configuration.
    pub(crate) server: String,
    pub(crate) file: PathBuf,
    /// Whether the file was changed: not in a dry run, nor when there was nothing to change.
    pub(crate) changed: bool,
    /// The changed lines, each with `+` or `-` in front.
    pub(crate) difference: Vec<String>,
    /// The copy of the earlier file.
    pub(crate) backup: Option<PathBuf>,
    /// `connect`: the number of tools that the client gets, if they were counted.
    pub(crate) tool_count: Option<usize>,
    /// `connect`: what to do in the client after the change.
    pub(crate) next: Option<String>,
}
