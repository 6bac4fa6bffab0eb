//! IDs of removed runs: a request that repeats one of them is refused, and its code is not executed again.
//!
//! The record [`super::StoredRunRecord::Forget`] of a removed run contains the digest of its ID. Before such a record
//! leaves the journal, all digests are written to a file beside the journal. A companion takes over the digests of
//! earlier companions.

use sha2::{Digest, Sha256};
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The number of digests that are kept, the newest ones.
pub(super) const MAX_REMOVED_IDS: usize = 100_000;
const RUN_ID_DIGEST_BYTES: usize = 16;
/// The file of the digests, in the folder of the journal.
pub(super) const REMOVED_IDS_FILE: &str = "removed-ids";

/// Digest of the kind and the ID of a run.
pub(in crate::companion::runs) type RunIdDigest = [u8; RUN_ID_DIGEST_BYTES];

pub(super) fn run_id_digest(api_path: &str, id: &str) -> RunIdDigest {
    let hash = Sha256::new()
        .chain_update(api_path)
        .chain_update([0u8])
        .chain_update(id)
        .finalize();
    std::array::from_fn(|at| hash[at])
}

/// The digests, the oldest first.
#[derive(Debug, Default)]
pub(super) struct RemovedIds {
    order: VecDeque<RunIdDigest>,
    known: HashSet<RunIdDigest>,
}

impl RemovedIds {
    pub(super) fn add(&mut self, digest: RunIdDigest) {
        if self.known.insert(digest) {
            self.order.push_back(digest);
        }
        if self.order.len() > MAX_REMOVED_IDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, digest: &RunIdDigest) -> bool {
        self.known.contains(digest)
    }

    /// The content of the file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.order.iter().flatten().copied().collect()
    }

    /// Adds the digests of a companion's folder.
    ///
    /// # Errors
    /// When the file exists and can't be read.
    pub(super) fn add_from_folder(&mut self, folder: &Path) -> io::Result<()> {
        let file = match File::open(folder.join(REMOVED_IDS_FILE)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        let max_bytes = MAX_REMOVED_IDS * RUN_ID_DIGEST_BYTES;
        file.take(max_bytes as u64).read_to_end(&mut bytes)?;
        let (digests, _) = bytes.as_chunks::<RUN_ID_DIGEST_BYTES>();
        digests.iter().for_each(|digest| self.add(*digest));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        MAX_REMOVED_IDS, REMOVED_IDS_FILE, RUN_ID_DIGEST_BYTES, RemovedIds, run_id_digest,
    };

    #[test]
    fn the_newest_removed_ids_are_kept_and_read_again() {
        let digest = |number: usize| run_id_digest("/exec", &number.to_string());
        let mut removed = RemovedIds::default();
        (0..=MAX_REMOVED_IDS).for_each(|number| removed.add(digest(number)));
        let content = removed.to_bytes();
        assert_eq!(content.len(), MAX_REMOVED_IDS * RUN_ID_DIGEST_BYTES);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(REMOVED_IDS_FILE), content).unwrap();
        let mut read = RemovedIds::default();
        read.add_from_folder(folder.path()).unwrap();
        for ids in [removed, read] {
            assert!(!ids.contains(&digest(0)));
            assert!(ids.contains(&digest(1)) && ids.contains(&digest(MAX_REMOVED_IDS)));
            assert!(!ids.contains(&run_id_digest("/shell", "1")), "another kind");
        }
        let missing = folder.path().join("missing");
        RemovedIds::default().add_from_folder(&missing).unwrap();
    }
}
