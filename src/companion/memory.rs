//! Periodic return of unused memory to the system: memory from the start (heap and program pages) and from load peaks,
//! such as many clients or much output.
//!
//! Memory is returned periodically and not after every large text, because clearing each page again takes longer than
//! reading it.

use nix::libc;
use std::fs;
use std::ops::Range;
use std::time::Duration;

/// Time between two checks. The time is long because a client that soon returns can then reuse the memory.
const MEMORY_TRIM_INTERVAL: Duration = Duration::from_secs(10);

/// Growth in bytes from which a walk through the heap is worthwhile.
const MIN_TRIM_GROWTH_BYTES: u64 = 512 << 10;

/// Free bytes at the end of the heap that stay until the next check, and the size from which an allocation gets its own
/// mapping.
#[cfg(target_env = "gnu")]
const HEAP_TRIM_THRESHOLD_BYTES: libc::c_int = 64 << 20;
#[cfg(target_env = "gnu")]
const HEAP_MMAP_THRESHOLD_BYTES: libc::c_int = 8 << 20;

/// Checks until the runtime ends.
pub(super) async fn trim_periodically() {
    set_heap_thresholds();
    tokio::time::sleep(MEMORY_TRIM_INTERVAL).await;
    drop_startup_pages();
    let mut settled = 0;
    loop {
        if read_resident_bytes() > settled + MIN_TRIM_GROWTH_BYTES {
            // The walk takes milliseconds when much memory is free.
            if tokio::task::spawn_blocking(trim_heap).await.is_err() {
                return;
            }
            settled = read_resident_bytes();
        }
        tokio::time::sleep(MEMORY_TRIM_INTERVAL).await;
    }
}

/// The resident set in bytes; 0 when /proc can't be read.
fn read_resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

/// Drops the pages of the program, most of which only the start needs. The system reloads a page that is used again
/// from the page cache.
fn drop_startup_pages() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for part in find_unchanged_ranges(&maps, trim_periodically as *const () as usize) {
        // SAFETY: the range is a mapping of a file that is not writable, neither before nor now: the next access finds
        // the same content.
        unsafe {
            libc::madvise(part.start as *mut _, part.len(), libc::MADV_DONTNEED);
        }
    }
}

/// Finds the mappings of the file that contains the code at `address` whose content equals the file: code and data that
/// was read-only from the start. Data that the loader filled in is excluded.
fn find_unchanged_ranges(maps: &str, address: usize) -> Vec<Range<usize>> {
    let mappings: Vec<_> = maps.lines().filter_map(MemoryMapping::parse).collect();
    let own = mappings.iter().find(|m| m.range.contains(&address));
    let Some(own) = own.filter(|own| own.file.starts_with('/')) else {
        return Vec::new();
    };
    let same = mappings.iter().filter(|m| m.file == own.file);
    same.filter(|m| m.access == "r-xp" || (m.access == "r--p" && m.offset == 0))
        .map(|m| m.range.clone())
        .collect()
}

/// A line of `/proc/PID/maps`.
struct MemoryMapping<'a> {
    range: Range<usize>,
    access: &'a str,
    /// Offset in the file, in bytes.
    offset: usize,
    /// The mapped file, a label such as `[heap]`, or nothing.
    file: &'a str,
}

impl<'a> MemoryMapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let number = |text| usize::from_str_radix(text, 16).ok();
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        Some(Self {
            range: number(start)?..number(end)?,
            access: fields.next()?,
            offset: number(fields.next()?)?,
            file: fields.nth(2)?.trim_start(),
        })
    }
}

#[cfg(target_env = "gnu")]
fn trim_heap() {
    // SAFETY: the call takes no pointer, and the allocator locks what it walks through.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(target_env = "gnu")]
fn set_heap_thresholds() {
    for (option, bytes) in [
        (libc::M_TRIM_THRESHOLD, HEAP_TRIM_THRESHOLD_BYTES),
        (libc::M_MMAP_THRESHOLD, HEAP_MMAP_THRESHOLD_BYTES),
    ] {
        // SAFETY: the call takes only numbers; an option that it refuses changes nothing.
        unsafe { libc::mallopt(option, bytes) };
    }
}

/// Other allocators do both automatically.
#[cfg(not(target_env = "gnu"))]
fn trim_heap() {}
#[cfg(not(target_env = "gnu"))]
fn set_heap_thresholds() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_bytes_are_read() {
        assert!(read_resident_bytes() > 1 << 20);
    }

    #[test]
    fn only_unchanged_ranges_are_found() {
        let maps = "1000-2000 r--p 00000000 fe:00 12    /opt/osctl\n\
                    2000-5000 r-xp 00001000 fe:00 12    /opt/osctl\n\
                    5000-6000 r--p 00004000 fe:00 12    /opt/osctl\n\
                    6000-7000 rw-p 00005000 fe:00 12    /opt/osctl\n\
                    7000-8000 rw-p 00000000 00:00 0     [heap]\n\
                    8000-9000 r-xp 00000000 00:00 0 \n\
                    9000-a000 r-xp 00000000 fe:00 13    /lib/other\n";
        assert_eq!(
            find_unchanged_ranges(maps, 0x2100),
            [0x1000..0x2000, 0x2000..0x5000]
        );
        assert!(find_unchanged_ranges(maps, 0x8100).is_empty());
        assert!(find_unchanged_ranges("", 0x2100).is_empty());
    }

    #[test]
    fn a_process_continues_without_its_start_pages() {
        let words = ["what", "is", "read", "is", "as", "before"];
        let before = words.join(" ");
        drop_startup_pages();
        assert_eq!(words.join(" "), before);
    }
}
