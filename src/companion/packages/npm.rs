//! npm packages, in a folder of their own; links in `/usr/local/bin` make the commands of the requested ones available.

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
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const COMMANDS_FOLDER: &str = "/usr/local/bin";
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
        link_commands(&folder)
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

/// Links the commands of the requested packages, and removes the links to those that are gone. A command of the image
/// is not replaced.
fn link_commands(folder: &Path) -> PackageResult<()> {
    let commands = Path::new(COMMANDS_FOLDER);
    let binaries = folder.join(MODULES_FOLDER).join(".bin");
    let entries = fs::read_dir(commands).map_err(file_refusal(commands))?;
    for entry in entries.filter_map(Result::ok) {
        let is_ours = fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(&binaries));
        if is_ours {
            fs::remove_file(entry.path()).map_err(file_refusal(&entry.path()))?;
        }
    }
    let manifest = read_json(&folder.join(NPM_MANIFEST))?;
    let requested = manifest.get("dependencies").and_then(Value::as_object);
    for name in requested.into_iter().flat_map(Map::keys) {
        let manifest = read_json(&folder.join(MODULES_FOLDER).join(name).join(NPM_MANIFEST))?;
        for command in command_names(name, manifest.get("bin")) {
            let link = commands.join(&command);
            match symlink(binaries.join(&command), &link) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(file_refusal(&link)(error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The names of a package's commands. A package with a single command may give only its path.
fn command_names(package: &str, bin: Option<&Value>) -> Vec<String> {
    let names = match bin {
        Some(Value::String(_)) => vec![package.rsplit('/').next().unwrap_or(package).to_owned()],
        Some(Value::Object(commands)) => commands.keys().cloned().collect(),
        _ => Vec::new(),
    };
    let is_plain = |name: &String| {
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    names.into_iter().filter(is_plain).collect()
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
    fn commands_are_plain_names() {
        let names = |bin| command_names("@a/b", Some(&bin));
        assert_eq!(names(json!("./cli.js")), ["b"]);
        let bin = json!({"x": "./x", "../y": "./y", "": "./z", ".h": "./h", "a/b": "./a"});
        assert_eq!(names(bin), ["x"]);
        assert!(command_names("a", None).is_empty());
    }
}
