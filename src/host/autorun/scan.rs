//! The walk over a folder that the agent writes in, nearest entries first.

use super::git;
use crate::archive::{Folder, Look};
use crate::protocol::files::EntryKind;
use crate::protocol::hex::hex;
use crate::protocol::plain;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

/// Entries that are looked at.
const MAX_SCAN_ENTRIES: usize = 200_000;
const SCAN_TIMEOUT: Duration = Duration::from_secs(2);
/// Places and files that are kept: what is named is read by a person.
const MAX_PLACES: usize = 1000;
/// Bytes of a file that its digest is made of.
const PLACE_BYTES: u64 = 1 << 20;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

/// Files that programs run code from, by the end of their path: shells and editors that enter the folder, and
/// agents on the host.
const FILES: &[&str] = &[
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
/// Folders of which every file counts.
const FOLDERS: &[&str] = &[".husky", ".idea/runConfigurations", ".run"];
const ENDINGS: &[&str] = &[".code-workspace"];

/// The names of files that are looked for: a path, a folder with `/` behind it, an ending with `*` before it.
pub(super) fn names() -> BTreeSet<String> {
    let files = FILES.iter().map(ToString::to_string);
    let folders = FOLDERS.iter().map(|folder| format!("{folder}/"));
    let endings = ENDINGS.iter().map(|ending| format!("*{ending}"));
    files.chain(folders).chain(endings).collect()
}

/// What makes a folder a git repository.
const HEAD: &str = "HEAD";
const CONFIGS: &[&str] = &["config", "config.worktree"];
const HOOKS: &str = "hooks";
/// A hook that git does not run.
const SAMPLE: &str = ".sample";

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Digests of what programs run code from, by place in words.
    pub(crate) places: BTreeMap<String, String>,
    /// Files with the setuid bit, or with the setgid bit and execute permission of the group.
    pub(crate) setuid: Vec<String>,
    /// Why entries are missing, if any are.
    pub(crate) incomplete: Option<String>,
}

/// Looks at all that is beneath a folder, through no link.
///
/// # Errors
/// When the folder itself can't be read.
pub(crate) fn scan(root: &Path) -> io::Result<Scan> {
    let mut walk = Walk {
        root: Folder::open(root)?,
        names: names(),
        found: Scan::default(),
        waiting: VecDeque::from([Vec::new()]),
        entries: 0,
        deadline: Instant::now() + SCAN_TIMEOUT,
    };
    walk.root.names_up_to(1)?;
    walk.run();
    Ok(walk.found)
}

struct Walk {
    root: Folder,
    names: BTreeSet<String>,
    found: Scan,
    /// Folders that are still to be read, by their names from the root on.
    waiting: VecDeque<Vec<OsString>>,
    entries: usize,
    deadline: Instant,
}

impl Walk {
    fn run(&mut self) {
        while let Some(folder) = self.waiting.pop_front() {
            // One that was removed meanwhile is of no interest, nor one that this user can't read: no program of
            // theirs can, either.
            if let Ok((opened, names)) = self.open(&folder) {
                self.read(&folder, &opened, &names);
            }
            let places = self.found.places.len().max(self.found.setuid.len());
            let stopped = match () {
                () if self.entries > MAX_SCAN_ENTRIES => {
                    format!("the scan stopped after {MAX_SCAN_ENTRIES} entries")
                }
                () if places > MAX_PLACES => {
                    format!("the scan stopped after {MAX_PLACES} findings")
                }
                () if Instant::now() > self.deadline => {
                    format!("the scan stopped after {} s", SCAN_TIMEOUT.as_secs())
                }
                () => continue,
            };
            self.found.incomplete = Some(stopped);
            return;
        }
    }

    /// A folder and the names in it. It is opened name by name, so that few descriptors are open at a time and no
    /// link leads elsewhere.
    fn open(&self, path: &[OsString]) -> io::Result<(Folder, Vec<OsString>)> {
        let here = self.root.folder(OsStr::new("."))?;
        let opened = path.iter().try_fold(here, |at, name| at.folder(name))?;
        let names = opened.names_up_to(MAX_SCAN_ENTRIES + 1)?;
        Ok((opened, names))
    }

    fn read(&mut self, folder: &[OsString], opened: &Folder, names: &[OsString]) {
        let has = |name: &str| names.iter().any(|n| n == name);
        let is_repository = has(HEAD) && (has("objects") || CONFIGS.iter().any(|name| has(name)));
        for name in names {
            self.entries += 1;
            if self.entries > MAX_SCAN_ENTRIES {
                return;
            }
            let Ok(look) = opened.look(name) else {
                continue;
            };
            let path = path(folder, name);
            if look.kind == EntryKind::Folder {
                self.waiting
                    .push_back([folder, std::slice::from_ref(name)].concat());
                if is_repository && name == HOOKS {
                    self.read_hooks(opened, &path);
                }
                continue;
            }
            let group_runs = look.mode & (SETGID | GROUP_EXECUTES) == SETGID | GROUP_EXECUTES;
            if look.kind == EntryKind::File && (look.mode & SETUID != 0 || group_runs) {
                self.found.setuid.push(path.clone());
            }
            let is_config = CONFIGS.iter().any(|config| name == config);
            if is_repository && is_config && look.kind == EntryKind::File {
                self.read_settings(opened, name, &path);
            } else if self.is_named(&path) || name == ".git" || (is_repository && name == HOOKS) {
                let place = format!("`{}`", plain::line(&path));
                self.found.places.insert(place, digest(opened, name, look));
            }
        }
    }

    fn is_named(&self, path: &str) -> bool {
        self.names.iter().any(|name| is_of(path, name))
    }

    fn read_hooks(&mut self, repository: &Folder, path: &str) {
        let hooks = repository.folder(OsStr::new(HOOKS));
        let Some((hooks, names)) = hooks
            .and_then(|h| h.names_up_to(MAX_PLACES + 1).map(|n| (h, n)))
            .ok()
        else {
            return;
        };
        for name in names {
            let shown = name.to_string_lossy();
            let Ok(look) = hooks.look(&name) else {
                continue;
            };
            if look.kind != EntryKind::Folder && !shown.ends_with(SAMPLE) {
                let place = format!("`{}`", plain::line(&format!("{path}/{shown}")));
                self.found.places.insert(place, digest(&hooks, &name, look));
            }
            if self.found.places.len() > MAX_PLACES {
                return;
            }
        }
    }

    fn read_settings(&mut self, repository: &Folder, name: &OsStr, path: &str) {
        let text = content(repository, name).unwrap_or_default();
        for (key, value) in git::commands(&String::from_utf8_lossy(&text)) {
            let place = format!("`{}`: {}", plain::line(path), plain::line(&key));
            let digest = hex(Sha256::digest(value));
            // A key may be there more than once.
            let known = self.found.places.entry(place).or_default();
            known.push_str(&digest);
        }
    }
}

/// The path beneath the root, `/`-separated.
fn path(folder: &[OsString], name: &OsStr) -> String {
    let names = folder.iter().map(OsString::as_os_str).chain([name]);
    let names: Vec<_> = names.map(OsStr::to_string_lossy).collect();
    names.join("/")
}

/// Whether one of the [`names`] is that of a path.
pub(super) fn is_of(path: &str, name: &str) -> bool {
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

/// The digest of what is there: of a file its content, of a link its target.
fn digest(folder: &Folder, name: &OsStr, look: Look) -> String {
    let mut all = Sha256::new();
    all.update(format!("{:?} {}\0", look.kind, look.size));
    match look.kind {
        EntryKind::File => all.update(content(folder, name).unwrap_or_default()),
        EntryKind::Symlink => all.update(folder.target(name).unwrap_or_default()),
        _ => {}
    }
    hex(all.finalize())
}

/// The beginning of a file.
fn content(folder: &Folder, name: &OsStr) -> io::Result<Vec<u8>> {
    let file = folder.read(name)?;
    let mut content = Vec::new();
    // What was a file may be a device meanwhile.
    if Look::of(&file)?.kind == EntryKind::File {
        file.take(PLACE_BYTES).read_to_end(&mut content)?;
    }
    Ok(content)
}

#[cfg(all(test, unix))]
mod tests {
    use super::{MAX_PLACES, is_of, names, scan};
    use std::fs;

    #[test]
    fn well_known_files_are_named_at_every_depth_and_by_whole_names() {
        let is_named = |path: &str| names().iter().any(|name| is_of(path, name));
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
    fn a_scan_that_finds_too_much_stops_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..=MAX_PLACES {
            let name = format!("{number}.code-workspace");
            fs::write(folder.path().join(name), "").unwrap();
        }
        let scan = scan(folder.path()).unwrap();
        let why = scan.incomplete.unwrap();
        assert!(why.contains("stopped after 1000 findings"), "{why}");
    }
}
