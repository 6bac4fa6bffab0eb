//! The JSON form of every error response.

use serde::{Deserialize, Serialize};

/// `{"status":"failed","error":{…}}`, with a fitting HTTP status.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FailedReply {
    /// Always `failed`.
    pub status: String,
    pub error: ApiError,
}

/// The refusal of a request to a checkpointed kernel: `{"status":"failed","error":{…},"is_checkpointed":true}`.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CheckpointedFailure {
    #[serde(flatten)]
    pub failed: FailedReply,
    /// Always `true`.
    pub is_checkpointed: bool,
}

impl From<ApiError> for CheckpointedFailure {
    fn from(error: ApiError) -> Self {
        Self {
            failed: error.into(),
            is_checkpointed: true,
        }
    }
}

/// An error for programs (`type`) and people (`message`), and the fix (`hint`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ApiError {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ApiError {
    pub fn new(kind: &str, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
            hint: None,
        }
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<ApiError> for FailedReply {
    fn from(error: ApiError) -> Self {
        Self {
            status: "failed".into(),
            error,
        }
    }
}
