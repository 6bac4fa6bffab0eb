//! What a tool gives: the same in words, for models, and in fields, for programs.

use super::tool_error::ToolError;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

pub(super) type ToolResult = Result<CallToolResult, ToolError>;

/// `value` in fields; `content` is what a model sees.
pub(super) fn structured_result(value: impl Serialize, content: Vec<ContentBlock>) -> ToolResult {
    let fields = serde_json::to_value(value);
    let fields =
        fields.map_err(|error| ToolError::new(format!("the answer can't be written: {error}")))?;
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(fields);
    Ok(result)
}

/// One sentence or text, and the fields.
pub(super) fn text_result(value: impl Serialize, text: impl Into<String>) -> ToolResult {
    structured_result(value, vec![ContentBlock::text(text)])
}

/// The same, of something that went wrong for the caller.
pub(super) fn with_error_flag(answer: ToolResult, is_error: bool) -> ToolResult {
    answer.map(|mut result| {
        result.is_error = Some(is_error);
        result
    })
}
