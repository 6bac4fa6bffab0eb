//! The descendants of a process: finds them by the parent ids in /proc, and ends them.
//!
//! A process can leave a process group with `setsid`. Below a child subreaper every descendant stays reachable.

use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;

/// Units of a process's start time: the kernel's USER_HZ, which is 100 on every Linux.
const CLOCK_TICKS_PER_SECOND: i64 = 100;

/// A living process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descendant {
    pub pid: Pid,
    /// Ticks since the system's boot.
    pub start_ticks: i64,
}

/// The current time in the unit of a process's start time.
pub fn read_boot_ticks() -> i64 {
    // Every Linux has this clock; without it all processes count as later.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |t| {
        t.tv_sec() * CLOCK_TICKS_PER_SECOND + t.tv_nsec() / (1_000_000_000 / CLOCK_TICKS_PER_SECOND)
    })
}

/// Lists the descendants of `root`, parents before their children.
pub fn list_descendants(root: Pid) -> Vec<Descendant> {
    let all = read_all_processes();
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (_, child) in all.iter().filter(|(p, _)| *p == parent) {
            found.push(*child);
            parents.push(child.pid);
        }
    }
    found
}

/// Whether a descendant of `root` has a file open whose name ends with `ending`.
pub fn has_descendant_with_open_file(root: Pid, ending: &str) -> bool {
    list_descendants(root)
        .iter()
        .any(|one| has_open_file_ending_with(one.pid, ending))
}

fn has_open_file_ending_with(pid: Pid, ending: &str) -> bool {
    // A process that has ended has no open files.
    let files = fs::read_dir(format!("/proc/{pid}/fd"));
    let mut files = files.into_iter().flatten().flatten();
    files.any(|file| {
        let opened = fs::read_link(file.path());
        opened.is_ok_and(|path| path.as_os_str().as_bytes().ends_with(ending.as_bytes()))
    })
}

/// Lists the descendants of `root` that `kernel` started at `since` or later. Descendants of its older children are
/// excluded, such as those of a server that an earlier run left running.
pub fn list_started_since(root: Pid, kernel: Pid, since: i64) -> Vec<Pid> {
    let all = read_all_processes();
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (_, child) in all.iter().filter(|(p, _)| *p == parent) {
            if child.pid == kernel {
                parents.push(child.pid);
            } else if child.start_ticks >= since {
                found.push(child.pid);
                parents.push(child.pid);
            }
        }
    }
    found
}

fn read_all_processes() -> Vec<(Pid, Descendant)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let read_one = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
        parse_stat(pid, &fs::read_to_string(entry.path().join("stat")).ok()?)
    };
    entries.flatten().filter_map(read_one).collect()
}

/// The parent and the process of one line of `/proc/PID/stat`; nothing for a dead process.
fn parse_stat(pid: Pid, stat: &str) -> Option<(Pid, Descendant)> {
    // The process name, in parentheses, may contain any character.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // A process whose first thread has ended looks like a zombie while its other threads run.
    let threads: u32 = fields.get(17)?.parse().ok()?;
    let is_dead = matches!(*fields.first()?, "Z" | "X") && threads <= 1;
    let parent = Pid::from_raw(fields.get(1)?.parse().ok()?);
    let start_ticks = fields.get(19)?.parse().ok()?;
    (!is_dead).then_some((parent, Descendant { pid, start_ticks }))
}

/// Kills all processes that `find` finds and returns their number. All are stopped before the first is killed, so that
/// none of them forks in between.
pub fn stop_and_kill_processes(find: impl Fn() -> Vec<Pid>) -> usize {
    let mut stopped = BTreeSet::new();
    loop {
        let fresh: Vec<Pid> = find()
            .into_iter()
            .filter(|p| !stopped.contains(p))
            .collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            // A process that has already ended needs no signal.
            let _ = kill(pid, Signal::SIGSTOP);
            stopped.insert(pid);
        }
    }
    for pid in &stopped {
        let _ = kill(*pid, Signal::SIGKILL);
    }
    stopped.len()
}

/// Kills all descendants of `root`, and not `root`.
pub fn kill_tree_beneath(root: Pid) {
    stop_and_kill_processes(|| {
        let below = list_descendants(root).into_iter();
        below.map(|descendant| descendant.pid).collect()
    });
}

#[cfg(test)]
mod tests {
    use super::{
        has_descendant_with_open_file, list_descendants, read_boot_ticks, stop_and_kill_processes,
    };
    use nix::unistd::{Pid, getpid};
    use std::fs::File;
    use std::process::{Command, Stdio};

    fn own_descendants() -> Vec<Pid> {
        list_descendants(getpid())
            .into_iter()
            .map(|d| d.pid)
            .collect()
    }

    #[test]
    fn children_and_grandchildren_are_found_with_their_age_and_ended() {
        let before = read_boot_ticks();
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & wait"])
            .spawn()
            .unwrap();
        let shell_pid = Pid::from_raw(shell.id().cast_signed());
        while list_descendants(shell_pid).is_empty() {
            std::thread::yield_now();
        }
        let grandchild = list_descendants(shell_pid)[0];
        assert!(grandchild.start_ticks >= before && grandchild.start_ticks <= read_boot_ticks());
        assert!(own_descendants().contains(&grandchild.pid));
        let count = stop_and_kill_processes(|| {
            let mut all: Vec<Pid> = list_descendants(shell_pid)
                .into_iter()
                .map(|d| d.pid)
                .collect();
            all.push(shell_pid);
            all
        });
        assert_eq!(count, 2);
        assert!(!shell.wait().unwrap().success());
    }

    #[test]
    fn an_open_file_of_a_descendant_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a file.unfinished-here");
        let is_open = || has_descendant_with_open_file(getpid(), ".unfinished-here");
        assert!(!is_open());
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(File::create(&file).unwrap())
            .spawn()
            .unwrap();
        assert!(is_open() && !has_descendant_with_open_file(getpid(), ".unfinished-elsewhere"));
        // /proc shows the current name of the file.
        std::fs::rename(&file, folder.path().join("a file")).unwrap();
        assert!(!is_open());
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}
