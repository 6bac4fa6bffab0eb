//! Results of tools: text for models, and the same as fields for programs.

use super::tool_error::ToolError;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

pub(super) type ToolResult = Result<CallToolResult, ToolError>;

/// A result with `value` as fields and `content` for models.
pub(super) fn structured_result(value: impl Serialize, content: Vec<ContentBlock>) -> ToolResult {
    let fields = serde_json::to_value(value);
    let fields =
        fields.map_err(|error| ToolError::new(format!("the answer can't be written: {error}")))?;
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(fields);
    Ok(result)
}

/// A result with one text and fields.
pub(super) fn text_result(value: impl Serialize, text: impl Into<String>) -> ToolResult {
    structured_result(value, vec![ContentBlock::text(text)])
}

/// Sets the error flag of a result.
pub(super) fn with_error_flag(answer: ToolResult, is_error: bool) -> ToolResult {
    answer.map(|mut result| {
        result.is_error = Some(is_error);
        result
    })
}
