//! `osctl mcp`: the MCP servers inside, for people and for their MCP clients.

mod call;
mod connect;
mod filter;
mod start_check;
mod stdio;

pub(super) use connect::connected_clients;
pub(super) use start_check::warn_of_failed_servers;

use super::CommandContext;
use super::answers::{ServersAnswer, ToolsAnswer};
use super::candidates::{server_names, tool_names};
use crate::error::{Error, Result, VerbOutcome};
use crate::protocol::mcp::{LIST_WAIT_KEY, ListMeta};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::time::Duration;
use stdio::McpStdioArgs;

/// Time limit for a list, which may have to wait for servers that start.
const TOOLS_LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of a description in a table.
const MAX_DESCRIPTION_CHARS: usize = 72;

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    verb: Option<McpVerb>,
}

#[derive(Debug, Subcommand)]
enum McpVerb {
    /// List the servers (default)
    #[command(alias = "list")]
    Ls,
    /// List the connected clients
    Status,
    /// List the tools of one or all servers
    Tools {
        /// Name of the server [default: all servers]
        #[arg(add = ArgValueCandidates::new(server_names))]
        server: Option<String>,
    },
    /// Call a tool and print its result
    Call {
        /// Name of the server
        #[arg(add = ArgValueCandidates::new(server_names))]
        server: String,
        /// Name of the tool
        #[arg(add = ArgValueCandidates::new(tool_names))]
        tool: String,
        /// NAME=VALUE, where VALUE may be JSON; or all arguments as one JSON object
        arguments: Vec<String>,
    },
    /// Serve MCP over stdin and stdout
    Stdio(McpStdioArgs),
    /// Add osctl to an MCP client
    Connect(connect::McpConnectArgs),
    /// Remove osctl from an MCP client
    #[command(aliases = ["rm", "remove", "delete"])]
    Disconnect(connect::McpDisconnectArgs),
}

impl McpArgs {
    /// Whether the verb is the bridge, which ends its session with the hub before it exits.
    pub(crate) fn is_bridge(&self) -> bool {
        matches!(self.verb, Some(McpVerb::Stdio(_)))
    }
}

pub(crate) async fn run(args: McpArgs, cx: &CommandContext) -> Result<VerbOutcome> {
    match args.verb.unwrap_or(McpVerb::Ls) {
        McpVerb::Ls => list_servers(cx).await,
        McpVerb::Status => list_clients(cx).await,
        McpVerb::Tools { server } => list_tools(server.as_deref(), cx).await,
        McpVerb::Call {
            server,
            tool,
            arguments,
        } => call::call_tool(&server, &tool, &arguments, cx).await,
        McpVerb::Stdio(args) => stdio::run(args, cx).await,
        McpVerb::Connect(args) => connect::connect_client(args, cx).await,
        McpVerb::Disconnect(args) => connect::disconnect_client(args, cx),
    }
}

async fn list_servers(cx: &CommandContext) -> Result<VerbOutcome> {
    let found = cx.companion_client()?.fetch_hub_status().await?;
    if cx.ui.json {
        cx.ui.print_json(&ServersAnswer::from(found))?;
        return Ok(VerbOutcome::Done);
    }
    for problem in &found.problems {
        cx.ui.print_warning(problem);
    }
    let heads = ["NAME", "STATE", "TOOLS", "CALLS", "CRASHES", "DETAIL"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(found.servers.into_iter().map(|server| {
        let tools = server.tools.map(|count| count.to_string());
        let word = server.state.as_str();
        let detail = match server.detail == word {
            true => server.title.unwrap_or_default(),
            false => server.detail,
        };
        vec![
            server.name,
            word.into(),
            tools.unwrap_or_default(),
            server.total_calls.to_string(),
            server.crashes.to_string(),
            detail,
        ]
    }));
    cx.ui.print_list(&rows, "no servers");
    Ok(VerbOutcome::Done)
}

async fn list_clients(cx: &CommandContext) -> Result<VerbOutcome> {
    let found = cx.companion_client()?.fetch_hub_status().await?;
    if cx.ui.json {
        cx.ui.print_json(&ServersAnswer::from(found))?;
        return Ok(VerbOutcome::Done);
    }
    let heads = ["CLIENT", "VERSION", "SERVER", "REVISION", "IDLE"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(found.clients.into_iter().map(|client| {
        vec![
            client.name,
            client.version,
            client.server.unwrap_or_else(|| "(all)".into()),
            client.revision,
            format!("{} s", client.idle_seconds),
        ]
    }));
    cx.ui.print_list(&rows, "no clients");
    Ok(VerbOutcome::Done)
}

#[derive(Debug, Deserialize)]
struct ListedTools {
    tools: Vec<ListedTool>,
    #[serde(rename = "nextCursor")]
    next: Option<String>,
    #[serde(default, rename = "_meta")]
    meta: ListMeta,
}

#[derive(Debug, Deserialize)]
struct ListedTool {
    name: String,
    #[serde(default)]
    description: String,
}

fn warn_missing(server: &str, cx: &CommandContext) {
    cx.ui.print_warning(format!(
        "the server `{server}` did not list its tools; `osctl logs mcp/{server}` shows the reason"
    ));
}

async fn list_tools(server: Option<&str>, cx: &CommandContext) -> Result<VerbOutcome> {
    let client = cx.companion_client()?;
    let (mut all, mut missing_servers) = (Vec::new(), Vec::new());
    let mut params = json!({"_meta": {LIST_WAIT_KEY: TOOLS_LIST_TIMEOUT.as_secs()}});
    loop {
        let work = cx.ui.start_request("listing the tools");
        let page = client
            .send_server_request(server, "tools/list", params)
            .await?;
        drop(work);
        let value: Value = parse_answer(&page)?;
        let page: ListedTools = parse_answer(&page)?;
        for missing in &page.meta.missing {
            warn_missing(missing, cx);
        }
        missing_servers.extend(page.meta.missing);
        all.extend(
            page.tools
                .into_iter()
                .zip(value["tools"].as_array().cloned().unwrap_or_default()),
        );
        match page.next {
            Some(next) => params = json!({"cursor": next}),
            None => break,
        }
    }
    if cx.ui.json {
        let tools = all.into_iter().map(|(_, whole)| whole).collect();
        cx.ui.print_json(&ToolsAnswer {
            tools,
            missing_servers,
        })?;
        return Ok(VerbOutcome::Done);
    }
    let mut rows = vec![vec!["NAME".to_owned(), "DESCRIPTION".to_owned()]];
    rows.extend(
        all.into_iter()
            .map(|(tool, _)| vec![tool.name, first_sentence(&tool.description)]),
    );
    cx.ui.print_list(&rows, "no tools");
    Ok(VerbOutcome::Done)
}

/// Parses the reply of a server.
fn parse_answer<T: DeserializeOwned>(answer: &RawValue) -> Result<T> {
    serde_json::from_str(answer.get()).map_err(|error| {
        Error::Refused {
            status: 502,
            kind: "unreadable".into(),
            message: format!("cannot parse the reply of the server: {error}"),
            hint: Some("`osctl mcp ls` shows the state of the servers".into()),
        }
        .into()
    })
}

/// Whether a name, which comes from the container, is one word in a shell.
fn is_plain_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.starts_with('-') && name.bytes().all(is_plain)
}

/// The first sentence, truncated to the width of the table.
fn first_sentence(description: &str) -> String {
    let line = description.trim().lines().next().unwrap_or_default();
    let sentence = line.split_once(". ").map_or(line, |(first, _)| first);
    match sentence.char_indices().nth(MAX_DESCRIPTION_CHARS) {
        Some((end, _)) => format!("{}…", &sentence[..end]),
        None => sentence.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::first_sentence;

    #[test]
    fn a_description_is_its_first_sentence() {
        assert_eq!(
            first_sentence("Reads a file. Slowly.\nMore."),
            "Reads a file"
        );
        assert_eq!(first_sentence(&"é".repeat(100)).chars().count(), 73);
    }
}
