//! Packages that a project adds to its container: the names in `packages:` of the project's `osctl.yaml`, and the
//! versions and hashes in `osctl.lock` beside it.
//!
//! The agent can write both files. A package is a name with an optional version in the notation of its installer, and
//! nothing else: no option, address, path or text for a shell. The checks run wherever the files are read, and the
//! files for the installers are generated from the checked values.

use super::quote::quote_word;
use super::yaml::{describe_type_error, has_anchor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The project's files.
pub const PROJECT_FILE: &str = "osctl.yaml";
pub const LOCK_FILE: &str = "osctl.lock";

/// Maximum sizes of the project's files.
pub const MAX_PROJECT_FILE_BYTES: u64 = 64 << 10;
pub const MAX_LOCK_FILE_BYTES: u64 = 8 << 20;

/// The folder in the container with a folder for each installer's files.
pub const PACKAGES_FOLDER: &str = "/opt/osctl/packages";

const MAX_PACKAGES: usize = 200;
const MAX_PACKAGE_BYTES: usize = 128;

/// The installer of a package.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum PackageKind {
    /// Debian packages.
    Apt,
    /// npm packages.
    Npm,
    /// Python packages of the kernel's environment.
    Pip,
}

impl PackageKind {
    /// In the order of the image's layers.
    pub const ALL_KINDS: [Self; 3] = [Self::Apt, Self::Npm, Self::Pip];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apt => "apt",
            Self::Npm => "npm",
            Self::Pip => "pip",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL_KINDS
            .into_iter()
            .find(|kind| kind.as_str() == word)
    }

    /// Between a name and its version.
    fn version_separator(self) -> &'static str {
        match self {
            Self::Apt => "=",
            Self::Npm => "@",
            Self::Pip => "==",
        }
    }

    fn example(self) -> &'static str {
        match self {
            Self::Apt => "`jq` or `jq=1.7.1-6`",
            Self::Npm => "`cowsay`, `@types/node` or `cowsay@1.6.0`",
            Self::Pip => "`polars`, `polars==1.35.2` or `pandas[excel]`",
        }
    }

    /// The exact package, as the installer takes it.
    pub fn exact(self, name: &str, version: &str) -> String {
        format!("{name}{}{version}", self.version_separator())
    }

    /// The name and the version of a package that [`check_package`] accepts. The name is without extras.
    pub fn split(self, package: &str) -> (&str, Option<&str>) {
        // The name of an npm package may begin with the separator.
        let begin = usize::from(package.starts_with('@'));
        let (name, version) = match package[begin..].split_once(self.version_separator()) {
            Some((name, version)) => (&package[..begin + name.len()], Some(version)),
            None => (package, None),
        };
        let name = name.split_once('[').map_or(name, |(name, _)| name);
        (name, version)
    }

    /// The name for comparison: PyPI's names are equal in any case and with any of the separators `-`, `_` and `.`.
    pub fn comparable_name(self, package: &str) -> String {
        let (name, _) = self.split(package);
        match self {
            Self::Pip => {
                let words = name.split(['-', '_', '.']).filter(|word| !word.is_empty());
                words.collect::<Vec<_>>().join("-").to_lowercase()
            }
            Self::Apt | Self::Npm => name.to_owned(),
        }
    }
}

impl fmt::Display for PackageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Checks that a package is a name with an optional version.
///
/// # Errors
/// A sentence with the package and the notation.
pub fn check_package(kind: PackageKind, package: &str) -> Result<(), String> {
    let (name, version) = kind.split(package);
    let extras = package[name.len()..].strip_prefix('[').map(|rest| {
        let (inner, _) = rest.split_once(']').unwrap_or(("", ""));
        // The text between the extras and the version must be empty.
        (inner, name.len() + inner.len() + 2)
    });
    let end = extras.map_or(name.len(), |(_, end)| end);
    let version_length = version.map_or(0, |v| kind.version_separator().len() + v.len());
    let is_word = |text: &str, others: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || others.contains(c))
    };
    let fits_name = match kind {
        PackageKind::Apt => is_word(name, "+.-") && !name.contains(|c: char| c.is_uppercase()),
        PackageKind::Pip => is_word(name, "._-") && !name.ends_with(['.', '_', '-']),
        PackageKind::Npm => match name.strip_prefix('@') {
            Some(scoped) => scoped
                .split_once('/')
                .is_some_and(|(scope, name)| is_word(scope, "._-") && is_word(name, "._-")),
            None => is_word(name, "._-"),
        },
    };
    let fits_extras = extras.is_none_or(|(inner, _)| {
        kind == PackageKind::Pip && inner.split(',').all(|extra| is_word(extra, "._-"))
    });
    let fits_version = version.is_none_or(|version| match kind {
        PackageKind::Apt => is_word(version, ".+:~-"),
        PackageKind::Pip => is_word(version, ".+!_-"),
        PackageKind::Npm => {
            is_word(version, ".+-") && version.starts_with(|c: char| c.is_ascii_digit())
        }
    });
    let is_complete = end + version_length == package.len() && package.len() <= MAX_PACKAGE_BYTES;
    match fits_name && fits_extras && fits_version && is_complete {
        true => Ok(()),
        false => {
            let shown: String = package.escape_debug().take(MAX_PACKAGE_BYTES).collect();
            Err(format!(
                "`{shown}` is not a package of {kind}: write {}",
                kind.example()
            ))
        }
    }
}

/// The packages that a project asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedPackages")]
pub struct PackageLists {
    pub apt: Vec<String>,
    pub npm: Vec<String>,
    pub pip: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UncheckedPackages {
    #[serde(default)]
    apt: Option<Vec<String>>,
    #[serde(default)]
    npm: Option<Vec<String>>,
    #[serde(default)]
    pip: Option<Vec<String>>,
}

impl TryFrom<UncheckedPackages> for PackageLists {
    type Error = String;

    fn try_from(unchecked: UncheckedPackages) -> Result<Self, String> {
        let UncheckedPackages { apt, npm, pip } = unchecked;
        let lists = Self {
            apt: apt.unwrap_or_default(),
            npm: npm.unwrap_or_default(),
            pip: pip.unwrap_or_default(),
        };
        for kind in PackageKind::ALL_KINDS {
            check_packages(kind, lists.of(kind))?;
        }
        Ok(lists)
    }
}

/// Checks each package of a list, and that no name is repeated.
fn check_packages(kind: PackageKind, packages: &[String]) -> Result<(), String> {
    if packages.len() > MAX_PACKAGES {
        return Err(format!("`{kind}` has more than {MAX_PACKAGES} packages"));
    }
    let mut names = BTreeSet::new();
    for package in packages {
        check_package(kind, package)?;
        if !names.insert(kind.comparable_name(package)) {
            return Err(format!("`{kind}` has `{package}` twice"));
        }
    }
    Ok(())
}

impl PackageLists {
    pub fn of(&self, kind: PackageKind) -> &[String] {
        match kind {
            PackageKind::Apt => &self.apt,
            PackageKind::Npm => &self.npm,
            PackageKind::Pip => &self.pip,
        }
    }

    pub fn of_mut(&mut self, kind: PackageKind) -> &mut Vec<String> {
        match kind {
            PackageKind::Apt => &mut self.apt,
            PackageKind::Npm => &mut self.npm,
            PackageKind::Pip => &mut self.pip,
        }
    }

    /// Reads `packages:` of a project's `osctl.yaml`; other keys are not checked.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn from_project_file(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct ProjectFile {
            packages: Option<PackageLists>,
        }
        if has_anchor(text) {
            return Err("anchors and aliases are not allowed".into());
        }
        let file: Option<ProjectFile> =
            serde_yaml::from_str(text).map_err(|error| describe_type_error(&error.to_string()))?;
        Ok(file.and_then(|file| file.packages).unwrap_or_default())
    }
}

/// The versions of a project's packages: the content of `osctl.lock`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PackageLock {
    kinds: BTreeMap<PackageKind, LockedPackages>,
}

/// The versions of one installer's packages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedPackages {
    /// The packages of `osctl.yaml` that were locked. If the file has other packages now, the versions do not count.
    pub requested: Vec<String>,
    /// pip: the packages and all that they need beyond the kernel's own. apt and npm: the requested packages.
    pub packages: Vec<LockedPackage>,
    /// npm's own lock file, which also has the packages that the requested ones need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lockfile: Option<Value>,
}

/// A package with its exact version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedPackage {
    pub name: String,
    pub version: String,
    /// `sha256:` and hexadecimal digits, one for each file of the version; only pip has them here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<String>,
}

impl PackageLock {
    /// Reads and checks `osctl.lock`.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let lock: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        for (kind, locked) in &lock.kinds {
            locked.check(*kind)?;
        }
        Ok(lock)
    }

    /// The versions, if they were locked for exactly these packages.
    pub fn of(&self, kind: PackageKind, requested: &[String]) -> Option<&LockedPackages> {
        let locked = self.kinds.get(&kind)?;
        let words = |packages: &[String]| packages.iter().cloned().collect::<BTreeSet<_>>();
        (words(&locked.requested) == words(requested)).then_some(locked)
    }

    pub fn set(&mut self, kind: PackageKind, locked: LockedPackages) {
        match locked.requested.is_empty() {
            true => self.kinds.remove(&kind),
            false => self.kinds.insert(kind, locked),
        };
    }

    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}

impl LockedPackages {
    /// Checks every value: the file may be hostile.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn check(&self, kind: PackageKind) -> Result<(), String> {
        check_packages(kind, &self.requested)?;
        for LockedPackage {
            name,
            version,
            hashes,
        } in &self.packages
        {
            let package = kind.exact(name, version);
            check_package(kind, &package)?;
            if kind.split(&package) != (name.as_str(), Some(version.as_str())) {
                return Err(format!("`{}` is not a name", name.escape_debug()));
            }
            let is_hash = |hash: &String| {
                hash.strip_prefix("sha256:").is_some_and(|digits| {
                    digits.len() == 64 && digits.chars().all(|c| c.is_ascii_hexdigit())
                })
            };
            let has_hashes = match kind {
                PackageKind::Pip => !hashes.is_empty() && hashes.iter().all(is_hash),
                PackageKind::Apt | PackageKind::Npm => hashes.is_empty(),
            };
            if !has_hashes {
                return Err(format!("the hashes of `{package}` are not valid"));
            }
        }
        match (kind, &self.lockfile) {
            (PackageKind::Npm, Some(lockfile)) => check_npm_lockfile(lockfile),
            (PackageKind::Npm, None) | (_, Some(_)) => Err(format!(
                "`lockfile` does not belong to {kind}, or is missing"
            )),
            _ => Ok(()),
        }
    }
}

/// Checks that npm's lock file names packages by version and hash, and neither addresses nor folders.
fn check_npm_lockfile(lockfile: &Value) -> Result<(), String> {
    let packages = lockfile.get("packages").and_then(Value::as_object);
    let packages = packages.ok_or("npm's lock file has no `packages`")?;
    for (place, package) in packages.iter().filter(|(place, _)| !place.is_empty()) {
        let shown = place.escape_debug();
        let has = |key: &str| package.get(key).is_some();
        if has("resolved") || has("link") {
            return Err(format!("`{shown}` in npm's lock file has an address"));
        }
        let integrity = package.get("integrity").and_then(Value::as_str);
        let is_bundled = package.get("inBundle") == Some(&json!(true));
        if !is_bundled && !integrity.is_some_and(|hash| hash.starts_with("sha512-")) {
            return Err(format!("`{shown}` in npm's lock file has no hash"));
        }
        let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.');
        if !place.starts_with("node_modules/") || !place.split('/').all(is_plain) {
            return Err(format!("`{shown}` in npm's lock file is not a package"));
        }
    }
    Ok(())
}

/// The files that an installer reads, by their paths beneath [`PACKAGES_FOLDER`].
pub fn installer_files(
    kind: PackageKind,
    requested: &[String],
    locked: Option<&LockedPackages>,
) -> BTreeMap<String, Vec<u8>> {
    let file = |name: &str, text: String| (format!("{kind}/{name}"), text.into_bytes());
    let lines = |lines: Vec<String>| lines.iter().map(|line| format!("{line}\n")).collect();
    if kind == PackageKind::Npm {
        let mut files = BTreeMap::from([file(NPM_MANIFEST, npm_manifest(requested).to_string())]);
        let lockfile = locked.and_then(|locked| locked.lockfile.as_ref());
        files.extend(lockfile.map(|lockfile| file(NPM_LOCKFILE, lockfile.to_string())));
        return files;
    }
    let exact = |package: &LockedPackage| {
        let hashes = package.hashes.iter();
        let hashes: String = hashes.map(|hash| format!(" --hash={hash}")).collect();
        kind.exact(&package.name, &package.version) + &hashes
    };
    let text = match locked {
        Some(locked) => lines(locked.packages.iter().map(exact).collect()),
        None => lines(requested.to_vec()),
    };
    let mut files = BTreeMap::from([file(PACKAGE_LIST, text)]);
    if kind == PackageKind::Pip && locked.is_some() {
        files.extend([file(REQUESTED_LIST, lines(requested.to_vec()))]);
    }
    files
}

/// The files of installers: the list of apt and pip, and those of npm.
pub const PACKAGE_LIST: &str = "packages.txt";
/// The requested packages, if the list of pip has also those that they need.
pub const REQUESTED_LIST: &str = "requested.txt";
pub const NPM_MANIFEST: &str = "package.json";
pub const NPM_LOCKFILE: &str = "package-lock.json";

/// npm's manifest. A package without a version matches any version.
fn npm_manifest(requested: &[String]) -> Value {
    let dependencies: BTreeMap<&str, &str> = requested
        .iter()
        .map(|package| {
            let (name, version) = PackageKind::Npm.split(package);
            (name, version.unwrap_or("*"))
        })
        .collect();
    json!({"name": "packages", "private": true, "dependencies": dependencies})
}

/// A package of a project, as `osctl packages` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListedPackage {
    pub kind: PackageKind,
    /// The package as it is in `osctl.yaml`.
    pub package: String,
    /// The version in `osctl.lock`; `null` if the package is not locked.
    pub version: Option<String>,
}

/// The packages of both files.
pub fn list_packages(lists: &PackageLists, lock: &PackageLock) -> Vec<ListedPackage> {
    let mut listed = Vec::new();
    for kind in PackageKind::ALL_KINDS {
        let requested = lists.of(kind);
        let locked = lock.of(kind, requested);
        for package in requested {
            let name = kind.comparable_name(package);
            let mut packages = locked.iter().flat_map(|locked| &locked.packages);
            let found = packages.find(|locked| kind.comparable_name(&locked.name) == name);
            listed.push(ListedPackage {
                kind,
                package: package.clone(),
                version: found.map(|locked| locked.version.clone()),
            });
        }
    }
    listed
}

/// A change of the project's packages, or a request to lock them: `osctl change-packages`, run by the host inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum PackageChange {
    Add {
        kind: PackageKind,
        packages: Vec<String>,
    },
    /// Packages by name, of the installer if it is given.
    Remove {
        kind: Option<PackageKind>,
        packages: Vec<String>,
    },
    /// Install all packages of `osctl.yaml` and lock them.
    Lock,
    List,
}

/// Begins the command of the host for a change.
const CHANGE_COMMAND_PREFIX: &str = "/opt/osctl/bin/osctl change-packages ";

impl PackageChange {
    /// The command that applies the change in the container.
    pub fn inside_command(&self) -> String {
        let document = json!(self).to_string();
        format!(
            "{CHANGE_COMMAND_PREFIX}{}",
            quote_word(document.as_bytes(), false)
        )
    }

    /// Reads exactly what [`Self::inside_command`] writes.
    pub fn from_inside_command(command: &str) -> Option<Self> {
        let word = command.strip_prefix(CHANGE_COMMAND_PREFIX)?;
        let document = word.strip_prefix('\'')?.strip_suffix('\'')?;
        let change: Self = serde_json::from_str(&document.replace("'\\''", "'")).ok()?;
        (change.inside_command() == command).then_some(change)
    }

    /// The command of osctl that a person writes for the change.
    pub fn osctl_command(&self) -> String {
        let (verb, kind, packages) = match self {
            Self::Add { kind, packages } => {
                let named = (*kind != PackageKind::Pip).then_some(*kind);
                ("add", named, packages)
            }
            Self::Remove { kind, packages } => ("remove", *kind, packages),
            Self::Lock => return "osctl packages lock".into(),
            Self::List => return "osctl packages".into(),
        };
        let option = kind.map_or_else(String::new, |kind| format!(" --{kind}"));
        format!("osctl {verb}{option} {}", packages.join(" "))
    }
}

/// The result of a [`PackageChange`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageChangeReply {
    /// The packages that were added or removed, with the added versions.
    pub changed: Vec<ListedPackage>,
    /// All packages of the project, afterwards.
    pub packages: Vec<ListedPackage>,
}

/// What the inside says instead of a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageChangeRefusal {
    pub error: String,
    pub hint: String,
    /// Whether the request names a package that does not exist, or that the project does not list.
    pub is_usage: bool,
}

#[cfg(test)]
mod tests;
