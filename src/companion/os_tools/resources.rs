//! Resources: files in the root folder, runs, and the screen.

use super::files::{MAX_OS_RESOURCE_BYTES, ToolFileChunk, mime_type, text_prefix};
use super::server::OsServer;
use super::tool_error::ToolError;
use crate::protocol::files::{percent_decode, percent_encode};
use crate::protocol::kernel::{OutputStream, RunList};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::ErrorData;
use rmcp::model::{
    ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};
use serde::Serialize;
use serde_json::Map;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The most files of one page of the list.
const RESOURCE_PAGE_ENTRIES: usize = 200;
const SCREEN_URI: &str = "os://screen";
const RUNS_URI: &str = "os://runs";
const FILE_URI_PREFIX: &str = "file://";
const RESOURCE_JSON_TYPE: &str = "application/json";

impl OsServer {
    /// A page of the list: the screen and the runs, then the files directly in the root folder.
    pub(super) async fn resources_page(
        &self,
        cursor: Option<&str>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let mut resources = Vec::new();
        if cursor.is_none() {
            let screen = Resource::new(SCREEN_URI, "screen")
                .with_title("The desktop's screen")
                .with_description("The current screen as a picture")
                .with_mime_type("image/png");
            let runs = Resource::new(RUNS_URI, "runs")
                .with_title("Runs")
                .with_description("Running and recent code and commands")
                .with_mime_type(RESOURCE_JSON_TYPE);
            resources.extend([screen, runs]);
        }
        let root = &self.factory.0.resource_root;
        let after = cursor.map(str::to_owned);
        let listed = self.list_entries(root, after, RESOURCE_PAGE_ENTRIES).await;
        let (entries, more) = listed.map_err(|why| ErrorData::invalid_params(why.0, None))?;
        let last = entries.last().map(|entry| entry.name().to_owned());
        for entry in entries {
            let Some(size) = entry.file_size().filter(|_| !entry.name().starts_with('.')) else {
                continue;
            };
            let path = root.join(entry.name());
            let uri = format!(
                "{FILE_URI_PREFIX}{}",
                percent_encode(path.as_os_str().as_bytes())
            );
            let file = Resource::new(uri, entry.name())
                .with_mime_type(mime_type(&path))
                .with_size(size);
            resources.push(file);
        }
        let mut result = ListResourcesResult::with_all_items(resources);
        result.next_cursor = last.filter(|_| more);
        Ok(result)
    }

    pub(super) fn resource_templates(&self) -> ListResourceTemplatesResult {
        let root = self.factory.0.resource_root.display();
        ListResourceTemplatesResult::with_all_items(vec![
            ResourceTemplate::new("file:///{+path}", "file")
                .with_title("A file, or a folder's entries")
                .with_description(format!("Path in `{root}`")),
            ResourceTemplate::new("os://runs/{id}", "run")
                .with_title("A run")
                .with_description("The state or result of code or of a command")
                .with_mime_type(RESOURCE_JSON_TYPE),
            ResourceTemplate::new("os://runs/{id}/{stream}", "output")
                .with_title("A run's output")
                .with_description("The output of a run: `stdout` or `stderr`")
                .with_mime_type("text/plain"),
        ])
    }

    pub(super) async fn read_uri(&self, uri: &str) -> Result<ReadResourceResult, ErrorData> {
        let none = || ErrorData::resource_not_found(format!("there is no resource `{uri}`"), None);
        let content = if uri == SCREEN_URI {
            let screen = self.whole_screen().await;
            screen.map(|(screen, shot)| {
                let content = ResourceContents::blob(screen, uri).with_mime_type("image/png");
                let meta =
                    rmcp::model::MetaObject(Map::from_iter([("osctl/screenshot".into(), shot)]));
                content.with_meta(meta)
            })
        } else if uri == RUNS_URI {
            self.runs_contents(uri)
        } else if let Some(rest) = uri.strip_prefix("os://runs/") {
            let (id, stream) = rest.split_once('/').unzip();
            match (id.unwrap_or(rest), stream) {
                (id, None) => self.run_contents(uri, id),
                (id, Some("stdout")) => self.output_contents(uri, id, OutputStream::Stdout).await,
                (id, Some("stderr")) => self.output_contents(uri, id, OutputStream::Stderr).await,
                _ => return Err(none()),
            }
        } else if let Some(path) = uri.strip_prefix(FILE_URI_PREFIX).and_then(percent_decode) {
            let path = PathBuf::from(OsString::from_vec(path));
            self.file_contents(uri, path).await
        } else {
            return Err(none());
        };
        let content = content.map_err(|why| ErrorData::resource_not_found(why.0, None))?;
        Ok(ReadResourceResult::new(vec![content]))
    }

    fn runs_contents(&self, uri: &str) -> Result<ResourceContents, ToolError> {
        let handles = &self.factory.0.handles;
        let code = handles.sessions.list_runs();
        let commands = handles.shells.list_runs();
        let code = code.iter().map(|run| run.summary());
        let commands = commands.iter().map(|run| run.summary());
        let runs = code.chain(commands).collect();
        json_contents(uri, &RunList { runs })
    }

    fn run_contents(&self, uri: &str, id: &str) -> Result<ResourceContents, ToolError> {
        let handles = &self.factory.0.handles;
        if let Ok(run) = handles.sessions.find_run(id) {
            return json_contents(uri, &run.build_reply(handles.sessions.kernel_report(&run)));
        }
        let run = handles.shells.find_run(id)?;
        json_contents(
            uri,
            &run.build_reply(handles.shells.command_report(&run.request.session)),
        )
    }

    async fn output_contents(
        &self,
        uri: &str,
        id: &str,
        stream: OutputStream,
    ) -> Result<ResourceContents, ToolError> {
        let mut all = String::new();
        let mut offset = 0;
        loop {
            let page = self
                .output_page(id, stream, offset, MAX_OS_RESOURCE_BYTES)
                .await?;
            all.push_str(&page.text);
            if page.next <= offset || page.next >= page.total {
                break;
            }
            if page.next >= MAX_OS_RESOURCE_BYTES {
                all.push_str("\n… `read_output` returns the rest …\n");
                break;
            }
            offset = page.next;
        }
        Ok(ResourceContents::text(all, uri))
    }

    /// Reads a file. Its path, with all symbolic links resolved, must be in the root folder.
    async fn file_contents(&self, uri: &str, path: PathBuf) -> Result<ResourceContents, ToolError> {
        let root = self.factory.0.resource_root.clone();
        let found = tokio::task::spawn_blocking(move || {
            let real = |path: &Path| {
                let real = std::fs::canonicalize(path);
                real.map_err(|e| ToolError(format!("`{}`: {e}", path.display())))
            };
            let (real, root) = (real(&path)?, real(&root)?);
            match real.starts_with(&root) {
                true => Ok((real.is_dir(), real)),
                false => Err(ToolError(format!(
                    "`{}` is not in `{}`; call `read_file` instead",
                    path.display(),
                    root.display()
                ))),
            }
        });
        let found = found.await;
        let (is_folder, path) = found.map_err(|e| ToolError(e.to_string()))??;
        if is_folder {
            let (entries, more) = self
                .list_entries(&path, None, RESOURCE_PAGE_ENTRIES)
                .await?;
            return json_contents(uri, &serde_json::json!({"entries": entries, "more": more}));
        }
        let ToolFileChunk { bytes, size } =
            self.read_chunk(&path, 0, MAX_OS_RESOURCE_BYTES).await?;
        if size.is_none_or(|size| size > bytes.len() as u64)
            && bytes.len() as u64 >= MAX_OS_RESOURCE_BYTES
        {
            let why = format!(
                "`{}` is too large; `read_file` returns it in pages",
                path.display()
            );
            return Err(ToolError(why));
        }
        let mime = mime_type(&path);
        Ok(match text_prefix(&bytes, false) {
            Some(text) if !mime.starts_with("image/") || mime == "image/svg+xml" => {
                let mime = match mime {
                    "application/octet-stream" => "text/plain",
                    mime => mime,
                };
                ResourceContents::text(text, uri).with_mime_type(mime)
            }
            _ => ResourceContents::blob(STANDARD.encode(&bytes), uri).with_mime_type(mime),
        })
    }
}

fn json_contents(uri: &str, value: &impl Serialize) -> Result<ResourceContents, ToolError> {
    let text = serde_json::to_string(value).map_err(|e| ToolError(e.to_string()))?;
    Ok(ResourceContents::text(text, uri).with_mime_type(RESOURCE_JSON_TYPE))
}
