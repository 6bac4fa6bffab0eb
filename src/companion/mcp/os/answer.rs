//! What a tool gives: the same in words, for models, and in fields, for programs.

use super::refused::Refused;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

pub(super) type Answer = Result<CallToolResult, Refused>;

/// `value` in fields; `content` is what a model sees.
pub(super) fn told(value: impl Serialize, content: Vec<ContentBlock>) -> Answer {
    let fields = serde_json::to_value(value);
    let fields =
        fields.map_err(|error| Refused::new(format!("the answer can't be written: {error}")))?;
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(fields);
    Ok(result)
}

/// One sentence or text, and the fields.
pub(super) fn said(value: impl Serialize, text: impl Into<String>) -> Answer {
    told(value, vec![ContentBlock::text(text)])
}

/// The same, of something that went wrong for the caller.
pub(super) fn marked(answer: Answer, is_error: bool) -> Answer {
    answer.map(|mut result| {
        result.is_error = Some(is_error);
        result
    })
}
