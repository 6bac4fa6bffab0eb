//! HTTP replies for every refusal and for every unreadable body.

use super::criu::checkpoint_hint;
use super::json_response;
use crate::companion::kernel::KernelRefusal;
use crate::companion::{cryo, files};
use crate::protocol::error::{ApiError, CheckpointedFailure, FailedReply};
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

pub(in crate::companion) fn error_response(
    status: StatusCode,
    kind: &str,
    message: impl Into<String>,
    hint: Option<&str>,
) -> Response {
    let mut error = ApiError::new(kind, message);
    if let Some(hint) = hint {
        error = error.with_hint(hint);
    }
    json_response(status, FailedReply::from(error))
}

/// The hint that names the documentation of fields.
pub(super) const FIELD_DOCS_HINT: &str = "`GET /openapi.json` describes every field";

/// The reply for a field with an invalid value.
pub(super) fn invalid_field_response(message: String) -> Response {
    error_response(
        StatusCode::BAD_REQUEST,
        "invalid_field",
        message,
        Some(FIELD_DOCS_HINT),
    )
}

/// The reply for a failed write of something that must be durable.
pub(super) fn not_recorded_error(what: &str) -> (StatusCode, ApiError) {
    let message = format!("the {what} can't be written to disk; nothing was executed");
    let hint = "`osctl shell df -h /data` shows the disk usage; omit `\"durable\": true` to execute without a record";
    let error = ApiError::new("not_recorded", message).with_hint(hint);
    (StatusCode::INSUFFICIENT_STORAGE, error)
}

impl KernelRefusal {
    /// Returns the HTTP status and the error text.
    pub(super) fn into_http_error(self) -> (StatusCode, ApiError) {
        use StatusCode as S;
        match self {
            Self::Busy => (
                S::TOO_MANY_REQUESTS,
                ApiError::new("busy", "the kernel executes other code")
                    .with_hint("try again, or interrupt the code with `osctl interrupt`"),
            ),
            Self::QueueFull => (
                S::TOO_MANY_REQUESTS,
                ApiError::new("queue_full", "the queue of the kernel is full"),
            ),
            Self::RunIdConflict(id) => (
                S::CONFLICT,
                ApiError::new(
                    "id_in_use",
                    format!("ID `{id}` belongs to another request"),
                )
                .with_hint("choose another ID, or omit `id`"),
            ),
            Self::NoRun(id) => (
                S::NOT_FOUND,
                ApiError::new("unknown_run", format!("there is no run `{id}`"))
                    .with_hint("`osctl runs` lists the retained runs; older runs are removed"),
            ),
            Self::NotRecorded => not_recorded_error("run"),
            Self::NoSession(name) => (
                S::NOT_FOUND,
                ApiError::new("unknown_session", format!("there is no session `{name}`")).with_hint(
                    "`osctl sessions` lists the sessions, `osctl sessions create NAME` creates one",
                ),
            ),
            Self::TooManySessions(count) => {
                let message =
                    format!("the limit of {count} sessions is reached");
                let hint = "`osctl sessions rm NAME` deletes a session; `sessions.max` in osctl.yaml sets the limit";
                let error = ApiError::new("too_many_sessions", message).with_hint(hint);
                (S::TOO_MANY_REQUESTS, error)
            }
            Self::Invalid(message) => (
                S::BAD_REQUEST,
                ApiError::new("invalid_field", message).with_hint(FIELD_DOCS_HINT),
            ),
            Self::NoKernel(why) => (
                S::SERVICE_UNAVAILABLE,
                ApiError::new("no_kernel", format!("the kernel can't be started: {why}"))
                    .with_hint("`osctl logs` shows more"),
            ),
            Self::Checkpointed {
                session,
                checkpoint,
            } => {
                let message = format!("the kernel is in the checkpoint `{checkpoint}`");
                let hint = checkpoint_hint(&session, &checkpoint);
                let error = ApiError::new("checkpointed", message).with_hint(hint);
                (S::SERVICE_UNAVAILABLE, error)
            }
            Self::ResourceHeld(why) => {
                let message = format!("the kernel did not release its live objects: {why}");
                let hint = "`runtime.resource(…).invalidate()` releases a live object; nothing was lost";
                (S::CONFLICT, ApiError::new("resource_held", message).with_hint(hint))
            }
            Self::GenerationMismatch { seen, generation } => {
                let message = format!(
                    "the kernel is generation {generation}, but the request is for generation {seen}; nothing was stored"
                );
                let hint = "check the current variables and store again";
                (S::CONFLICT, ApiError::new("other_generation", message).with_hint(hint))
            }
            Self::ShuttingDown => (
                S::SERVICE_UNAVAILABLE,
                ApiError::new("stopping", "the companion is stopping"),
            ),
        }
    }
}

/// The reply for refused code. Only code can be queued, so only this reply suggests `queue`.
pub(super) fn execution_refusal_response(refusal: KernelRefusal) -> Response {
    let queue = "send `\"queue\": true` to queue the code";
    let hint = (refusal == KernelRefusal::Busy).then_some(queue);
    refusal.into_response_with_hint(hint)
}

impl IntoResponse for KernelRefusal {
    fn into_response(self) -> Response {
        self.into_response_with_hint(None)
    }
}

impl KernelRefusal {
    /// Replaces the refusal's own hint.
    fn into_response_with_hint(self, hint: Option<&str>) -> Response {
        let is_checkpointed = matches!(self, Self::Checkpointed { .. });
        // These refusals are temporary; the others need an action of the client.
        let passes = matches!(
            self,
            Self::Busy | Self::QueueFull | Self::NoKernel(_) | Self::ShuttingDown
        );
        let (status, mut error) = self.into_http_error();
        if let Some(hint) = hint {
            error = error.with_hint(hint);
        }
        let mut response = match is_checkpointed {
            true => json_response(status, CheckpointedFailure::from(error)),
            false => json_response(status, FailedReply::from(error)),
        };
        if passes || is_checkpointed {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl IntoResponse for files::FilesRefusal {
    fn into_response(self) -> Response {
        use StatusCode as S;
        let (status, kind, message, hint) = match self {
            Self::Invalid(message) => return invalid_field_response(message),
            Self::NotFound(path) => (
                S::NOT_FOUND,
                "missing_file",
                format!("there is no `{}`", path.display()),
                Some(
                    "`osctl shell ls FOLDER` lists a folder; `osctl shell mkdir -p FOLDER` creates it",
                ),
            ),
            Self::Denied { path, why } => (
                S::FORBIDDEN,
                "denied",
                format!("`{}` is not accessible: {why}", path.display()),
                Some(
                    "the companion has no permission; check the owner and mode of the path and of its folder",
                ),
            ),
            Self::NotAFile { path, kind } => (
                S::CONFLICT,
                "no_file",
                format!(
                    "`{}` is {}, not a file",
                    path.display(),
                    kind.with_article()
                ),
                Some("name a file; a folder can be listed, or packed as tar"),
            ),
            Self::NotAFolder(path) => (
                S::CONFLICT,
                "no_folder",
                format!(
                    "`{}` is not a folder, or a parent of the path is not a folder",
                    path.display()
                ),
                Some("remove the slash at the end of the path, or name a folder"),
            ),
            Self::NotEmpty(path) => (
                S::CONFLICT,
                "not_empty",
                format!("`{}` is not empty", path.display()),
                Some("`?recursive=true` removes the folder and its content"),
            ),
            Self::Busy(path) => (
                S::CONFLICT,
                "busy_file",
                format!("`{}` is in use", path.display()),
                Some("end the processes that use the path, or unmount it"),
            ),
            Self::StorageFull => (
                S::INSUFFICIENT_STORAGE,
                "disk_full",
                "the disk is full; existing files are unchanged".into(),
                Some("remove files in the container; `osctl shell df -h` shows the disk usage"),
            ),
            Self::OffsetMismatch(have) => (
                S::CONFLICT,
                "other_offset",
                format!(
                    "{have} bytes of the upload have arrived, but the request starts at another offset"
                ),
                Some("`HEAD` with `?upload=ID` returns the offset"),
            ),
            Self::InProgress(id) => (
                S::CONFLICT,
                "upload_in_progress",
                format!("another request is sending the upload `{id}`"),
                Some("try again when the other request has ended"),
            ),
            Self::ContentChanged => (
                S::CONFLICT,
                "changed",
                "the content before the resume point has changed".into(),
                Some("omit `?from=` to start again"),
            ),
            Self::NoUpload(id) => (
                S::NOT_FOUND,
                "unknown_upload",
                format!("no bytes of the upload `{id}` have arrived"),
                Some("start the upload: `PUT` with `?upload=ID`"),
            ),
            Self::Disconnected => (
                S::BAD_REQUEST,
                "cut",
                "the body ended early".into(),
                Some("send the body again; an upload with `?upload=ID` resumes"),
            ),
            Self::TooManyStreams(count) => (
                S::SERVICE_UNAVAILABLE,
                "too_many_streams",
                format!("the limit of {count} concurrent transfers is reached"),
                Some("try again when a transfer has ended"),
            ),
            Self::Archive(error) => (
                S::UNPROCESSABLE_ENTITY,
                "archive",
                error.to_string(),
                Some("remove the entry from the archive; the entries before it were unpacked"),
            ),
            Self::Failed(why) => {
                tracing::error!("a file operation failed: {why}");
                (
                    S::INTERNAL_SERVER_ERROR,
                    "file",
                    why,
                    Some("`osctl logs` shows more"),
                )
            }
        };
        error_response(status, kind, message, hint)
    }
}

impl IntoResponse for cryo::CryoRefusal {
    fn into_response(self) -> Response {
        match self {
            Self::Kernel(refusal) => refusal.into_response(),
            other => {
                let (status, error) = other.into_http_error();
                json_response(status, FailedReply::from(error))
            }
        }
    }
}

/// A JSON body; an invalid body is refused with an explanation.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| {
                let status = rejection.status();
                if status == StatusCode::PAYLOAD_TOO_LARGE {
                    let message = format!(
                        "the request body is larger than {} MiB",
                        super::MAX_HTTP_BODY_BYTES >> 20
                    );
                    return error_response(
                        status,
                        "too_large",
                        message,
                        Some("write the data to a file and read that file"),
                    );
                }
                error_response(status, "unreadable_body", rejection.body_text(), None)
            })?;
        parse_json_body(&bytes)
            .map(JsonBody)
            .map_err(|(kind, message)| {
                error_response(
                    StatusCode::BAD_REQUEST,
                    kind,
                    message,
                    Some(FIELD_DOCS_HINT),
                )
            })
    }
}

/// The query; an invalid query is refused with an explanation.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let found = Query::<T>::from_request_parts(parts, state).await;
        found.map(|Query(value)| Self(value)).map_err(|rejection| {
            error_response(
                StatusCode::BAD_REQUEST,
                "invalid_query",
                rejection.body_text(),
                Some(FIELD_DOCS_HINT),
            )
        })
    }
}

/// The id of a run in the path.
pub(super) struct PathId(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let found = Path::<String>::from_request_parts(parts, state).await;
        found.map(|Path(id)| Self(id)).map_err(|rejection| {
            let hint = "an ID consists of letters, digits, `-`, `_` and `.`";
            error_response(
                StatusCode::BAD_REQUEST,
                "invalid_path",
                rejection.body_text(),
                Some(hint),
            )
        })
    }
}

/// An empty body counts as an empty object.
fn parse_json_body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, (&'static str, String)> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Data => (
            "invalid_field",
            format!("the request body is invalid: {error}"),
        ),
        Category::Syntax | Category::Eof | Category::Io => (
            "malformed_json",
            format!("the request body is not valid JSON: {error}"),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::{KernelRefusal, execution_refusal_response};
    use axum::response::{IntoResponse, Response};
    use http_body_util::BodyExt;

    async fn text(answer: Response) -> String {
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn only_refused_code_gets_the_queue_hint() {
        assert!(
            text(execution_refusal_response(KernelRefusal::Busy))
                .await
                .contains("queue")
        );
        let other = text(KernelRefusal::Busy.into_response()).await;
        assert!(!other.contains("queue"), "{other}");
        assert!(other.contains("`osctl interrupt`"), "{other}");
        let full = text(execution_refusal_response(KernelRefusal::ShuttingDown)).await;
        assert!(!full.contains("queue the code"), "{full}");
    }
}
