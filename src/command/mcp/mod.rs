//! `osctl mcp`: the MCP servers inside, for people and for their MCP clients.

mod connect;
mod filter;
mod stdio;

pub(super) use connect::connected_clients;

use super::CommandContext;
use super::answers::{ServersAnswer, ToolResultAnswer, ToolsAnswer};
use super::candidates::{server_names, tool_names};
use crate::error::{EXIT_NEGATIVE, Error, Result, VerbOutcome};
use crate::host::client::CompanionClient;
use crate::host::mcp::INVALID_ARGUMENTS;
use crate::protocol::mcp::{LIST_WAIT_KEY, ListMeta, STRUCTURED_RESULT_KEY};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::time::Duration;
use stdio::McpStdioArgs;

/// Time limit for a list, which may have to wait for servers that start.
const TOOLS_LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of arguments of a tool that are listed after a wrong call.
const MAX_SHOWN_ARGUMENTS: usize = 30;
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
        } => call_tool(&server, &tool, &arguments, cx).await,
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

/// The first sentence, truncated to the width of the table.
fn first_sentence(description: &str) -> String {
    let line = description.trim().lines().next().unwrap_or_default();
    let sentence = line.split_once(". ").map_or(line, |(first, _)| first);
    match sentence.char_indices().nth(MAX_DESCRIPTION_CHARS) {
        Some((end, _)) => format!("{}…", &sentence[..end]),
        None => sentence.to_owned(),
    }
}

#[derive(Debug, Deserialize)]
struct CliToolResult {
    #[serde(default)]
    content: Vec<CliToolContent>,
    #[serde(default, rename = "isError")]
    is_error: bool,
}

#[derive(Debug, Deserialize)]
struct CliToolContent {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    #[serde(rename = "mimeType")]
    mime: Option<String>,
    uri: Option<String>,
}

async fn call_tool(
    server: &str,
    tool: &str,
    words: &[String],
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let mut params = json!({"name": tool, "arguments": parse_arguments(words)?});
    if cx.ui.json {
        params["_meta"] = json!({STRUCTURED_RESULT_KEY: true});
    }
    let work = cx.ui.start_request(&format!("calling `{tool}`"));
    let client = cx.companion_client()?;
    let result = client
        .send_server_request(Some(server), "tools/call", params)
        .await;
    drop(work);
    let result = match result {
        Ok(result) => result,
        Err(error) => {
            let refused = error.downcast_ref();
            if matches!(refused, Some(Error::Refused { kind, .. }) if kind == INVALID_ARGUMENTS) {
                say_arguments(&client, server, tool, cx).await;
            }
            return Err(error);
        }
    };
    let called: CliToolResult = parse_answer(&result)?;
    if cx.ui.json {
        cx.ui.print_json(&ToolResultAnswer {
            server: server.into(),
            tool: tool.into(),
            is_error: called.is_error,
            result,
        })?;
    } else {
        for part in &called.content {
            match (&part.text, &part.uri) {
                (Some(text), _) => cx.ui.print_text(&format!("{text}\n"))?,
                (None, Some(uri)) => cx.ui.print_line(uri),
                (None, None) => {
                    let mime = part.mime.as_deref().unwrap_or(&part.kind);
                    cx.ui.print_message(format!("({mime}; `--json` shows it)"));
                }
            }
        }
    }
    if called.is_error {
        say_arguments(&client, server, tool, cx).await;
        return Ok(VerbOutcome::Code(EXIT_NEGATIVE));
    }
    Ok(VerbOutcome::Done)
}

/// Prints the arguments that a tool expects, if its server lists the tool.
async fn say_arguments(client: &CompanionClient, server: &str, tool: &str, cx: &CommandContext) {
    if cx.ui.json {
        return;
    }
    let listed = client.send_server_request(Some(server), "tools/list", json!({}));
    let Ok(Ok(listed)) = tokio::time::timeout(TOOLS_LIST_TIMEOUT, listed).await else {
        return;
    };
    let listed: Value = serde_json::from_str(listed.get()).unwrap_or_default();
    let mut tools = listed["tools"].as_array().into_iter().flatten();
    let Some(found) = tools.find(|listed| listed["name"] == tool) else {
        return;
    };
    let arguments = describe_arguments(&found["inputSchema"]);
    cx.ui.print_message(match arguments.is_empty() {
        true => format!("`{tool}` has no arguments"),
        false => format!("the arguments of `{tool}`:"),
    });
    for argument in arguments {
        cx.ui.print_message(format!("  {argument}"));
    }
}

/// `NAME (TYPE, required): DESCRIPTION` for each argument of a JSON Schema, the required ones first.
fn describe_arguments(schema: &Value) -> Vec<String> {
    let required = schema["required"].as_array().into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let mut properties: Vec<(&String, &Value)> = properties.collect();
    properties.sort_by_key(|(name, _)| !required.contains(&name.as_str()));
    let lines = properties.into_iter().map(|(name, property)| {
        let mut notes = Vec::new();
        notes.extend(describe_type(property));
        if required.contains(&name.as_str()) {
            notes.push("required".into());
        }
        let notes = match notes.is_empty() {
            true => String::new(),
            false => format!(" ({})", notes.join(", ")),
        };
        let description = property["description"].as_str().unwrap_or_default();
        let description = match first_sentence(description) {
            empty if empty.is_empty() => empty,
            sentence => format!(": {sentence}"),
        };
        format!("{name}{notes}{description}")
    });
    lines.take(MAX_SHOWN_ARGUMENTS).collect()
}

/// The type, or the accepted words, of a property.
fn describe_type(property: &Value) -> Option<String> {
    if let Some(words) = property["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str);
        return Some(words.collect::<Vec<_>>().join(" or "));
    }
    match &property["type"] {
        Value::String(kind) => Some(kind.clone()),
        Value::Array(kinds) => {
            let kinds = kinds.iter().filter_map(Value::as_str);
            Some(kinds.collect::<Vec<_>>().join(" or "))
        }
        _ => None,
    }
}

fn parse_arguments(words: &[String]) -> Result<Value> {
    if let [whole] = words
        && whole.trim_start().starts_with('{')
    {
        let parsed = serde_json::from_str(whole);
        let hint = "`osctl --json mcp tools SERVER` shows the arguments of each tool";
        return parsed
            .map_err(|e| Error::usage(format!("`{whole}` is not valid JSON: {e}"), hint).into());
    }
    let mut all = Map::new();
    for word in words {
        let Some((name, value)) = word.split_once('=') else {
            let hint = "write `osctl mcp call SERVER TOOL NAME=VALUE`, for example `path=/root/x`";
            return Err(Error::usage(format!("`{word}` is not NAME=VALUE"), hint).into());
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        all.insert(name.into(), value);
    }
    Ok(all.into())
}

#[cfg(test)]
mod tests {
    use super::{describe_arguments, first_sentence, parse_arguments};
    use serde_json::json;

    #[test]
    fn arguments_are_text_unless_they_are_json() {
        let words = ["path=/root/a=b", "head=3", "all=[1]"].map(str::to_owned);
        let expected = json!({"path": "/root/a=b", "head": 3, "all": [1]});
        assert_eq!(parse_arguments(&words).unwrap(), expected);
        let whole = [r#"{"path": "3"}"#.to_owned()];
        assert_eq!(parse_arguments(&whole).unwrap(), json!({"path": "3"}));
        assert!(parse_arguments(&["path".to_owned()]).is_err());
        assert!(parse_arguments(&["{".to_owned()]).is_err());
    }

    #[test]
    fn the_arguments_of_a_tool_are_described_and_the_required_come_first() {
        let schema = json!({
            "type": "object",
            "properties": {
                "head": {"type": ["integer", "null"], "description": "Lines to read. All if missing."},
                "path": {"type": "string", "description": "The file"},
                "mode": {"enum": ["text", "bytes"]},
                "any": {},
            },
            "required": ["path"],
        });
        let mut lines = describe_arguments(&schema);
        assert_eq!(lines.remove(0), "path (string, required): The file");
        lines.sort();
        assert_eq!(
            lines,
            [
                "any",
                "head (integer or null): Lines to read",
                "mode (text or bytes)",
            ]
        );
        assert!(describe_arguments(&json!({})).is_empty());
        assert!(describe_arguments(&json!({"properties": [], "required": "x"})).is_empty());
    }

    #[test]
    fn a_description_is_its_first_sentence() {
        assert_eq!(
            first_sentence("Reads a file. Slowly.\nMore."),
            "Reads a file"
        );
        assert_eq!(first_sentence(&"é".repeat(100)).chars().count(), 73);
    }
}
