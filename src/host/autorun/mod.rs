//! Files of the project from which programs on the host run code: git hooks and settings, `.envrc`, editor tasks, agent
//! settings.
//!
//! The agent writes in the project, and a person's `git status` or editor runs the contents of these files. `up`
//! records the files ([`record_baseline`]) when it succeeds; `doctor` names those that appeared or changed since then
//! ([`find_autorun_changes`]). The scan executes nothing and follows no link. The scan is bounded, and reports when it
//! stopped early.
//!
//! This module judges neither the contents of a file nor code that a person starts by name (`make`, `npm run`).

mod git;
mod scan;

pub(crate) use scan::{AutorunScan, scan_project};

use super::folders::write_private;
use super::instance::Instance;
use crate::error::Result;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const APPEARED_SUFFIX: &str = " appeared";
const CHANGED_SUFFIX: &str = " changed";

/// The files that `up` found in the project.
#[derive(Debug, Serialize, Deserialize)]
struct AutorunBaseline {
    project: PathBuf,
    /// Digests by place.
    places: BTreeMap<String, String>,
    /// The names that the scan looked for; `None` from a version that did not record them.
    #[serde(default)]
    names: Option<BTreeSet<String>>,
}

/// The changes since the last `up` as sentences, the most dangerous first, and the scan that found them. Without an
/// earlier `up` in this project there are none.
///
/// # Errors
/// When the project or the record of the last `up` cannot be read.
pub(crate) fn find_autorun_changes(
    instance: &Instance,
    project: &Path,
) -> Result<(Vec<String>, AutorunScan)> {
    let scan = scan_project(project)
        .with_context(|| format!("reading the project `{}`", project.display()))?;
    let before = read_baseline(instance)?.filter(|before| before.project == project);
    let changes = before.map_or_else(Vec::new, |before| compare_baseline(&before, &scan.places));
    Ok((changes, scan))
}

/// Records the scan's findings as known, except changes that the user has not seen.
///
/// # Errors
/// When the state folder cannot be written.
pub(crate) fn record_baseline(
    instance: &Instance,
    project: &Path,
    scan: AutorunScan,
    unseen: &[String],
) -> Result<()> {
    let mut places = scan.places;
    places.retain(|place, _| {
        let is_of = |change: &String| {
            let how = change.strip_prefix(place.as_str());
            how.is_some_and(|how| how == APPEARED_SUFFIX || how == CHANGED_SUFFIX)
        };
        !unseen.iter().any(is_of)
    });
    let baseline = AutorunBaseline {
        project: project.into(),
        places,
        names: Some(scan::autorun_patterns()),
    };
    write_private(
        &instance.autorun_baseline(),
        &serde_json::to_vec(&baseline)?,
    )
}

fn read_baseline(instance: &Instance) -> Result<Option<AutorunBaseline>> {
    let path = instance.autorun_baseline();
    match fs::read(&path) {
        Ok(text) => {
            let read = serde_json::from_slice(&text);
            Ok(Some(read.with_context(|| {
                format!("reading `{}`", path.display())
            })?))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("reading `{}`", path.display())),
    }
}

fn compare_baseline(before: &AutorunBaseline, now: &BTreeMap<String, String>) -> Vec<String> {
    let changes = now.iter().filter_map(|(place, digest)| {
        let how = match before.places.get(place) {
            None if is_first_scan_for(before, place) => return None,
            None => APPEARED_SUFFIX,
            Some(known) if known != digest => CHANGED_SUFFIX,
            Some(_) => return None,
        };
        Some((place, how))
    });
    let mut changes: Vec<_> = changes.collect();
    // An agent can plant many files whose names sort first, to hide the file that runs most often.
    changes.sort_by_key(|(place, _)| {
        let place = place.trim_start_matches('`');
        (!place.starts_with(".git/"), place.matches('/').count())
    });
    let named = changes.iter().map(|(place, how)| format!("{place}{how}"));
    named.collect()
}

/// Whether the earlier scan did not look for this name: the file may be older than that scan.
fn is_first_scan_for(before: &AutorunBaseline, place: &str) -> bool {
    let path = place.trim_matches('`');
    let of = |names: &BTreeSet<String>| names.iter().any(|name| scan::is_pattern_match(path, name));
    let was_sought = before.names.as_ref().is_none_or(of);
    !was_sought && of(&scan::autorun_patterns())
}

#[cfg(all(test, unix))]
mod tests {
    use super::{find_autorun_changes, record_baseline};
    use crate::host::folders::Folders;
    use crate::host::instance::Instance;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn instance(home: &Path) -> Instance {
        let folders = Folders::beneath(home);
        Instance::new("default", &folders).unwrap()
    }

    /// The steps of a successful `up`; returns the changes, and why the scan stopped early.
    fn renew(
        instance: &Instance,
        project: &Path,
    ) -> crate::error::Result<(Vec<String>, Option<String>)> {
        let (changes, scan) = find_autorun_changes(instance, project)?;
        let incomplete = scan.incomplete.clone();
        record_baseline(instance, project, scan, &[])?;
        Ok((changes, incomplete))
    }

    #[test]
    fn hooks_of_the_project_are_first_and_unshown_files_stay_new() {
        let home = tempfile::tempdir().unwrap();
        let (instance, project) = (instance(home.path()), home.path().join("p"));
        repository(&project, ".git");
        renew(&instance, &project).unwrap();
        for number in 0..30 {
            write(&project, &format!(".a{number}/.envrc"), "x");
        }
        write(&project, ".git/hooks/post-checkout", "x");
        let (found, scan) = find_autorun_changes(&instance, &project).unwrap();
        assert_eq!(found.len(), 31);
        assert!(found[0].contains("post-checkout"), "{found:?}");
        record_baseline(&instance, &project, scan, &found[10..]).unwrap();
        let (left, _) = find_autorun_changes(&instance, &project).unwrap();
        assert_eq!(left, found[10..]);
    }

    fn write(project: &Path, path: &str, text: &str) {
        let path = project.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn repository(project: &Path, git: &str) {
        write(project, &format!("{git}/HEAD"), "ref: refs/heads/main\n");
        write(
            project,
            &format!("{git}/config"),
            "[core]\n\tbare = false\n",
        );
        write(
            project,
            &format!("{git}/hooks/pre-commit.sample"),
            "#!/bin/sh\n",
        );
    }

    #[test]
    fn only_changed_files_that_host_programs_execute_are_named() {
        let home = tempfile::tempdir().unwrap();
        let (instance, project) = (instance(home.path()), home.path().join("p"));
        repository(&project, ".git");
        repository(&project, "vendored/.git");
        write(&project, "kept/.envrc", "export A=1\n");
        write(&project, ".vscode/tasks.json", "{}");
        assert_eq!(renew(&instance, &project).unwrap().0, [""; 0]);
        assert_eq!(
            find_autorun_changes(&instance, &project).unwrap().0,
            [""; 0]
        );
        let config =
            "[core]\n\tbare = false\n\tfsmonitor = /repo/evil\n[filter \"x\"]\n\tclean = evil\n";
        write(&project, ".git/config", config);
        write(&project, ".git/hooks/pre-commit", "#!/bin/sh\nevil\n");
        write(&project, ".git/hooks/other.sample", "#!/bin/sh\n");
        write(&project, "vendored/.git/config", "[diff] external = evil\n");
        write(&project, ".envrc", "evil\n");
        write(&project, ".vscode/tasks.json", "{\"tasks\": []}");
        write(&project, "main.py", "print(1)\n");
        let planted = [
            "`.git/config`: core.fsmonitor appeared",
            "`.git/config`: filter.x.clean appeared",
            "`.git/hooks/pre-commit` appeared",
            "`.envrc` appeared",
            "`.vscode/tasks.json` changed",
            "`vendored/.git/config`: diff.external appeared",
        ];
        assert_eq!(
            find_autorun_changes(&instance, &project).unwrap().0,
            planted
        );
        // The next `up` reports them once more; after that they are known.
        assert_eq!(renew(&instance, &project).unwrap().0, planted);
        assert_eq!(
            find_autorun_changes(&instance, &project).unwrap().0,
            [""; 0]
        );
        // A baseline of another project is not compared.
        let other = home.path().join("q");
        write(&other, ".envrc", "x");
        assert_eq!(find_autorun_changes(&instance, &other).unwrap().0, [""; 0]);
    }

    #[test]
    fn a_name_that_is_new_to_the_list_is_recorded_and_not_named() {
        let home = tempfile::tempdir().unwrap();
        let (instance, project) = (instance(home.path()), home.path().join("p"));
        write(&project, "main.py", "");
        renew(&instance, &project).unwrap();
        let file = instance.autorun_baseline();
        let mut record: serde_json::Value =
            serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        // The record of an earlier version, which did not look for the name.
        let names = record["names"].as_array_mut().unwrap();
        names.retain(|name| name != ".pdbrc" && name != ".run/");
        fs::write(&file, record.to_string()).unwrap();
        for path in [".pdbrc", "a/.run/x", ".envrc", ".git"] {
            write(&project, path, "x");
        }
        let appeared = ["`.envrc` appeared", "`.git` appeared"];
        assert_eq!(
            find_autorun_changes(&instance, &project).unwrap().0,
            appeared
        );
        assert_eq!(renew(&instance, &project).unwrap().0, appeared);
        write(&project, ".pdbrc", "y");
        write(&project, "a/.pdbrc", "y");
        let later = ["`.pdbrc` changed", "`a/.pdbrc` appeared"];
        assert_eq!(find_autorun_changes(&instance, &project).unwrap().0, later);
    }

    #[test]
    fn no_link_is_followed_and_no_pipe_is_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let (instance, project) = (instance(home.path()), home.path().join("p"));
        fs::create_dir_all(&project).unwrap();
        renew(&instance, &project).unwrap();
        symlink("/dev/zero", project.join(".envrc")).unwrap();
        symlink("/", project.join("root")).unwrap();
        fs::create_dir_all(project.join(".vscode")).unwrap();
        let mode = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&project.join(".vscode/tasks.json"), mode).unwrap();
        let (changes, scan) = find_autorun_changes(&instance, &project).unwrap();
        let planted = ["`.envrc` appeared", "`.vscode/tasks.json` appeared"];
        assert_eq!(changes, planted);
        assert_eq!(scan.incomplete, None);
    }

    #[test]
    fn files_that_run_with_the_rights_of_their_owner_are_named() {
        let home = tempfile::tempdir().unwrap();
        let project = home.path().join("p");
        for (name, mode) in [
            ("u", 0o4755),
            ("g", 0o2755),
            ("plain", 0o755),
            ("data", 0o2644),
        ] {
            write(&project, &format!("bin/{name}"), "");
            let rights = fs::Permissions::from_mode(mode);
            fs::set_permissions(project.join("bin").join(name), rights).unwrap();
        }
        let found = super::scan_project(&project).unwrap().setuid;
        assert_eq!(found, ["bin/g", "bin/u"]);
    }
}
