//! Watch on the machine's resources during a build or a trial: it ends when the machine has too little disk, memory
//! or processes left. The host and the keeper watch their builds alike. The engine's API gives BuildKit no limits for
//! its steps, and no builder limits the processes of a step.

use crate::error::Result;
use anyhow::{Context, bail};
use nix::sys::statvfs::statvfs;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The interval between two checks, short because a disk fills quickly.
const RESOURCE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How many consecutive checks may find too little memory: memory may be short for a moment.
const MAX_LOW_MEMORY_CHECKS: u32 = 20;
/// The minimum of free bytes on the disk, unless the disk is small.
const MIN_FREE_DISK_BYTES: u64 = 1 << 30;
/// The minimum of free bytes of memory, unless the machine is small.
const MIN_FREE_MEMORY_BYTES: u64 = 256 << 20;

/// Free and total resources.
#[derive(Debug, Clone, Copy)]
struct HostResources {
    disk: (u64, u64),
    /// Files that the disk can still hold; both are 0 for a disk without such a limit.
    files: (u64, u64),
    memory: (u64, u64),
    /// Processes and threads that the machine can still start.
    tasks: (u64, u64),
}

/// The resource that is too low.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResourceShortage {
    Disk(u64),
    Files,
    Memory(u64),
    Tasks,
}

fn find_shortage(left: HostResources) -> Option<ResourceShortage> {
    let ((disk, whole), (files, all)) = (left.disk, left.files);
    let least = MIN_FREE_DISK_BYTES.min(whole / 20);
    if disk < least {
        return Some(ResourceShortage::Disk(least));
    }
    if all > 0 && files < all / 50 {
        return Some(ResourceShortage::Files);
    }
    let (tasks, all) = left.tasks;
    if tasks < all / 10 {
        return Some(ResourceShortage::Tasks);
    }
    let (memory, whole) = left.memory;
    let least = MIN_FREE_MEMORY_BYTES.min(whole / 20);
    (memory < least).then_some(ResourceShortage::Memory(least))
}

/// Waits until the engine's disk, which holds `volume`, or the machine's memory or process limit is nearly used up,
/// and returns the reason.
pub(crate) async fn wait_for_shortage(volume: &Path) -> anyhow::Error {
    let mut short = 0;
    loop {
        let found = match measure_resources(volume) {
            Ok(left) => find_shortage(left),
            Err(error) => return error,
        };
        let mib = |bytes: u64| bytes >> 20;
        match found {
            Some(ResourceShortage::Disk(least)) => {
                let why = format!("less than {} MiB are left", mib(least));
                return anyhow::anyhow!("the disk is nearly full: {why}");
            }
            Some(ResourceShortage::Files) => {
                return anyhow::anyhow!("the disk has almost no free inodes");
            }
            Some(ResourceShortage::Tasks) => {
                return anyhow::anyhow!("the machine has almost reached its process limit");
            }
            Some(ResourceShortage::Memory(least)) => {
                short += 1;
                if short == MAX_LOW_MEMORY_CHECKS {
                    let why = format!("less than {} MiB are left", mib(least));
                    return anyhow::anyhow!("the machine's memory is nearly used up: {why}");
                }
            }
            None => short = 0,
        }
        tokio::time::sleep(RESOURCE_CHECK_INTERVAL).await;
    }
}

fn measure_resources(volume: &Path) -> Result<HostResources> {
    let found = statvfs(volume).context("reading the free space of the disk")?;
    let unit = found.fragment_size();
    let text = fs::read_to_string("/proc/meminfo").context("reading the machine's memory")?;
    Ok(HostResources {
        disk: (found.blocks_available() * unit, found.blocks() * unit),
        files: (found.files_available(), found.files()),
        memory: parse_meminfo(&text)?,
        // A machine that does not report its tasks has no such limit.
        tasks: measure_tasks(|path| fs::read_to_string(path)).unwrap_or_default(),
    })
}

/// The number of processes and threads that the machine can still start, and the maximum: no builder limits the
/// processes of a step.
fn measure_tasks(read: impl Fn(&str) -> std::io::Result<String>) -> Result<(u64, u64)> {
    const TASK_LIMIT_FILES: [&str; 2] =
        ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let doing = "reading the machine's process limit";
    let mut all = u64::MAX;
    for path in TASK_LIMIT_FILES {
        let text = read(path).context(doing)?;
        all = all.min(text.trim().parse().context(doing)?);
    }
    // `0.00 0.01 0.05 1/523 4711`: of 523 tasks, 1 runs.
    let load = read("/proc/loadavg").context(doing)?;
    let used = load
        .split_ascii_whitespace()
        .nth(3)
        .and_then(|tasks| tasks.split_once('/')?.1.parse::<u64>().ok());
    let used = used.context("`/proc/loadavg` has no number of processes")?;
    Ok((all.saturating_sub(used), all))
}

/// Available bytes, and the total.
fn parse_meminfo(meminfo: &str) -> Result<(u64, u64)> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        Some(kib << 10)
    };
    match (field("MemAvailable:"), field("MemTotal:")) {
        (Some(available), Some(total)) => Ok((available, total)),
        _ => bail!("`/proc/meminfo` has no available or total memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::{HostResources, ResourceShortage, find_shortage, measure_tasks, parse_meminfo};

    #[test]
    fn a_shortage_is_relative_to_the_size_of_the_machine() {
        let fine = HostResources {
            disk: (2 << 30, 100 << 30),
            files: (1000, 2000),
            memory: (1 << 30, 8 << 30),
            tasks: (30_000, 32_768),
        };
        assert_eq!(find_shortage(fine), None);
        let disk = |left, whole| {
            find_shortage(HostResources {
                disk: (left, whole),
                ..fine
            })
        };
        assert_eq!(
            disk((1 << 30) - 1, 100 << 30),
            Some(ResourceShortage::Disk(1 << 30))
        );
        assert_eq!(disk(200 << 20, 2 << 30), None);
        assert_eq!(
            disk(50 << 20, 2 << 30),
            Some(ResourceShortage::Disk((2 << 30) / 20))
        );
        let files = |left, all| {
            find_shortage(HostResources {
                files: (left, all),
                ..fine
            })
        };
        assert_eq!(files(39, 2000), Some(ResourceShortage::Files));
        assert_eq!((files(40, 2000), files(0, 0)), (None, None));
        let tasks = |left| {
            find_shortage(HostResources {
                tasks: (left, 32_768),
                ..fine
            })
        };
        assert_eq!(
            (tasks(3275), tasks(3277)),
            (Some(ResourceShortage::Tasks), None)
        );
        let memory = |left, whole| {
            find_shortage(HostResources {
                memory: (left, whole),
                ..fine
            })
        };
        assert_eq!(
            memory(200 << 20, 24 << 30),
            Some(ResourceShortage::Memory(256 << 20))
        );
        assert_eq!(memory(60 << 20, 1 << 30), None);
    }

    #[test]
    fn processes_are_counted_against_the_lower_of_both_limits() {
        let machine = |path: &str| {
            Ok(match path {
                "/proc/loadavg" => "0.00 0.01 0.05 1/523 4711\n",
                "/proc/sys/kernel/pid_max" => "32768\n",
                _ => "190000\n",
            }
            .to_owned())
        };
        assert_eq!(measure_tasks(machine).unwrap(), (32_768 - 523, 32_768));
        assert!(measure_tasks(|_| Ok("1".into())).is_err());
        measure_tasks(|path| std::fs::read_to_string(path)).unwrap();
    }

    #[test]
    fn memory_is_read_from_meminfo() {
        let text = "MemTotal:       24 kB\nMemFree: 1 kB\nMemAvailable:    12 kB\n";
        assert_eq!(parse_meminfo(text).unwrap(), (12 << 10, 24 << 10));
        assert!(parse_meminfo("MemTotal: 1 kB").is_err());
    }
}
