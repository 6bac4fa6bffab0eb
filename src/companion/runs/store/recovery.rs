//! Recovery of runs from the journals of earlier companions.

use super::frame::parse_frames;
use super::record::{StoredRunBegin, StoredRunRecord};
use super::removed_ids::RemovedIds;
use super::writer::SEGMENT_FILE_PREFIX;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum bytes that are read of a segment; larger than the largest event.
const MAX_SEGMENT_READ_BYTES: u64 = 256 << 20;

/// A run of an earlier companion.
#[derive(Debug)]
pub(in crate::companion::runs) struct RecoverableRun {
    pub(in crate::companion::runs) begin: StoredRunBegin,
    /// The records after the start.
    pub(in crate::companion::runs) records: Vec<StoredRunRecord>,
    /// Folder of the run's files.
    pub(super) folder: PathBuf,
}

impl RecoverableRun {
    fn is_ended(&self) -> bool {
        matches!(self.records.last(), Some(StoredRunRecord::End(_)))
    }
}

/// Reads the runs in the journals of these folders, the oldest journal first. Returns each run once, and adds the IDs of
/// removed runs to `removed`.
pub(super) fn read_journals(folders: &[PathBuf], removed: &mut RemovedIds) -> Vec<RecoverableRun> {
    let mut all: HashMap<(String, String), RecoverableRun> = HashMap::new();
    for folder in folders {
        let warn = |what: &str, error: &io::Error| {
            tracing::error!(path = %folder.display(), %error, what, "stored records can't be read");
        };
        if let Err(error) = removed.add_from_folder(folder) {
            warn("IDs of removed runs", &error);
        }
        let read = read_journal(folder, removed).inspect_err(|error| warn("runs", error));
        for found in read.unwrap_or_default() {
            let key = (found.begin.api_path.clone(), found.begin.id.clone());
            match all.get_mut(&key) {
                // A companion that was killed early has copied only a part of an earlier journal.
                Some(known) if completeness_rank(known) >= completeness_rank(&found) => {}
                Some(known) => *known = found,
                None => drop(all.insert(key, found)),
            }
        }
    }
    let mut all: Vec<RecoverableRun> = all.into_values().collect();
    all.sort_by(|a, b| (a.begin.created, &a.begin.id).cmp(&(b.begin.created, &b.begin.id)));
    all
}

/// Rank of a recovered run: the later of two runs with one id, and the more complete of two records of one run.
fn completeness_rank(found: &RecoverableRun) -> (u64, bool, usize) {
    (found.begin.created, found.is_ended(), found.records.len())
}

fn read_journal(folder: &Path, removed: &mut RemovedIds) -> io::Result<Vec<RecoverableRun>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_segment = entry
            .file_name()
            .to_str()
            .is_some_and(|n| n.starts_with(SEGMENT_FILE_PREFIX));
        if is_segment && entry.file_type()?.is_file() {
            segments.push(entry.path());
        }
    }
    segments.sort();
    let mut runs: BTreeMap<u64, BTreeMap<u32, StoredRunRecord>> = BTreeMap::new();
    for segment in segments {
        let mut bytes = Vec::new();
        File::open(segment)?
            .take(MAX_SEGMENT_READ_BYTES)
            .read_to_end(&mut bytes)?;
        for frame in parse_frames(&bytes) {
            if let Some(record) = StoredRunRecord::decode(frame.kind, frame.content) {
                if let StoredRunRecord::Forget(Some(digest)) = record {
                    removed.add(digest);
                }
                runs.entry(frame.run)
                    .or_default()
                    .insert(frame.index, record);
            }
        }
    }
    let found = runs.into_values().filter_map(|records| {
        let mut records: Vec<StoredRunRecord> = records.into_values().collect();
        let is_forgotten = records
            .iter()
            .any(|record| matches!(record, StoredRunRecord::Forget(_)));
        if is_forgotten || !matches!(records.first(), Some(StoredRunRecord::Begin(_))) {
            return None;
        }
        let StoredRunRecord::Begin(begin) = records.remove(0) else {
            return None;
        };
        Some(RecoverableRun {
            begin,
            records,
            folder: folder.to_owned(),
        })
    });
    Ok(found.collect())
}
