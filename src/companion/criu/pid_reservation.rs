//! Reservation of process IDs for processes that are restored later.
//!
//! A restored process needs its former IDs, and so do its threads and children. Therefore each generation of the
//! container uses IDs from a region that contains no ID of a stored checkpoint. The system assigns IDs in ascending
//! order, and one write to /proc sets the next ID.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::{fs, thread};

/// IDs in a region. If the system has too few IDs, they are divided into [`MIN_PID_REGIONS`] regions instead.
const PID_REGION_WIDTH: i32 = 1 << 16;
const MIN_PID_REGIONS: i32 = 16;

/// Returns the first ID of this generation: above the IDs of every checkpoint, if there is room.
pub(super) fn choose_pid_region(highest: i32, taken: &BTreeSet<i32>) -> i32 {
    let width = PID_REGION_WIDTH.min(highest / MIN_PID_REGIONS).max(1);
    let is_taken = |region: &i32| {
        let begin = region * width;
        taken.range(begin..begin + width).next().is_some()
    };
    // Every container starts in the first region, before this code runs.
    let free = (1..highest / width).find(|region| !is_taken(region));
    free.unwrap_or(1) * width
}

/// Returns the highest possible ID plus one.
///
/// # Errors
/// When /proc can't be read.
pub(super) fn read_pid_max() -> io::Result<i32> {
    let text = fs::read_to_string("/proc/sys/kernel/pid_max")?;
    text.trim().parse().map_err(io::Error::other)
}

/// Makes the next process or thread of this container get the ID `begin`, or one soon after it.
///
/// The container's own /proc is read-only. Therefore a thread with a separate mount namespace mounts a new /proc, which
/// is invisible to other processes and ends with the thread.
///
/// # Errors
/// When the container lacks the permission.
pub(super) fn set_next_pid(begin: i32) -> io::Result<()> {
    let write = move || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let none = None::<&Path>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("proc"), "/proc", Some("proc"), flags, none)?;
        fs::write("/proc/sys/kernel/ns_last_pid", (begin - 1).to_string())
    };
    let written = thread::spawn(write).join();
    written.unwrap_or_else(|_| {
        Err(io::Error::other(
            "the thread that sets the next process ID failed",
        ))
    })
}

/// Returns the IDs that processes, threads or process groups use now.
pub(super) fn find_pids_in_use(ids: &BTreeSet<i32>) -> BTreeSet<i32> {
    let taken = |id: &&i32| {
        Path::new(&format!("/proc/{id}")).exists() || kill(Pid::from_raw(-**id), None).is_ok()
    };
    ids.iter().filter(taken).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::{choose_pid_region, find_pids_in_use, read_pid_max, set_next_pid};
    use std::collections::BTreeSet;

    #[test]
    fn a_companion_uses_the_first_region_without_a_checkpoint() {
        assert_eq!(choose_pid_region(4_194_304, &BTreeSet::new()), 65_536);
        assert_eq!(choose_pid_region(4_194_304, &[70_000].into()), 131_072);
        assert_eq!(
            choose_pid_region(4_194_304, &[12, 70_000, 131_072, 300_000].into()),
            196_608
        );
        assert_eq!(choose_pid_region(32_768, &[3_000].into()), 4_096);
    }

    #[test]
    fn without_space_uses_first_region() {
        let all: BTreeSet<i32> = (0..16).map(|n| n * 2048 + 5).collect();
        assert_eq!(choose_pid_region(32_768, &all), 2048);
    }

    #[test]
    fn ids_of_running_processes_are_in_use() {
        let own = std::process::id() as i32;
        assert_eq!(find_pids_in_use(&[own, i32::MAX].into()), [own].into());
        assert!(read_pid_max().unwrap() > own);
    }

    #[test]
    fn a_missing_permission_is_an_error() {
        // The ID is higher than any valid one, so the call also fails with the permission.
        assert!(set_next_pid(i32::MAX).is_err());
    }
}
