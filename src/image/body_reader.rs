//! Reader of a body folder that an untrusted process may change at any time.
//!
//! Every name is opened beneath the open folder, without following links, and the type of the opened entry is
//! checked, so that a folder or file that is replaced during the read can't lead to a path outside.

use crate::archive::{EntryStat, Folder};
use crate::error::{Error, Result};
use crate::protocol::files::EntryKind;
use anyhow::Context;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path};
use std::time::Instant;

/// The file that makes a folder a body.
const DOCKERFILE_NAME: &str = "Dockerfile";
/// The digests of the files that `init` wrote, so that an update can tell edited files from original ones.
pub(super) const BODY_ORIGIN_FILE: &str = ".osctl-origin.json";
/// The maximum depth of nested folders.
const MAX_BODY_DEPTH: usize = 32;
/// The maximum number of files; more are probably a mistake.
const MAX_BODY_FILES: usize = 20_000;
/// The maximum number of names, including empty folders and ignored names.
const MAX_BODY_NAMES: usize = 50_000;

/// The files of `folder` beneath `root` by path, `/`-separated; `None` if the folder has no `Dockerfile`.
pub(super) fn read_body_files(
    root: &Path,
    folder: &Path,
    limit: BodyReadLimit,
) -> Result<Option<BTreeMap<String, Vec<u8>>>> {
    let name = root.join(folder);
    let opened = |e| anyhow::Error::new(e).context(format!("opening `{}`", root.display()));
    let mut at = Folder::open(root).map_err(opened)?;
    for component in folder.components() {
        let Component::Normal(part) = component else {
            return Err(unfit_body_error(
                &name,
                "the folder is not beneath the project".into(),
            ));
        };
        at = match at.open_folder(part) {
            Ok(next) => next,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) if Folder::is_link(&e) => {
                let why = format!("`{}` is not a folder", part.to_string_lossy());
                return Err(unfit_body_error(&name, why));
            }
            Err(e) => return Err(e).with_context(|| format!("opening `{}`", name.display())),
        };
    }
    match at.stat(OsStr::new(DOCKERFILE_NAME)) {
        Ok(stat) if stat.kind == EntryKind::File => {}
        // The user chose this body, so the embedded one must not replace it.
        Ok(_) => {
            return Err(unfit_body_error(
                &name,
                format!("`{DOCKERFILE_NAME}` is not a regular file"),
            ));
        }
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("inspecting `{}`", name.display())),
    }
    let mut gathering = BodyFolderReader {
        name: &name,
        limit,
        remaining_bytes: limit.bytes,
        name_count: 0,
        files: BTreeMap::new(),
    };
    gathering.read_folder(&at, "", 0)?;
    Ok(Some(gathering.files))
}

/// The limits for reading a body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyReadLimit {
    pub(crate) bytes: u64,
    /// No more entries are read after this time.
    pub(crate) deadline: Option<Instant>,
}

impl BodyReadLimit {
    pub(crate) fn with_max_bytes(bytes: u64) -> Self {
        Self {
            bytes,
            deadline: None,
        }
    }
}

struct BodyFolderReader<'a> {
    name: &'a Path,
    limit: BodyReadLimit,
    remaining_bytes: u64,
    name_count: usize,
    files: BTreeMap<String, Vec<u8>>,
}

impl BodyFolderReader<'_> {
    fn read_folder(&mut self, folder: &Folder, beneath: &str, depth: usize) -> Result<()> {
        if depth > MAX_BODY_DEPTH {
            return Err(self.unfit_error(format!("`{beneath}` is nested too deeply")));
        }
        let names = folder.names_up_to(MAX_BODY_NAMES + 1)?;
        self.name_count += names.len();
        if self.name_count > MAX_BODY_NAMES {
            return Err(self.unfit_error(format!("it has more than {MAX_BODY_NAMES} names")));
        }
        for name in names {
            let deadline = self.limit.deadline;
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err(self.unfit_error("it was not read in time".into()));
            }
            let Some(text) = name.to_str() else {
                let shown = name.to_string_lossy();
                return Err(self.unfit_error(format!("the name `{beneath}{shown}` is not UTF-8")));
            };
            if is_ignored(text) {
                continue;
            }
            let path = format!("{beneath}{text}");
            let odd = || self.unfit_error(format!("`{path}` is neither a file nor a folder"));
            match folder.stat(&name)?.kind {
                EntryKind::Folder => {
                    let inner =
                        folder
                            .open_folder(&name)
                            .map_err(|e| match Folder::is_link(&e) {
                                true => odd(),
                                false => e.into(),
                            })?;
                    self.read_folder(&inner, &format!("{path}/"), depth + 1)?;
                }
                EntryKind::File => {
                    let file = folder
                        .open_file(&name)
                        .map_err(|e| match Folder::is_link(&e) {
                            true => odd(),
                            false => e.into(),
                        })?;
                    // The entry may have been replaced between the check and the open.
                    if EntryStat::stat_file(&file)?.kind != EntryKind::File {
                        return Err(odd());
                    }
                    self.add_file(path, file)?;
                }
                _ => return Err(odd()),
            }
        }
        Ok(())
    }

    fn add_file(&mut self, path: String, file: impl Read) -> Result<()> {
        let mut content = Vec::new();
        // Read one byte more than allowed, to detect that the file is too large.
        file.take(self.remaining_bytes + 1)
            .read_to_end(&mut content)?;
        let Some(remaining) = self.remaining_bytes.checked_sub(content.len() as u64) else {
            return Err(
                self.unfit_error(format!("it is larger than {} MiB", self.limit.bytes >> 20))
            );
        };
        if self.files.len() >= MAX_BODY_FILES {
            return Err(self.unfit_error(format!("it has more than {MAX_BODY_FILES} files")));
        }
        self.remaining_bytes = remaining;
        self.files.insert(path, content);
        Ok(())
    }

    fn unfit_error(&self, why: String) -> anyhow::Error {
        unfit_body_error(self.name, why)
    }
}

/// Whether the name is left by tools beside sources, or does not belong to the body.
pub(super) fn is_ignored(name: &str) -> bool {
    name == "__pycache__"
        || name == ".git"
        || name == BODY_ORIGIN_FILE
        || name.ends_with(".pyc")
        || name == ".ruff_cache"
}

pub(super) fn unfit_body_error(body: &Path, why: String) -> anyhow::Error {
    Error::InvalidBody {
        body: body.to_owned(),
        why,
    }
    .into()
}

#[cfg(all(test, unix))]
mod tests {
    use super::{BodyReadLimit, read_body_files};
    use nix::sys::stat::Mode;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn project() -> tempfile::TempDir {
        let project = tempfile::tempdir().unwrap();
        fs::create_dir_all(project.path().join("body/deep")).unwrap();
        for (name, content) in [("Dockerfile", "FROM x"), ("deep/file", "mine")] {
            fs::write(project.path().join("body").join(name), content).unwrap();
        }
        project
    }

    fn refused(project: &Path, folder: &str) -> String {
        let gathered = read_body_files(
            project,
            Path::new(folder),
            BodyReadLimit::with_max_bytes(1 << 20),
        );
        gathered.unwrap_err().to_string()
    }

    #[test]
    fn a_body_is_read_unchanged_and_a_missing_one_is_none() {
        let project = project();
        let files = read_body_files(
            project.path(),
            Path::new("body"),
            BodyReadLimit::with_max_bytes(1 << 20),
        )
        .unwrap();
        assert_eq!(files.unwrap()["deep/file"], b"mine");
        for none in ["other", "body/deep"] {
            assert!(
                read_body_files(
                    project.path(),
                    Path::new(none),
                    BodyReadLimit::with_max_bytes(9)
                )
                .unwrap()
                .is_none()
            );
        }
    }

    #[test]
    fn links_and_paths_out_of_the_project_are_refused() {
        let (project, outside) = (project(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("Dockerfile"), "secret").unwrap();
        symlink(outside.path(), project.path().join("linked")).unwrap();
        assert!(refused(project.path(), "linked").contains("`linked` is not a folder"));
        assert!(refused(project.path(), "../x").contains("not beneath"));
        assert!(refused(project.path(), "/etc").contains("not beneath"));
        let link = project.path().join("body/deep/link");
        for target in [outside.path().join("Dockerfile"), outside.path().into()] {
            symlink(target, &link).unwrap();
            assert!(refused(project.path(), "body").contains("`deep/link` is neither"));
            fs::remove_file(&link).unwrap();
        }
        nix::unistd::mkfifo(&link, Mode::S_IRWXU).unwrap();
        assert!(refused(project.path(), "body").contains("`deep/link` is neither"));
        fs::remove_file(&link).unwrap();
        let socket = UnixListener::bind(&link).unwrap();
        assert!(refused(project.path(), "body").contains("`deep/link` is neither"));
        drop(socket);
        fs::remove_file(&link).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_is_refused() {
        use nix::sys::stat::{SFlag, makedev, mknod};
        let project = project();
        let device = project.path().join("body/deep/null");
        // Without the permission to create a device, the test can't create one, and neither can an agent.
        if mknod(&device, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 3)).is_ok() {
            assert!(refused(project.path(), "body").contains("`deep/null` is neither"));
        }
    }

    #[test]
    fn a_dockerfile_that_is_not_a_regular_file_is_refused() {
        let (project, outside) = (project(), tempfile::tempdir().unwrap());
        let dockerfile = project.path().join("body/Dockerfile");
        fs::rename(&dockerfile, outside.path().join("Dockerfile")).unwrap();
        for target in [outside.path().join("Dockerfile"), "deep/file".into()] {
            symlink(target, &dockerfile).unwrap();
            assert!(refused(project.path(), "body").contains("`Dockerfile` is not a regular file"));
            fs::remove_file(&dockerfile).unwrap();
        }
        fs::create_dir(&dockerfile).unwrap();
        assert!(refused(project.path(), "body").contains("`Dockerfile` is not a regular file"));
    }

    #[test]
    fn odd_names_and_depths_are_refused() {
        let project = project();
        let body = project.path().join("body");
        let odd = body.join(OsStr::from_bytes(b"deep/\xff"));
        fs::write(&odd, "").unwrap();
        assert!(refused(project.path(), "body").contains("is not UTF-8"));
        fs::remove_file(odd).unwrap();
        let deepest = ["d"; super::MAX_BODY_DEPTH + 1].join("/");
        fs::create_dir_all(body.join(&deepest)).unwrap();
        assert!(refused(project.path(), "body").contains("is nested too deeply"));
        fs::remove_dir(body.join(deepest)).unwrap();
        read_body_files(
            project.path(),
            Path::new("body"),
            BodyReadLimit::with_max_bytes(1 << 20),
        )
        .unwrap();
    }

    #[test]
    fn too_many_files_are_refused() {
        let project = project();
        let first = project.path().join("body/deep/first");
        fs::write(&first, "").unwrap();
        for number in 0..super::MAX_BODY_FILES {
            fs::hard_link(&first, first.with_file_name(number.to_string())).unwrap();
        }
        assert!(refused(project.path(), "body").contains("more than 20000 files"));
    }

    #[test]
    fn a_folder_replaced_by_a_link_during_a_read_is_not_followed() {
        let (project, outside) = (project(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("file"), "secret").unwrap();
        let body = project.path().join("body");
        let (deep, aside) = (body.join("deep"), body.join(".git"));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = fs::rename(&deep, &aside);
                    let _ = symlink(outside.path(), &deep);
                    let _ = fs::remove_file(&deep);
                    let _ = fs::rename(&aside, &deep);
                }
            });
            for _ in 0..2000 {
                if let Ok(Some(files)) = read_body_files(
                    project.path(),
                    Path::new("body"),
                    BodyReadLimit::with_max_bytes(1 << 20),
                ) {
                    assert!(files.values().all(|content| content != b"secret"));
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn skipped_files_count_toward_the_limit_of_names() {
        let project = project();
        let few = super::MAX_BODY_NAMES / 30;
        for outer in 0..31 {
            let folder = project.path().join(format!("body/deep/{outer}"));
            fs::create_dir(&folder).unwrap();
            // One file with many hard links is faster to create than many folders.
            let first = folder.join(".git");
            fs::write(&first, "").unwrap();
            for inner in 0..few {
                fs::hard_link(&first, folder.join(format!("{inner}.pyc"))).unwrap();
            }
        }
        assert!(refused(project.path(), "body").contains("more than 50000 names"));
    }

    #[test]
    fn nothing_more_is_read_after_the_deadline() {
        let project = project();
        let limit = BodyReadLimit {
            bytes: 1 << 20,
            deadline: Some(std::time::Instant::now()),
        };
        let gathered = read_body_files(project.path(), Path::new("body"), limit);
        let why = gathered.unwrap_err().to_string();
        assert!(why.contains("not read in time"), "{why}");
    }

    #[test]
    fn a_body_above_the_size_limit_is_refused() {
        let project = project();
        let big = fs::File::create(project.path().join("body/big")).unwrap();
        big.set_len(2 << 20).unwrap();
        assert!(refused(project.path(), "body").contains("larger than 1 MiB"));
    }
}
