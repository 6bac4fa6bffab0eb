//! HTTP replies for every refusal and for every unreadable body.

use super::criu::ways_out;
use super::json_response;
use crate::companion::kernel::KernelRefusal;
use crate::companion::{cryo, files};
use crate::protocol::error::{ApiError, CheckpointedFailure, Failed};
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
    let mut fault = ApiError::new(kind, message);
    if let Some(hint) = hint {
        fault = fault.with_hint(hint);
    }
    json_response(status, Failed::from(fault))
}

/// The hint that names the documentation of fields.
pub(super) const FIELD_DOCS_HINT: &str = "`GET /openapi.json` describes every field";

/// The reply for a field with an invalid value.
pub(super) fn invalid_field(message: String) -> Response {
    error_response(
        StatusCode::BAD_REQUEST,
        "invalid_field",
        message,
        Some(FIELD_DOCS_HINT),
    )
}

/// The reply for a failed write of something that must be durable.
pub(super) fn not_recorded(what: &str) -> (StatusCode, ApiError) {
    let message = format!("the {what} can't be recorded on disk, and nothing was executed");
    let hint = "`osctl exec '!df -h /data'` shows where there is no room; without `\"durable\": true` it is executed";
    let fault = ApiError::new("not_recorded", message).with_hint(hint);
    (StatusCode::INSUFFICIENT_STORAGE, fault)
}

impl KernelRefusal {
    /// Returns the HTTP status and the error text.
    pub(super) fn into_http_error(self) -> (StatusCode, ApiError) {
        use StatusCode as S;
        match self {
            Self::Busy => (
                S::TOO_MANY_REQUESTS,
                ApiError::new("busy", "the kernel executes other code")
                    .with_hint("try again, or `osctl interrupt` ends it (`POST /interrupt`)"),
            ),
            Self::QueueFull => (
                S::TOO_MANY_REQUESTS,
                ApiError::new("queue_full", "too many requests wait already"),
            ),
            Self::OtherRun(id) => (
                S::CONFLICT,
                ApiError::new(
                    "id_in_use",
                    format!("run `{id}` exists and is another request"),
                )
                .with_hint("choose another id, or leave it out"),
            ),
            Self::NoRun(id) => (
                S::NOT_FOUND,
                ApiError::new("unknown_run", format!("there is no run `{id}`"))
                    .with_hint("`osctl runs` lists those that are kept (`GET /exec`), older ones are forgotten"),
            ),
            Self::NotRecorded => not_recorded("run"),
            Self::NoSession(name) => (
                S::NOT_FOUND,
                ApiError::new("unknown_session", format!("there is no session `{name}`")).with_hint(
                    "`osctl sessions` lists them, `osctl sessions create NAME` makes one (`POST /sessions`)",
                ),
            ),
            Self::TooManySessions(count) => {
                let message =
                    format!("there are {count} sessions already, as many as there may be");
                let hint = "`osctl sessions rm NAME` ends one (`DELETE /sessions/NAME`); `sessions.max` in osctl.yaml allows more";
                let fault = ApiError::new("too_many_sessions", message).with_hint(hint);
                (S::TOO_MANY_REQUESTS, fault)
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
                let message = format!("the kernel is frozen in the checkpoint `{checkpoint}`");
                let hint = ways_out(&session, &checkpoint);
                let fault = ApiError::new("checkpointed", message).with_hint(hint);
                (S::SERVICE_UNAVAILABLE, fault)
            }
            Self::Held(why) => {
                let message = format!("the kernel did not let go of its live objects: {why}");
                let hint = "`runtime.resource(…).invalidate()` ends one by hand; nothing was lost";
                (S::CONFLICT, ApiError::new("held", message).with_hint(hint))
            }
            Self::OtherGeneration { seen, generation } => {
                let message = format!(
                    "the kernel is generation {generation}, and what generation {seen} held was meant; nothing was stored"
                );
                let hint = "look at what it holds now, and store that";
                (S::CONFLICT, ApiError::new("other_generation", message).with_hint(hint))
            }
            Self::Stopping => (
                S::SERVICE_UNAVAILABLE,
                ApiError::new("stopping", "the companion is stopping"),
            ),
        }
    }
}

/// The reply for refused code. Only code can wait for its turn, so only this reply suggests `queue`.
pub(super) fn execution_refused(refusal: KernelRefusal) -> Response {
    let queue = "send `\"queue\": true` to wait for your turn";
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
        let is_frozen = matches!(self, Self::Checkpointed { .. });
        // These refusals pass with time; the others depend on what people do.
        let passes = matches!(
            self,
            Self::Busy | Self::QueueFull | Self::NoKernel(_) | Self::Stopping
        );
        let (status, mut fault) = self.into_http_error();
        if let Some(hint) = hint {
            fault = fault.with_hint(hint);
        }
        let mut response = match is_frozen {
            true => json_response(status, CheckpointedFailure::from(fault)),
            false => json_response(status, Failed::from(fault)),
        };
        if passes || is_frozen {
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
            Self::Invalid(message) => return invalid_field(message),
            Self::Missing(path) => (
                S::NOT_FOUND,
                "missing_file",
                format!("there is no `{}`", path.display()),
                Some(
                    "`osctl shell ls FOLDER`, or `GET /files/FOLDER/`, lists what there is; `osctl shell mkdir -p FOLDER`, or `?parents=true`, makes it",
                ),
            ),
            Self::Denied { path, why } => (
                S::FORBIDDEN,
                "denied",
                format!("`{}` is not for us: {why}", path.display()),
                Some(
                    "the service may not do that either; look at the rights of it and of its folder",
                ),
            ),
            Self::NoFile { path, kind } => (
                S::CONFLICT,
                "no_file",
                format!(
                    "`{}` is {}, not a file",
                    path.display(),
                    kind.with_article()
                ),
                Some("files are read and written, folders are listed and packed"),
            ),
            Self::NoFolder(path) => (
                S::CONFLICT,
                "no_folder",
                format!(
                    "`{}` is no folder, or leads through what is none",
                    path.display()
                ),
                Some("leave the slash at its end out, or name a folder"),
            ),
            Self::NotEmpty(path) => (
                S::CONFLICT,
                "not_empty",
                format!("`{}` is not empty", path.display()),
                Some("`?recursive=true` removes it with all that is in it"),
            ),
            Self::Busy(path) => (
                S::CONFLICT,
                "busy_file",
                format!("`{}` is in use and stays", path.display()),
                Some("end what uses it, or unmount it, first"),
            ),
            Self::Full => (
                S::INSUFFICIENT_STORAGE,
                "disk_full",
                "the disk is full; what was there before is untouched".into(),
                Some("make room inside; `osctl exec '!df -h'` shows where there is none"),
            ),
            Self::Elsewhere(have) => (
                S::CONFLICT,
                "other_offset",
                format!("{have} bytes of the upload have arrived, the request begins elsewhere"),
                Some("`HEAD` with `?upload=ID` tells where to go on"),
            ),
            Self::InProgress(id) => (
                S::CONFLICT,
                "upload_in_progress",
                format!("another request brings the upload `{id}`"),
                Some("try again when it has ended"),
            ),
            Self::Changed => (
                S::CONFLICT,
                "changed",
                "what was packed before is not what it was".into(),
                Some("leave `?from=` out to begin again"),
            ),
            Self::NoUpload(id) => (
                S::NOT_FOUND,
                "unknown_upload",
                format!("nothing of an upload `{id}` has arrived"),
                Some("begin it: `PUT` with `?upload=ID`"),
            ),
            Self::Cut => (
                S::BAD_REQUEST,
                "cut",
                "the body ended early".into(),
                Some("send it again; with `?upload=ID` it goes on where it was"),
            ),
            Self::TooMany(count) => (
                S::SERVICE_UNAVAILABLE,
                "too_many_streams",
                format!("{count} files are on their way already"),
                Some("try again when one of them has arrived"),
            ),
            Self::Archive(fault) => (
                S::UNPROCESSABLE_ENTITY,
                "archive",
                fault.to_string(),
                Some("leave it out; what came before it was unpacked"),
            ),
            Self::Failed(why) => {
                tracing::error!("a file: {why}");
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
                let (status, fault) = other.into_http_error();
                json_response(status, Failed::from(fault))
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
                        "the body is larger than {} MiB",
                        super::MAX_HTTP_BODY_BYTES >> 20
                    );
                    return error_response(
                        status,
                        "too_large",
                        message,
                        Some("write it to a file and read it there"),
                    );
                }
                error_response(status, "unreadable_body", rejection.body_text(), None)
            })?;
        parse_json_body(&bytes)
            .map(JsonBody)
            .map_err(|(kind, message)| {
                let hint = "`GET /openapi.json` describes every field";
                error_response(StatusCode::BAD_REQUEST, kind, message, Some(hint))
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
                Some("`GET /openapi.json` describes every field"),
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
            let hint = "ids are letters, digits, `-`, `_` and `.`";
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
        Category::Data => ("invalid_field", format!("the body does not fit: {error}")),
        Category::Syntax | Category::Eof | Category::Io => {
            ("malformed_json", format!("the body is no JSON: {error}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{KernelRefusal, execution_refused};
    use axum::response::{IntoResponse, Response};
    use http_body_util::BodyExt;

    async fn text(answer: Response) -> String {
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn only_code_is_told_that_it_can_queue() {
        assert!(
            text(execution_refused(KernelRefusal::Busy))
                .await
                .contains("queue")
        );
        let other = text(KernelRefusal::Busy.into_response()).await;
        assert!(!other.contains("queue"), "{other}");
        assert!(other.contains("`POST /interrupt`"), "{other}");
        let full = text(execution_refused(KernelRefusal::Stopping)).await;
        assert!(!full.contains("your turn"), "{full}");
    }
}
