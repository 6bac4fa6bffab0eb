//! Memory that nobody uses goes back to the system: what starting took, of the heap and of the
//! program itself, and what a crowd of clients or a flood of output took. It goes now and then, and
//! not with every large text: to have each page of it cleared again takes longer than to read it.

use nix::libc;
use std::fs;
use std::ops::Range;
use std::time::Duration;

/// Between two looks; far apart, because who comes back soon finds the memory still there.
const MEMORY_TRIM_INTERVAL: Duration = Duration::from_secs(10);

/// Growth in bytes that is worth a walk through the heap.
const MIN_TRIM_GROWTH_BYTES: u64 = 512 << 10;

/// Free bytes at the end of the heap that are kept until the next look, and the size from which on a
/// piece of memory is a mapping of its own.
#[cfg(target_env = "gnu")]
const HEAP_TRIM_THRESHOLD_BYTES: libc::c_int = 64 << 20;
#[cfg(target_env = "gnu")]
const HEAP_MMAP_THRESHOLD_BYTES: libc::c_int = 8 << 20;

/// Looks for ever.
pub(super) async fn trim_periodically() {
    keep_for_now();
    tokio::time::sleep(MEMORY_TRIM_INTERVAL).await;
    drop_startup_pages();
    let mut settled = 0;
    loop {
        if read_resident_bytes() > settled + MIN_TRIM_GROWTH_BYTES {
            // The walk takes milliseconds when much is free.
            if tokio::task::spawn_blocking(give_back).await.is_err() {
                return;
            }
            settled = read_resident_bytes();
        }
        tokio::time::sleep(MEMORY_TRIM_INTERVAL).await;
    }
}

/// The resident set in bytes; 0 when it can't be read.
fn read_resident_bytes() -> u64 {
    let told = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

/// Most of the program that a start runs through is not needed after it; what is comes back from the
/// page cache when it is run the next time.
fn drop_startup_pages() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for part in find_unchanged_ranges(&maps, trim_periodically as *const () as usize) {
        // SAFETY: the range is a mapping of a file that nobody has written to, and nobody can: the
        // next access finds in it what was there.
        unsafe {
            libc::madvise(part.start as *mut _, part.len(), libc::MADV_DONTNEED);
        }
    }
}

/// The mappings of the file that holds the code at `address`, as far as they are what the file says:
/// code, and what is read-only from the beginning. What the loader has filled in is not among them.
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
    /// Bytes, in the file.
    offset: usize,
    /// Also `[heap]` and the like, or nothing.
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
fn give_back() {
    // SAFETY: it takes no pointer, and the allocator locks what it walks through.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(target_env = "gnu")]
fn keep_for_now() {
    for (option, bytes) in [
        (libc::M_TRIM_THRESHOLD, HEAP_TRIM_THRESHOLD_BYTES),
        (libc::M_MMAP_THRESHOLD, HEAP_MMAP_THRESHOLD_BYTES),
    ] {
        // SAFETY: it takes numbers alone; one that it refuses changes nothing.
        unsafe { libc::mallopt(option, bytes) };
    }
}

/// Other allocators do both by themselves.
#[cfg(not(target_env = "gnu"))]
fn give_back() {}
#[cfg(not(target_env = "gnu"))]
fn keep_for_now() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_resident_is_known() {
        assert!(read_resident_bytes() > 1 << 20);
    }

    #[test]
    fn only_what_the_file_says_is_forgotten() {
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
    fn a_process_goes_on_without_its_start() {
        let words = ["what", "is", "read", "is", "as", "before"];
        let before = words.join(" ");
        drop_startup_pages();
        assert_eq!(words.join(" "), before);
    }
}
