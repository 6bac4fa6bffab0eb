//! The text of a refusal for a model.

use osctl_support::api::ApiRefusal;
use rmcp::model::{ContentBlock, IntoContents};

/// Why a tool did nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolError(pub(super) String);

impl ToolError {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl IntoContents for ToolError {
    fn into_contents(self) -> Vec<ContentBlock> {
        vec![ContentBlock::text(self.0)]
    }
}

impl<R: Into<ApiRefusal>> From<R> for ToolError {
    fn from(refusal: R) -> Self {
        Self(refusal.into().into_tool_text())
    }
}
