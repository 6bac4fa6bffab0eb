//! A client as a server task sees it, and the recipient of an answer.

use super::call_record::CallRecord;
use super::message::{self, RpcMessage, find_value};
use super::message_stream::MessageStream;
use super::name_filter::NameFilter;
use super::resource_index::ResourceIndex;
use bytes::Bytes;
use osctl_protocol::activity::ActivityVerdict;
use std::fmt::Debug;
use std::sync::Arc;

/// Receives messages that are not part of a call's answer.
pub(super) trait NotificationSink: Debug + Send + Sync {
    /// `is_related`: the message may belong to the open call.
    fn deliver(&self, message: RpcMessage, is_related: bool);
}

/// Discards messages that belong to no call.
#[derive(Debug)]
pub(super) struct NullSink;

impl NotificationSink for NullSink {
    fn deliver(&self, _message: RpcMessage, _is_related: bool) {}
}

#[derive(Debug)]
pub(super) struct McpClient {
    /// Identifies the client; never 0.
    pub(super) number: u64,
    /// The parameters of its `initialize`; `None` for a client without a session.
    pub(super) initialize_params: Option<Bytes>,
    pub(super) notification_sink: Arc<dyn NotificationSink>,
}

impl McpClient {
    /// Whether the client declared this capability, such as `sampling`.
    pub(super) fn has_capability(&self, capability: &str) -> bool {
        let params = self.initialize_params.as_deref().unwrap_or_default();
        let text = std::str::from_utf8(params).unwrap_or_default();
        find_value(text, &["capabilities", capability]).is_some()
    }
}

/// The stream that receives an answer, and the adaptations of the answer.
#[derive(Debug, Clone)]
pub(super) struct ReplySender {
    pub(super) stream: Arc<MessageStream>,
    pub(super) shape: ReplyShape,
    /// The record of the call, if the request is the call of a tool.
    pub(super) record: Option<Arc<CallRecord>>,
    /// Whether the request was sent to the server before, which ended without an answer.
    pub(super) is_repeated: bool,
}

/// The adaptations of an answer: the parts that the client must not receive, and the fields that the hub adds.
#[derive(Debug, Clone, Default)]
pub(super) struct ReplyShape {
    /// The filter of a tool list.
    pub(super) tool_filter: NameFilter,
    /// Whether to add the fields that the revision without sessions requires and older servers do not send.
    pub(super) adds_stateless_fields: bool,
    /// Whether the answer is a list; then the fields on caching are added, too.
    pub(super) is_list: bool,
    /// The requested resource.
    pub(super) requested_uri: Option<String>,
    /// The index that records the resources that the answer links to.
    pub(super) resource_index: Option<Arc<ResourceIndex>>,
}

/// The error codes of a missing resource: up to revision 2025-11-25, and since 2026-07-28.
pub(super) const RESOURCE_NOT_FOUND_CODE: i64 = -32002;
const CLIENT_INVALID_PARAMS_CODE: i64 = -32602;

impl ReplySender {
    pub(super) fn unshaped(stream: Arc<MessageStream>) -> Self {
        Self {
            stream,
            shape: ReplyShape::default(),
            record: None,
            is_repeated: false,
        }
    }

    /// Records the end of the call.
    pub(super) fn recorded_by(self, record: Option<Arc<CallRecord>>) -> Self {
        Self { record, ..self }
    }

    fn finish_record(&self, verdict: ActivityVerdict) {
        if let Some(record) = &self.record {
            record.finish(verdict, 0);
        }
    }

    /// Sends a message that precedes the answer.
    pub(super) fn send_event(&self, message: RpcMessage) {
        self.stream.push_event(message.into_text());
    }

    pub(super) fn send_answer(&self, answer: RpcMessage) {
        if let Some(record) = &self.record {
            record.finish_with_answer(answer.text());
        }
        if let Some(links) = &self.shape.resource_index {
            links.index_answer(&answer);
        }
        self.stream
            .push_answer(self.shape.apply_to(answer).into_text());
    }

    pub(super) fn send_result(&self, id: &str, result: &str) {
        self.send_answer(message::result_response(id, result));
    }

    /// Answers that no server has this resource.
    pub(super) fn send_no_resource(&self, id: &str, uri: &str) {
        let error = serde_json::json!({
            "code": RESOURCE_NOT_FOUND_CODE,
            "message": format!("no server has the resource `{uri}`"),
            "data": {"uri": uri},
        });
        self.send_answer(message::raw_error_response(id, &error.to_string()));
    }

    /// Answers that the outcome of the call is unknown.
    pub(super) fn send_lost(&self, id: &str) {
        self.finish_record(ActivityVerdict::Lost);
        self.stream.push_answer(message::lost_response(id));
    }

    pub(super) fn send_error(&self, id: &str, code: i64, why: &str) {
        self.finish_record(ActivityVerdict::Failed);
        self.stream
            .push_answer(message::error_response(id, code, why).into_text());
    }
}

impl ReplyShape {
    fn apply_to(&self, answer: RpcMessage) -> RpcMessage {
        if self.tool_filter.is_unrestricted() && !self.adds_stateless_fields {
            return answer;
        }
        let Some(result) = answer.result() else {
            return self.adapt_error(answer);
        };
        let filtered = self.tool_filter.filter_tools(result);
        let mut result = filtered.as_deref().unwrap_or(result).to_owned();
        if self.adds_stateless_fields {
            result = add_result_fields(&result, self.is_list);
        }
        answer.with_result(&result)
    }

    /// Converts an error to the form of the newest revision.
    fn adapt_error(&self, answer: RpcMessage) -> RpcMessage {
        let requested = self.requested_uri.as_ref();
        let (Some(code), Some(uri)) = (
            answer.error_span(&["code"]),
            requested.filter(|_| self.adds_stateless_fields),
        ) else {
            return answer;
        };
        if answer.text()[code.clone()] != *RESOURCE_NOT_FOUND_CODE.to_string().as_bytes() {
            return answer;
        }
        let data = match answer.error_span(&["data"]) {
            Some(_) => String::new(),
            None => format!(",\"data\":{}", serde_json::json!({"uri": uri})),
        };
        answer.with_edits([(code, &*format!("{CLIENT_INVALID_PARAMS_CODE}{data}"))])
    }
}

/// Adds the fields that every result of the newest revision needs, where they are missing.
fn add_result_fields(result: &str, is_list: bool) -> String {
    let mut fields = Vec::new();
    let mut need = |name: &str, value: &str| {
        if find_value(result, &[name]).is_none() {
            fields.push(format!("\"{name}\":{value}"));
        }
    };
    need("resultType", "\"complete\"");
    if is_list {
        need("ttlMs", "0");
        need("cacheScope", "\"private\"");
    }
    let Some(rest) = result.trim_start().strip_prefix('{') else {
        return result.into();
    };
    let is_empty = rest.trim_start().starts_with('}');
    let comma = if is_empty || fields.is_empty() {
        ""
    } else {
        ","
    };
    format!("{{{}{comma}{rest}", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::{ReplyShape, add_result_fields};

    #[test]
    fn missing_fields_are_added_and_others_stay() {
        assert_eq!(
            add_result_fields("{}", false),
            r#"{"resultType":"complete"}"#
        );
        let list = r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[1.0]}"#;
        assert_eq!(add_result_fields(r#"{"tools":[1.0]}"#, true), list);
        assert_eq!(add_result_fields(list, true), list);
    }

    #[test]
    fn errors_get_no_result_fields() {
        let shape = ReplyShape {
            adds_stateless_fields: true,
            ..ReplyShape::default()
        };
        let error = r#"{"id":1,"error":{"code":1,"message":"x"}}"#;
        assert_eq!(shape.apply_to(error.into()), error);
        let reply_shape = ReplyShape {
            requested_uri: Some("a:\"b".into()),
            ..shape.clone()
        };
        let missing = r#"{"id":1,"error":{"code":-32002,"message":"x"}}"#;
        let expected = r#"{"id":1,"error":{"code":-32602,"data":{"uri":"a:\"b"},"message":"x"}}"#;
        assert_eq!(reply_shape.apply_to(missing.into()), expected);
        assert_eq!(reply_shape.apply_to(error.into()), error);
        let older = ReplyShape {
            adds_stateless_fields: false,
            ..reply_shape
        };
        assert_eq!(older.apply_to(missing.into()), missing);
        let result = shape.apply_to(r#"{"id":1,"result":{"a":1.0}, "x":2}"#.into());
        let expected = r#"{"id":1,"result":{"resultType":"complete","a":1.0}, "x":2}"#;
        assert_eq!(result, expected);
    }
}
