//! Answers about files, packages, the desktop, Jupyter and the configuration.

use super::UtcTime;
use crate::host::display::ScreenshotFile;
use crate::host::jupyter::{Kernelspec, KernelspecTarget};
use crate::image::BodyFileUpdate;
use crate::protocol::packages::ListedPackage;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What was copied.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CopyAnswer {
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) files: u64,
    pub(crate) folders: u64,
    /// Symbolic and hard links.
    pub(crate) links: u64,
    /// File data without holes.
    pub(crate) copied_bytes: u64,
    pub(crate) duration_seconds: f64,
}

/// The packages of the project.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PackagesAnswer {
    pub(crate) packages: Vec<ListedPackage>,
}

/// The packages that were added, removed or locked, and all packages of the project.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PackagesChangedAnswer {
    pub(crate) changes: Vec<ListedPackage>,
    pub(crate) packages: Vec<ListedPackage>,
}

/// The link to the desktop.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DesktopAnswer {
    /// The link works once.
    pub(crate) url: String,
    /// Time until the link expires.
    pub(crate) expires_in_seconds: u64,
    /// Whether a browser was started; always `false` with `--json`.
    pub(crate) opened: bool,
}

/// The picture of the screen.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ScreenshotAnswer {
    file: PathBuf,
    size_bytes: usize,
    /// The size of the picture in pixels, `WIDTHxHEIGHT`.
    picture: String,
    /// The size of the screen in pixels, `WIDTHxHEIGHT`.
    screen: String,
    /// By the container's clock.
    taken_at: UtcTime,
}

impl ScreenshotAnswer {
    pub(crate) fn new(file: &Path, shot: ScreenshotFile) -> Self {
        Self {
            file: file.into(),
            size_bytes: shot.file.len(),
            picture: shot.picture_size,
            screen: shot.screen_size,
            taken_at: UtcTime::from_seconds(shot.taken_at_ms as f64 / 1e3),
        }
    }
}

/// The kernelspec that was installed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KernelspecAnswer {
    pub(crate) folder: PathBuf,
    pub(crate) kernelspec: KernelspecEntry,
}

/// The kernelspecs of osctl.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KernelspecsAnswer {
    pub(crate) kernelspecs: Vec<KernelspecEntry>,
}

/// The kernelspec that was removed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KernelspecRemovedAnswer {
    pub(crate) name: String,
}

/// A kernelspec, by which Jupyter offers a session as a kernel.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KernelspecEntry {
    /// The name for Jupyter's commands; also the name of its folder.
    name: String,
    /// The name that front ends show.
    display_name: String,
    /// The command that starts the kernel; `{connection_file}` is replaced by the path of Jupyter's file.
    argv: Vec<String>,
    /// The variables of the command, by name.
    env: BTreeMap<String, String>,
    instance: String,
    session: String,
}

impl From<Kernelspec> for KernelspecEntry {
    fn from(spec: Kernelspec) -> Self {
        let Kernelspec {
            name,
            display_name,
            argv,
            env,
            opens: KernelspecTarget { instance, session },
        } = spec;
        Self {
            name,
            display_name,
            argv,
            env,
            instance,
            session,
        }
    }
}

/// The body in the project.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InitAnswer {
    /// The folder of the body.
    pub(crate) body_folder: PathBuf,
    pub(crate) files: Vec<InitFile>,
}

/// A file of the body.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InitFile {
    /// The path beneath the folder of the body.
    pub(crate) path: String,
    pub(crate) update: BodyFileUpdate,
}

/// The resolved configuration.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ConfigAnswer {
    pub(crate) values: Vec<ConfigEntry>,
}

/// A value of the configuration.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ConfigEntry {
    /// The key, with dots: `limits.memory`.
    pub(crate) key: String,
    /// The value as in the file; secrets are replaced by `…`.
    pub(crate) value: Value,
    /// `default`, `flag`, the name of a variable, or the path of a file.
    pub(crate) source: String,
}

/// A file or a folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PathAnswer {
    pub(crate) path: PathBuf,
}
