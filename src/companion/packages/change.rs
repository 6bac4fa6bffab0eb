//! Changes of the project's files, with the installation that they record.

use super::{
    MessageReporter, PackageInstaller, PackageRequest, PackageResult, file_refusal, usage_refusal,
    yaml_edit,
};
use crate::atomic_write::{Durability, atomic_write_as};
use crate::protocol::packages::{
    LOCK_FILE, ListedPackage, MAX_LOCK_FILE_BYTES, MAX_PROJECT_FILE_BYTES, PACKAGES_FOLDER,
    PROJECT_FILE, PackageChange, PackageChangeRefusal, PackageChangeReply, PackageKind,
    PackageLists, PackageLock, check_package, list_packages,
};
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// The mode of the project's files: the person on the host reads them, too.
const PROJECT_FILE_MODE: u32 = 0o644;

/// The project as the container sees it.
pub(crate) struct PackageProject {
    folder: PathBuf,
}

/// The project's files, as read.
struct ProjectPackages {
    text: String,
    lists: PackageLists,
    lock: PackageLock,
}

impl PackageProject {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Applies a change: installs, then writes the project's files.
    ///
    /// # Errors
    /// When a package can't be installed or a file can't be changed; the project's files are then unchanged.
    pub(crate) fn change(
        &self,
        change: &PackageChange,
        report: MessageReporter<'_>,
    ) -> PackageResult<PackageChangeReply> {
        if let PackageChange::List = change {
            let project = self.read()?;
            return Ok(PackageChangeReply {
                changed: Vec::new(),
                packages: list_packages(&project.lists, &project.lock),
            });
        }
        let _lock = lock_packages(Path::new(PACKAGES_FOLDER), report)?;
        let mut project = self.read()?;
        let before = list_packages(&project.lists, &project.lock);
        let mut after = project.lists.clone();
        let changes = change_lists(change, &mut after)?;
        let mut text = project.text.clone();
        for kind in PackageKind::ALL_KINDS {
            text = yaml_edit::set_packages(&text, kind, project.lists.of(kind), after.of(kind))?;
        }
        if PackageLists::from_project_file(&text).as_ref() != Ok(&after) {
            return Err(yaml_edit::uneditable_refusal());
        }
        let installer = PackageInstaller::new(report);
        for (kind, added) in changes {
            let request = PackageRequest {
                requested: after.of(kind),
                added: &added,
                locked: project.lock.of(kind, project.lists.of(kind)),
            };
            let locked = installer.install_request(kind, request)?;
            project.lock.set(kind, locked);
        }
        self.write(&project, &after, &text)?;
        let packages = list_packages(&after, &project.lock);
        Ok(PackageChangeReply {
            changed: changed_packages(change, before, &packages),
            packages,
        })
    }

    fn read(&self) -> PackageResult<ProjectPackages> {
        let text = self.read_file(PROJECT_FILE, MAX_PROJECT_FILE_BYTES)?;
        let text =
            String::from_utf8(text).map_err(|_| unusable(PROJECT_FILE, "it is not UTF-8"))?;
        let lists = PackageLists::from_project_file(&text);
        let lists = lists.map_err(|why| unusable(PROJECT_FILE, &why))?;
        let lock = match self.read_file(LOCK_FILE, MAX_LOCK_FILE_BYTES)? {
            empty if empty.is_empty() => PackageLock::default(),
            text => PackageLock::parse(&text).map_err(|why| unusable(LOCK_FILE, &why))?,
        };
        Ok(ProjectPackages { text, lists, lock })
    }

    /// The content of a regular file; empty if the file is missing.
    fn read_file(&self, name: &str, limit: u64) -> PackageResult<Vec<u8>> {
        let path = self.folder.join(name);
        let mut options = OpenOptions::new();
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
        let opened = options.read(true).custom_flags(flags).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(file_refusal(&path)(error)),
        };
        let mut content = Vec::new();
        let found = file.metadata().map_err(file_refusal(&path))?;
        let read = file.take(limit + 1).read_to_end(&mut content);
        match found.is_file() && read.map_err(file_refusal(&path))? as u64 <= limit {
            true => Ok(content),
            false => Err(unusable(name, "it is not a regular file, or is too large")),
        }
    }

    fn write(
        &self,
        project: &ProjectPackages,
        after: &PackageLists,
        text: &str,
    ) -> PackageResult<()> {
        let lock = self.folder.join(LOCK_FILE);
        if !project.lock.is_empty() {
            let content = serde_json::to_string_pretty(&project.lock);
            let content = content.map_err(|error| file_refusal(&lock)(error.into()))?;
            self.write_file(&lock, &format!("{content}\n"))?;
        } else if lock.exists() {
            fs::remove_file(&lock).map_err(file_refusal(&lock))?;
        }
        if project.lists != *after {
            self.write_file(&self.folder.join(PROJECT_FILE), text)?;
        }
        Ok(())
    }

    /// Replaces a file, which belongs to the owner of the file before or of the project.
    fn write_file(&self, path: &Path, text: &str) -> PackageResult<()> {
        let write = || -> io::Result<()> {
            let before = fs::symlink_metadata(path);
            let mode = before
                .as_ref()
                .map_or(PROJECT_FILE_MODE, |before| before.mode() & 0o777);
            let owner = before.or_else(|_| fs::metadata(&self.folder))?;
            let permissions = Permissions::from_mode(mode);
            let content = text.as_bytes();
            let file = atomic_write_as(path, content, Some(permissions), Durability::DataSynced)?;
            fchown(&file, Some(owner.uid()), Some(owner.gid()))
        };
        write().map_err(file_refusal(path))
    }
}

/// Changes the lists; returns the installers to run with the packages that get their newest version.
fn change_lists(
    change: &PackageChange,
    lists: &mut PackageLists,
) -> PackageResult<Vec<(PackageKind, Vec<String>)>> {
    match change {
        PackageChange::List => Ok(Vec::new()),
        PackageChange::Lock => {
            let kinds = PackageKind::ALL_KINDS.into_iter();
            let kinds = kinds.filter(|kind| !lists.of(*kind).is_empty());
            Ok(kinds.map(|kind| (kind, lists.of(kind).to_vec())).collect())
        }
        PackageChange::Add { kind, packages } => {
            let kind = *kind;
            for package in packages {
                let checked = check_package(kind, package);
                checked
                    .map_err(|why| usage_refusal(why, "name packages, with a version if needed"))?;
                let name = kind.comparable_name(package);
                let list = lists.of_mut(kind);
                match list
                    .iter_mut()
                    .find(|known| kind.comparable_name(known) == name)
                {
                    Some(known) => known.clone_from(package),
                    None => list.push(package.clone()),
                }
            }
            Ok(vec![(kind, packages.clone())])
        }
        PackageChange::Remove { kind, packages } => {
            let mut changed = Vec::new();
            for package in packages {
                let kind = find_kind(lists, *kind, package)?;
                let name = kind.comparable_name(package);
                let list = lists.of_mut(kind);
                list.retain(|known| kind.comparable_name(known) != name);
                if !changed.contains(&(kind, Vec::new())) {
                    changed.push((kind, Vec::new()));
                }
            }
            Ok(changed)
        }
    }
}

/// The installer of a listed package.
fn find_kind(
    lists: &PackageLists,
    named: Option<PackageKind>,
    package: &str,
) -> PackageResult<PackageKind> {
    let has = |kind: &PackageKind| {
        let name = kind.comparable_name(package);
        lists
            .of(*kind)
            .iter()
            .any(|known| kind.comparable_name(known) == name)
    };
    let kinds = PackageKind::ALL_KINDS.into_iter();
    let kinds = kinds.filter(|kind| named.is_none_or(|named| named == *kind));
    let found: Vec<PackageKind> = kinds.filter(has).collect();
    match found.as_slice() {
        [kind] => Ok(*kind),
        [] => {
            let error = format!(
                "`{PROJECT_FILE}` does not list `{}`",
                package.escape_debug()
            );
            Err(usage_refusal(
                error,
                "`osctl packages` lists the project's packages",
            ))
        }
        [first, ..] => {
            let error = format!("several installers have `{package}`; nothing was changed");
            Err(usage_refusal(
                error,
                format!("name one: `osctl remove --{first} {package}`"),
            ))
        }
    }
}

/// The packages that differ, and those that were named to be added.
fn changed_packages(
    change: &PackageChange,
    before: Vec<ListedPackage>,
    after: &[ListedPackage],
) -> Vec<ListedPackage> {
    if let PackageChange::Remove { .. } = change {
        let is_gone = |listed: &ListedPackage| {
            !after
                .iter()
                .any(|left| (left.kind, &left.package) == (listed.kind, &listed.package))
        };
        return before.into_iter().filter(is_gone).collect();
    }
    let is_named = |listed: &&ListedPackage| match change {
        PackageChange::Add { kind, packages } => {
            listed.kind == *kind && packages.contains(&listed.package)
        }
        _ => !before.contains(listed),
    };
    after.iter().filter(is_named).cloned().collect()
}

/// Held during a change: two changes at once would overwrite each other's files.
fn lock_packages(folder: &Path, report: MessageReporter<'_>) -> PackageResult<File> {
    let path = folder.join("change.lock");
    let lock = || -> io::Result<File> {
        fs::create_dir_all(folder)?;
        let file = File::create(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                report("waiting for another change of the packages");
                file.lock()?;
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(file)
    };
    lock().map_err(file_refusal(&path))
}

fn unusable(name: &str, why: &str) -> PackageChangeRefusal {
    let hint = match name {
        LOCK_FILE => "remove the file; `osctl packages lock` writes it again",
        _ => {
            "correct `packages` in the file: names with optional versions, for example `pip: [polars]`"
        }
    };
    usage_refusal(
        format!("`{name}` of the project can't be used: {why}"),
        hint,
    )
}

#[cfg(test)]
mod tests {
    use super::{change_lists, lock_packages};
    use crate::protocol::packages::{PackageChange, PackageKind, PackageLists};
    use std::sync::Mutex;

    fn lists() -> PackageLists {
        let text = "packages: {apt: [jq, both], pip: ['polars==1', both], npm: ['@a/b@1.0.0']}";
        PackageLists::from_project_file(text).unwrap()
    }

    #[test]
    fn an_added_package_replaces_the_one_of_the_same_name() {
        for (kind, package, expected) in [
            (PackageKind::Pip, "Polars==2", vec!["Polars==2", "both"]),
            (PackageKind::Pip, "x", vec!["polars==1", "both", "x"]),
            (PackageKind::Npm, "@a/b", vec!["@a/b"]),
            (PackageKind::Apt, "jq=1", vec!["jq=1", "both"]),
        ] {
            let mut lists = lists();
            let packages = vec![package.to_owned()];
            let change = PackageChange::Add {
                kind,
                packages: packages.clone(),
            };
            assert_eq!(
                change_lists(&change, &mut lists).unwrap(),
                [(kind, packages)]
            );
            assert_eq!(lists.of(kind), expected);
        }
    }

    #[test]
    fn a_second_change_says_that_it_waits() {
        let folder = tempfile::tempdir().unwrap();
        let first = Mutex::new(Some(lock_packages(folder.path(), &|_| panic!()).unwrap()));
        let waited = Mutex::new(Vec::new());
        let report = |line: &str| {
            waited.lock().unwrap().push(line.to_owned());
            first.lock().unwrap().take();
        };
        lock_packages(folder.path(), &report).unwrap();
        assert_eq!(
            *waited.lock().unwrap(),
            ["waiting for another change of the packages"]
        );
    }

    #[test]
    fn a_package_is_removed_by_its_name_alone() {
        let remove = |kind, package: &str| {
            let mut lists = lists();
            let packages = vec![package.to_owned()];
            let changed = change_lists(&PackageChange::Remove { kind, packages }, &mut lists);
            (changed.map_err(|refused| refused.error), lists)
        };
        let (changed, left) = remove(None, "POLARS");
        assert_eq!(changed.unwrap(), [(PackageKind::Pip, vec![])]);
        assert_eq!(left.pip, ["both"]);
        assert_eq!(remove(None, "@a/b").1.npm, [""; 0]);
        let (changed, unchanged) = remove(None, "both");
        assert!(changed.unwrap_err().contains("several installers"));
        assert_eq!(unchanged, lists());
        assert_eq!(remove(Some(PackageKind::Apt), "both").1.apt, ["jq"]);
        assert!(
            remove(None, "nope\n")
                .0
                .unwrap_err()
                .contains("does not list `nope\\n`")
        );
    }
}
