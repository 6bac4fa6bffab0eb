//! The packages of a project as the last layers of its image: one layer per installer.
//!
//! The body stays as it is; steps are appended to its Dockerfile, and their files to its files. They begin with `COPY`
//! of one installer's files, so a changed list rebuilds that installer's layer and the ones after it.

use super::body::{Body, CONTEXT_PACKAGES_FOLDER};
use crate::archive::Folder;
use crate::error::{Error, Result};
use crate::protocol::packages::{
    LOCK_FILE, MAX_LOCK_FILE_BYTES, MAX_PROJECT_FILE_BYTES, PACKAGES_FOLDER, PROJECT_FILE,
    PackageKind, PackageLists, PackageLock, installer_files,
};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

/// Adds the project's packages to its body.
///
/// # Errors
/// When a file of the project can't be used.
pub(super) fn add_project_packages(body: &mut Body, project: &Path) -> Result<()> {
    let lists = match read_project_file(project, PROJECT_FILE, MAX_PROJECT_FILE_BYTES)? {
        Some(text) => {
            let text = String::from_utf8(text).map_err(|_| "it is not UTF-8".to_owned());
            text.and_then(|text| PackageLists::from_project_file(&text))
                .map_err(|why| unusable_file_error(project, PROJECT_FILE, &why))?
        }
        None => PackageLists::default(),
    };
    if lists == PackageLists::default() {
        return Ok(());
    }
    let lock = match read_project_file(project, LOCK_FILE, MAX_LOCK_FILE_BYTES)? {
        Some(text) => PackageLock::parse(&text)
            .map_err(|why| unusable_file_error(project, LOCK_FILE, &why))?,
        None => PackageLock::default(),
    };
    append_package_layers(body, &lists, &lock);
    Ok(())
}

fn append_package_layers(body: &mut Body, lists: &PackageLists, lock: &PackageLock) {
    let mut steps = String::from("\nUSER root\n");
    for kind in PackageKind::ALL_KINDS {
        let requested = lists.of(kind);
        if requested.is_empty() {
            continue;
        }
        let locked = lock.of(kind, requested);
        if locked.is_none() {
            body.unlocked.push(kind);
        }
        for (path, content) in installer_files(kind, requested, locked) {
            let path = format!("{CONTEXT_PACKAGES_FOLDER}/{path}");
            body.files.insert(path, content);
        }
        // Words instead of text for a shell, so that a `SHELL` of the body does not change the step.
        steps.push_str(&format!(
            "COPY {CONTEXT_PACKAGES_FOLDER}/{kind}/ {PACKAGES_FOLDER}/{kind}/\n\
             RUN {}[\"/opt/osctl/bin/osctl\", \"install-packages\", \"{kind}\"]\n",
            cache_mounts(kind)
        ));
    }
    let dockerfile = body.files.entry("Dockerfile".into()).or_default();
    body.packages_line = Some(dockerfile.iter().filter(|byte| **byte == b'\n').count() + 1);
    dockerfile.extend_from_slice(steps.as_bytes());
}

/// The caches of the installer, with the ids of the default Dockerfile.
fn cache_mounts(kind: PackageKind) -> String {
    let mounts: &[&str] = match kind {
        PackageKind::Apt => &[
            "id=apt-archives,target=/var/cache/apt,sharing=locked",
            "id=apt-lists,target=/var/lib/apt/lists,sharing=locked",
        ],
        PackageKind::Npm => &["id=npm,target=/root/.npm"],
        PackageKind::Pip => &["id=uv,target=/root/.cache/uv"],
    };
    let mounts = mounts.iter();
    mounts
        .map(|mount| format!("--mount=type=cache,{mount} "))
        .collect()
}

/// The content of a file of the project; `None` if it is missing.
fn read_project_file(project: &Path, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
    let folder = Folder::open(project);
    let read = folder.and_then(|folder| folder.read_file(OsStr::new(name), limit));
    match read {
        Ok(Some(content)) => Ok(Some(content)),
        Ok(None) => Err(unusable_file_error(
            project,
            name,
            "it is not a regular file",
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let why = format!("it is larger than {limit} bytes");
            Err(unusable_file_error(project, name, &why))
        }
        Err(error) => Err(unusable_file_error(project, name, &error.to_string())),
    }
}

fn unusable_file_error(project: &Path, name: &str, why: &str) -> anyhow::Error {
    let file = project.join(name);
    let hint = match name {
        LOCK_FILE => "remove the file; `osctl packages lock` writes it again",
        _ => {
            "correct `packages` in the file: names with optional versions, for example `pip: [polars]`"
        }
    };
    Error::precondition(format!("`{}` can't be used: {why}", file.display()), hint).into()
}

#[cfg(test)]
mod tests {
    use crate::image::{Body, BodyReadLimit, DockerfileDialect, permit_dockerfile};
    use crate::protocol::packages::PackageKind;
    use std::fs;
    use std::path::Path;

    fn body(project: &Path) -> crate::error::Result<Body> {
        let limit = BodyReadLimit::with_max_bytes(64 << 20);
        Body::from_project_within(project, Path::new("body"), limit)
    }

    #[test]
    fn packages_are_the_last_layers_of_the_default_body() {
        let project = tempfile::tempdir().unwrap();
        let usual = body(project.path()).unwrap();
        let text = "packages: {pip: [polars], apt: [jq, fd-find], npm: [cowsay]}";
        fs::write(project.path().join("osctl.yaml"), text).unwrap();
        let added = body(project.path()).unwrap();
        assert_eq!(added.unlocked, PackageKind::ALL_KINDS);
        assert_eq!(
            added.files[".osctl/packages/apt/packages.txt"],
            b"jq\nfd-find\n"
        );
        let before = permit_dockerfile(&usual, "s", DockerfileDialect::BuildKit).unwrap();
        let after = permit_dockerfile(&added, "s", DockerfileDialect::BuildKit).unwrap();
        let steps = after.text.strip_prefix(&before.text).unwrap();
        let installs: Vec<_> = steps
            .lines()
            .filter(|line| line.starts_with("RUN"))
            .collect();
        for (line, kind) in installs.iter().zip(["apt", "npm", "pip"]) {
            let words = format!("[\"/opt/osctl/bin/osctl\", \"install-packages\", \"{kind}\"]");
            assert!(line.ends_with(&words), "{line}");
            assert!(line.contains("id=s/"), "{line}");
        }
        assert_eq!(installs.len(), 3);
        let classic = permit_dockerfile(&added, "s", DockerfileDialect::Classic).unwrap();
        assert!(
            classic
                .text
                .contains("RUN [\"/opt/osctl/bin/osctl\", \"install-packages\", \"pip\"]\n")
        );
    }

    #[test]
    fn a_lock_of_other_packages_does_not_count() {
        let project = tempfile::tempdir().unwrap();
        let lock =
            r#"{"apt": {"requested": ["jq"], "packages": [{"name": "jq", "version": "1.7"}]}}"#;
        fs::write(project.path().join("osctl.lock"), lock).unwrap();
        for (packages, list, is_locked) in [("jq", "jq=1.7\n", true), ("jq=1.6", "jq=1.6\n", false)]
        {
            let text = format!("packages: {{apt: ['{packages}']}}");
            fs::write(project.path().join("osctl.yaml"), text).unwrap();
            let added = body(project.path()).unwrap();
            assert_eq!(
                added.files[".osctl/packages/apt/packages.txt"],
                list.as_bytes()
            );
            assert_eq!(added.unlocked.is_empty(), is_locked);
        }
    }

    #[test]
    fn hostile_files_are_refused_and_links_are_not_followed() {
        let project = tempfile::tempdir().unwrap();
        let (own, lock) = (
            project.path().join("osctl.yaml"),
            project.path().join("osctl.lock"),
        );
        for (text, expected) in [
            ("packages: {apt: ['jq\\nRUN x']}", "is not a package of apt"),
            (
                "packages: {pip: [\"a\\nRUN x\"]}",
                "is not a package of pip",
            ),
            ("packages: {apt: &a [jq]}", "anchors"),
            ("packages: [", "can't be used"),
        ] {
            fs::write(&own, text).unwrap();
            let error = body(project.path()).unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains("osctl.yaml"),
                "{error}"
            );
        }
        fs::write(&own, "packages: {apt: [jq]}").unwrap();
        fs::write(&lock, "{").unwrap();
        let error = body(project.path()).unwrap_err().to_string();
        assert!(error.contains("osctl.lock"), "{error}");
        #[cfg(unix)]
        for place in [lock, own] {
            fs::remove_file(&place).unwrap();
            std::os::unix::fs::symlink("/dev/zero", &place).unwrap();
            let error = body(project.path()).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
    }
}
