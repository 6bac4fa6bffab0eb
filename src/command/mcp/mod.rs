//! `osctl mcp`: the MCP servers inside, for people, and for the clients that they use.

mod connect;
mod narrow;

pub(super) use narrow::NarrowArgs;

use super::Context;
use super::candidates::server_names;
use super::mcp_stdio::{self, StdioArgs};
use crate::error::{Error, NO, Outcome, Result};
use crate::protocol::mcp::{LIST_WAIT, ListMeta};
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A person waits for a server that starts.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Characters of a description in a table.
const SHORT: usize = 72;

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    verb: Option<McpVerb>,
}

#[derive(Debug, Subcommand)]
enum McpVerb {
    /// List the servers
    List,
    /// List the tools of a server, or of all
    Tools {
        #[arg(add = ArgValueCandidates::new(server_names))]
        server: Option<String>,
    },
    /// Call a tool and print what it answers
    Call {
        #[arg(add = ArgValueCandidates::new(server_names))]
        server: String,
        tool: String,
        /// NAME=VALUE, where a value that is JSON is taken as such; or all as one JSON object
        arguments: Vec<String>,
    },
    /// Bridge a client that starts a command to the servers: messages come on stdin and go to stdout
    Stdio(StdioArgs),
    /// Let an MCP client on this machine use the servers
    Connect(connect::ConnectArgs),
    /// Take that back
    Disconnect(connect::DisconnectArgs),
}

impl McpArgs {
    /// Whether it is the bridge, which takes leave of the hub before it ends.
    pub(crate) fn bridges(&self) -> bool {
        matches!(self.verb, Some(McpVerb::Stdio(_)))
    }
}

pub(crate) async fn run(args: McpArgs, cx: &Context) -> Result<Outcome> {
    match args.verb.unwrap_or(McpVerb::List) {
        McpVerb::List => list(cx).await,
        McpVerb::Tools { server } => tools(server.as_deref(), cx).await,
        McpVerb::Call {
            server,
            tool,
            arguments,
        } => call(&server, &tool, &arguments, cx).await,
        McpVerb::Stdio(args) => mcp_stdio::run(args, cx).await,
        McpVerb::Connect(args) => connect::connect(args, cx).await,
        McpVerb::Disconnect(args) => connect::disconnect(args, cx),
    }
}

async fn list(cx: &Context) -> Result<Outcome> {
    let found = cx.client()?.servers().await?;
    if cx.ui.json {
        cx.ui.document(&found)?;
        return Ok(Outcome::Done);
    }
    for problem in &found.problems {
        cx.ui.warn(problem);
    }
    let heads = ["NAME", "STATE", "TOOLS", "CALLS", "CRASHES", "DETAIL"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(found.servers.into_iter().map(|server| {
        let tools = server.tools.map(|count| count.to_string());
        let word = server.state.word();
        let detail = match server.detail == word {
            true => server.title.unwrap_or_default(),
            false => server.detail,
        };
        vec![
            server.name,
            word.into(),
            tools.unwrap_or_default(),
            server.calls.to_string(),
            server.crashes.to_string(),
            detail,
        ]
    }));
    cx.ui.table(&rows);
    Ok(Outcome::Done)
}

#[derive(Debug, Deserialize)]
struct Tools {
    tools: Vec<Tool>,
    #[serde(rename = "nextCursor")]
    next: Option<String>,
    #[serde(default, rename = "_meta")]
    meta: ListMeta,
}

#[derive(Debug, Deserialize)]
struct Tool {
    name: String,
    #[serde(default)]
    description: String,
}

fn warn_missing(server: &str, cx: &Context) {
    cx.ui.warn(format!(
        "the server `{server}` has not listed its tools; `osctl logs mcp/{server}` shows why"
    ));
}

async fn tools(server: Option<&str>, cx: &Context) -> Result<Outcome> {
    let client = cx.client()?;
    let mut all = Vec::new();
    let mut params = json!({"_meta": {LIST_WAIT: LIST_TIMEOUT.as_secs()}});
    loop {
        let work = cx.ui.work("asking the servers");
        let page = client.ask_server(server, "tools/list", params).await?;
        drop(work);
        let value: Value = parsed(&page)?;
        let page: Tools = parsed(&page)?;
        for missing in &page.meta.missing {
            warn_missing(missing, cx);
        }
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
        let tools: Vec<Value> = all.into_iter().map(|(_, whole)| whole).collect();
        cx.ui.document(&json!({"tools": tools}))?;
        return Ok(Outcome::Done);
    }
    let mut rows = vec![vec!["NAME".to_owned(), "DOES".to_owned()]];
    rows.extend(
        all.into_iter()
            .map(|(tool, _)| vec![tool.name, short(&tool.description)]),
    );
    cx.ui.table(&rows);
    Ok(Outcome::Done)
}

/// What a server answers.
fn parsed<T: DeserializeOwned>(answer: &RawValue) -> Result<T> {
    serde_json::from_str(answer.get()).map_err(|error| {
        Error::Refused {
            status: 502,
            kind: "unreadable".into(),
            message: format!("the server's answer can't be read: {error}"),
            hint: Some("`osctl mcp list` shows how the servers stand".into()),
        }
        .into()
    })
}

/// The first sentence, or what there is room for.
fn short(description: &str) -> String {
    let line = description.trim().lines().next().unwrap_or_default();
    let sentence = line.split_once(". ").map_or(line, |(first, _)| first);
    match sentence.char_indices().nth(SHORT) {
        Some((end, _)) => format!("{}…", &sentence[..end]),
        None => sentence.to_owned(),
    }
}

#[derive(Debug, Deserialize)]
struct Called {
    #[serde(default)]
    content: Vec<Content>,
    #[serde(default, rename = "isError")]
    is_error: bool,
}

#[derive(Debug, Deserialize)]
struct Content {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    #[serde(rename = "mimeType")]
    mime: Option<String>,
    uri: Option<String>,
}

async fn call(server: &str, tool: &str, words: &[String], cx: &Context) -> Result<Outcome> {
    let params = json!({"name": tool, "arguments": arguments(words)?});
    let work = cx.ui.work(&format!("calling `{tool}`"));
    let result = cx
        .client()?
        .ask_server(Some(server), "tools/call", params)
        .await?;
    drop(work);
    let called: Called = parsed(&result)?;
    if cx.ui.json {
        cx.ui.document(&result)?;
    } else {
        for part in &called.content {
            match (&part.text, &part.uri) {
                (Some(text), _) => cx.ui.text(&format!("{text}\n"))?,
                (None, Some(uri)) => cx.ui.line(uri),
                (None, None) => {
                    let mime = part.mime.as_deref().unwrap_or(&part.kind);
                    cx.ui.say(format!("({mime}; `--json` shows it)"));
                }
            }
        }
    }
    Ok(match called.is_error {
        true => Outcome::Code(NO),
        false => Outcome::Done,
    })
}

fn arguments(words: &[String]) -> Result<Value> {
    if let [whole] = words
        && whole.trim_start().starts_with('{')
    {
        let parsed = serde_json::from_str(whole);
        let hint = "`osctl mcp tools SERVER --json` shows what a tool takes";
        return parsed.map_err(|e| Error::usage(format!("`{whole}` is no JSON: {e}"), hint).into());
    }
    let mut all = Map::new();
    for word in words {
        let Some((name, value)) = word.split_once('=') else {
            let hint = "`osctl mcp call filesystem read_text_file path=/root/x`";
            return Err(Error::usage(format!("`{word}` is not NAME=VALUE"), hint).into());
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        all.insert(name.into(), value);
    }
    Ok(all.into())
}

#[cfg(test)]
mod tests {
    use super::{arguments, short};
    use serde_json::json;

    #[test]
    fn arguments_are_text_unless_they_are_json() {
        let words = ["path=/root/a=b", "head=3", "all=[1]"].map(str::to_owned);
        let expected = json!({"path": "/root/a=b", "head": 3, "all": [1]});
        assert_eq!(arguments(&words).unwrap(), expected);
        let whole = [r#"{"path": "3"}"#.to_owned()];
        assert_eq!(arguments(&whole).unwrap(), json!({"path": "3"}));
        assert!(arguments(&["path".to_owned()]).is_err());
        assert!(arguments(&["{".to_owned()]).is_err());
    }

    #[test]
    fn a_description_is_its_first_sentence() {
        assert_eq!(short("Reads a file. Slowly.\nMore."), "Reads a file");
        assert_eq!(short(&"é".repeat(100)).chars().count(), 73);
    }
}
