//! Resources: files beneath a root, runs, and the screen.

use super::files::{LARGEST, Piece, mime, text};
use super::refused::Refused;
use super::server::Server;
use crate::protocol::files::{decode, encode};
use crate::protocol::kernel::{Runs, Stream};
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

/// Files of one page of the list.
const ENTRIES: usize = 200;
const SCREEN: &str = "os://screen";
const RUNS: &str = "os://runs";
const FILES: &str = "file://";
const JSON: &str = "application/json";

impl Server {
    /// The screen and the runs, then the files that lie in the root itself.
    pub(super) async fn resources(
        &self,
        cursor: Option<&str>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let mut resources = Vec::new();
        if cursor.is_none() {
            let screen = Resource::new(SCREEN, "screen")
                .with_title("The desktop's screen")
                .with_description("What is on it now, as a picture")
                .with_mime_type("image/png");
            let runs = Resource::new(RUNS, "runs")
                .with_title("Runs")
                .with_description("Code and commands that can be found again")
                .with_mime_type(JSON);
            resources.extend([screen, runs]);
        }
        let root = &self.os.0.root;
        let after = cursor.map(str::to_owned);
        let listed = self.entries(root, after, ENTRIES).await;
        let (entries, more) = listed.map_err(|why| ErrorData::invalid_params(why.0, None))?;
        let last = entries.last().map(|entry| entry.name().to_owned());
        for entry in entries {
            let Some(size) = entry.file_size().filter(|_| !entry.name().starts_with('.')) else {
                continue;
            };
            let path = root.join(entry.name());
            let uri = format!("{FILES}{}", encode(path.as_os_str().as_bytes()));
            let file = Resource::new(uri, entry.name())
                .with_mime_type(mime(&path))
                .with_size(size);
            resources.push(file);
        }
        let mut result = ListResourcesResult::with_all_items(resources);
        result.next_cursor = last.filter(|_| more);
        Ok(result)
    }

    pub(super) fn templates(&self) -> ListResourceTemplatesResult {
        let root = self.os.0.root.display();
        ListResourceTemplatesResult::with_all_items(vec![
            ResourceTemplate::new("file:///{+path}", "file")
                .with_title("A file, or a folder's entries")
                .with_description(format!("Beneath `{root}`")),
            ResourceTemplate::new("os://runs/{id}", "run")
                .with_title("A run")
                .with_description("How code or a command stands")
                .with_mime_type(JSON),
            ResourceTemplate::new("os://runs/{id}/{stream}", "output")
                .with_title("A run's output")
                .with_description("What it has written: `stdout` or `stderr`")
                .with_mime_type("text/plain"),
        ])
    }

    pub(super) async fn resource(&self, uri: &str) -> Result<ReadResourceResult, ErrorData> {
        let none = || ErrorData::resource_not_found(format!("there is no resource `{uri}`"), None);
        let content = if uri == SCREEN {
            let screen = self.whole_screen().await;
            screen.map(|(screen, shot)| {
                let content = ResourceContents::blob(screen, uri).with_mime_type("image/png");
                let told =
                    rmcp::model::MetaObject(Map::from_iter([("osctl/screenshot".into(), shot)]));
                content.with_meta(told)
            })
        } else if uri == RUNS {
            self.runs(uri)
        } else if let Some(rest) = uri.strip_prefix("os://runs/") {
            let (id, stream) = rest.split_once('/').unzip();
            match (id.unwrap_or(rest), stream) {
                (id, None) => self.run_resource(uri, id),
                (id, Some("stdout")) => self.output(uri, id, Stream::Stdout).await,
                (id, Some("stderr")) => self.output(uri, id, Stream::Stderr).await,
                _ => return Err(none()),
            }
        } else if let Some(path) = uri.strip_prefix(FILES).and_then(decode) {
            let path = PathBuf::from(OsString::from_vec(path));
            self.file(uri, path).await
        } else {
            return Err(none());
        };
        let content = content.map_err(|why| ErrorData::resource_not_found(why.0, None))?;
        Ok(ReadResourceResult::new(vec![content]))
    }

    fn runs(&self, uri: &str) -> Result<ResourceContents, Refused> {
        let handles = &self.os.0.handles;
        let code = handles.sessions.runs();
        let commands = handles.shells.runs();
        let code = code.iter().map(|run| run.summary());
        let commands = commands.iter().map(|run| run.summary());
        let runs = code.chain(commands).collect();
        json(uri, &Runs { runs })
    }

    fn run_resource(&self, uri: &str, id: &str) -> Result<ResourceContents, Refused> {
        let handles = &self.os.0.handles;
        if let Ok(run) = handles.sessions.run(id) {
            return json(uri, &run.reply(handles.sessions.report(&run)));
        }
        let run = handles.shells.run(id)?;
        json(uri, &run.reply(handles.shells.report(&run.work.session)))
    }

    async fn output(
        &self,
        uri: &str,
        id: &str,
        stream: Stream,
    ) -> Result<ResourceContents, Refused> {
        let mut all = String::new();
        let mut offset = 0;
        loop {
            let page = self.page(id, stream, offset, LARGEST).await?;
            all.push_str(&page.text);
            if page.next <= offset || page.next >= page.total {
                break;
            }
            if page.next >= LARGEST {
                all.push_str("\n… `read_output` brings the rest …\n");
                break;
            }
            offset = page.next;
        }
        Ok(ResourceContents::text(all, uri))
    }

    /// A file beneath the root, wherever links lead.
    async fn file(&self, uri: &str, path: PathBuf) -> Result<ResourceContents, Refused> {
        let root = self.os.0.root.clone();
        let found = tokio::task::spawn_blocking(move || {
            let real = |path: &Path| {
                let real = std::fs::canonicalize(path);
                real.map_err(|e| Refused(format!("`{}`: {e}", path.display())))
            };
            let (real, root) = (real(&path)?, real(&root)?);
            match real.starts_with(&root) {
                true => Ok((real.is_dir(), real)),
                false => Err(Refused(format!(
                    "`{}` is not beneath `{}`; `read_file` reads it",
                    path.display(),
                    root.display()
                ))),
            }
        });
        let found = found.await;
        let (is_folder, path) = found.map_err(|e| Refused(e.to_string()))??;
        if is_folder {
            let (entries, more) = self.entries(&path, None, ENTRIES).await?;
            return json(uri, &serde_json::json!({"entries": entries, "more": more}));
        }
        let Piece { bytes, size } = self.piece(&path, 0, LARGEST).await?;
        if size.is_none_or(|size| size > bytes.len() as u64) && bytes.len() as u64 >= LARGEST {
            let why = format!(
                "`{}` is too large; `read_file` reads it by pages",
                path.display()
            );
            return Err(Refused(why));
        }
        let mime = mime(&path);
        Ok(match text(&bytes, false) {
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

fn json(uri: &str, value: &impl Serialize) -> Result<ResourceContents, Refused> {
    let text = serde_json::to_string(value).map_err(|e| Refused(e.to_string()))?;
    Ok(ResourceContents::text(text, uri).with_mime_type(JSON))
}
