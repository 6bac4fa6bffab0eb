//! The scan of a folder in which the agent writes, nearest entries first.

use super::git;
use crate::archive::{EntryStat, Folder};
use crate::protocol::files::EntryKind;
use crate::protocol::hex::hex;
use crate::protocol::text_sanitizer;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

/// Limit of scanned entries.
const MAX_SCAN_ENTRIES: usize = 200_000;
const SCAN_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of recorded places and files, because a person reads them.
const MAX_SCAN_FINDINGS: usize = 1000;
/// The digest covers this number of bytes at the start of a file.
const MAX_AUTORUN_DIGEST_BYTES: u64 = 1 << 20;
const SETUID_BIT: u32 = 0o4000;
const SETGID_BIT: u32 = 0o2000;
const GROUP_EXECUTE_BIT: u32 = 0o010;

/// Files from which programs run code, by the end of their path: shells and editors that enter the folder, and agents
/// on the host.
const AUTORUN_FILES: &[&str] = &[
    ".Rprofile",
    ".autoenv.zsh",
    ".cargo/config",
    ".cargo/config.toml",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".codex/config.toml",
    ".cursor/hooks.json",
    ".cursor/mcp.json",
    ".devcontainer.json",
    ".devcontainer/devcontainer.json",
    ".dir-locals.el",
    ".envrc",
    ".exrc",
    ".gdbinit",
    ".gemini/settings.json",
    ".idea/workspace.xml",
    ".lldbinit",
    ".lvimrc",
    ".mcp.json",
    ".mise.toml",
    ".npmrc",
    ".nvim.lua",
    ".nvimrc",
    ".pdbrc",
    ".pnpmfile.cjs",
    ".pre-commit-config.yaml",
    ".vimrc",
    ".vscode/launch.json",
    ".vscode/mcp.json",
    ".vscode/settings.json",
    ".vscode/tasks.json",
    ".yarnrc.yml",
    ".zed/debug.json",
    ".zed/settings.json",
    ".zed/tasks.json",
    "lefthook.yml",
    "mise.toml",
];
/// Folders whose every file counts.
const AUTORUN_FOLDERS: &[&str] = &[".husky", ".idea/runConfigurations", ".run"];
const AUTORUN_SUFFIXES: &[&str] = &[".code-workspace"];

/// The patterns of the scan: a path, a folder with a trailing `/`, or an ending with a leading `*`.
pub(super) fn autorun_patterns() -> BTreeSet<String> {
    let files = AUTORUN_FILES.iter().map(ToString::to_string);
    let folders = AUTORUN_FOLDERS.iter().map(|folder| format!("{folder}/"));
    let endings = AUTORUN_SUFFIXES.iter().map(|ending| format!("*{ending}"));
    files.chain(folders).chain(endings).collect()
}

/// The file that identifies a git repository.
const GIT_HEAD: &str = "HEAD";
const GIT_CONFIGS: &[&str] = &["config", "config.worktree"];
const GIT_HOOKS: &str = "hooks";
/// The suffix of hooks that git does not run.
const SAMPLE_HOOK_SUFFIX: &str = ".sample";

/// The findings of a scan.
#[derive(Debug, Default)]
pub(crate) struct AutorunScan {
    /// Digests of the files from which programs run code, by place as displayed.
    pub(crate) places: BTreeMap<String, String>,
    /// Files with the setuid bit, or with the setgid bit and execute permission of the group.
    pub(crate) setuid: Vec<String>,
    /// Why entries are missing, if any are.
    pub(crate) incomplete: Option<String>,
}

/// Scans everything in a folder, without following links.
///
/// # Errors
/// When the folder itself cannot be read.
pub(crate) fn scan_project(root: &Path) -> io::Result<AutorunScan> {
    let mut walk = AutorunWalk {
        root: Folder::open(root)?,
        patterns: autorun_patterns(),
        scan: AutorunScan::default(),
        pending_folders: VecDeque::from([Vec::new()]),
        entry_count: 0,
        deadline: Instant::now() + SCAN_TIMEOUT,
    };
    walk.root.names_up_to(1)?;
    walk.run();
    Ok(walk.scan)
}

struct AutorunWalk {
    root: Folder,
    patterns: BTreeSet<String>,
    scan: AutorunScan,
    /// Folders still to be read, as names from the root.
    pending_folders: VecDeque<Vec<OsString>>,
    entry_count: usize,
    deadline: Instant,
}

impl AutorunWalk {
    fn run(&mut self) {
        while let Some(folder) = self.pending_folders.pop_front() {
            // Skip a folder that was removed during the scan, or that this user cannot read: the user's programs cannot
            // read it either.
            if let Ok((opened, names)) = self.open_folder(&folder) {
                self.read_folder(&folder, &opened, &names);
            }
            let places = self.scan.places.len().max(self.scan.setuid.len());
            let stopped = match () {
                () if self.entry_count > MAX_SCAN_ENTRIES => {
                    format!("the scan stopped after {MAX_SCAN_ENTRIES} entries")
                }
                () if places > MAX_SCAN_FINDINGS => {
                    format!("the scan stopped after {MAX_SCAN_FINDINGS} findings")
                }
                () if Instant::now() > self.deadline => {
                    format!("the scan stopped after {} s", SCAN_TIMEOUT.as_secs())
                }
                () => continue,
            };
            self.scan.incomplete = Some(stopped);
            return;
        }
    }

    /// Opens a folder and lists its names. The folder is opened name by name, so that few descriptors are open at a
    /// time and no link redirects the path.
    fn open_folder(&self, path: &[OsString]) -> io::Result<(Folder, Vec<OsString>)> {
        let here = self.root.open_folder(OsStr::new("."))?;
        let opened = path
            .iter()
            .try_fold(here, |at, name| at.open_folder(name))?;
        let names = opened.names_up_to(MAX_SCAN_ENTRIES + 1)?;
        Ok((opened, names))
    }

    fn read_folder(&mut self, folder: &[OsString], opened: &Folder, names: &[OsString]) {
        let has = |name: &str| names.iter().any(|n| n == name);
        let is_repository =
            has(GIT_HEAD) && (has("objects") || GIT_CONFIGS.iter().any(|name| has(name)));
        for name in names {
            self.entry_count += 1;
            if self.entry_count > MAX_SCAN_ENTRIES {
                return;
            }
            let Ok(stat) = opened.stat(name) else {
                continue;
            };
            let path = join_path(folder, name);
            if stat.kind == EntryKind::Folder {
                self.pending_folders
                    .push_back([folder, std::slice::from_ref(name)].concat());
                if is_repository && name == GIT_HOOKS {
                    self.read_hooks(opened, &path);
                }
                continue;
            }
            let group_runs =
                stat.mode & (SETGID_BIT | GROUP_EXECUTE_BIT) == SETGID_BIT | GROUP_EXECUTE_BIT;
            if stat.kind == EntryKind::File && (stat.mode & SETUID_BIT != 0 || group_runs) {
                self.scan.setuid.push(path.clone());
            }
            let is_config = GIT_CONFIGS.iter().any(|config| name == config);
            if is_repository && is_config && stat.kind == EntryKind::File {
                self.read_git_config(opened, name, &path);
            } else if self.is_autorun_path(&path)
                || name == ".git"
                || (is_repository && name == GIT_HOOKS)
            {
                let place = format!("`{}`", text_sanitizer::sanitize_line(&path));
                self.scan
                    .places
                    .insert(place, digest_entry(opened, name, stat));
            }
        }
    }

    fn is_autorun_path(&self, path: &str) -> bool {
        self.patterns
            .iter()
            .any(|name| is_pattern_match(path, name))
    }

    fn read_hooks(&mut self, repository: &Folder, path: &str) {
        let hooks = repository.open_folder(OsStr::new(GIT_HOOKS));
        let Some((hooks, names)) = hooks
            .and_then(|h| h.names_up_to(MAX_SCAN_FINDINGS + 1).map(|n| (h, n)))
            .ok()
        else {
            return;
        };
        for name in names {
            let shown = name.to_string_lossy();
            let Ok(stat) = hooks.stat(&name) else {
                continue;
            };
            if stat.kind != EntryKind::Folder && !shown.ends_with(SAMPLE_HOOK_SUFFIX) {
                let place = format!(
                    "`{}`",
                    text_sanitizer::sanitize_line(&format!("{path}/{shown}"))
                );
                self.scan
                    .places
                    .insert(place, digest_entry(&hooks, &name, stat));
            }
            if self.scan.places.len() > MAX_SCAN_FINDINGS {
                return;
            }
        }
    }

    fn read_git_config(&mut self, repository: &Folder, name: &OsStr, path: &str) {
        let text = read_prefix(repository, name).unwrap_or_default();
        for (key, value) in git::find_git_commands(&String::from_utf8_lossy(&text)) {
            let place = format!(
                "`{}`: {}",
                text_sanitizer::sanitize_line(path),
                text_sanitizer::sanitize_line(&key)
            );
            let digest = hex(Sha256::digest(value));
            // A key may occur more than once.
            let known = self.scan.places.entry(place).or_default();
            known.push_str(&digest);
        }
    }
}

/// The path relative to the root, `/`-separated.
fn join_path(folder: &[OsString], name: &OsStr) -> String {
    let names = folder.iter().map(OsString::as_os_str).chain([name]);
    let names: Vec<_> = names.map(OsStr::to_string_lossy).collect();
    names.join("/")
}

/// Whether `name`, one of the [`autorun_patterns`], matches a path.
pub(super) fn is_pattern_match(path: &str, name: &str) -> bool {
    let ends = |path: &str, end: &str| {
        let before = path.strip_suffix(end);
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    };
    match (name.strip_prefix('*'), name.strip_suffix('/')) {
        (Some(ending), _) => path.ends_with(ending),
        (_, Some(folder)) => path
            .rsplit_once('/')
            .is_some_and(|(at, _)| ends(at, folder)),
        _ => ends(path, name),
    }
}

/// The digest of an entry: the contents of a file, the target of a link.
fn digest_entry(folder: &Folder, name: &OsStr, stat: EntryStat) -> String {
    let mut all = Sha256::new();
    all.update(format!("{:?} {}\0", stat.kind, stat.size));
    match stat.kind {
        EntryKind::File => all.update(read_prefix(folder, name).unwrap_or_default()),
        EntryKind::Symlink => all.update(folder.read_link(name).unwrap_or_default()),
        _ => {}
    }
    hex(all.finalize())
}

/// The start of a file.
fn read_prefix(folder: &Folder, name: &OsStr) -> io::Result<Vec<u8>> {
    let file = folder.open_file(name)?;
    let mut content = Vec::new();
    // The file may have been replaced by a device since the scan listed it.
    if EntryStat::stat_file(&file)?.kind == EntryKind::File {
        file.take(MAX_AUTORUN_DIGEST_BYTES)
            .read_to_end(&mut content)?;
    }
    Ok(content)
}

#[cfg(all(test, unix))]
mod tests {
    use super::{MAX_SCAN_FINDINGS, autorun_patterns, is_pattern_match, scan_project};
    use std::fs;

    #[test]
    fn well_known_files_are_named_at_every_depth_and_by_whole_names() {
        let is_named = |path: &str| {
            autorun_patterns()
                .iter()
                .any(|name| is_pattern_match(path, name))
        };
        for path in [
            ".envrc",
            "a/b/.envrc",
            ".vscode/tasks.json",
            "x/.vscode/tasks.json",
            ".husky/pre-commit",
            "a/.Rprofile",
            ".cursor/hooks.json",
            ".zed/debug.json",
            ".pdbrc",
            ".lvimrc",
            ".pnpmfile.cjs",
            "team.code-workspace",
        ] {
            assert!(is_named(path), "{path}");
        }
        for path in ["my.envrc", "tasks.json", "a.vscode/tasks.json", "husky/x"] {
            assert!(!is_named(path), "{path}");
        }
    }

    #[test]
    fn a_scan_stops_at_its_limit_and_reports_it() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..=MAX_SCAN_FINDINGS {
            let name = format!("{number}.code-workspace");
            fs::write(folder.path().join(name), "").unwrap();
        }
        let scan = scan_project(folder.path()).unwrap();
        let why = scan.incomplete.unwrap();
        assert!(why.contains("stopped after 1000 findings"), "{why}");
    }
}
