//! npm packages, in a folder of their own.

use super::command_links::link_commands;
use super::installer_process::{InstallerFailure, run_installer};
use super::{
    PackageInstaller, PackageRequest, PackageResult, file_refusal, missing_package, usage_refusal,
    write_file,
};
use crate::protocol::packages::{
    LockedPackage, LockedPackages, NPM_LOCKFILE, NPM_MANIFEST, PackageChangeRefusal, PackageKind,
    installer_files,
};
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;
use std::process::Command;

const MODULES_FOLDER: &str = "node_modules";

/// Words of npm's errors for a name or a version that the registry does not have.
const NPM_NOT_FOUND: [&str; 2] = ["E404", "ETARGET"];

impl PackageInstaller<'_> {
    pub(super) fn install_npm_list(&self) -> PackageResult<()> {
        let folder = self.kind_folder(PackageKind::Npm);
        // `ci` checks the hashes of the lock file.
        let verb = match folder.join(NPM_LOCKFILE).exists() {
            true => "ci",
            false => "install",
        };
        let installed = self.run_npm(&folder, &[verb])?;
        installed.map_err(InstallerFailure::into_refusal)?;
        link_npm_commands(&folder)
    }

    pub(super) fn install_npm_request(
        &self,
        request: PackageRequest<'_>,
    ) -> PackageResult<LockedPackages> {
        let requested = request.requested;
        let (packages, lockfile) = self.resolve_npm(request)?;
        let locked = LockedPackages {
            requested: requested.to_vec(),
            packages,
            lockfile: Some(lockfile),
        };
        self.write_files(&installer_files(PackageKind::Npm, requested, Some(&locked)))?;
        self.install_npm_list()?;
        Ok(locked)
    }

    /// The requested packages, and npm's lock file with all that they need.
    fn resolve_npm(
        &self,
        request: PackageRequest<'_>,
    ) -> PackageResult<(Vec<LockedPackage>, Value)> {
        let folder = tempfile::tempdir().map_err(file_refusal(Path::new("/tmp")))?;
        // npm keeps the versions of an existing lock file.
        let before = request
            .locked
            .filter(|_| request.added.len() < request.requested.len());
        for (path, content) in installer_files(PackageKind::Npm, request.requested, before) {
            let name = Path::new(&path).file_name().unwrap_or_default();
            write_file(&folder.path().join(name), &content)?;
        }
        let args = ["install", "--package-lock-only", "--ignore-scripts"];
        let resolved = self.run_npm(folder.path(), &args)?;
        resolved.map_err(|failure| explain_unresolved(failure, request.requested))?;
        let place = folder.path().join(NPM_LOCKFILE);
        let text = fs::read(&place).map_err(file_refusal(&place))?;
        let lockfile: Value =
            serde_json::from_slice(&text).map_err(|error| file_refusal(&place)(error.into()))?;
        let packages = request.requested.iter().map(|package| {
            let (name, _) = PackageKind::Npm.split(package);
            let found = &lockfile["packages"][format!("{MODULES_FOLDER}/{name}")]["version"];
            let version = found.as_str();
            let version = version.ok_or_else(|| missing_package(PackageKind::Npm, package))?;
            Ok(LockedPackage {
                name: name.into(),
                version: version.into(),
                hashes: Vec::new(),
            })
        });
        Ok((packages.collect::<PackageResult<_>>()?, lockfile))
    }

    fn run_npm(
        &self,
        folder: &Path,
        args: &[&str],
    ) -> PackageResult<Result<String, InstallerFailure>> {
        let mut npm = Command::new("npm");
        npm.args(args).current_dir(folder);
        npm.args(["--no-audit", "--no-fund", "--no-color", "--no-progress"]);
        // A lock file without addresses works with every registry.
        npm.arg("--omit-lockfile-registry-resolved");
        run_installer(&mut npm, "", self.report)
    }
}

/// Links the commands of the requested packages.
fn link_npm_commands(folder: &Path) -> PackageResult<()> {
    let modules = folder.join(MODULES_FOLDER);
    let manifest = read_json(&folder.join(NPM_MANIFEST))?;
    let requested = manifest.get("dependencies").and_then(Value::as_object);
    let mut names = Vec::new();
    for name in requested.into_iter().flat_map(Map::keys) {
        let manifest = read_json(&modules.join(name).join(NPM_MANIFEST))?;
        names.extend(command_names(name, manifest.get("bin")));
    }
    link_commands(&modules.join(".bin"), &names)
}

/// The names of a package's commands. A package with a single command may give only its path.
fn command_names(package: &str, bin: Option<&Value>) -> Vec<String> {
    match bin {
        Some(Value::String(_)) => vec![package.rsplit('/').next().unwrap_or(package).to_owned()],
        Some(Value::Object(commands)) => commands.keys().cloned().collect(),
        _ => Vec::new(),
    }
}

fn read_json(path: &Path) -> PackageResult<Value> {
    let text = fs::read(path).map_err(file_refusal(path))?;
    serde_json::from_slice(&text).map_err(|error| file_refusal(path)(error.into()))
}

fn explain_unresolved(failure: InstallerFailure, requested: &[String]) -> PackageChangeRefusal {
    let words = failure.messages.join(" ");
    if !NPM_NOT_FOUND.iter().any(|word| words.contains(word)) {
        return failure.into_refusal();
    }
    let is_named = |package: &&String| {
        let (name, _) = PackageKind::Npm.split(package);
        words.contains(&format!(" {name}@")) || words.contains(&format!("'{name}@"))
    };
    match requested.iter().find(is_named) {
        Some(package) => missing_package(PackageKind::Npm, package),
        None => usage_refusal(
            format!(
                "npm has no package or no version of `{}`; nothing was changed",
                requested.join("`, `")
            ),
            "check the spelling, and the versions if you named some",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::command_names;
    use serde_json::json;

    #[test]
    fn a_single_command_may_be_only_a_path() {
        let names = |bin| command_names("@a/b", Some(&bin));
        assert_eq!(names(json!("./cli.js")), ["b"]);
        assert_eq!(names(json!({"x": "./x", "y": "./y"})), ["x", "y"]);
        assert!(command_names("a", None).is_empty());
    }
}
