//! Tools that change files: replace a text, and apply a patch.

use super::files::MAX_OS_RESOURCE_BYTES;
use super::patch::{FilePatch, parse_patch};
use super::server::OsServer;
use super::text_edit::{difference, replace_text};
use super::tool_error::ToolError;
use super::tool_result::{ToolResult, text_result};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EditArgs {
    /// Path: absolute, or relative to `/repo`.
    path: String,
    /// Text to replace, exactly as in the file. It must occur once.
    old_text: String,
    /// Text to put in its place.
    new_text: String,
    /// Replace all occurrences.
    #[serde(default)]
    replace_all: bool,
}

#[derive(Debug, Serialize)]
struct EditedFile {
    path: String,
    /// The change as a unified diff.
    difference: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PatchArgs {
    /// Unified diff of one or more files, or a patch between `*** Begin Patch` and `*** End Patch`. Line numbers need
    /// not be exact.
    patch: String,
    /// Folder that the paths in the patch are relative to; `/repo` if omitted.
    folder: Option<String>,
}

#[derive(Debug, Serialize)]
struct PatchedFile {
    path: String,
    /// `created`, `changed`, `renamed` or `deleted`.
    change: &'static str,
    added_lines: usize,
    removed_lines: usize,
}

#[derive(Debug, Serialize)]
struct PatchedFiles {
    files: Vec<PatchedFile>,
}

/// A checked change of one file that is not made yet.
struct PlannedChange {
    /// The new content and its place; `None` for a deleted file.
    written: Option<(PathBuf, String)>,
    removed: Option<PathBuf>,
    report: PatchedFile,
}

#[tool_router(router = change_tools, vis = "pub(super)")]
impl OsServer {
    /// Replace a text in a file, and return the change as a diff. Works on every file, also outside of `/repo`.
    #[tool(
        title = "Edit a file",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = false,
            open_world_hint = false
        )
    )]
    async fn edit_file(&self, Parameters(args): Parameters<EditArgs>) -> ToolResult {
        let path = self.resolve_path(&args.path);
        let before = self.read_text(&path).await?;
        let after = replace_text(&before, &args.old_text, &args.new_text, args.replace_all);
        let after = after.map_err(|why| ToolError(format!("`{}`: {why}", path.display())))?;
        let name = path.display().to_string();
        let difference = difference(name.trim_start_matches('/'), &before, &after);
        self.store_bytes(&path, after.into(), false).await?;
        let text = difference.clone();
        text_result(
            EditedFile {
                path: name,
                difference,
            },
            text,
        )
    }

    /// Apply a patch to one or more files. All hunks are checked first; if one does not fit, no file changes.
    #[tool(
        title = "Apply a patch",
        annotations(
            read_only_hint = false,
            destructive_hint = true,
            idempotent_hint = false,
            open_world_hint = false
        )
    )]
    async fn apply_patch(&self, Parameters(args): Parameters<PatchArgs>) -> ToolResult {
        let folder = self.resolve_path(args.folder.as_deref().unwrap_or_default());
        let mut planned: Vec<PlannedChange> = Vec::new();
        for file in parse_patch(&args.patch).map_err(ToolError)? {
            planned.push(self.plan_change(&folder, &file).await?);
        }
        let mut files: Vec<PatchedFile> = Vec::new();
        for change in planned {
            if let Err(why) = self.make_change(&change).await {
                let made: Vec<String> = files
                    .iter()
                    .map(|file| format!("`{}`", file.path))
                    .collect();
                return Err(match made.is_empty() {
                    true => why,
                    false => ToolError(format!("{}; changed before: {}", why.0, made.join(", "))),
                });
            }
            files.push(change.report);
        }
        let lines = files.iter().map(|file| {
            let PatchedFile {
                path,
                change,
                added_lines,
                removed_lines,
            } = file;
            format!("{change} `{path}` (+{added_lines} -{removed_lines})")
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        text_result(PatchedFiles { files }, text)
    }
}

impl OsServer {
    /// The whole content of a text file.
    async fn read_text(&self, path: &Path) -> Result<String, ToolError> {
        let chunk = self.read_chunk(path, 0, MAX_OS_RESOURCE_BYTES).await?;
        if chunk.size.is_none_or(|size| size > MAX_OS_RESOURCE_BYTES) {
            let why = format!(
                "`{}` is larger than 16 MiB, or no regular file",
                path.display()
            );
            return Err(ToolError(why));
        }
        String::from_utf8(chunk.bytes.into())
            .map_err(|_| ToolError(format!("`{}` is not UTF-8 text", path.display())))
    }

    async fn plan_change(
        &self,
        folder: &Path,
        file: &FilePatch,
    ) -> Result<PlannedChange, ToolError> {
        let full = |path: &Option<String>| path.as_ref().map(|path| folder.join(path));
        let (old, new) = (full(&file.old_path), full(&file.new_path));
        let is_moved = old != new;
        if let Some(new) = new.as_ref().filter(|_| is_moved)
            && new.symlink_metadata().is_ok()
        {
            return Err(ToolError(format!("`{}` exists already", new.display())));
        }
        let before = match &old {
            Some(old) => self.read_text(old).await?,
            None => String::new(),
        };
        let path = new.as_ref().or(old.as_ref()).cloned().unwrap_or_default();
        let after = file.apply(&before);
        let after = after.map_err(|why| ToolError(format!("`{}`: {why}", path.display())))?;
        let (added_lines, removed_lines) = file.line_counts();
        let report = PatchedFile {
            path: path.display().to_string(),
            change: match (&old, &new) {
                (None, _) => "created",
                (_, None) => "deleted",
                _ if is_moved => "renamed",
                _ => "changed",
            },
            added_lines,
            removed_lines,
        };
        Ok(PlannedChange {
            written: new.map(|new| (new, after)),
            removed: old.filter(|_| is_moved),
            report,
        })
    }

    async fn make_change(&self, change: &PlannedChange) -> Result<(), ToolError> {
        if let Some((path, content)) = &change.written {
            self.store_bytes(path, content.clone().into(), true).await?;
        }
        if let Some(path) = &change.removed {
            let place = super::files::parse_container_path(path)?;
            self.factory
                .0
                .handles
                .files
                .remove_path(place, false)
                .await?;
        }
        Ok(())
    }
}
