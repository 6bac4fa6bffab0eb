//! Reading the journals of earlier lives of the companion.

use super::frame::frames;
use super::record::{Begin, Record};
use super::writer::SEGMENT;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Bytes of a segment that are read: the largest event, and more.
const MAX_SEGMENT_BYTES: u64 = 256 << 20;

/// A run of an earlier life.
#[derive(Debug)]
pub(in crate::companion::runs) struct Found {
    pub(in crate::companion::runs) begin: Begin,
    /// What comes behind its begin.
    pub(in crate::companion::runs) records: Vec<Record>,
    /// Where its files are.
    pub(super) folder: PathBuf,
}

impl Found {
    fn is_ended(&self) -> bool {
        matches!(self.records.last(), Some(Record::End(_)))
    }
}

/// The runs in the journals of these folders, the oldest first, each of them once.
pub(super) fn read(folders: &[PathBuf]) -> Vec<Found> {
    let mut all: HashMap<(String, String), Found> = HashMap::new();
    for folder in folders {
        let read = read_one(folder).inspect_err(|error| {
            let folder = folder.display();
            tracing::error!("the runs in `{folder}` can't be read: {error}");
        });
        for found in read.unwrap_or_default() {
            let key = (found.begin.place.clone(), found.begin.id.clone());
            match all.get_mut(&key) {
                // A life that was killed early has copied only a part of what an earlier one knew.
                Some(known) if rank(known) >= rank(&found) => {}
                Some(known) => *known = found,
                None => drop(all.insert(key, found)),
            }
        }
    }
    let mut all: Vec<Found> = all.into_values().collect();
    all.sort_by(|a, b| (a.begin.created, &a.begin.id).cmp(&(b.begin.created, &b.begin.id)));
    all
}

/// Of two runs of one id the later one counts, of two accounts of one run the fuller one.
fn rank(found: &Found) -> (u64, bool, usize) {
    (found.begin.created, found.is_ended(), found.records.len())
}

fn read_one(folder: &Path) -> io::Result<Vec<Found>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_segment = entry
            .file_name()
            .to_str()
            .is_some_and(|n| n.starts_with(SEGMENT));
        if is_segment && entry.file_type()?.is_file() {
            segments.push(entry.path());
        }
    }
    segments.sort();
    let mut runs: BTreeMap<u64, BTreeMap<u32, Record>> = BTreeMap::new();
    for segment in segments {
        let mut bytes = Vec::new();
        File::open(segment)?
            .take(MAX_SEGMENT_BYTES)
            .read_to_end(&mut bytes)?;
        for frame in frames(&bytes) {
            if let Some(record) = Record::decode(frame.kind, frame.content) {
                runs.entry(frame.run)
                    .or_default()
                    .insert(frame.index, record);
            }
        }
    }
    let found = runs.into_values().filter_map(|records| {
        let mut records: Vec<Record> = records.into_values().collect();
        let is_forgotten = records.contains(&Record::Forget);
        if is_forgotten || !matches!(records.first(), Some(Record::Begin(_))) {
            return None;
        }
        let Record::Begin(begin) = records.remove(0) else {
            return None;
        };
        Some(Found {
            begin,
            records,
            folder: folder.to_owned(),
        })
    });
    Ok(found.collect())
}
