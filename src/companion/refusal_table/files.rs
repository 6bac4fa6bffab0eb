//! Refusals of operations on files.

use crate::companion::files::FilesRefusal;
use axum::http::StatusCode as S;
use osctl_support::api::ApiRefusal;

impl From<FilesRefusal> for ApiRefusal {
    fn from(refusal: FilesRefusal) -> Self {
        use FilesRefusal as R;
        match refusal {
            R::Invalid(message) => Self::invalid_field(message),
            R::NotFound(path) => {
                let message = format!("there is no `{}`", path.display());
                Self::new(S::NOT_FOUND, "missing_file", message).with_hint(
                    "`osctl shell ls FOLDER` lists a folder; `osctl shell mkdir -p FOLDER` creates it",
                )
            }
            R::Denied { path, why } => {
                let message = format!("`{}` is not accessible: {why}", path.display());
                let hint = "the companion has no permission; check the owner and mode of the path and of its folder";
                Self::new(S::FORBIDDEN, "denied", message).with_hint(hint)
            }
            R::NotAFile { path, kind } => {
                let kind = kind.with_article();
                let message = format!("`{}` is {kind}, not a file", path.display());
                Self::new(S::CONFLICT, "no_file", message)
                    .with_hint("name a file; a folder can be listed, or packed as tar")
            }
            R::NotAFolder(path) => {
                let text = format!("`{}` is not a folder", path.display());
                let message = format!("{text}, or a parent of the path is not a folder");
                Self::new(S::CONFLICT, "no_folder", message)
                    .with_hint("remove the slash at the end of the path, or name a folder")
                    .with_tool_text(text)
            }
            R::NotEmpty(path) => {
                let message = format!("`{}` is not empty", path.display());
                Self::new(S::CONFLICT, "not_empty", message)
                    .with_hint("`?recursive=true` removes the folder and its content")
            }
            R::Busy(path) => {
                let message = format!("`{}` is in use", path.display());
                Self::new(S::CONFLICT, "busy_file", message)
                    .with_hint("end the processes that use the path, or unmount it")
            }
            R::StorageFull => {
                let message = "the disk is full; existing files are unchanged";
                Self::new(S::INSUFFICIENT_STORAGE, "disk_full", message)
                    .with_hint(
                        "remove files in the container; `osctl shell df -h` shows the disk usage",
                    )
                    .with_tool_text("the disk is full; the old file is unchanged")
            }
            R::TooManyStreams(count) => {
                let message = format!("the limit of {count} concurrent transfers is reached");
                Self::new(S::SERVICE_UNAVAILABLE, "too_many_streams", message)
                    .with_hint("try again when a transfer has ended")
                    .with_tool_text(format!("{count} transfers are in progress, the maximum"))
            }
            R::Disconnected => Self::new(S::BAD_REQUEST, "cut", "the body ended early")
                .with_hint("send the body again; an upload with `?upload=ID` resumes")
                .with_tool_text("the file ended early"),
            R::Archive(error) => Self::new(S::UNPROCESSABLE_ENTITY, "archive", error.to_string())
                .with_hint(
                    "remove the entry from the archive; the entries before it were unpacked",
                ),
            R::Failed(why) => {
                tracing::error!(%why, "a file operation failed");
                Self::new(S::INTERNAL_SERVER_ERROR, "file", why)
                    .with_hint("`osctl logs` shows more")
            }
            // Refusals of resumable transfers, which no tool uses.
            R::OffsetMismatch(have) => {
                let message = format!(
                    "{have} bytes of the upload have arrived, but the request starts at another offset"
                );
                Self::new(S::CONFLICT, "other_offset", message)
                    .with_hint("`HEAD` with `?upload=ID` returns the offset")
            }
            R::InProgress(id) => {
                let message = format!("another request is sending the upload `{id}`");
                Self::new(S::CONFLICT, "upload_in_progress", message)
                    .with_hint("try again when the other request has ended")
            }
            R::NoUpload(id) => {
                let message = format!("no bytes of the upload `{id}` have arrived");
                Self::new(S::NOT_FOUND, "unknown_upload", message)
                    .with_hint("start the upload: `PUT` with `?upload=ID`")
            }
            R::ContentChanged => {
                let message = "the content before the resume point has changed";
                Self::new(S::CONFLICT, "changed", message).with_hint("omit `?from=` to start again")
            }
        }
    }
}
