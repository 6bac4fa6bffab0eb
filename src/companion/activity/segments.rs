//! The files of the activity log: JSON lines in numbered segments. A full segment is followed by the next one; the oldest
//! segments are removed when all together exceed the budget.

use crate::protocol::activity::ActivityRecord;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Size at which the next segment begins, and the size of all segments.
const ACTIVITY_SEGMENT_BYTES: u64 = 1 << 20;
const ACTIVITY_BUDGET_BYTES: u64 = 16 << 20;

/// Maximum bytes that are read of one segment: code in the container can change the files.
const MAX_ACTIVITY_READ_BYTES: u64 = 4 * ACTIVITY_SEGMENT_BYTES;

const SEGMENT_SUFFIX: &str = ".jsonl";

#[derive(Debug)]
pub(super) struct SegmentStore {
    folder: PathBuf,
    /// The segment that grows, with its number and size.
    current: Option<(File, u64, u64)>,
    /// Whether the last write failed, so that a full disk is logged once.
    has_failed: bool,
}

impl SegmentStore {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            current: None,
            has_failed: false,
        }
    }

    /// Prepares for writing. Returns the number of the next record.
    pub(super) fn open(&mut self) -> u64 {
        let newest = self.read_newest(1, |_| true);
        newest
            .last()
            .map_or(1, |record| record.seq.saturating_add(1))
    }

    /// Appends records. A failure is logged; the records are lost.
    pub(super) fn append(&mut self, records: &[Arc<ActivityRecord>]) {
        if records.is_empty() {
            return;
        }
        let mut lines = Vec::new();
        for record in records {
            // A record is always valid JSON.
            let _ = serde_json::to_writer(&mut lines, &**record);
            lines.push(b'\n');
        }
        let written = self.append_lines(&lines);
        if let Err(error) = &written
            && !self.has_failed
        {
            tracing::warn!(%error, "the activity log can't be written");
        }
        self.has_failed = written.is_err();
    }

    fn append_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        let (mut file, number, size) = match self.current.take() {
            Some(current) => current,
            None => self.open_last_segment()?,
        };
        file.write_all(lines)?;
        let size = size + lines.len() as u64;
        match size < ACTIVITY_SEGMENT_BYTES {
            true => self.current = Some((file, number, size)),
            false => {
                drop(file);
                self.current = Some((self.open_segment(number + 1)?, number + 1, 0));
                self.remove_excess();
            }
        }
        Ok(())
    }

    /// Opens the newest segment, or the one after it if that is full. The end of a killed companion may have left an
    /// incomplete line.
    fn open_last_segment(&self) -> io::Result<(File, u64, u64)> {
        fs::create_dir_all(&self.folder)?;
        let last = self.list_segments().last().copied();
        let (number, size) = match last {
            Some((number, size)) if size < ACTIVITY_SEGMENT_BYTES => (number, size),
            Some((number, _)) => (number + 1, 0),
            None => (1, 0),
        };
        let mut file = self.open_segment(number)?;
        if size > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok((file, number, size))
    }

    fn open_segment(&self, number: u64) -> io::Result<File> {
        let path = self.segment_path(number);
        let mut options = OpenOptions::new();
        options.create(true).append(true).read(true).mode(0o600);
        options.open(path)
    }

    fn segment_path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:08}{SEGMENT_SUFFIX}"))
    }

    /// Numbers and sizes, the oldest first.
    fn list_segments(&self) -> Vec<(u64, u64)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let segment = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let number = name.strip_suffix(SEGMENT_SUFFIX)?.parse().ok()?;
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((number, metadata.len()))
        };
        let mut segments: Vec<(u64, u64)> = entries.filter_map(segment).collect();
        segments.sort_unstable();
        segments
    }

    fn remove_excess(&self) {
        for number in excess_segments(&self.list_segments(), ACTIVITY_BUDGET_BYTES) {
            if let Err(error) = fs::remove_file(self.segment_path(number)) {
                tracing::warn!(%error, "a segment of the activity log can't be removed");
            }
        }
    }

    /// The newest `limit` matching records, the oldest first. Lines that are no records are left out.
    pub(super) fn read_newest(
        &self,
        limit: usize,
        matches: impl Fn(&ActivityRecord) -> bool,
    ) -> Vec<ActivityRecord> {
        let mut found = VecDeque::new();
        for (number, _) in self.list_segments().into_iter().rev() {
            let mut text = Vec::new();
            let Ok(file) = File::open(self.segment_path(number)) else {
                continue;
            };
            if file
                .take(MAX_ACTIVITY_READ_BYTES)
                .read_to_end(&mut text)
                .is_err()
            {
                continue;
            }
            for line in text.rsplit(|byte| *byte == b'\n') {
                if found.len() == limit {
                    return found.into();
                }
                let record = serde_json::from_slice(line).ok();
                if let Some(record) = record.filter(|record| matches(record)) {
                    found.push_front(record);
                }
            }
        }
        found.into()
    }
}

/// The oldest segments beyond the budget, of segments in the order of their age. The newest one is always kept.
fn excess_segments(segments: &[(u64, u64)], budget: u64) -> Vec<u64> {
    let mut kept_bytes = 0u64;
    let newest_first = segments.iter().rev().enumerate();
    let excess = newest_first.filter_map(|(age, (number, size))| {
        kept_bytes = kept_bytes.saturating_add(*size);
        (age > 0 && kept_bytes > budget).then_some(*number)
    });
    excess.collect()
}

#[cfg(test)]
mod tests {
    use super::{ACTIVITY_BUDGET_BYTES, ACTIVITY_SEGMENT_BYTES, SegmentStore, excess_segments};
    use crate::protocol::activity::{ActivityKind, ActivityRecord, ActivityVerdict};
    use crate::protocol::activity_draft::ActivityDraft;
    use std::fs;
    use std::sync::Arc;

    #[test]
    fn the_oldest_segments_beyond_the_budget_are_removed() {
        let all = [(1, 40), (2, 40), (3, 40), (4, 40)];
        for (budget, expected) in [
            (160, &[][..]),
            (159, &[1]),
            (80, &[2, 1]),
            (79, &[3, 2, 1]),
            (0, &[3, 2, 1]),
        ] {
            assert_eq!(excess_segments(&all, budget), expected, "{budget}");
        }
        assert!(excess_segments(&[], 0).is_empty());
        assert_eq!(excess_segments(&[(1, u64::MAX), (2, u64::MAX)], 9), [1]);
    }

    fn padded(seq: u64) -> Arc<ActivityRecord> {
        let draft = ActivityDraft::begin(ActivityKind::Exec, "claude-code".into());
        Arc::new(ActivityRecord {
            seq,
            text: "x".repeat(60_000),
            ..draft.finish(ActivityVerdict::Completed, 2)
        })
    }

    #[test]
    fn the_files_stay_within_the_budget_and_the_newest_records_stay() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SegmentStore::new(folder.path().join("activity"));
        assert_eq!(store.open(), 1);
        for seq in 1..=400 {
            store.append(&[padded(seq)]);
        }
        let size: u64 = store.list_segments().iter().map(|(_, size)| size).sum();
        assert!(
            size <= ACTIVITY_BUDGET_BYTES + ACTIVITY_SEGMENT_BYTES,
            "{size}"
        );
        assert!(size > ACTIVITY_BUDGET_BYTES / 2, "{size}");
        let newest = store.read_newest(30, |_| true);
        let numbers: Vec<u64> = newest.iter().map(|record| record.seq).collect();
        assert_eq!(numbers, (371..=400).collect::<Vec<_>>());
        assert_eq!(store.read_newest(30, |record| record.seq == 1).len(), 0);
    }

    #[test]
    fn incomplete_and_hostile_lines_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SegmentStore::new(folder.path().to_owned());
        store.append(&[padded(1)]);
        let segment = folder.path().join("00000001.jsonl");
        let text = fs::read_to_string(&segment).unwrap();
        let hostile = "{}\nnull\n\u{0}\n[[[[[\n{\"seq\":2";
        fs::write(&segment, format!("{text}{hostile}")).unwrap();
        fs::write(folder.path().join("note.jsonl"), "no segment").unwrap();
        fs::create_dir(folder.path().join("00000009.jsonl")).unwrap();
        // The next companion begins a new line.
        let mut store = SegmentStore::new(folder.path().to_owned());
        assert_eq!(store.open(), 2);
        store.append(&[padded(2)]);
        let numbers = store.read_newest(9, |_| true).into_iter().map(|r| r.seq);
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
    }
}
