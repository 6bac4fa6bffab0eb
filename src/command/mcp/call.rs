//! `osctl mcp call`: calls a tool, and explains why a call failed.

use super::TOOLS_LIST_TIMEOUT;
use crate::command::CommandContext;
use crate::command::answers::ToolResultAnswer;
use crate::error::{EXIT_NEGATIVE, Error, Result, VerbOutcome, nearest_name};
use crate::host::client::CompanionClient;
use crate::host::mcp::{INVALID_ARGUMENTS, SERVER_REFUSED, UNKNOWN_SERVER, is_server_failure};
use crate::protocol::mcp::STRUCTURED_RESULT_KEY;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Maximum number of arguments of a tool that are listed after a wrong call.
const MAX_SHOWN_ARGUMENTS: usize = 30;
/// Characters of a name per edit, up to which a name is suggested for an unknown one.
const CHARS_PER_CALL_NAME_EDIT: usize = 3;

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

pub(super) async fn call_tool(
    server: &str,
    tool: &str,
    words: &[String],
    cx: &CommandContext,
) -> Result<VerbOutcome> {
    let arguments = parse_arguments(words)?;
    let mut params = json!({"name": tool, "arguments": arguments});
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
        Err(error) => return Err(explain_error(error, &client, server, tool, cx).await),
    };
    let called: CliToolResult = super::parse_answer(&result)?;
    let tools = match called.is_error && !cx.ui.json {
        true => list_tools(&client, server).await,
        false => None,
    };
    // Some servers return a result for an unknown tool. The result says less than the error.
    if let Some(tools) = &tools
        && find_schema(tools, tool).is_none()
    {
        return Err(unknown_tool_error(server, tool, tools).into());
    }
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
    if !called.is_error {
        return Ok(VerbOutcome::Done);
    }
    if let Some(schema) = tools.as_deref().and_then(|tools| find_schema(tools, tool))
        && !fits_schema(&arguments, schema)
    {
        print_tool_arguments(tool, schema, cx);
    }
    Ok(VerbOutcome::Code(EXIT_NEGATIVE))
}

/// Replaces the error of a call: names that do not exist get a suggestion. Prints the arguments of the tool if they are
/// the reason.
async fn explain_error(
    error: anyhow::Error,
    client: &CompanionClient,
    server: &str,
    tool: &str,
    cx: &CommandContext,
) -> anyhow::Error {
    let Some(Error::Refused {
        status,
        kind,
        message,
        ..
    }) = error.downcast_ref()
    else {
        return error;
    };
    if kind == UNKNOWN_SERVER {
        let Ok(found) = client.fetch_hub_status().await else {
            return error;
        };
        let names = found.servers.iter().map(|server| server.name.as_str());
        return Error::Refused {
            status: *status,
            kind: kind.clone(),
            message: message.clone(),
            hint: Some(match nearest_plain_name(server, names) {
                Some(near) => format!("did you mean `osctl mcp call {near} {tool}`?"),
                None => "`osctl mcp ls` lists the servers".into(),
            }),
        }
        .into();
    }
    // A server that can't be started lists no tools, either.
    let is_refused = [INVALID_ARGUMENTS, SERVER_REFUSED].contains(&&**kind);
    if !is_refused || is_server_failure(server, message) {
        return error;
    }
    let Some(tools) = list_tools(client, server).await else {
        return error;
    };
    match find_schema(&tools, tool) {
        None => return unknown_tool_error(server, tool, &tools).into(),
        Some(schema) if kind == INVALID_ARGUMENTS && !cx.ui.json => {
            print_tool_arguments(tool, schema, cx);
        }
        Some(_) => {}
    }
    error
}

/// The tools of a server, if it lists them.
async fn list_tools(client: &CompanionClient, server: &str) -> Option<Vec<Value>> {
    let listed = client.send_server_request(Some(server), "tools/list", json!({}));
    let listed = tokio::time::timeout(TOOLS_LIST_TIMEOUT, listed).await;
    let mut listed: Value = serde_json::from_str(listed.ok()?.ok()?.get()).ok()?;
    // The other pages of a long list are not read.
    match (listed["tools"].take(), listed.get("nextCursor")) {
        (Value::Array(tools), None | Some(Value::Null)) => Some(tools),
        _ => None,
    }
}

fn find_schema<'a>(tools: &'a [Value], tool: &str) -> Option<&'a Value> {
    let found = tools.iter().find(|listed| listed["name"] == tool);
    found.map(|found| &found["inputSchema"])
}

fn unknown_tool_error(server: &str, tool: &str, tools: &[Value]) -> Error {
    let names = tools.iter().filter_map(|listed| listed["name"].as_str());
    // A list of all servers has the tools with the names of their servers.
    let own_name = tool
        .strip_prefix(server)
        .and_then(|rest| rest.strip_prefix("__"));
    let hint = match nearest_plain_name(own_name.unwrap_or(tool), names) {
        Some(near) => format!("did you mean `osctl mcp call {server} {near}`?"),
        None => format!("`osctl mcp tools {server}` lists its tools"),
    };
    Error::usage(format!("the server `{server}` has no tool `{tool}`"), hint)
}

/// The nearest of the names that is a plain word.
fn nearest_plain_name<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let plain = names.filter(|name| super::is_plain_name(name));
    nearest_name(name, plain, CHARS_PER_CALL_NAME_EDIT)
}

/// Whether arguments have the names and types of a JSON Schema: an error of the tool then has another reason.
fn fits_schema(arguments: &Value, schema: &Value) -> bool {
    let Some(arguments) = arguments.as_object() else {
        return false;
    };
    let mut required = schema["required"].as_array().into_iter().flatten();
    let has_required = required.all(|name| {
        name.as_str()
            .is_none_or(|name| arguments.contains_key(name))
    });
    has_required
        && arguments
            .iter()
            .all(|(name, value)| match &schema["properties"][name] {
                Value::Null => false,
                property => fits_property(value, property),
            })
}

fn fits_property(value: &Value, property: &Value) -> bool {
    if let Some(words) = property["enum"].as_array() {
        return words.contains(value);
    }
    let fits = |kind: &str| match kind {
        "array" => value.is_array(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "object" => value.is_object(),
        "string" => value.is_string(),
        _ => true,
    };
    match &property["type"] {
        Value::String(kind) => fits(kind),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).any(fits),
        _ => true,
    }
}

/// Prints the arguments that a tool expects.
fn print_tool_arguments(tool: &str, schema: &Value, cx: &CommandContext) {
    let mut arguments = describe_arguments(schema);
    let more = arguments.len().saturating_sub(MAX_SHOWN_ARGUMENTS);
    arguments.truncate(MAX_SHOWN_ARGUMENTS);
    cx.ui.print_message(match arguments.is_empty() {
        true => format!("`{tool}` has no arguments"),
        false => format!("the arguments of `{tool}`:"),
    });
    for argument in arguments {
        cx.ui.print_message(format!("  {argument}"));
    }
    if more > 0 {
        cx.ui.print_message(format!("  and {more} more"));
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
        let description = match super::first_sentence(description) {
            empty if empty.is_empty() => empty,
            sentence => format!(": {sentence}"),
        };
        format!("{name}{notes}{description}")
    });
    lines.collect()
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
    use super::{describe_arguments, fits_schema, parse_arguments, unknown_tool_error};
    use serde_json::json;

    #[test]
    fn an_unknown_tool_gets_the_nearest_name() {
        let tools = [json!({"name": "get_time"}), json!({"name": "$(get_times)"})];
        let hint = |tool: &str| unknown_tool_error("time", tool, &tools).hint().unwrap();
        assert_eq!(
            hint("get_tim"),
            "did you mean `osctl mcp call time get_time`?"
        );
        assert_eq!(hint("time__get_time"), hint("get_tim"));
        assert_eq!(hint("nosuch"), "`osctl mcp tools time` lists its tools");
    }

    #[test]
    fn arguments_fit_a_schema_by_name_and_type() {
        let schema = json!({
            "properties": {"code": {"type": "string"}, "wait": {"type": ["number", "null"]}, "mode": {"enum": ["a"]}},
            "required": ["code"],
        });
        for fitting in [
            json!({"code": "1/0"}),
            json!({"code": "1/0", "wait": 1, "mode": "a"}),
        ] {
            assert!(fits_schema(&fitting, &schema), "{fitting}");
        }
        for other in [
            json!({}),
            json!({"code": 1}),
            json!({"code": "", "wait": "x"}),
            json!({"code": "", "mode": "b"}),
            json!({"code": "", "other": 1}),
        ] {
            assert!(!fits_schema(&other, &schema), "{other}");
        }
    }

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
}
