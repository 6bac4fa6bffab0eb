//! What a run is known by when its work is not in memory any more.

use super::Work;
use super::store::Begin;
use crate::protocol::hex::hex;
use sha2::{Digest, Sha256};
use std::time::{SystemTime, UNIX_EPOCH};

/// Characters of the line by which a run is shown.
const LINE_LENGTH: usize = 120;

/// What is recorded first of a run.
pub(super) fn begin_of<W: Work>(id: &str, work: &W, boot: String) -> Begin {
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Begin {
        place: W::PLACE.into(),
        id: id.into(),
        session: work.session().into(),
        digest: digest_of(id, work),
        line: match work.is_private() {
            true => String::new(),
            false => first_line(work.text()),
        },
        created: created.as_micros() as u64,
        boot,
    }
}

/// By which a request that repeats an id is known to be the same, also where the code is not.
pub(super) fn digest_of<W: Work>(id: &str, work: &W) -> String {
    let mut hash = Sha256::new();
    hash.update(id);
    work.identify(&mut hash);
    hex(hash.finalize())
}

/// The work's first line, shortened.
pub(super) fn first_line(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().take(LINE_LENGTH).collect()
}
