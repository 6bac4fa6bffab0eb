//! How much of the machine a build or a trial may take: it is left when what remains is too little for
//! everybody else. No builder that speaks BuildKit can be given limits of its own by the engine's API.

use crate::error::Result;
use anyhow::{Context, bail};
use nix::sys::statvfs::statvfs;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Between two looks: a disk is quickly filled.
const LOOK: Duration = Duration::from_millis(100);
/// Memory may be short for a moment.
const IN_A_ROW: u32 = 20;
/// Bytes that are left at least, where the disk is not small.
const DISK: u64 = 1 << 30;
/// The same of memory.
const MEMORY: u64 = 256 << 20;

/// What is left, and what there is at all.
#[derive(Debug, Clone, Copy)]
struct Left {
    disk: (u64, u64),
    /// Files that the disk can still hold; a disk that has no such bound has none at all.
    files: (u64, u64),
    memory: (u64, u64),
}

/// What of it is too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Short {
    Disk(u64),
    Files,
    Memory(u64),
}

fn judge(left: Left) -> Option<Short> {
    let ((disk, whole), (files, all)) = (left.disk, left.files);
    let least = DISK.min(whole / 20);
    if disk < least {
        return Some(Short::Disk(least));
    }
    if all > 0 && files < all / 50 {
        return Some(Short::Files);
    }
    let (memory, whole) = left.memory;
    let least = MEMORY.min(whole / 20);
    (memory < least).then_some(Short::Memory(least))
}

/// Waits until the disk of the engine, which the keeper's volume is on, or the memory of its machine is
/// about to run out, and says so.
pub(super) async fn runs_out(volume: &Path) -> anyhow::Error {
    let mut short = 0;
    loop {
        let found = match look(volume) {
            Ok(left) => judge(left),
            Err(error) => return error,
        };
        let mib = |bytes: u64| bytes >> 20;
        match found {
            Some(Short::Disk(least)) => {
                let why = format!("less than {} MiB are left", mib(least));
                return anyhow::anyhow!("the disk is nearly full: {why}");
            }
            Some(Short::Files) => {
                return anyhow::anyhow!("the disk can hold hardly any more files");
            }
            Some(Short::Memory(least)) => {
                short += 1;
                if short == IN_A_ROW {
                    let why = format!("less than {} MiB are left", mib(least));
                    return anyhow::anyhow!("the machine's memory is nearly used up: {why}");
                }
            }
            None => short = 0,
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn look(volume: &Path) -> Result<Left> {
    let found = statvfs(volume).context("looking at the room of the disk")?;
    let unit = found.fragment_size();
    let text = fs::read_to_string("/proc/meminfo").context("looking at the machine's memory")?;
    Ok(Left {
        disk: (found.blocks_available() * unit, found.blocks() * unit),
        files: (found.files_available(), found.files()),
        memory: memory(&text)?,
    })
}

/// Bytes that are available, and all of them.
fn memory(meminfo: &str) -> Result<(u64, u64)> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        Some(kib << 10)
    };
    match (field("MemAvailable:"), field("MemTotal:")) {
        (Some(available), Some(total)) => Ok((available, total)),
        _ => bail!("the machine does not tell its memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Left, Short, judge, memory};

    #[test]
    fn what_is_too_little_is_named_and_small_machines_are_not_shut_out() {
        let fine = Left {
            disk: (2 << 30, 100 << 30),
            files: (1000, 2000),
            memory: (1 << 30, 8 << 30),
        };
        assert_eq!(judge(fine), None);
        let disk = |left, whole| {
            judge(Left {
                disk: (left, whole),
                ..fine
            })
        };
        assert_eq!(disk((1 << 30) - 1, 100 << 30), Some(Short::Disk(1 << 30)));
        assert_eq!(disk(200 << 20, 2 << 30), None);
        assert_eq!(disk(50 << 20, 2 << 30), Some(Short::Disk((2 << 30) / 20)));
        let files = |left, all| {
            judge(Left {
                files: (left, all),
                ..fine
            })
        };
        assert_eq!(files(39, 2000), Some(Short::Files));
        assert_eq!((files(40, 2000), files(0, 0)), (None, None));
        let memory = |left, whole| {
            judge(Left {
                memory: (left, whole),
                ..fine
            })
        };
        assert_eq!(memory(200 << 20, 24 << 30), Some(Short::Memory(256 << 20)));
        assert_eq!(memory(60 << 20, 1 << 30), None);
    }

    #[test]
    fn memory_is_read_as_linux_tells_it() {
        let text = "MemTotal:       24 kB\nMemFree: 1 kB\nMemAvailable:    12 kB\n";
        assert_eq!(memory(text).unwrap(), (12 << 10, 24 << 10));
        assert!(memory("MemTotal: 1 kB").is_err());
    }
}
