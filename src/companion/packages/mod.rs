//! The project's packages inside the container: changes of `osctl.yaml` and `osctl.lock`, and their installation.
//!
//! ```text
//! osctl add (host) ── shell command ──┐
//! osctl add (in the container) ───────┴── change ─┬─ resolve ─ install      this container, at once
//!                                                 └─ osctl.lock, osctl.yaml
//! last layers of the image ── osctl install-packages ── install             the next container
//! ```
//!
//! Versions are resolved in the container, because it has the installers and the kernel's environment that the
//! versions must fit. A running container gets the packages in the same places as its next image, so nothing in the
//! data folder hides the image's versions later. The project's files are written last: a package that can't be
//! installed changes nothing.

mod apt;
mod change;
mod command_links;
mod installer_process;
mod npm;
mod pip;
mod yaml_edit;

pub(crate) use change::PackageProject;

use crate::atomic_write::{Durability, atomic_write_as};
use crate::protocol::packages::{
    LockedPackages, PACKAGES_FOLDER, PackageChangeRefusal, PackageKind,
};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The result of an installation; the error is for people.
pub(crate) type PackageResult<T> = Result<T, PackageChangeRefusal>;

/// What to install.
#[derive(Debug, Clone, Copy)]
struct PackageRequest<'a> {
    /// All packages of the installer in `osctl.yaml`.
    requested: &'a [String],
    /// The packages that get their newest version.
    added: &'a [String],
    /// The previous versions.
    locked: Option<&'a LockedPackages>,
}

/// Receives the messages of installers.
pub(crate) type MessageReporter<'a> = &'a (dyn Fn(&str) + Sync);

/// The installers of this container.
pub(crate) struct PackageInstaller<'a> {
    /// The folder with the installers' files.
    folder: PathBuf,
    report: MessageReporter<'a>,
}

impl<'a> PackageInstaller<'a> {
    pub(crate) fn new(report: MessageReporter<'a>) -> Self {
        Self {
            folder: PACKAGES_FOLDER.into(),
            report,
        }
    }

    /// Installs the packages whose files the build of the image has copied.
    ///
    /// # Errors
    /// When the installer fails.
    pub(crate) fn install_listed(&self, kind: PackageKind) -> PackageResult<()> {
        match kind {
            PackageKind::Apt => self.install_apt_list(),
            PackageKind::Npm => self.install_npm_list(),
            PackageKind::Pip => self.install_pip_list(),
        }
    }

    /// Resolves and installs packages in this container.
    fn install_request(
        &self,
        kind: PackageKind,
        request: PackageRequest<'_>,
    ) -> PackageResult<LockedPackages> {
        match kind {
            PackageKind::Apt => self.install_apt_request(request),
            PackageKind::Npm => self.install_npm_request(request),
            PackageKind::Pip => self.install_pip_request(request),
        }
    }

    /// The folder of an installer's files.
    fn kind_folder(&self, kind: PackageKind) -> PathBuf {
        self.folder.join(kind.as_str())
    }

    fn write_files(&self, files: &BTreeMap<String, Vec<u8>>) -> PackageResult<()> {
        for (path, content) in files {
            write_file(&self.folder.join(path), content)?;
        }
        Ok(())
    }
}

/// The lines of a file; none if it is missing.
fn read_lines(path: &Path) -> PackageResult<Vec<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(file_refusal(path)(error)),
    }
}

fn write_file(path: &Path, content: &[u8]) -> PackageResult<()> {
    let folder = path.parent().unwrap_or(path);
    let permissions = Some(fs::Permissions::from_mode(0o644));
    let written = fs::create_dir_all(folder)
        .and_then(|()| atomic_write_as(path, content, permissions, Durability::DataSynced));
    written.map(drop).map_err(file_refusal(path))
}

fn refusal(error: impl Into<String>, hint: impl Into<String>) -> PackageChangeRefusal {
    PackageChangeRefusal {
        error: error.into(),
        hint: hint.into(),
        is_usage: false,
    }
}

/// The refusal of a request that names a wrong package.
fn usage_refusal(error: impl Into<String>, hint: impl Into<String>) -> PackageChangeRefusal {
    PackageChangeRefusal {
        is_usage: true,
        ..refusal(error, hint)
    }
}

/// The refusal for a failed access to a file.
fn file_refusal(path: &Path) -> impl FnOnce(io::Error) -> PackageChangeRefusal {
    let shown = path.display().to_string();
    move |error| {
        let hint = "`osctl doctor` checks the instance";
        refusal(format!("`{shown}` can't be read or written: {error}"), hint)
    }
}

fn missing_package(kind: PackageKind, package: &str) -> PackageChangeRefusal {
    let hint = match kind {
        PackageKind::Apt => {
            "check the spelling; `osctl shell 'apt-get update && apt-cache search WORD'` searches; `--apt` applies to all packages of the command"
        }
        PackageKind::Npm => {
            "check the spelling, and the version if you named one; `--npm` applies to all packages of the command"
        }
        PackageKind::Pip => "check the spelling; the package of a module may have another name",
    };
    let error = format!("{kind} has no package `{package}`; nothing was changed");
    usage_refusal(error, hint)
}
