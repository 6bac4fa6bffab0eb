//! Run count of a session over all generations of its kernel and of the companion.
//!
//! A stored generation contains the run count at the time of the store, so that the difference is the number of later
//! runs. The count is written before the kernel gets the code, into the page cache: the count survives a crash of the
//! companion and of the container. When the machine stops without writing its caches to disk, runs may be missing from
//! the count. The next start detects this case; differences to earlier stores are then estimates.

use super::generation_store::replace_session_file;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// This file's content changes at every boot of the machine.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// Boot id of a count that was synced to disk at shutdown.
const SYNCED_BOOT_ID: &str = "synced";

/// Fixed number of digits, so that the count is replaced in place.
const RUN_COUNT_DIGITS: usize = 20;

/// The record on disk: the count, the boot id at the time of writing, and the last time when runs may have been missed.
#[derive(Debug, Clone, Default, PartialEq)]
struct RunCountRecord {
    count: u64,
    boot_id: String,
    /// In seconds since 1970; 0 for never.
    last_uncertain: f64,
}

impl RunCountRecord {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        Some(Self {
            count: lines.next()?.parse().ok()?,
            boot_id: lines.next()?.into(),
            last_uncertain: lines.next()?.parse().ok()?,
        })
    }

    fn to_text(&self) -> String {
        let Self {
            count,
            boot_id,
            last_uncertain,
        } = self;
        format!("{count:0RUN_COUNT_DIGITS$}\n{boot_id}\n{last_uncertain}\n")
    }

    fn read(path: &Path) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let entry = Self::parse(&text);
        if entry.is_none() {
            tracing::error!(path = %path.display(), "the run count can't be read; runs are counted from 0");
        }
        entry
    }

    /// Runs since the store at `created` with the count `stored`, and whether the number is an estimate.
    fn count_since(&self, stored: u64, created: f64) -> Option<(u64, bool)> {
        let runs = self.count.checked_sub(stored)?;
        Some((runs, self.last_uncertain > created))
    }
}

#[derive(Debug)]
pub(super) struct RunCount {
    path: PathBuf,
    file: Option<File>,
    record: RunCountRecord,
}

impl RunCount {
    /// Opens the count. If the file can't be written, runs are counted in memory until the owner ends.
    pub(super) fn open(folder: &Path, session: &str) -> Self {
        let boot = fs::read_to_string(BOOT_ID_PATH).unwrap_or_default();
        Self::open_in(folder, session, boot.trim())
    }

    fn open_in(folder: &Path, session: &str, boot: &str) -> Self {
        let path = count_path(folder, session);
        let mut record = RunCountRecord::read(&path).unwrap_or_default();
        let is_other = !record.boot_id.is_empty()
            && record.boot_id != SYNCED_BOOT_ID
            && record.boot_id != boot;
        if is_other {
            record.last_uncertain = unix_seconds();
        }
        record.boot_id = boot.into();
        let mut count = Self {
            path,
            file: None,
            record,
        };
        count.replace_file();
        count
    }

    pub(super) fn count(&self) -> u64 {
        self.record.count
    }

    /// Counts one more run.
    pub(super) fn increment(&mut self) {
        self.record.count += 1;
        self.write_count();
    }

    /// Uncounts the last run, which did not start.
    pub(super) fn decrement(&mut self) {
        self.record.count -= 1;
        self.write_count();
    }

    /// Reads the file again: another companion may have changed the count.
    pub(super) fn adopt_newer_count(&mut self) {
        if let Some(theirs) =
            RunCountRecord::read(&self.path).filter(|e| e.count > self.record.count)
        {
            self.record.count = theirs.count;
        }
        self.replace_file();
    }

    /// Syncs the count to disk at shutdown, so that the count survives a stop of the machine. If the companion of the
    /// replacement container counts already, its count is kept.
    pub(super) fn sync_and_close(&mut self) {
        if !self.is_current_file() {
            return;
        }
        self.record.boot_id = SYNCED_BOOT_ID.into();
        self.replace_file();
        let synced = self.file.as_ref().map(File::sync_all);
        if let Some(Err(error)) = synced {
            tracing::warn!(path = %self.path.display(), %error, "the run count can't be synced");
        }
    }

    /// Whether this companion created the file.
    fn is_current_file(&self) -> bool {
        let inode = |found: fs::Metadata| (found.dev(), found.ino());
        let own = self.file.as_ref().map(|file| file.metadata().map(inode));
        let found = fs::metadata(&self.path).map(inode);
        matches!((own, found), (Some(Ok(own)), Ok(found)) if own == found)
    }

    fn write_count(&self) {
        let number = format!("{:0RUN_COUNT_DIGITS$}", self.record.count);
        let written = self
            .file
            .as_ref()
            .map(|f| f.write_all_at(number.as_bytes(), 0));
        if let Some(Err(error)) = written {
            tracing::error!(path = %self.path.display(), %error, "the run count can't be written");
        }
    }

    fn replace_file(&mut self) {
        match replace_session_file(&self.path, self.record.to_text().as_bytes()) {
            Ok(file) => self.file = Some(file),
            Err(error) => {
                tracing::error!(path = %self.path.display(), %error, "the run count can't be written")
            }
        }
    }
}

/// Runs of a session since one of its generations was stored, and whether the number is an estimate.
pub(crate) fn runs_since(
    folder: &Path,
    session: &str,
    stored: u64,
    created: f64,
) -> Option<(u64, bool)> {
    RunCountRecord::read(&count_path(folder, session))?.count_since(stored, created)
}

/// Syncs the count to disk, together with the generation that the count belongs to.
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
    fn a_count_survives_a_crash_and_is_an_estimate_after_a_machine_crash() {
        let folder = tempfile::tempdir().unwrap();
        let since = |stored, created| runs_since(folder.path(), "a", stored, created);
        assert_eq!(since(0, 1.0), None, "nothing was counted yet");
        let mut count = RunCount::open_in(folder.path(), "a", "boot-1");
        (0..12).for_each(|_| count.increment());
        count.decrement();
        assert_eq!((count.count(), since(9, 1.0)), (11, Some((2, false))));
        // The companion crashes; its file stays as it was.
        std::mem::forget(count);
        let mut count = RunCount::open_in(folder.path(), "a", "boot-1");
        count.increment();
        assert_eq!(since(9, 1.0), Some((3, false)));
        // An orderly shutdown loses no count, even if the machine then stops without a sync.
        count.sync_and_close();
        let count = RunCount::open_in(folder.path(), "a", "boot-2");
        assert_eq!((count.count(), since(9, 1.0)), (12, Some((3, false))));
        std::mem::forget(count);
        RunCount::open_in(folder.path(), "a", "boot-3");
        assert_eq!(since(9, 1.0), Some((3, true)));
        let later = super::unix_seconds() + 1.0;
        assert_eq!(since(12, later), Some((0, false)), "stored after that");
        // A stored count above the current one comes from another history of the folder.
        assert_eq!(since(13, 1.0), None);
    }

    #[test]
    fn a_waiting_companion_continues_the_count_of_another_one() {
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
    fn a_companion_that_ends_late_keeps_the_count_of_another_one() {
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
        // A folder that can't be created prevents no run.
        let mut count = RunCount::open_in(&folder.path().join("a.runs/none"), "a", "boot");
        count.increment();
        assert_eq!(count.count(), 1);
    }
}
