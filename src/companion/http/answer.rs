//! Every refusal as an HTTP answer, and every body that can't be read.

use super::json;
use crate::companion::files;
use crate::companion::kernel::Refusal;
use crate::protocol::fault::{Failed, Fault};
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

pub(super) fn failed(
    status: StatusCode,
    kind: &str,
    message: impl Into<String>,
    hint: Option<&str>,
) -> Response {
    let mut fault = Fault::new(kind, message);
    if let Some(hint) = hint {
        fault = fault.hint(hint);
    }
    json(status, Failed::from(fault))
}

/// A field that does not fit.
pub(super) fn invalid(message: String) -> Response {
    let hint = Some("`GET /openapi.json` describes every field");
    failed(StatusCode::BAD_REQUEST, "invalid_field", message, hint)
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let later = |mut response: Response| {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            response
        };
        match self {
            Self::Busy => later(failed(
                StatusCode::TOO_MANY_REQUESTS,
                "busy",
                "the kernel executes other code",
                Some("send `\"queue\": true` to wait for your turn"),
            )),
            Self::QueueFull => later(failed(
                StatusCode::TOO_MANY_REQUESTS,
                "queue_full",
                "too many requests wait already",
                None,
            )),
            Self::OtherRun(id) => {
                let message = format!("run `{id}` exists and is another request");
                failed(
                    StatusCode::CONFLICT,
                    "id_in_use",
                    message,
                    Some("choose another id, or leave it out"),
                )
            }
            Self::NoRun(id) => {
                let message = format!("there is no run `{id}`");
                failed(
                    StatusCode::NOT_FOUND,
                    "unknown_run",
                    message,
                    Some("the last runs are kept, older ones are forgotten"),
                )
            }
            Self::NoSession(name) => {
                let message = format!("there is no session `{name}`");
                failed(
                    StatusCode::NOT_FOUND,
                    "unknown_session",
                    message,
                    Some("`POST /sessions` makes one; leave `session` out for the default one"),
                )
            }
            Self::TooManySessions(count) => {
                let message =
                    format!("there are {count} sessions already, as many as there may be");
                let hint = Some(
                    "`DELETE /sessions/NAME` ends one; `sessions.max` in osctl.yaml allows more",
                );
                failed(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too_many_sessions",
                    message,
                    hint,
                )
            }
            Self::Invalid(message) => invalid(message),
            Self::NoKernel(why) => {
                let message = format!("the kernel can't be started: {why}");
                later(failed(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "no_kernel",
                    message,
                    Some("`osctl logs` shows more"),
                ))
            }
            Self::Stopping => later(failed(
                StatusCode::SERVICE_UNAVAILABLE,
                "stopping",
                "the companion is stopping",
                None,
            )),
        }
    }
}

impl IntoResponse for files::Refusal {
    fn into_response(self) -> Response {
        use StatusCode as S;
        let (status, kind, message, hint) = match self {
            Self::Invalid(message) => return invalid(message),
            Self::Missing(path) => (
                S::NOT_FOUND,
                "missing_file",
                format!("there is no `{}`", path.display()),
                Some("`GET /files/FOLDER/` lists what there is; `?parents=true` makes folders"),
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
                format!("`{}` is {}, not a file", path.display(), kind.words()),
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
        failed(status, kind, message, hint)
    }
}

/// A JSON body; whatever is wrong with it is said in words.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| {
                let status = rejection.status();
                if status == StatusCode::PAYLOAD_TOO_LARGE {
                    let message =
                        format!("the body is larger than {} MiB", super::BODY_LIMIT >> 20);
                    return failed(
                        status,
                        "too_large",
                        message,
                        Some("write it to a file and read it there"),
                    );
                }
                failed(status, "unreadable_body", rejection.body_text(), None)
            })?;
        parse(&bytes).map(Body).map_err(|(kind, message)| {
            let hint = "`GET /openapi.json` describes every field";
            failed(StatusCode::BAD_REQUEST, kind, message, Some(hint))
        })
    }
}

/// The query; whatever is wrong with it is said in words.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let found = Query::<T>::from_request_parts(parts, state).await;
        found.map(|Query(value)| Self(value)).map_err(|rejection| {
            failed(
                StatusCode::BAD_REQUEST,
                "invalid_query",
                rejection.body_text(),
                Some("`GET /openapi.json` describes every field"),
            )
        })
    }
}

/// The run's id in the path.
pub(super) struct Id(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let found = Path::<String>::from_request_parts(parts, state).await;
        found.map(|Path(id)| Self(id)).map_err(|rejection| {
            let hint = "ids are letters, digits, `-`, `_` and `.`";
            failed(
                StatusCode::BAD_REQUEST,
                "invalid_path",
                rejection.body_text(),
                Some(hint),
            )
        })
    }
}

/// An empty body is an empty object.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, (&'static str, String)> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Data => ("invalid_field", format!("the body does not fit: {error}")),
        Category::Syntax | Category::Eof | Category::Io => {
            ("malformed_json", format!("the body is no JSON: {error}"))
        }
    })
}
