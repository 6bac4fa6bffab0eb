//! Tool arguments that are repeated in headers, as the newest revision requires: an argument whose schema has
//! `x-mcp-header` is also sent as `Mcp-Param-…`, to remote servers and by clients.

use super::message::{RpcMessage, array_elements, find_raw, find_string, find_value, splice};
use osctl_protocol::mcp_header::encode_header;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};

pub(super) const HEADER_SCHEMA_KEY: &str = "x-mcp-header";
/// The prefix of these headers.
pub(super) const PARAM_HEADER_PREFIX: &str = "mcp-param-";
/// The error code of a server that did not receive a header, or whose headers differ from the body.
const RAW_HEADER_MISMATCH_CODE: &str = "-32020";
/// Schema keywords whose content is a value and not a schema.
const SCHEMA_VALUE_KEYS: [&str; 4] = ["const", "default", "enum", "examples"];
/// The largest integer that a double represents exactly.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

/// An argument that is sent in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ParamHeader {
    header: String,
    path: Vec<String>,
}

/// The headers that a server's tools require.
#[derive(Debug, Default)]
pub(super) struct ToolParamHeaders(Mutex<HashMap<String, Vec<ParamHeader>>>);

impl ToolParamHeaders {
    /// Records the tools of a `tools/list` result. Calls `refused` with the reason for each tool whose header
    /// declarations are invalid. Returns the result without these tools, or `None` if all tools are valid.
    pub(super) fn record_tools(
        &self,
        result: &str,
        mut refused: impl FnMut(&str),
    ) -> Option<String> {
        let span = find_value(result, &["tools"])?;
        let all = array_elements(&result[span.clone()]);
        let mut tools = self.0.lock();
        let mut is_fit = |tool: &&str| {
            let name = find_string(tool, &["name"]).unwrap_or_default();
            let schema = find_raw(tool, &["inputSchema"]).map(serde_json::from_str);
            let schema = schema.and_then(Result::ok).unwrap_or_default();
            match schema_param_headers(&schema) {
                Ok(all) => {
                    tools.insert(name, all);
                    true
                }
                Err(why) => {
                    refused(&format!("the hub omits the tool `{name}`: {why}"));
                    false
                }
            }
        };
        let fit: Vec<&str> = all.iter().copied().filter(|tool| is_fit(tool)).collect();
        if fit.len() == all.len() {
            return None;
        }
        let list = format!("[{}]", fit.join(","));
        String::from_utf8(splice(result.as_bytes(), &[(span, &list)]).into()).ok()
    }

    /// The headers of a call, as pairs of name and value.
    pub(super) fn call_headers(&self, call: &RpcMessage) -> Vec<(String, String)> {
        let name = call.text_param(&["name"]).unwrap_or_default();
        let tools = self.0.lock();
        let mirrored = tools.get(&name).map_or(&[][..], Vec::as_slice);
        let headers = mirrored.iter().filter_map(|one| {
            let value = one.header_value(call)?;
            Some((one.header.clone(), encode_header(&value)))
        });
        headers.collect()
    }
}

/// The argument headers of a client's request.
#[derive(Debug, Default)]
pub(super) struct ClientParamHeaders {
    /// By header name; `None` for a value that is not text.
    pub(super) arguments: Vec<(String, Option<String>)>,
    /// Whether the client may omit headers.
    pub(super) is_partial: bool,
}

impl ParamHeader {
    /// The value of this header for a call.
    fn header_value(&self, call: &RpcMessage) -> Option<String> {
        raw_to_header_value(self.raw_argument(call)?)
    }

    fn raw_argument<'a>(&self, call: &'a RpcMessage) -> Option<&'a str> {
        let arguments = call.raw_param(&["arguments"])?;
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        find_raw(arguments, &path)
    }

    fn find_mismatch(
        &self,
        call: &RpcMessage,
        client_headers: &ClientParamHeaders,
    ) -> Option<String> {
        let name = &self.header;
        let expected = self.header_value(call);
        let is_meant = |(header, _): &&(String, Option<String>)| header == name;
        let mut all = client_headers.arguments.iter().filter(is_meant);
        let Some((_, first)) = all.next() else {
            return (expected.is_some() && !client_headers.is_partial)
                .then(|| format!("`{name}` is missing"));
        };
        if all.next().is_some() {
            return Some(format!("`{name}` occurs more than once"));
        }
        let Some(first) = first else {
            return Some(format!("`{name}` is not text"));
        };
        match expected {
            None => Some(format!("`{name}` is `{first}`, but the body has no value")),
            Some(expected)
                if expected == *first || is_same_number(self.raw_argument(call)?, first) =>
            {
                None
            }
            Some(expected) => Some(format!(
                "`{name}` is `{first}`, but the body has `{expected}`"
            )),
        }
    }
}

/// The first mismatch between a client's headers and its call, by the tool's description.
pub(super) fn find_header_mismatch(
    tool: &str,
    call: &RpcMessage,
    client_headers: &ClientParamHeaders,
) -> Option<String> {
    let schema = serde_json::from_str(find_raw(tool, &["inputSchema"])?).ok()?;
    // Invalid header declarations require nothing.
    let all = schema_param_headers(&schema).ok()?;
    all.iter()
        .find_map(|one| one.find_mismatch(call, client_headers))
}

/// Whether two numbers are equal, such as `42.0` and `42`; only for numbers that every reader represents exactly.
fn is_same_number(raw: &str, header: &str) -> bool {
    let number = |text: &str| {
        text.parse::<f64>()
            .ok()
            .filter(|n| n.abs() <= MAX_SAFE_INTEGER)
    };
    !raw.starts_with('"') && number(raw).is_some_and(|raw| number(header) == Some(raw))
}

/// Whether a server's error says that it requires other headers.
pub(super) fn is_header_mismatch_error(body: &[u8]) -> bool {
    let text = std::str::from_utf8(body).unwrap_or_default();
    find_raw(text, &["error", "code"]) == Some(RAW_HEADER_MISMATCH_CODE)
}

/// Converts a raw value to a header value; `None` for values that headers do not carry.
fn raw_to_header_value(raw: &str) -> Option<String> {
    match raw.as_bytes().first()? {
        b'"' => serde_json::from_str(raw).ok(),
        b't' | b'f' => Some(raw.into()),
        b'-' | b'0'..=b'9' => {
            let number: f64 = raw.parse().ok()?;
            let is_plain = raw.bytes().all(|b| b == b'-' || b.is_ascii_digit());
            let is_whole = number.fract() == 0.0 && number.abs() <= MAX_SAFE_INTEGER;
            // `1.0` and `1e2` are integers, too.
            Some(match is_whole && !is_plain {
                true => format!("{number:.0}"),
                false => raw.into(),
            })
        }
        _ => None,
    }
}

/// The arguments that a schema declares as headers.
///
/// # Errors
/// Fails when a declaration is invalid, does not belong to an argument, or repeats a header name.
fn schema_param_headers(schema: &Value) -> Result<Vec<ParamHeader>, String> {
    let mut found = Vec::new();
    walk_schema(schema, Some(&mut Vec::new()), &mut found)?;
    let mut names = BTreeSet::new();
    match found.iter().find(|one| !names.insert(one.header.as_str())) {
        Some(twice) => Err(format!("`{}` is the header of two arguments", twice.header)),
        None => Ok(found),
    }
}

/// `path` leads to the argument; `None` below keywords where the schema alone does not determine the argument's path.
fn walk_schema(
    schema: &Value,
    path: Option<&mut Vec<String>>,
    found: &mut Vec<ParamHeader>,
) -> Result<(), String> {
    match schema {
        Value::Object(fields) => walk_fields(fields, path, found),
        Value::Array(all) => all.iter().try_for_each(|one| walk_schema(one, None, found)),
        _ => Ok(()),
    }
}

fn walk_fields(
    fields: &Map<String, Value>,
    mut path: Option<&mut Vec<String>>,
    found: &mut Vec<ParamHeader>,
) -> Result<(), String> {
    if let Some(header_name) = fields.get(HEADER_SCHEMA_KEY) {
        let Some(path) = path.as_deref().filter(|path| !path.is_empty()) else {
            return Err(format!(
                "`{HEADER_SCHEMA_KEY}` does not belong to an argument"
            ));
        };
        let header = header_name
            .as_str()
            .filter(|header_name| is_header_token(header_name));
        let header = header.map(|header_name| {
            format!("{PARAM_HEADER_PREFIX}{}", header_name.to_ascii_lowercase())
        });
        let header = header
            .ok_or_else(|| format!("`{HEADER_SCHEMA_KEY}`: {header_name} is not a header name"))?;
        if !is_primitive_schema(fields) {
            return Err(format!(
                "`{HEADER_SCHEMA_KEY}`: `{}` is not a simple value",
                path.join(".")
            ));
        }
        let path = path.clone();
        found.push(ParamHeader { header, path });
    }
    for (key, value) in fields {
        match (key.as_str(), value, path.as_deref_mut()) {
            ("properties", Value::Object(properties), Some(path)) => {
                for (name, schema) in properties {
                    path.push(name.clone());
                    let walked = walk_schema(schema, Some(path), found);
                    path.pop();
                    walked?;
                }
            }
            // The keys of `properties` are names, not keywords.
            ("properties", Value::Object(properties), None) => {
                let mut schemas = properties.values();
                schemas.try_for_each(|schema| walk_schema(schema, None, found))?;
            }
            (key, ..) if SCHEMA_VALUE_KEYS.contains(&key) => {}
            _ => walk_schema(value, None, found)?,
        }
    }
    Ok(())
}

/// Whether the text is valid in a header's name.
fn is_header_token(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_fine)
}

/// Whether the schema allows only strings, numbers, booleans and null, as far as it declares a type.
fn is_primitive_schema(schema: &Map<String, Value>) -> bool {
    let is_simple = |kind: &Value| {
        let kinds = ["string", "integer", "number", "boolean", "null"];
        kind.as_str().is_some_and(|kind| kinds.contains(&kind))
    };
    match schema.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().all(is_simple),
        Some(kind) => is_simple(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ClientParamHeaders, ToolParamHeaders, find_header_mismatch, is_header_mismatch_error,
    };
    use crate::message::{RpcMessage, array_elements, find_value};
    use osctl_protocol::mcp_header::decode_header;
    use std::collections::BTreeMap;

    const MARKED_TOOLS_LIST: &str = r#"{"x":1.0,"tools":[{"name":"a","n":1e400,"inputSchema":{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "count":{"type":"integer","x-mcp-header":"Count","default":{"x-mcp-header":"no mark"}},
        "is":{"type":["boolean","null"],"x-mcp-header":"Is"},
        "deep":{"type":"object","properties":{"er":{"type":"string","x-mcp-header":"Deeper"}}},
        "x-mcp-header":{"type":"string"}}}}]}"#;

    fn headers(tools: &ToolParamHeaders, arguments: &str) -> BTreeMap<String, String> {
        let call = format!(
            r#"{{"id":1,"method":"tools/call","params":{{"name":"a","arguments":{arguments}}}}}"#
        );
        let headers = tools.call_headers(&RpcMessage::parse(call.into()).unwrap());
        headers.into_iter().collect()
    }

    #[test]
    fn marked_arguments_become_headers() {
        let tools = ToolParamHeaders::default();
        assert!(headers(&tools, r#"{"region":"x"}"#).is_empty());
        assert_eq!(
            tools.record_tools(MARKED_TOOLS_LIST, |why| panic!("{why}")),
            None
        );
        let of = |arguments: &str| {
            let all = headers(&tools, arguments).into_iter();
            let all = all.map(|(name, value)| format!("{}: {value}", &name["mcp-param-".len()..]));
            all.collect::<Vec<_>>().join("; ")
        };
        assert_eq!(
            of(r#"{"region":"us west-1","count":42,"is":false,"deep":{"er":"d"},"other":1}"#),
            "count: 42; deeper: d; is: false; region: us west-1"
        );
        assert_eq!(
            of(r#"{"region":"Hello, 世界"}"#),
            "region: =?base64?SGVsbG8sIOS4lueVjA==?="
        );
        assert_eq!(
            of(r#"{"region":" padded "}"#),
            "region: =?base64?IHBhZGRlZCA=?="
        );
        assert_eq!(
            of(r#"{"region":"line1\nline2"}"#),
            "region: =?base64?bGluZTEKbGluZTI=?="
        );
        let sentinel = of(r#"{"region":"=?base64?literal?="}"#);
        assert_eq!(sentinel, "region: =?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=");
        assert_eq!(of(r#"{"count":-7.0}"#), "count: -7");
        assert_eq!(of(r#"{"count":1e2}"#), "count: 100");
        assert_eq!(of(r#"{"region":null,"deep":{},"is":null}"#), "");
        assert_eq!(of(r#"{"region":{},"deep":"x"}"#), "");
    }

    #[test]
    fn the_headers_of_a_client_must_agree_with_its_call() {
        let tool =
            array_elements(&MARKED_TOOLS_LIST[find_value(MARKED_TOOLS_LIST, &["tools"]).unwrap()])
                [0];
        let why = |arguments: &str, given: &[(&str, &str)]| {
            let call = format!(
                r#"{{"id":1,"method":"tools/call","params":{{"name":"a","arguments":{arguments}}}}}"#
            );
            let call = RpcMessage::parse(call.into()).unwrap();
            let pairs = given
                .iter()
                .map(|(name, value)| ((*name).to_owned(), decode_header(value)));
            let mut given = ClientParamHeaders {
                arguments: pairs.collect(),
                is_partial: false,
            };
            let whole = find_header_mismatch(tool, &call, &given);
            given.is_partial = true;
            let is_missing = whole.as_ref().is_some_and(|why| why.ends_with("missing"));
            let expected = whole.clone().filter(|_| !is_missing);
            assert_eq!(find_header_mismatch(tool, &call, &given), expected);
            whole
        };
        let region = |value| [("mcp-param-region", value)];
        assert_eq!(why(r#"{"other":1}"#, &[]), None);
        assert_eq!(why(r#"{"region":"x"}"#, &region("x")), None);
        assert_eq!(why(r#"{"region":"é"}"#, &region("=?base64?w6k=?=")), None);
        assert_eq!(why(r#"{"count":42}"#, &[("mcp-param-count", "42.0")]), None);
        for (arguments, given, expected) in [
            (
                r#"{"region":"x"}"#,
                &[][..],
                "`mcp-param-region` is missing",
            ),
            (
                r#"{"region":"x"}"#,
                &region("y"),
                "`mcp-param-region` is `y`, but the body has `x`",
            ),
            (
                r#"{"region":null}"#,
                &region("y"),
                "`mcp-param-region` is `y`, but the body has no value",
            ),
            (
                r#"{"region":""}"#,
                &region("=?base64?!?="),
                "`mcp-param-region` is not text",
            ),
            (
                r#"{"region":"1.10"}"#,
                &region("1.1"),
                "`mcp-param-region` is `1.1`, but the body has `1.10`",
            ),
            (
                r#"{"region":"x"}"#,
                &[("mcp-param-region", "x"), ("mcp-param-region", "y")],
                "`mcp-param-region` occurs more than once",
            ),
            (
                r#"{"count":9007199254740993}"#,
                &[("mcp-param-count", "9007199254740992")],
                "`mcp-param-count` is `9007199254740992`, but the body has `9007199254740993`",
            ),
            (
                r#"{"count":42}"#,
                &[("mcp-param-count", "43")],
                "`mcp-param-count` is `43`, but the body has `42`",
            ),
        ] {
            assert_eq!(why(arguments, given).as_deref(), Some(expected));
        }
    }

    #[test]
    fn tools_with_invalid_marks_are_omitted_and_reported() {
        for bad in [
            r#"{"properties":{"a":{"type":"string","x-mcp-header":""}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"A B"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"A\r\nB"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":1}}}"#,
            r#"{"properties":{"a":{"type":"object","x-mcp-header":"A"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#,
            r#"{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}"#,
            r#"{"anyOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}"#,
            r#"{"$defs":{"a":{"type":"string","x-mcp-header":"A"}}}"#,
            r#"{"x-mcp-header":"A"}"#,
        ] {
            let good = r#"{"n":1.0,"name":"good","inputSchema":{}}"#;
            let list = format!(
                r#"{{"tools":[{{"name":"bad","inputSchema":{bad}}},{good}],"nextCursor":"x"}}"#
            );
            let mut reasons = Vec::new();
            let rest =
                ToolParamHeaders::default().record_tools(&list, |why| reasons.push(why.to_owned()));
            let expected = format!(r#"{{"tools":[{good}],"nextCursor":"x"}}"#);
            assert_eq!(rest.as_deref(), Some(&*expected), "{bad}");
            assert!(
                reasons[0].starts_with("the hub omits the tool `bad`: `"),
                "{reasons:?}"
            );
        }
    }

    #[test]
    fn a_mismatch_is_distinguished_from_other_errors() {
        let of = |code: &str| format!(r#"{{"id":1,"error":{{"code":{code},"message":"x"}}}}"#);
        assert!(is_header_mismatch_error(of("-32020").as_bytes()));
        assert!(
            !is_header_mismatch_error(of("-32602").as_bytes())
                && !is_header_mismatch_error(b"<html>")
        );
    }
}
