//! A refusal as clients see it, and the only conversion into an HTTP response.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use osctl_protocol::error::{ApiError, CheckpointedFailure, FailedReply};

/// The hint that names the documentation of fields.
pub const FIELD_DOCS_HINT: &str = "`GET /openapi.json` describes every field";

/// The result of a handler.
pub type ApiResult<T = Response> = Result<T, ApiRefusal>;

/// A refused or failed request: the error for clients of HTTP, and the text for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiRefusal {
    status: StatusCode,
    error: ApiError,
    /// The text of the tool's result; the message if missing.
    tool_text: Option<String>,
    /// The refusal is temporary: seconds until the client may try again.
    retry_after: Option<u16>,
    /// The kernel is in a checkpoint, which the body reports in a field.
    is_checkpointed: bool,
}

impl ApiRefusal {
    pub fn new(status: StatusCode, kind: &str, message: impl Into<String>) -> Self {
        Self::from_error(status, ApiError::new(kind, message))
    }

    pub fn from_error(status: StatusCode, error: ApiError) -> Self {
        Self {
            status,
            error,
            tool_text: None,
            retry_after: None,
            is_checkpointed: false,
        }
    }

    /// The refusal of a field with an invalid value.
    pub fn invalid_field(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_field", message).with_hint(FIELD_DOCS_HINT)
    }

    /// Sets or replaces the hint.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.error.hint = Some(hint.into());
        self
    }

    pub(super) fn with_optional_hint(mut self, hint: Option<&str>) -> Self {
        self.error.hint = hint.map(Into::into);
        self
    }

    /// Sets the text for a model. Its hints name tools, not commands or HTTP endpoints.
    pub fn with_tool_text(mut self, text: impl Into<String>) -> Self {
        self.tool_text = Some(text.into());
        self
    }

    pub fn with_retry_after(mut self, seconds: u16) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Marks the kernel as checkpointed.
    pub fn with_checkpointed(mut self) -> Self {
        self.is_checkpointed = true;
        self
    }

    /// The status and the error, for a reply that contains them.
    pub fn into_parts(self) -> (StatusCode, ApiError) {
        (self.status, self.error)
    }

    pub fn into_tool_text(self) -> String {
        self.tool_text.unwrap_or(self.error.message)
    }
}

impl IntoResponse for ApiRefusal {
    fn into_response(self) -> Response {
        let mut response = match self.is_checkpointed {
            true => Json(CheckpointedFailure::from(self.error)).into_response(),
            false => Json(FailedReply::from(self.error)).into_response(),
        };
        *response.status_mut() = self.status;
        if let Some(seconds) = self.retry_after {
            let seconds = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// The fallback of each interface for a method that a path does not support.
pub async fn reject_wrong_method(method: Method, request: Request) -> ApiRefusal {
    let message = format!("`{}` does not support {method}", request.uri().path());
    ApiRefusal::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", message)
        .with_hint("`GET /` lists the endpoints")
}
