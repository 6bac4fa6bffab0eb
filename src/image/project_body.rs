//! The body of a project: its own body, whole or an extension, or the embedded one, with the project's packages.
//!
//! ```text
//! body/ with body.yaml ───────────────────────┐
//! body/ without it ── extension ── embedded ──┼── project_packages ──▶ files for the image
//! no body/ ────────────────────── embedded ───┘
//! ```

mod extension;

use super::body::Body;
use super::body_reader::{BodyReadLimit, read_body_files, unfit_body_error};
use super::project_packages::add_project_packages;
use crate::error::Result;
use extension::extend_default_body;
use std::collections::BTreeMap;
use std::path::Path;

/// The maximum size of a body. A larger one is probably a mistake: the body is sent to the engine at each build.
const MAX_IMAGE_BODY_BYTES: u64 = 256 << 20;

impl Body {
    /// The project's own body, if it has one, else the embedded one; with the project's packages.
    ///
    /// # Errors
    /// When the folder holds links or special files, is too large, or has another protocol.
    pub(crate) fn from_project(project: &Path, body: &Path) -> Result<Self> {
        Self::from_project_within(
            project,
            body,
            BodyReadLimit::with_max_bytes(MAX_IMAGE_BODY_BYTES),
        )
    }

    /// As [`Body::from_project`], within a limit.
    ///
    /// # Errors
    /// As [`Body::from_project`], and when the body exceeds the limit.
    pub(crate) fn from_project_within(
        project: &Path,
        body: &Path,
        limit: BodyReadLimit,
    ) -> Result<Self> {
        let folder = project.join(body);
        let mut body = match read_body_files(project, body, limit)? {
            None => Self::embedded(),
            Some(files) => {
                check_reserved_paths(&files, &folder)?;
                match Self::is_whole_body(&files) {
                    true => {
                        let body = Self {
                            folder: Some(folder.clone()),
                            ..Self::from_files(files)
                        };
                        body.check_compatible(&folder)?;
                        body
                    }
                    false => Self {
                        sources: Some(files.clone()),
                        ..extend_default_body(&folder, files)?
                    },
                }
            }
        };
        let before = body.files.clone();
        add_project_packages(&mut body, project)?;
        if body.sources.is_none() && body.files.len() != before.len() {
            body.sources = Some(before);
        }
        Ok(body)
    }

    /// The files for the image of a stored body: those of an extension with the default body. `None` if the files are
    /// neither a whole body nor an extension.
    pub(crate) fn image_files(
        files: &BTreeMap<String, Vec<u8>>,
    ) -> Option<BTreeMap<String, Vec<u8>>> {
        match Self::is_whole_body(files) {
            true => Some(files.clone()),
            false => extend_default_body(Path::new(""), files.clone())
                .ok()
                .map(|body| body.files),
        }
    }
}

/// Refuses files where the build context has those of osctl.
fn check_reserved_paths(files: &BTreeMap<String, Vec<u8>>, folder: &Path) -> Result<()> {
    let is_ours = |path: &&String| *path == ".osctl" || path.starts_with(".osctl/");
    match files.keys().find(is_ours) {
        Some(path) => {
            let why = format!(
                "`{}` is a path that osctl reserves for its own files",
                path.escape_debug()
            );
            Err(unfit_body_error(folder, why))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
