//! Identity of a run after its work has left memory.

use super::RunKind;
use super::store::StoredRunBegin;
use crate::protocol::hex::hex;
use sha2::{Digest, Sha256};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum characters of the line that represents a run.
const MAX_SUMMARY_LINE_CHARS: usize = 120;

/// The first record of a run.
pub(super) fn build_stored_begin<W: RunKind>(
    id: &str,
    request: &W,
    boot: String,
) -> StoredRunBegin {
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    StoredRunBegin {
        api_path: W::RUN_API_PATH.into(),
        id: id.into(),
        session: request.session().into(),
        digest: request_digest(id, request),
        line: match request.is_private() {
            true => String::new(),
            false => first_line(&request.label()),
        },
        created: created.as_micros() as u64,
        boot,
    }
}

/// Digest that identifies the request, so that a repeated request is recognized after the code has left memory.
pub(super) fn request_digest<W: RunKind>(id: &str, request: &W) -> String {
    let mut hash = Sha256::new();
    hash.update(id);
    request.hash_request(&mut hash);
    hex(hash.finalize())
}

/// The first line of a label, shortened.
pub(super) fn first_line(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().take(MAX_SUMMARY_LINE_CHARS).collect()
}
