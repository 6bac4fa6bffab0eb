//! One JSON-RPC message as it was received, and the positions of the parts that a hub needs.
//!
//! A message is never re-serialized: an id, token or name is replaced in place. Every other byte stays, including
//! unknown fields, big numbers and `1.0`. The only exception: a line break between tokens becomes a space, because
//! messages of child processes are lines.

mod json_search;

pub(super) use json_search::{
    Span, array_elements, find_elements, find_raw, find_string, find_value, object_fields, splice,
    without_fields,
};

use bytes::Bytes;
use osctl_protocol::mcp::{CALL_LOST_CODE, CALL_LOST_TYPE};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RpcMessageKind {
    Request,
    Notification,
    /// A result or an error.
    Answer,
}

#[derive(Clone)]
pub(super) struct RpcMessage {
    text: Bytes,
    pub(super) kind: RpcMessageKind,
    pub(super) method: String,
    id: Option<Span>,
    params: Option<Span>,
    result: Option<Span>,
    error: Option<Span>,
}

#[derive(Deserialize)]
struct RpcParts<'a> {
    #[serde(borrow, default, deserialize_with = "raw")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "raw")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "raw")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "raw")]
    error: Option<&'a RawValue>,
}

/// Reads a field so that `null` counts as a value.
fn raw<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RpcParseError {
    NotJson(String),
    /// JSON, but not JSON-RPC; with the raw id if the bytes contain one.
    NotRpc(String, Option<String>),
}

impl RpcMessage {
    /// # Errors
    /// Fails when the bytes are not one JSON-RPC message.
    pub(super) fn parse(text: Bytes) -> Result<Self, RpcParseError> {
        #[cfg(test)]
        tests::PARSE_COUNT.set(tests::PARSE_COUNT.get() + 1);
        let text = without_line_breaks(text);
        let whole =
            std::str::from_utf8(&text).map_err(|e| RpcParseError::NotJson(e.to_string()))?;
        let parts: RpcParts = serde_json::from_str(whole).map_err(|e| match e.classify() {
            serde_json::error::Category::Data => {
                RpcParseError::NotRpc(e.to_string(), extract_id(whole))
            }
            _ => RpcParseError::NotJson(e.to_string()),
        })?;
        if parts.id.is_some_and(|id| !is_rpc_id(id.get())) {
            let why = "the `id` of the message is neither a string nor a number";
            return Err(RpcParseError::NotRpc(why.into(), None));
        }
        let kind = match (&parts.method, parts.id) {
            (Some(_), Some(_)) => RpcMessageKind::Request,
            (Some(_), None) => RpcMessageKind::Notification,
            (None, _) if parts.result.is_some() || parts.error.is_some() => RpcMessageKind::Answer,
            (None, _) => {
                let why = "the message has no `method`, no `result` and no `error`";
                let id = parts.id.map(|id| id.get().to_owned());
                return Err(RpcParseError::NotRpc(why.into(), id));
            }
        };
        let at = |part: Option<&RawValue>| part.map(|part| json_search::span_of(whole, part.get()));
        Ok(Self {
            kind,
            id: at(parts.id),
            params: at(parts.params),
            result: at(parts.result),
            error: at(parts.error),
            method: parts.method.unwrap_or_default().into_owned(),
            text,
        })
    }

    /// Parses all messages of a body, and reports whether the body is a batch.
    ///
    /// # Errors
    /// Fails when one of them is not a message.
    pub(super) fn parse_all(text: Bytes) -> Result<(Vec<Self>, bool), RpcParseError> {
        let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
        if first != Some(&b'[') {
            return Ok((vec![Self::parse(text)?], false));
        }
        let parts: Vec<&RawValue> =
            serde_json::from_slice(&text).map_err(|e| RpcParseError::NotJson(e.to_string()))?;
        let each = parts
            .iter()
            .map(|part| Self::parse(text.slice_ref(part.get().as_bytes())));
        Ok((each.collect::<Result<_, _>>()?, true))
    }

    /// Composes a message of the hub from raw fields; an empty text omits its field.
    fn compose(
        kind: RpcMessageKind,
        id: &str,
        method: &str,
        [params, result, error]: [&str; 3],
    ) -> Self {
        let mut text = r#"{"jsonrpc":"2.0""#.to_owned();
        let mut append = |name: &str, value: &str| {
            if value.is_empty() {
                return None;
            }
            text += &format!(",\"{name}\":");
            let start = text.len();
            text += value;
            Some(start..text.len())
        };
        let id = append("id", id);
        if !method.is_empty() {
            append("method", &format!("\"{method}\""));
        }
        let [params, result, error] = [("params", params), ("result", result), ("error", error)]
            .map(|(name, value)| append(name, value));
        text.push('}');
        Self {
            text: text.into(),
            kind,
            method: method.into(),
            id,
            params,
            result,
            error,
        }
    }

    pub(super) fn text(&self) -> &Bytes {
        &self.text
    }

    pub(super) fn into_text(self) -> Bytes {
        self.text
    }

    fn part_text(&self, span: &Option<Span>) -> Option<&str> {
        let bytes = self.text.get(span.clone()?)?;
        // The parser has checked the encoding.
        std::str::from_utf8(bytes).ok()
    }

    /// The raw id.
    pub(super) fn id(&self) -> Option<&str> {
        self.part_text(&self.id)
    }

    pub(super) fn params(&self) -> Option<&str> {
        self.part_text(&self.params)
    }

    pub(super) fn result(&self) -> Option<&str> {
        self.part_text(&self.result)
    }

    fn span_within(&self, part: &Option<Span>, path: &[&str]) -> Option<Span> {
        let within = find_value(self.part_text(part)?, path)?;
        let start = part.as_ref()?.start;
        Some(start + within.start..start + within.end)
    }

    /// The position of a value in the parameters, such as `["_meta", "progressToken"]`.
    pub(super) fn param_span(&self, path: &[&str]) -> Option<Span> {
        self.span_within(&self.params, path)
    }

    /// The position of a value in the error, such as `["code"]`.
    pub(super) fn error_span(&self, path: &[&str]) -> Option<Span> {
        self.span_within(&self.error, path)
    }

    /// The raw value at a path in the error.
    pub(super) fn raw_error(&self, path: &[&str]) -> Option<&str> {
        self.part_text(&self.error_span(path))
    }

    /// The raw value at a path in the parameters.
    pub(super) fn raw_param(&self, path: &[&str]) -> Option<&str> {
        self.part_text(&self.param_span(path))
    }

    /// The string at a path in the parameters.
    pub(super) fn text_param(&self, path: &[&str]) -> Option<String> {
        serde_json::from_str(self.raw_param(path)?).ok()
    }

    /// Copies the message with other values at some positions.
    pub(super) fn with_edits<'a>(&self, edits: impl IntoIterator<Item = (Span, &'a str)>) -> Self {
        let is_change = |(span, new): &(Span, &str)| self.text[span.clone()] != *new.as_bytes();
        let mut edits: Vec<_> = edits.into_iter().filter(is_change).collect();
        let mut edited = self.clone();
        if edits.is_empty() {
            return edited;
        }
        edits.sort_by_key(|(span, _)| span.start);
        edited.text = splice(&self.text, &edits);
        let shifted = |place: usize, is_before: &dyn Fn(&Span) -> bool| {
            let before = edits.iter().filter(|(span, _)| is_before(span));
            before.fold(place, |at, (span, new)| at + new.len() - span.len())
        };
        let parts = [
            &mut edited.id,
            &mut edited.params,
            &mut edited.result,
            &mut edited.error,
        ];
        for part in parts.into_iter().flatten() {
            let start = shifted(part.start, &|span| span.end <= part.start);
            // A text that is inserted at the end of a part does not belong to it.
            let end = shifted(part.end, &|span| {
                span.end <= part.end && span.start < part.end
            });
            *part = start..end;
        }
        edited
    }

    /// Copies the message under another id.
    pub(super) fn with_id(&self, id: &str) -> Self {
        self.with_edits(self.id_edit(id))
    }

    /// Copies an answer with another result.
    pub(super) fn with_result(&self, result: &str) -> Self {
        self.with_edits(self.result.clone().map(|span| (span, result)))
    }

    /// Copies the message with another value at a path in the parameters.
    pub(super) fn with_param(&self, path: &[&str], value: &str) -> Self {
        self.with_edits(self.param_span(path).map(|span| (span, value)))
    }

    /// Copies a message without parameters, and adds them.
    pub(super) fn with_new_params(&self, params: &str) -> Self {
        const PARAMS_FIELD: &str = ",\"params\":";
        let end = self.text.iter().rposition(|byte| *byte == b'}');
        let end = end.unwrap_or_default();
        let mut edited = self.with_edits([(end..end, &*format!("{PARAMS_FIELD}{params}"))]);
        edited.params = Some(end + PARAMS_FIELD.len()..end + PARAMS_FIELD.len() + params.len());
        edited
    }

    /// The edit that replaces the id.
    pub(super) fn id_edit<'a>(&self, id: &'a str) -> Option<(Span, &'a str)> {
        self.id.clone().map(|span| (span, id))
    }
}

impl fmt::Debug for RpcMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The parameters may be secret.
        write!(f, "{:?} {} {:?}", self.kind, self.method, self.id())
    }
}

/// Replaces line breaks. JSON allows them only between tokens, where they have no meaning.
fn without_line_breaks(text: Bytes) -> Bytes {
    let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if !text.iter().any(is_break) {
        return text;
    }
    let spaced = text.iter().map(|b| if is_break(b) { b' ' } else { *b });
    spaced.collect::<Vec<u8>>().into()
}

/// The raw id of an object that is not a message; `None` if no answer can use it.
fn extract_id(text: &str) -> Option<String> {
    let id = find_raw(text, &["id"])?;
    is_rpc_id(id).then(|| id.to_owned())
}

/// Whether raw JSON is valid as an id.
pub(super) fn is_rpc_id(raw: &str) -> bool {
    !raw.starts_with(['{', '[', 't', 'f'])
}

/// Whether two ids or tokens are equal: a server may have read `1.0` and written `1`.
pub(super) fn is_same_id(a: &str, b: &str) -> bool {
    // Integers are compared as text, because a double can't distinguish all of them.
    let is_whole = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    let number = |text: &str| text.parse::<f64>().ok();
    let parse_text = |text: &str| serde_json::from_str::<String>(text).ok();
    match a == b || (is_whole(a) && is_whole(b)) {
        true => a == b,
        false if a.starts_with('"') => parse_text(a).is_some_and(|a| Some(a) == parse_text(b)),
        false => number(a).is_some_and(|a| Some(a) == number(b)),
    }
}

/// The notification that cancels a request.
pub(super) const CANCELLED_METHOD: &str = "notifications/cancelled";

/// An error response to a request.
pub(super) fn error_response(id: &str, code: i64, message: &str) -> RpcMessage {
    let error = serde_json::json!({"code": code, "message": message});
    raw_error_response(id, &error.to_string())
}

/// An error response to a request, with the raw error.
pub(super) fn raw_error_response(id: &str, error: &str) -> RpcMessage {
    RpcMessage::compose(RpcMessageKind::Answer, id, "", ["", "", error])
}

/// The error response to a request that its receiver can't read; nothing for other messages.
pub fn invalid_request_response(text: Bytes, why: &str) -> Option<Bytes> {
    let message = RpcMessage::parse(text).ok()?;
    Some(error_response(message.id()?, -32600, why).into_text())
}

/// An error response of the hub, with the type of the error.
pub(super) fn typed_error_response(
    id: &str,
    code: i64,
    why: &str,
    kind: &str,
    hint: Option<&str>,
) -> Bytes {
    let mut error = serde_json::json!({"code": code, "message": why, "data": {"type": kind}});
    if let Some(hint) = hint {
        error["data"]["hint"] = hint.into();
    }
    raw_error_response(id, &error.to_string()).into_text()
}

/// The error response of a call whose outcome is unknown.
pub(super) fn lost_response(id: &str) -> Bytes {
    let why = "the companion stopped during this call, and the outcome of the call is unknown";
    let hint = "check the effects of the call before you repeat it";
    typed_error_response(id, CALL_LOST_CODE, why, CALL_LOST_TYPE, Some(hint))
}

/// The error response of a call whose answer is not kept any more.
pub(super) fn answer_dropped_response(id: &str) -> Bytes {
    let why = "the answer to this call is no longer available";
    let hint = "check the effects of the call before you repeat it";
    typed_error_response(id, CALL_LOST_CODE, why, "not_kept", Some(hint))
}

/// Whether an answer says that the outcome is unknown.
pub(super) fn is_lost_response(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let text_at = |path: &[&str]| find_raw(text, path).map(|raw| raw.trim_matches('"'));
    let code = text_at(&["error", "code"]).and_then(|code| code.parse::<i64>().ok());
    code == Some(CALL_LOST_CODE) && text_at(&["error", "data", "type"]) == Some(CALL_LOST_TYPE)
}

/// A result response to a request.
pub(super) fn result_response(id: &str, result: &str) -> RpcMessage {
    RpcMessage::compose(RpcMessageKind::Answer, id, "", ["", result, ""])
}

/// A request of the hub.
pub(super) fn request_message(id: &str, method: &str, params: &str) -> RpcMessage {
    RpcMessage::compose(RpcMessageKind::Request, id, method, [params, "", ""])
}

/// A notification of the hub; `params` may be empty.
pub(super) fn notification_message(method: &str, params: &str) -> RpcMessage {
    RpcMessage::compose(RpcMessageKind::Notification, "", method, [params, "", ""])
}

#[cfg(test)]
pub(super) mod tests;
