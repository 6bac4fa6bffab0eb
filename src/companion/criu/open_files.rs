//! The open files of processes, checked before a kernel is ended: criu reopens each file only if it exists with its
//! former size.

use super::error_text::{CriuFailure, CriuFailureKind, FILE_CHANGED_HINT};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Folders in which the system creates files on access.
const PSEUDO_FILESYSTEMS: [&str; 3] = ["/proc", "/sys", "/dev"];

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct CriuOpenFile {
    path: PathBuf,
    /// `None` if the file may grow: criu does not compare the size of a file that is only appended to.
    size: Option<u64>,
}

impl CriuOpenFile {
    /// Lists the named files that these processes have open. criu handles files that disappear during the call, and
    /// files that can't be examined.
    pub(super) fn list_for_pids(pids: &BTreeSet<i32>) -> BTreeSet<Self> {
        let each = pids.iter().flat_map(|pid| {
            let process = PathBuf::from(format!("/proc/{pid}"));
            let open = fs::read_dir(process.join("fd")).into_iter().flatten();
            let numbers = open.flatten().map(|entry| entry.file_name());
            numbers.filter_map(move |number| {
                let fd = process.join("fd").join(&number);
                let fd_info = fs::read_to_string(process.join("fdinfo").join(number)).ok()?;
                let found = fs::metadata(&fd).ok().filter(fs::Metadata::is_file)?;
                let path = fs::read_link(&fd)
                    .ok()
                    .filter(|path| is_linked_path(path))?;
                let size = (!is_log_path(&fd_info)).then_some(found.len());
                Some(Self { path, size })
            })
        });
        each.collect()
    }

    /// Describes how the file differs from its former state, as criu would.
    pub(super) fn describe_change(&self) -> Option<CriuFailure> {
        let path = self.path.display();
        let why = match (fs::metadata(&self.path), self.size) {
            (Err(error), _) if error.kind() == ErrorKind::NotFound => {
                format!("`{path}`, which the kernel had open, is missing")
            }
            (Ok(is), Some(was)) if is.len() != was => {
                format!("`{path}` has {} bytes and had {was}", is.len())
            }
            _ => return None,
        };
        Some(CriuFailure {
            why,
            hint: Some(FILE_CHANGED_HINT),
            kind: CriuFailureKind::Resource,
        })
    }
}

fn is_linked_path(path: &Path) -> bool {
    let is_made_up = PSEUDO_FILESYSTEMS
        .iter()
        .any(|folder| path.starts_with(folder));
    let is_gone = path.to_string_lossy().ends_with(" (deleted)");
    path.is_absolute() && !is_made_up && !is_gone
}

/// Whether a file is only appended to, according to the text of `/proc/PID/fdinfo/N`.
fn is_log_path(fd_info: &str) -> bool {
    let flags = fd_info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|text| i32::from_str_radix(text.trim(), 8).ok());
    let flags = OFlag::from_bits_truncate(flags.unwrap_or(0));
    flags.contains(OFlag::O_APPEND | OFlag::O_WRONLY)
}

#[cfg(test)]
mod tests {
    use super::{CriuOpenFile, is_linked_path, is_log_path};
    use std::fs::{self, File, OpenOptions};
    use std::path::Path;

    #[test]
    fn open_files_have_a_length_unless_they_are_logs() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["read", "log", "gone"] {
            fs::write(path(name), "12345").unwrap();
        }
        let _read = File::open(path("read")).unwrap();
        let log = OpenOptions::new().append(true).open(path("log")).unwrap();
        let missing = File::open(path("gone")).unwrap();
        fs::remove_file(path("gone")).unwrap();
        let all = CriuOpenFile::list_for_pids(&[std::process::id().cast_signed()].into());
        let mut ours: Vec<&CriuOpenFile> = all.iter().collect();
        ours.retain(|opened| opened.path.starts_with(folder.path()));
        assert_eq!(ours.len(), 2, "{ours:?}");
        assert_eq!((ours[0].path.clone(), ours[0].size), (path("log"), None));
        assert_eq!(
            (ours[1].path.clone(), ours[1].size),
            (path("read"), Some(5))
        );
        assert!(ours.iter().all(|opened| opened.describe_change().is_none()));
        drop((log, missing));

        fs::write(path("log"), "longer than it was").unwrap();
        fs::write(path("read"), "123").unwrap();
        assert_eq!(ours[0].describe_change(), None);
        let change = ours[1].describe_change().unwrap().why;
        assert!(change.ends_with("has 3 bytes and had 5"), "{change}");
        fs::remove_file(path("log")).unwrap();
        let change = ours[0].describe_change().unwrap().why;
        assert!(
            change.ends_with("which the kernel had open, is missing"),
            "{change}"
        );
    }

    #[test]
    fn files_without_a_name_are_left_out() {
        for path in ["/proc/1/status", "/dev/null", "/a (deleted)", "pipe:[7]"] {
            assert!(!is_linked_path(Path::new(path)), "{path}");
        }
        assert!(is_linked_path(Path::new("/root/host/a")));
        assert!(is_log_path("pos:\t0\nflags:\t0102001\nmnt_id:\t1\n"));
        assert!(!is_log_path("pos:\t0\nflags:\t0102002\n") && !is_log_path("flags:\t0100001\n"));
    }
}
