//! Python packages of the kernel's environment, by uv. The kernel's own packages keep their versions, unless one of
//! them is requested; the lock has the others, with the hashes of all their files.

use super::command_links::link_commands;
use super::installer_process::{InstallerFailure, run_installer};
use super::{
    PackageInstaller, PackageRequest, PackageResult, file_refusal, missing_package, read_lines,
    usage_refusal, write_file,
};
use crate::protocol::packages::{
    LockedPackage, LockedPackages, PACKAGE_LIST, PackageChangeRefusal, PackageKind, REQUESTED_LIST,
    installer_files,
};
use crate::protocol::words::count_noun;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempPath;

const UV_BINARY: &str = "/usr/local/bin/uv";
const DEFAULT_PYTHON: &str = "/opt/osctl/kernel-env/bin/python";

/// The kernel's own packages with their versions, written before the first package is added.
const OWN_PACKAGES_FILE: &str = "kernel.txt";

/// The sentence of uv for a name that the index does not have.
const UV_NOT_FOUND: &str = "was not found in the package registry";

impl PackageInstaller<'_> {
    pub(super) fn install_pip_list(&self) -> PackageResult<()> {
        let own = self.own_packages()?;
        let list = read_lines(&self.kind_folder(PackageKind::Pip).join(PACKAGE_LIST))?;
        self.install_pip_lines(&own, &list)?;
        let folder = self.kind_folder(PackageKind::Pip);
        match read_lines(&folder.join(REQUESTED_LIST))? {
            unlocked if unlocked.is_empty() => self.link_pip_commands(&list),
            requested => self.link_pip_commands(&requested),
        }
    }

    pub(super) fn install_pip_request(
        &self,
        request: PackageRequest<'_>,
    ) -> PackageResult<LockedPackages> {
        let own = self.own_packages()?;
        let place = self.kind_folder(PackageKind::Pip).join(PACKAGE_LIST);
        let before = read_lines(&place)?;
        (self.report)("resolving the versions");
        let locked = LockedPackages {
            packages: self.resolve_pip(&own, request)?,
            requested: request.requested.to_vec(),
            lockfile: None,
        };
        let files = installer_files(PackageKind::Pip, request.requested, Some(&locked));
        let list = files.get(&format!("{}/{PACKAGE_LIST}", PackageKind::Pip));
        let list = String::from_utf8_lossy(list.map_or(&[], Vec::as_slice));
        let list: Vec<String> = list.lines().map(str::to_owned).collect();
        if !list.is_empty() {
            let count = count_noun(locked.packages.len(), "package");
            (self.report)(&format!("downloading and installing {count}"));
            self.install_pip_lines(&own, &list)?;
        }
        self.remove_pip_packages(&own, &before, &list)?;
        self.write_files(&files)?;
        self.link_pip_commands(request.requested)?;
        Ok(locked)
    }

    /// Links the commands of packages. The links lead through a folder of their own, which tells them from links that
    /// a body makes.
    fn link_pip_commands(&self, packages: &[String]) -> PackageResult<()> {
        let python = PathBuf::from(kernel_python());
        let environment = python.ancestors().nth(2).unwrap_or(Path::new("/"));
        let names: BTreeSet<String> = packages.iter().map(|package| pip_name(package)).collect();
        let commands = find_commands(environment, &names);
        let binaries = self.kind_folder(PackageKind::Pip).join("bin");
        let link = || {
            match fs::remove_dir_all(&binaries) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::create_dir_all(&binaries)?,
            }
            commands.iter().try_for_each(|name| {
                symlink(environment.join("bin").join(name), binaries.join(name))
            })
        };
        link().map_err(file_refusal(&binaries))?;
        link_commands(&binaries, &commands)
    }

    /// The kernel's own packages by name, as `NAME==VERSION`.
    fn own_packages(&self) -> PackageResult<BTreeMap<String, String>> {
        let place = self.kind_folder(PackageKind::Pip).join(OWN_PACKAGES_FILE);
        if !place.exists() {
            let frozen = self.run_uv(&["freeze"], "")?;
            let frozen = frozen.map_err(InstallerFailure::into_refusal)?;
            write_file(&place, frozen.as_bytes())?;
        }
        let lines = read_lines(&place)?.into_iter();
        let named = lines.filter(|line| line.contains("=="));
        Ok(named.map(|line| (pip_name(&line), line)).collect())
    }

    /// The versions that fit the kernel's own packages, without those packages.
    fn resolve_pip(
        &self,
        own: &BTreeMap<String, String>,
        request: PackageRequest<'_>,
    ) -> PackageResult<Vec<LockedPackage>> {
        if request.requested.is_empty() {
            return Ok(Vec::new());
        }
        let requested: BTreeSet<String> = request.requested.iter().map(|p| pip_name(p)).collect();
        let added: BTreeSet<String> = request.added.iter().map(|p| pip_name(p)).collect();
        let fixed = own.iter().filter(|(name, _)| !requested.contains(*name));
        let fixed = temporary_list(fixed.map(|(_, line)| line.as_str()))?;
        // uv keeps the versions of an existing output.
        let kept = request.locked.iter().flat_map(|locked| &locked.packages);
        let kept = kept.filter(|package| !added.contains(&pip_name(&package.name)));
        let kept: Vec<String> = kept
            .map(|package| PackageKind::Pip.exact(&package.name, &package.version))
            .collect();
        let output = temporary_list(kept.iter().map(String::as_str))?;
        let args = [
            "compile",
            "--quiet",
            "--generate-hashes",
            "--no-header",
            "--no-annotate",
            "--constraints",
            path_text(&fixed),
            "--output-file",
            path_text(&output),
            "-",
        ];
        let input = request.requested.join("\n");
        let compiled = self.run_uv(&args, &input)?;
        compiled.map_err(|failure| explain_unresolved(failure, request.requested))?;
        let mut found = parse_compiled(&read_lines(&output)?);
        found.retain(|package| {
            let name = pip_name(&package.name);
            requested.contains(&name) || !own.contains_key(&name)
        });
        Ok(found)
    }

    fn install_pip_lines(
        &self,
        own: &BTreeMap<String, String>,
        lines: &[String],
    ) -> PackageResult<()> {
        let list = temporary_list(lines.iter().map(String::as_str))?;
        let requested: BTreeSet<String> = lines.iter().map(|line| pip_name(line)).collect();
        let fixed = own.iter().filter(|(name, _)| !requested.contains(*name));
        let fixed = temporary_list(fixed.map(|(_, line)| line.as_str()))?;
        let (list, fixed) = (path_text(&list), path_text(&fixed));
        let args: &[&str] = match lines.iter().any(|line| line.contains("--hash=")) {
            true => &[
                "install",
                "--no-deps",
                "--require-hashes",
                "--requirements",
                list,
            ],
            false => &["install", "--constraints", fixed, "--requirements", list],
        };
        let installed = self.run_uv(args, "")?;
        installed
            .map(drop)
            .map_err(|failure| explain_unresolved(failure, lines))
    }

    /// Removes the packages that are no longer in the list, and restores the kernel's own versions.
    fn remove_pip_packages(
        &self,
        own: &BTreeMap<String, String>,
        before: &[String],
        after: &[String],
    ) -> PackageResult<()> {
        let after: BTreeSet<String> = after.iter().map(|line| pip_name(line)).collect();
        let gone: BTreeSet<String> = before.iter().map(|line| pip_name(line)).collect();
        let (restored, removed): (Vec<&str>, Vec<&str>) = gone
            .difference(&after)
            .map(String::as_str)
            .partition(|name| own.contains_key(*name));
        let restored = restored.into_iter().filter_map(|name| own.get(name));
        let restored: Vec<&str> = restored.map(String::as_str).collect();
        for (verb, packages) in [
            (&["install", "--no-deps"][..], restored),
            (&["uninstall"][..], removed),
        ] {
            if !packages.is_empty() {
                let done = self.run_uv(&[verb, &packages].concat(), "")?;
                done.map_err(InstallerFailure::into_refusal)?;
            }
        }
        Ok(())
    }

    /// Runs `uv pip` for the kernel's environment.
    fn run_uv(
        &self,
        args: &[&str],
        input: &str,
    ) -> PackageResult<Result<String, InstallerFailure>> {
        let python = kernel_python();
        let mut uv = Command::new(UV_BINARY);
        // Settings of the project do not apply to the kernel's environment.
        uv.current_dir("/").arg("pip").args(&args[..1]);
        uv.args(["--python", &python]).args(&args[1..]);
        uv.env("NO_COLOR", "1").env("UV_NO_PROGRESS", "1");
        run_installer(&mut uv, input, self.report)
    }
}

fn kernel_python() -> String {
    env::var("OSCTL_PYTHON").unwrap_or_else(|_| DEFAULT_PYTHON.into())
}

/// The commands of packages in an environment, by the packages' records of their files.
fn find_commands(environment: &Path, packages: &BTreeSet<String>) -> Vec<String> {
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    };
    let libraries = entries(&environment.join("lib"));
    let records = libraries.flat_map(|library| entries(&library.join("site-packages")));
    let records = records.filter(|folder| {
        let name = folder.file_name().and_then(|name| name.to_str());
        let name = name.and_then(|name| name.strip_suffix(".dist-info"));
        let name = name.and_then(|name| name.split('-').next());
        name.is_some_and(|name| packages.contains(&pip_name(name)))
    });
    let texts = records.filter_map(|folder| fs::read_to_string(folder.join("RECORD")).ok());
    let mut commands = BTreeSet::new();
    for text in texts {
        let paths = text.lines().filter_map(|line| line.split(',').next());
        let names = paths.filter_map(|path| path.strip_prefix("../../../bin/"));
        let is_file = |name: &&str| !name.contains('/') && *name != "..";
        commands.extend(names.filter(is_file).map(str::to_owned));
    }
    commands.into_iter().collect()
}

fn pip_name(package: &str) -> String {
    let package = package.split_whitespace().next().unwrap_or_default();
    PackageKind::Pip.comparable_name(package)
}

fn temporary_list<'a>(lines: impl Iterator<Item = &'a str>) -> PackageResult<TempPath> {
    let write = || {
        let mut file = tempfile::Builder::new().suffix(".txt").tempfile()?;
        for line in lines {
            writeln!(file, "{line}")?;
        }
        file.flush()?;
        Ok(file.into_temp_path())
    };
    write().map_err(file_refusal(&env::temp_dir()))
}

/// Names of temporary files are ASCII, and so is their folder in the container.
fn path_text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Reads the output of `uv pip compile`: `NAME==VERSION`, then the hashes in continued lines.
fn parse_compiled(lines: &[String]) -> Vec<LockedPackage> {
    let mut found: Vec<LockedPackage> = Vec::new();
    for word in lines.iter().flat_map(|line| line.split_whitespace()) {
        if let Some(hash) = word.strip_prefix("--hash=") {
            if let Some(package) = found.last_mut() {
                package.hashes.push(hash.into());
            }
        } else if let Some((name, version)) = word.split_once("==") {
            found.push(LockedPackage {
                name: name.into(),
                version: version.into(),
                hashes: Vec::new(),
            });
        }
    }
    found
}

fn explain_unresolved(failure: InstallerFailure, requested: &[String]) -> PackageChangeRefusal {
    // uv breaks its sentences at the width of a terminal.
    let words = failure
        .messages
        .iter()
        .flat_map(|line| line.split_whitespace());
    let words = words.collect::<Vec<_>>().join(" ");
    if words.contains(UV_NOT_FOUND) {
        let is_named = |package: &&String| {
            let name = pip_name(package);
            words.contains(&format!("Because {name} {UV_NOT_FOUND}"))
                || words.contains(&format!("because {name} {UV_NOT_FOUND}"))
                || words.contains(&format!("and {name} {UV_NOT_FOUND}"))
        };
        if let Some(package) = requested.iter().find(is_named) {
            return missing_package(PackageKind::Pip, package);
        }
    }
    match words.split_once("Because ") {
        Some((_, why)) => {
            let error = format!("no versions fit together: {why} Nothing was changed");
            usage_refusal(error, "name another version: `osctl add NAME==VERSION`")
        }
        None => failure.into_refusal(),
    }
}

#[cfg(test)]
mod tests {
    use super::{find_commands, parse_compiled};
    use crate::protocol::packages::{LockedPackages, PackageKind};
    use std::fs;

    #[test]
    fn the_commands_of_requested_packages_are_found() {
        let environment = tempfile::tempdir().unwrap();
        let packages = environment.path().join("lib/python3.13/site-packages");
        for (name, record) in [
            (
                "mcp_server_time-1.0.dist-info",
                "../../../bin/mcp-server-time,sha256=a,1\n../../../bin/..,,\n../../../bin/a/b,,\nmcp_server_time/__init__.py,,\n",
            ),
            ("other-1.0.dist-info", "../../../bin/other,,\n"),
        ] {
            fs::create_dir_all(packages.join(name)).unwrap();
            fs::write(packages.join(name).join("RECORD"), record).unwrap();
        }
        let requested = ["mcp-server-time".to_owned(), "missing".to_owned()];
        let found = find_commands(environment.path(), &requested.into());
        assert_eq!(found, ["mcp-server-time"]);
    }

    #[test]
    fn the_output_of_uv_becomes_a_lock() {
        let hash = |digit: &str| format!("sha256:{}", digit.repeat(64));
        let text = format!(
            "polars==1.35.2 \\\n    --hash={} \\\n    --hash={}\npolars-runtime-32==1.35.2 \\\n    --hash={}\n",
            hash("a"),
            hash("b"),
            hash("c")
        );
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let packages = parse_compiled(&lines);
        let named: Vec<_> = packages
            .iter()
            .map(|p| (p.name.as_str(), p.hashes.len()))
            .collect();
        assert_eq!(named, [("polars", 2), ("polars-runtime-32", 1)]);
        let locked = LockedPackages {
            requested: vec!["polars".into()],
            packages,
            lockfile: None,
        };
        locked.check(PackageKind::Pip).unwrap();
    }
}
