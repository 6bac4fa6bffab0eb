//! Routes that read, write and remove files.

use super::file_bodies::{drain_refused, feed_body, stream_body, unpack_body};
use super::range::{self, ByteRange, ContentRange};
use super::{HttpState, json_response};
use crate::archive::{self, EntryStat, ResumePoint};
use crate::companion::files::{
    ContainerPath, FilesRefusal, ListingPage, OpenedFile, UploadOutcome, UploadTarget,
};
use crate::protocol::error::FailedReply;
use crate::protocol::files::{
    EntryKind, FileChangeReply, FileEntry, FileListing, Mtime, TAR_MIME, UPLOAD_DIGEST_HEADER,
    UPLOAD_OFFSET_HEADER, percent_decode, percent_encode,
};
use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use osctl_support::api::{ApiRefusal, QueryParams};
use serde::{Deserialize, Deserializer};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, UNIX_EPOCH};
use utoipa::IntoParams;

/// The path in the router's syntax; the OpenAPI document says `{path}`.
const FILES_ROUTE: &str = "/files/{*path}";

/// Default maximum number of entries of one listing.
const DEFAULT_LISTING_ENTRIES: usize = 10_000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct FileGetQuery {
    /// Describe the file instead of sending it.
    #[serde(default, deserialize_with = "flag")]
    stat: bool,
    /// Send a tar archive, as with `Accept: application/x-tar`.
    #[serde(default, deserialize_with = "flag")]
    tar: bool,
    /// List the entries of a folder after this percent-encoded name.
    after: Option<String>,
    /// Maximum number of entries.
    limit: Option<usize>,
    /// Report how many bytes of this upload have arrived.
    upload: Option<String>,
    /// Of an interrupted archive: the number of bytes received. The reply starts after them.
    from: Option<u64>,
    /// With `from`: the SHA-256 in hexadecimal of the received bytes without file data.
    form: Option<String>,
}

/// Read a file, list a folder, or pack either as tar
///
/// The bytes of the path need not be UTF-8. The endpoint supports ranges and `If-Range`; `?stat` describes the entry at
/// the path. A listing is sorted by name; `?after=NAME&limit=N` selects a page.
#[utoipa::path(get, path = "/files/{*path}", params(("path" = String, Path, description = "Absolute path, percent-encoded"), FileGetQuery), responses(
    (status = 200, description = "The file's bytes, the folder's entries, or the archive.", content(
        (Vec<u8> = "application/octet-stream"), (FileListing = "application/json"), (FileEntry = "application/json"), (Vec<u8> = "application/x-tar"),
    )),
    (status = 206, description = "The requested range."),
    (status = 400, description = "The path is invalid or contains `..`.", body = FailedReply),
    (status = 404, description = "The file does not exist.", body = FailedReply),
    (status = 409, description = "The path is a device, a socket or a named pipe; or `form` does not match the content before `from`.", body = FailedReply),
    (status = 416, description = "The range starts after the end of the file.", body = FailedReply),
))]
pub(super) async fn get(
    Shared(state): Shared<HttpState>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    QueryParams(query): QueryParams<FileGetQuery>,
) -> Response {
    let read = handle_get(state, method == Method::HEAD, &uri, &headers, query);
    sandbox_response(read.await)
}

async fn handle_get(
    state: HttpState,
    is_head: bool,
    uri: &Uri,
    headers: &HeaderMap,
    query: FileGetQuery,
) -> Result<Response, FilesRefusal> {
    let place = parse_path(uri)?;
    let files = state.files.clone();
    if let Some(id) = query.upload {
        let path = encode_path(&place);
        let ResumePoint {
            bytes,
            metadata_digest,
        } = files.find_resume_point(place, id).await?;
        let mut arrived = json_response(StatusCode::OK, file_change_reply("partial", path, bytes));
        let headers = arrived.headers_mut();
        headers.insert(UPLOAD_OFFSET_HEADER, HeaderValue::from(bytes));
        if let Ok(metadata_digest) = HeaderValue::from_str(&metadata_digest)
            && !metadata_digest.is_empty()
        {
            headers.insert(UPLOAD_DIGEST_HEADER, metadata_digest);
        }
        return Ok(arrived);
    }
    let found = files.find_path(place).await?;
    let accepts = headers.get_all(header::ACCEPT).iter();
    let is_tar = query.tar
        || accepts
            .into_iter()
            .any(|a| a.as_bytes() == TAR_MIME.as_bytes());
    if query.stat {
        let tag = [(header::ETAG, entity_tag(&found.stat))];
        return Ok((tag, json_response(StatusCode::OK, found.to_entry())).into_response());
    }
    if is_tar {
        let kind = [(header::CONTENT_TYPE, TAR_MIME)];
        if is_head {
            return Ok(kind.into_response());
        }
        let from = ResumePoint {
            bytes: query.from.unwrap_or_default(),
            metadata_digest: query.form.unwrap_or_default(),
        };
        return Ok((kind, stream_body(files.stream_archive(found, from).await?)).into_response());
    }
    if found.stat.kind == EntryKind::Folder {
        let page = ListingPage {
            after: query.after.as_deref().map(decode_name).transpose()?,
            limit: query.limit.unwrap_or(DEFAULT_LISTING_ENTRIES),
        };
        return Ok(json_response(
            StatusCode::OK,
            files.list_folder(found, page).await?,
        ));
    }
    let open = files.open_file(found).await?;
    let (part, mut response) = response_head(&open, headers);
    let (start, length) = match part {
        ByteRange::Unsatisfiable => return Ok(response),
        ByteRange::Whole => (0, open.stat.size),
        ByteRange::Bytes { first, last } => (first, last - first + 1),
    };
    let length = (!open.has_unknown_size).then_some(length);
    if let Some(length) = length {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if !is_head {
        *response.body_mut() = stream_body(files.stream_file(open, start, length)?);
    }
    Ok(response)
}

/// The range that is sent, and the reply without its body.
fn response_head(open: &OpenedFile, headers: &HeaderMap) -> (ByteRange, Response) {
    let (tag, date) = (entity_tag(&open.stat), format_http_date(open.stat.mtime));
    let size = open.stat.size;
    let part = match open.has_unknown_size {
        true => ByteRange::Whole,
        false => range::requested_range(headers, size, &tag, &date),
    };
    let mut response = match part {
        ByteRange::Unsatisfiable => {
            let message =
                format!("the range starts after the end of the file, which has {size} bytes");
            ApiRefusal::new(StatusCode::RANGE_NOT_SATISFIABLE, "range", message)
                .with_hint("`HEAD` returns the length of the file")
                .into_response()
        }
        ByteRange::Bytes { .. } => StatusCode::PARTIAL_CONTENT.into_response(),
        ByteRange::Whole => StatusCode::OK.into_response(),
    };
    let mut set = |name: HeaderName, value: String| {
        // Every character is a digit, a letter or punctuation.
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    };
    match part {
        ByteRange::Unsatisfiable => set(header::CONTENT_RANGE, format!("bytes */{size}")),
        ByteRange::Bytes { first, last } => {
            let range = format!("bytes {first}-{last}/{size}");
            set(header::CONTENT_RANGE, range);
        }
        ByteRange::Whole => {}
    }
    if part != ByteRange::Unsatisfiable {
        set(header::CONTENT_TYPE, "application/octet-stream".into());
    }
    set(header::ETAG, tag);
    set(header::LAST_MODIFIED, date);
    set(header::ACCEPT_RANGES, "bytes".into());
    (part, response)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct FilePutQuery {
    /// Permissions in octal; by default those of the replaced file, or 0644.
    mode: Option<String>,
    /// Modification time in seconds since 1970, with a fraction; by default the current time.
    mtime: Option<String>,
    /// Create missing parent folders.
    #[serde(default, deserialize_with = "flag")]
    parents: bool,
    /// ID of the upload, chosen by the client, to resume an interrupted upload: `HEAD` with this ID returns
    /// `Upload-Offset`, and `Content-Range: bytes FIRST-LAST/TOTAL` says where a request resumes. An archive is kept
    /// for two minutes and resumes at the `Upload-Offset` of the request; `Upload-Form` is the SHA-256 of its bytes
    /// without file data.
    upload: Option<String>,
}

/// Write a file, create a folder, or unpack a tar archive
///
/// The companion writes the body to a temporary file, syncs it and renames it: an interrupted upload keeps the old
/// file. With a slash at the end of the path and no body, the companion creates a folder. With
/// `Content-Type: application/x-tar` the companion unpacks the body into the folder, which is created if missing; each
/// file of the archive is renamed to its place, without a sync.
#[utoipa::path(put, path = "/files/{*path}", params(("path" = String, Path, description = "Absolute path, percent-encoded"), FilePutQuery), request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses(
    (status = 200, description = "The file was replaced, the folder existed, or the archive was unpacked into an existing folder.", body = FileChangeReply),
    (status = 201, description = "The file or the folder was created.", body = FileChangeReply),
    (status = 202, description = "The upload is incomplete.", body = FileChangeReply),
    (status = 400, description = "The path or a parameter is invalid, or the body ended early.", body = FailedReply),
    (status = 404, description = "The parent folder does not exist.", body = FailedReply),
    (status = 409, description = "An entry of another kind is in the way, or the upload is at another offset.", body = FailedReply),
    (status = 422, description = "The archive is damaged, or has an entry that can't be unpacked; the message names the entry.", body = FailedReply),
    (status = 507, description = "The disk is full; the old file is unchanged.", body = FailedReply),
))]
pub(super) async fn put(
    Shared(state): Shared<HttpState>,
    uri: Uri,
    headers: HeaderMap,
    QueryParams(query): QueryParams<FilePutQuery>,
    request: Request,
) -> Response {
    let written = handle_put(state, &uri, &headers, query, request.into_body());
    sandbox_response(written.await)
}

async fn handle_put(
    state: HttpState,
    uri: &Uri,
    headers: &HeaderMap,
    query: FilePutQuery,
    body: Body,
) -> Result<Response, FilesRefusal> {
    let files = state.files.clone();
    let place = match parse_path(uri) {
        Ok(place) => place,
        Err(refusal) => return Err(drain_refused(body, refusal).await),
    };
    let path = encode_path(&place);
    let is_tar = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes() == TAR_MIME.as_bytes());
    if is_tar {
        let id = query.upload.as_deref();
        let unpacking = upload_offset(headers)
            .and_then(|offset| files.start_unpacking(place, query.parents, id, offset));
        let totals = match unpacking {
            Ok(unpacking) => unpack_body(body, unpacking).await?,
            Err(refusal) => return Err(drain_refused(body, refusal).await),
        };
        return Ok(json_response(
            StatusCode::OK,
            FileChangeReply {
                files: totals.files,
                folders: totals.folders,
                links: totals.links,
                ..file_change_reply("completed", path, totals.bytes)
            },
        ));
    }
    if place.is_folder && has_no_body(headers) {
        let is_new = files.create_folder(place, query.parents).await?;
        let made = FileChangeReply {
            folders: is_new.into(),
            ..file_change_reply("completed", path, 0)
        };
        let status = match is_new {
            true => StatusCode::CREATED,
            false => StatusCode::OK,
        };
        return Ok(json_response(status, made));
    }
    let target = match upload_target(place, query, headers) {
        Ok(target) => target,
        Err(refusal) => return Err(drain_refused(body, refusal).await),
    };
    let (writer, reader) = archive::chunk_reader();
    let store = files.store_file(target, reader);
    let ((), stored) = tokio::join!(feed_body(body, writer), store);
    let (status, word, bytes) = match stored? {
        UploadOutcome::Created(bytes) => (StatusCode::CREATED, "completed", bytes),
        UploadOutcome::Replaced(bytes) => (StatusCode::OK, "completed", bytes),
        UploadOutcome::Partial(bytes) => (StatusCode::ACCEPTED, "partial", bytes),
    };
    let stored = FileChangeReply {
        files: u64::from(word == "completed"),
        ..file_change_reply(word, path, bytes)
    };
    Ok(json_response(status, stored))
}

/// The offset at which an archive resumes.
fn upload_offset(headers: &HeaderMap) -> Result<u64, FilesRefusal> {
    let Some(header) = headers.get(UPLOAD_OFFSET_HEADER) else {
        return Ok(0);
    };
    let offset = header.to_str().ok().and_then(|text| text.parse().ok());
    offset.ok_or_else(|| FilesRefusal::Invalid("`Upload-Offset` is not a number of bytes".into()))
}

fn upload_target(
    path: ContainerPath,
    query: FilePutQuery,
    headers: &HeaderMap,
) -> Result<UploadTarget, FilesRefusal> {
    let refuse = |what: &str, value: &str, form: &str| {
        FilesRefusal::Invalid(format!("`{value}` is not a valid `{what}`: give {form}"))
    };
    let mode = query.mode.as_deref().map(|text| {
        let mode = u32::from_str_radix(text, 8).ok().filter(|m| *m <= 0o7777);
        mode.ok_or_else(|| refuse("mode", text, "permissions in octal, such as 0644"))
    });
    let mtime = query.mtime.as_deref().map(|text| {
        let mtime = text.parse::<Mtime>();
        mtime.map_err(|_| refuse("mtime", text, "seconds since 1970"))
    });
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let piece = text(header::CONTENT_RANGE).map(|text| {
        let form = "`bytes FIRST-LAST/TOTAL`";
        range::parse_content_range(text).ok_or_else(|| refuse("Content-Range", text, form))
    });
    let length = text(header::CONTENT_LENGTH).and_then(|text| text.parse().ok());
    let ContentRange {
        first,
        total: total_bytes,
    } = piece.transpose()?.unwrap_or(ContentRange {
        first: 0,
        total: length,
    });
    Ok(UploadTarget {
        path,
        mode: mode.transpose()?,
        mtime: mtime.transpose()?,
        create_parents: query.parents,
        upload_id: query.upload,
        offset: first,
        total_bytes,
    })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct FileDeleteQuery {
    /// Remove a folder with its content.
    #[serde(default, deserialize_with = "flag")]
    recursive: bool,
    /// Discard this upload instead.
    upload: Option<String>,
}

/// Remove a file, a link, or a folder
#[utoipa::path(delete, path = "/files/{*path}", params(("path" = String, Path, description = "Absolute path, percent-encoded"), FileDeleteQuery), responses(
    (status = 200, description = "The entry was removed.", body = FileChangeReply),
    (status = 404, description = "The path does not exist.", body = FailedReply),
    (status = 409, description = "The folder is not empty, and `recursive` is not set.", body = FailedReply),
))]
pub(super) async fn delete(
    Shared(state): Shared<HttpState>,
    uri: Uri,
    QueryParams(query): QueryParams<FileDeleteQuery>,
) -> Response {
    let removed = async {
        let place = parse_path(&uri)?;
        let path = encode_path(&place);
        match query.upload {
            Some(id) => state.files.discard_upload(place, id).await?,
            None => state.files.remove_path(place, query.recursive).await?,
        }
        Ok(json_response(
            StatusCode::OK,
            file_change_reply("completed", path, 0),
        ))
    };
    sandbox_response(removed.await)
}

/// Writes the path into the OpenAPI document as `/files/{path}`.
pub(super) fn rename_document_path(document: &mut utoipa::openapi::OpenApi) {
    if let Some(item) = document.paths.paths.remove(FILES_ROUTE) {
        document.paths.paths.insert("/files/{path}".into(), item);
    }
}

/// Marks the reply as sandboxed content, so that a browser never runs a file of the container as a page of the
/// companion.
fn sandbox_response(answer: Result<Response, FilesRefusal>) -> Response {
    let mut response = answer.unwrap_or_else(|refusal| ApiRefusal::from(refusal).into_response());
    response.headers_mut().insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox"),
    );
    response
}

fn parse_path(uri: &Uri) -> Result<ContainerPath, FilesRefusal> {
    ContainerPath::parse(uri.path().strip_prefix("/files").unwrap_or_default())
}

fn decode_name(encoded: &str) -> Result<Vec<u8>, FilesRefusal> {
    // The query was decoded once already; the remaining encoding is that of the name.
    percent_decode(encoded)
        .ok_or_else(|| FilesRefusal::Invalid(format!("`{encoded}` is not a percent-encoded name")))
}

fn encode_path(place: &ContainerPath) -> String {
    percent_encode(place.path.as_os_str().as_bytes())
}

fn file_change_reply(status: &str, path: String, bytes: u64) -> FileChangeReply {
    FileChangeReply {
        status: status.into(),
        path,
        bytes,
        files: 0,
        folders: 0,
        links: 0,
    }
}

fn has_no_body(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH);
    !headers.contains_key(header::TRANSFER_ENCODING)
        && length.is_none_or(|length| length.as_bytes() == b"0")
}

/// The tag changes with the file, as far as its modification time shows changes.
fn entity_tag(stat: &EntryStat) -> String {
    let (device, inode) = stat.identity;
    let Mtime { seconds, nanos } = stat.mtime;
    format!(
        "\"{device:x}-{inode:x}-{:x}-{seconds:x}.{nanos:x}\"",
        stat.size
    )
}

fn format_http_date(mtime: Mtime) -> String {
    let seconds = Duration::from_secs(mtime.seconds.try_into().unwrap_or_default());
    httpdate::fmt_http_date(UNIX_EPOCH + seconds)
}

/// Accepts `?tar`, `?tar=true` and `?tar=1`.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.as_str() {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        other => Err(serde::de::Error::custom(format!(
            "`{other}` is not true or false"
        ))),
    }
}
