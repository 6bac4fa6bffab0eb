//! File tools: read, write, list. They have the permissions of the container's user.

use super::server::OsServer;
use super::tool_error::ToolError;
use super::tool_result::{ToolResult, structured_result, text_result};
use crate::archive;
use crate::companion::files::{ContainerPath, ListingPage, UploadOutcome, UploadTarget};
use crate::protocol::files::{EntryKind, percent_encode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::ContentBlock;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The default size of one page of a file in bytes, and the largest size.
const TOOL_FILE_PAGE_BYTES: u64 = 64 << 10;
const MAX_TOOL_FILE_PAGE_BYTES: u64 = 1 << 20;
/// The most bytes of a picture that is shown, and of a resource.
pub(super) const MAX_OS_RESOURCE_BYTES: u64 = 16 << 20;
/// The most bytes of binary data that are shown to a model.
const MAX_SHOWN_BINARY_BYTES: usize = 256;
/// The default number of entries of one listing.
const DEFAULT_TOOL_LIST_ENTRIES: usize = 200;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadArgs {
    /// Path: absolute, or relative to `/repo`.
    path: String,
    /// Offset of the first byte.
    #[serde(default)]
    offset: u64,
    /// Number of bytes, at most 1 MiB.
    limit: Option<u64>,
}

/// A part of a file.
#[derive(Debug, Serialize)]
struct FilePage {
    path: String,
    /// Size of the file in bytes, if it is known.
    size: Option<u64>,
    offset: u64,
    /// Offset of the next page; missing at the end.
    next: Option<u64>,
    mime_type: String,
    /// Content of the page, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Content of the page, if it is neither text nor shown as a picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WriteArgs {
    /// Path: absolute, or relative to `/repo`. Missing parent folders are created.
    path: String,
    /// Complete content of the file.
    content: String,
    /// Encoding of `content`; text if omitted.
    #[serde(default)]
    encoding: Encoding,
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Encoding {
    #[default]
    Text,
    Base64,
}

#[derive(Debug, Serialize)]
struct WrittenFile {
    path: String,
    bytes: u64,
    /// Whether the file existed before.
    replaced: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListArgs {
    /// Folder: absolute, or relative to `/repo`, which is listed if omitted.
    path: Option<String>,
    /// List only the entries after this name.
    after: Option<String>,
    /// Maximum entries to return; 200 if omitted.
    limit: Option<usize>,
}

#[derive(Debug, Serialize)]
struct FolderListing {
    path: String,
    entries: Vec<FolderEntry>,
    /// Whether there are more entries; pass the last name as `after` to list them.
    more: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct FolderEntry {
    name: String,
    kind: EntryKind,
    /// Size in bytes.
    size: u64,
    /// Time of the last change, in seconds since 1970.
    modified: String,
    /// Target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// A part of a file.
pub(super) struct ToolFileChunk {
    pub(super) bytes: Bytes,
    pub(super) size: Option<u64>,
}

#[tool_router(router = file_tools, vis = "pub(super)")]
impl OsServer {
    /// Read a file, page by page. Pictures are shown; of other binary data, the first bytes.
    #[tool(
        title = "Read a file",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn read_file(&self, Parameters(args): Parameters<ReadArgs>) -> ToolResult {
        let path = self.resolve_path(&args.path);
        let mime = mime_type(&path);
        let is_picture = mime.starts_with("image/") && mime != "image/svg+xml";
        let limit = match is_picture && args.limit.is_none() {
            true => MAX_OS_RESOURCE_BYTES,
            false => args
                .limit
                .unwrap_or(TOOL_FILE_PAGE_BYTES)
                .min(MAX_TOOL_FILE_PAGE_BYTES),
        };
        let piece = self.read_chunk(&path, args.offset, limit).await?;
        let mut end = args.offset + piece.bytes.len() as u64;
        let is_whole = args.offset == 0 && piece.size == Some(end);
        let mut page = FilePage {
            path: path.display().to_string(),
            size: piece.size,
            offset: args.offset,
            next: None,
            mime_type: mime.into(),
            text: None,
            base64: None,
        };
        if is_picture && is_whole {
            let picture = ContentBlock::image(STANDARD.encode(&piece.bytes), mime);
            return structured_result(page, vec![picture]);
        }
        let has_more = |end: u64| piece.size.is_none_or(|size| end < size);
        let summary = match text_prefix(&piece.bytes, has_more(end)) {
            Some(text) => {
                end = args.offset + text.len() as u64;
                page.text = Some(text.into());
                text.to_owned()
            }
            None => {
                page.base64 = Some(STANDARD.encode(&piece.bytes));
                binary_summary(&piece.bytes)
            }
        };
        page.next = (has_more(end) && end > args.offset).then_some(end);
        let more = match (page.next, piece.size) {
            (Some(next), Some(size)) => {
                format!("\n… {} more bytes: pass `offset` {next} …", size - next)
            }
            (Some(next), None) => format!("\n… more bytes may follow: pass `offset` {next} …"),
            (None, _) => String::new(),
        };
        text_result(page, summary + &more)
    }

    /// Write a file through a temporary file beside it, so that the file is never half written.
    #[tool(
        title = "Write a file",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn write_file(&self, Parameters(args): Parameters<WriteArgs>) -> ToolResult {
        let path = self.resolve_path(&args.path);
        let content: Bytes = match args.encoding {
            Encoding::Text => args.content.into(),
            Encoding::Base64 => {
                let data: String = args.content.split_ascii_whitespace().collect();
                let decoded = STANDARD.decode(data);
                let refused = |e| ToolError(format!("`content` is not valid base64: {e}"));
                decoded.map_err(refused)?.into()
            }
        };
        let (bytes, replaced) = self.store_bytes(&path, content, true).await?;
        let path = path.display().to_string();
        let text = format!("wrote {bytes} bytes to `{path}`");
        text_result(
            WrittenFile {
                path,
                bytes,
                replaced,
            },
            text,
        )
    }

    /// List a folder, sorted by name.
    #[tool(
        title = "List files",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn list_files(&self, Parameters(args): Parameters<ListArgs>) -> ToolResult {
        let path = self.resolve_path(args.path.as_deref().unwrap_or_default());
        let limit = args.limit.unwrap_or(DEFAULT_TOOL_LIST_ENTRIES);
        let (entries, more) = self.list_entries(&path, args.after, limit).await?;
        let lines = entries.iter().map(|entry| match entry.kind {
            EntryKind::Folder => format!("{}/", entry.name),
            EntryKind::Symlink => {
                let target = entry.target.as_deref().unwrap_or("?");
                format!("{} → {target}", entry.name)
            }
            _ => format!("{} ({} bytes)", entry.name, entry.size),
        });
        let mut text = lines.collect::<Vec<_>>().join("\n");
        if entries.is_empty() {
            text.push_str("(empty)");
        }
        if let Some(last) = entries.last().filter(|_| more) {
            text.push_str(&format!(
                "\n… more entries: pass `after` \"{}\" …",
                last.name
            ));
        }
        let path = path.display().to_string();
        text_result(
            FolderListing {
                path,
                entries,
                more,
            },
            text,
        )
    }
}

impl FolderEntry {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn file_size(&self) -> Option<u64> {
        (self.kind == EntryKind::File).then_some(self.size)
    }
}

impl OsServer {
    /// Stores a file with its whole content. Returns its size, and whether the file existed.
    pub(super) async fn store_bytes(
        &self,
        path: &Path,
        content: Bytes,
        create_parents: bool,
    ) -> Result<(u64, bool), ToolError> {
        let target = UploadTarget {
            path: parse_container_path(path)?,
            mode: None,
            mtime: None,
            create_parents,
            upload_id: None,
            offset: 0,
            total_bytes: Some(content.len() as u64),
        };
        let (writer, reader) = archive::chunk_reader();
        let given = async {
            if writer.send_chunk(content).await {
                writer.finish().await;
            }
        };
        let files = &self.factory.0.handles.files;
        let ((), stored) = tokio::join!(given, files.store_file(target, reader));
        Ok(match stored? {
            UploadOutcome::Replaced(bytes) => (bytes, true),
            UploadOutcome::Created(bytes) | UploadOutcome::Partial(bytes) => (bytes, false),
        })
    }

    /// Resolves a relative path against the project's folder; an empty path is that folder.
    pub(super) fn resolve_path(&self, path: &str) -> PathBuf {
        let factory = &self.factory.0;
        match path.strip_prefix("~/") {
            Some(rest) => factory.resource_root.join(rest),
            None if path.is_empty() => factory.project_folder.clone(),
            None => factory.project_folder.join(path),
        }
    }

    /// Reads at most `limit` bytes of a file from `offset` on.
    pub(super) async fn read_chunk(
        &self,
        path: &Path,
        offset: u64,
        limit: u64,
    ) -> Result<ToolFileChunk, ToolError> {
        let files = &self.factory.0.handles.files;
        let found = files.find_path(parse_container_path(path)?).await?;
        let open = files.open_file(found).await?;
        let size = (!open.has_unknown_size).then_some(open.stat.size);
        if size.is_some_and(|size| offset > size) {
            let why = format!("`{}` has only {} bytes", path.display(), open.stat.size);
            return Err(ToolError(why));
        }
        let length = size.map(|size| (size - offset).min(limit));
        let mut pieces = files.stream_file(open, offset, length)?;
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.recv().await {
            let piece = piece.map_err(|e| ToolError(format!("`{}`: {e}", path.display())))?;
            bytes.extend_from_slice(&piece);
            if bytes.len() as u64 >= limit {
                bytes.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
                break;
            }
        }
        Ok(ToolFileChunk {
            bytes: bytes.into(),
            size,
        })
    }

    /// The entries of a folder after a name, and whether there are more.
    pub(super) async fn list_entries(
        &self,
        path: &Path,
        after: Option<String>,
        limit: usize,
    ) -> Result<(Vec<FolderEntry>, bool), ToolError> {
        let files = &self.factory.0.handles.files;
        let mut place = parse_container_path(path)?;
        place.is_folder = true;
        let found = files.find_path(place).await?;
        let page = ListingPage {
            after: after.map(String::into_bytes),
            limit,
        };
        let listing = files.list_folder(found, page).await?;
        let entries = listing.entries.into_iter().map(|entry| FolderEntry {
            name: entry.name,
            kind: entry.kind,
            size: entry.size,
            modified: entry.mtime,
            target: entry.target,
        });
        Ok((entries.collect(), listing.more))
    }
}

pub(super) fn parse_container_path(path: &Path) -> Result<ContainerPath, ToolError> {
    Ok(ContainerPath::parse(&percent_encode(
        path.as_os_str().as_bytes(),
    ))?)
}

/// The bytes as text. With `has_more`, a character that continues in the next page is omitted.
pub(super) fn text_prefix(bytes: &[u8], has_more: bool) -> Option<&str> {
    if bytes.contains(&0) {
        return None;
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if has_more && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}

/// The first bytes in hexadecimal and as characters.
fn binary_summary(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(MAX_SHOWN_BINARY_BYTES)];
    let rows = shown.chunks(16).enumerate().map(|(row, bytes)| {
        let numbers: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let printable = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '.',
        };
        let text: String = bytes.iter().map(printable).collect();
        format!("{:08x}  {:<47}  {text}", row * 16, numbers.join(" "))
    });
    let rows: Vec<String> = rows.collect();
    format!(
        "{} bytes of binary data, of which the first {}:\n{}",
        bytes.len(),
        shown.len(),
        rows.join("\n")
    )
}

/// The MIME type by the file's name, for the types that clients distinguish.
pub(super) fn mime_type(path: &Path) -> &'static str {
    let extension = path
        .extension()
        .and_then(|e| e.to_str())
        .unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "pdf" => "application/pdf",
        "json" => "application/json",
        "html" | "htm" => "text/html",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "py" => "text/x-python",
        "txt" | "log" | "toml" | "yaml" | "yml" | "sh" | "rs" | "js" | "ts" | "css" => "text/plain",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::{binary_summary, mime_type, text_prefix};
    use std::path::Path;

    #[test]
    fn a_page_ends_with_a_whole_character() {
        let bytes = "aé".as_bytes();
        assert_eq!(text_prefix(bytes, false), Some("aé"));
        assert_eq!(text_prefix(&bytes[..2], true), Some("a"));
        assert_eq!(text_prefix(&bytes[..2], false), None);
        assert_eq!(text_prefix(b"a\0", false), None);
        assert_eq!(text_prefix(b"\xff", true), None);
    }

    #[test]
    fn binary_data_is_shown_as_numbers_and_characters() {
        let shown = binary_summary(b"\x7fELF\0");
        let expected = "5 bytes of binary data, of which the first 5:\n00000000  7f 45 4c 46 00                                   .ELF.";
        assert_eq!(shown, expected);
        assert_eq!(binary_summary(&[0; 1000]).lines().count(), 17);
    }

    #[test]
    fn pictures_are_known_by_their_names() {
        assert_eq!(mime_type(Path::new("/a/B.PNG")), "image/png");
        assert_eq!(mime_type(Path::new("/a/b")), "application/octet-stream");
    }
}
