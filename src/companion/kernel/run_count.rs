//! How many runs a session has begun, over all lives of its kernel and of the companion.
//!
//! A generation is stored with that number, so that the difference tells how many runs came after it. The number is
//! written before the kernel gets the code, into the page cache: it survives the death of the companion and of the
//! container. When the machine itself stops without writing its caches to the disk, runs may be missing; that is
//! noticed at the next start, and differences to what was stored before are then estimates.

use super::generation_store::replace_file_atomically;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Changes whenever the machine starts.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// Stands for the boot where everything was synced before the end.
const SYNCED_BOOT_ID: &str = "synced";

/// Digits of a number, so that it is replaced in place.
const RUN_COUNT_DIGITS: usize = 20;

/// What is on disk: the number, the boot of the machine that it was written in, and when runs may have been missed last.
#[derive(Debug, Clone, Default, PartialEq)]
struct RunCountRecord {
    count: u64,
    boot: String,
    /// In seconds since 1970; 0 for never.
    doubtful: f64,
}

impl RunCountRecord {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        Some(Self {
            count: lines.next()?.parse().ok()?,
            boot: lines.next()?.into(),
            doubtful: lines.next()?.parse().ok()?,
        })
    }

    fn to_text(&self) -> String {
        let Self {
            count,
            boot,
            doubtful,
        } = self;
        format!("{count:0RUN_COUNT_DIGITS$}\n{boot}\n{doubtful}\n")
    }

    fn read(path: &Path) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let entry = Self::parse(&text);
        if entry.is_none() {
            tracing::error!(
                "`{}` can't be read: runs are counted from 0",
                path.display()
            );
        }
        entry
    }

    /// Runs since a generation was stored at `created` with the number `stored`, and whether that is an estimate.
    fn count_since(&self, stored: u64, created: f64) -> Option<(u64, bool)> {
        let runs = self.count.checked_sub(stored)?;
        Some((runs, self.doubtful > created))
    }
}

#[derive(Debug)]
pub(super) struct RunCount {
    path: PathBuf,
    file: Option<File>,
    entry: RunCountRecord,
}

impl RunCount {
    /// Without a file that can be written runs are counted for this life alone.
    pub(super) fn open(folder: &Path, session: &str) -> Self {
        let boot = fs::read_to_string(BOOT_ID_PATH).unwrap_or_default();
        Self::open_in(folder, session, boot.trim())
    }

    fn open_in(folder: &Path, session: &str, boot: &str) -> Self {
        let path = count_path(folder, session);
        let mut entry = RunCountRecord::read(&path).unwrap_or_default();
        let is_other = !entry.boot.is_empty() && entry.boot != SYNCED_BOOT_ID && entry.boot != boot;
        if is_other {
            entry.doubtful = unix_seconds();
        }
        entry.boot = boot.into();
        let mut count = Self {
            path,
            file: None,
            entry,
        };
        count.replace_file();
        count
    }

    pub(super) fn count(&self) -> u64 {
        self.entry.count
    }

    /// One more begins.
    pub(super) fn increment(&mut self) {
        self.entry.count += 1;
        self.write_count();
    }

    /// The last one did not begin after all.
    pub(super) fn take_back(&mut self) {
        self.entry.count -= 1;
        self.write_count();
    }

    /// Another companion may have counted meanwhile.
    pub(super) fn adopt_newer_count(&mut self) {
        if let Some(theirs) =
            RunCountRecord::read(&self.path).filter(|e| e.count > self.entry.count)
        {
            self.entry.count = theirs.count;
        }
        self.replace_file();
    }

    /// The end of this life: what was counted outlasts the machine's. Where another companion counts already, in the
    /// container that took the place of this one, its count stays.
    pub(super) fn sync_and_close(&mut self) {
        if !self.is_own() {
            return;
        }
        self.entry.boot = SYNCED_BOOT_ID.into();
        self.replace_file();
        let synced = self.file.as_ref().map(File::sync_all);
        if let Some(Err(error)) = synced {
            tracing::warn!("`{}` is not synced: {error}", self.path.display());
        }
    }

    /// Whether the file is the one that this companion has made.
    fn is_own(&self) -> bool {
        let inode = |found: fs::Metadata| (found.dev(), found.ino());
        let own = self.file.as_ref().map(|file| file.metadata().map(inode));
        let found = fs::metadata(&self.path).map(inode);
        matches!((own, found), (Some(Ok(own)), Ok(found)) if own == found)
    }

    fn write_count(&self) {
        let number = format!("{:0RUN_COUNT_DIGITS$}", self.entry.count);
        let written = self
            .file
            .as_ref()
            .map(|f| f.write_all_at(number.as_bytes(), 0));
        if let Some(Err(error)) = written {
            tracing::error!("`{}` can't be written: {error}", self.path.display());
        }
    }

    fn replace_file(&mut self) {
        let replaced = replace_file_atomically(&self.path, self.entry.to_text().as_bytes())
            .and_then(|_| OpenOptions::new().write(true).open(&self.path));
        match replaced {
            Ok(file) => self.file = Some(file),
            Err(error) => tracing::error!("`{}` can't be written: {error}", self.path.display()),
        }
    }
}

/// Runs of a session since one of its generations was stored, and whether that is an estimate.
pub(crate) fn runs_since(
    folder: &Path,
    session: &str,
    stored: u64,
    created: f64,
) -> Option<(u64, bool)> {
    RunCountRecord::read(&count_path(folder, session))?.count_since(stored, created)
}

/// Puts what was counted so far onto the disk, with the generation that it belongs to.
pub(super) fn sync_count(folder: &Path, session: &str) -> io::Result<()> {
    File::open(count_path(folder, session))?.sync_all()
}

fn count_path(folder: &Path, session: &str) -> PathBuf {
    folder.join(format!("{session}.runs"))
}

fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::{RunCount, runs_since};

    #[test]
    fn what_was_counted_survives_a_death_and_is_an_estimate_after_the_machines() {
        let folder = tempfile::tempdir().unwrap();
        let since = |stored, created| runs_since(folder.path(), "a", stored, created);
        assert_eq!(since(0, 1.0), None, "nothing was counted yet");
        let mut count = RunCount::open_in(folder.path(), "a", "boot-1");
        (0..12).for_each(|_| count.increment());
        count.take_back();
        assert_eq!((count.count(), since(9, 1.0)), (11, Some((2, false))));
        // The companion dies; its file is as it was.
        std::mem::forget(count);
        let mut count = RunCount::open_in(folder.path(), "a", "boot-1");
        count.increment();
        assert_eq!(since(9, 1.0), Some((3, false)));
        // An orderly end loses nothing, whatever the machine does then.
        count.sync_and_close();
        let count = RunCount::open_in(folder.path(), "a", "boot-2");
        assert_eq!((count.count(), since(9, 1.0)), (12, Some((3, false))));
        std::mem::forget(count);
        RunCount::open_in(folder.path(), "a", "boot-3");
        assert_eq!(since(9, 1.0), Some((3, true)));
        let later = super::unix_seconds() + 1.0;
        assert_eq!(since(12, later), Some((0, false)), "stored after that");
        // A folder of another time tells nothing.
        assert_eq!(since(13, 1.0), None);
    }

    #[test]
    fn who_waited_goes_on_from_what_another_has_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut waiting = RunCount::open_in(folder.path(), "a", "boot");
        waiting.increment();
        let mut other = RunCount::open_in(folder.path(), "a", "boot");
        other.increment();
        waiting.adopt_newer_count();
        waiting.increment();
        assert_eq!(waiting.count(), 3);
        assert_eq!(runs_since(folder.path(), "a", 0, 1.0), Some((3, false)));
    }

    #[test]
    fn who_ends_late_takes_no_count_of_another_away() {
        let folder = tempfile::tempdir().unwrap();
        let mut old = RunCount::open_in(folder.path(), "a", "boot");
        old.increment();
        let mut new = RunCount::open_in(folder.path(), "a", "boot");
        new.increment();
        old.sync_and_close();
        new.increment();
        assert_eq!(runs_since(folder.path(), "a", 0, 1.0), Some((3, false)));
        new.sync_and_close();
        let reopened = RunCount::open_in(folder.path(), "a", "another boot");
        assert_eq!(reopened.count(), 3);
        assert_eq!(runs_since(folder.path(), "a", 0, 1.0), Some((3, false)));
    }

    #[test]
    fn a_damaged_count_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.runs"), "many\n").unwrap();
        let mut count = RunCount::open_in(folder.path(), "a", "boot");
        count.increment();
        assert_eq!(count.count(), 1);
        // A folder that can't be made stops no run.
        let mut count = RunCount::open_in(&folder.path().join("a.runs/none"), "a", "boot");
        count.increment();
        assert_eq!(count.count(), 1);
    }
}
