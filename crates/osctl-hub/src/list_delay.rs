//! Whether the lists of one server arrive in time; shared by all clients.
//!
//! ```text
//!   in time ── a list request times out ──▶ late ── an answer ──▶ in time
//! ```
//!
//! A late server receives one list request at a time, however many clients list.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::watch;

#[derive(Debug, Default)]
pub(super) struct ListDelay {
    is_late: AtomicBool,
    /// The number of requests without an answer.
    pending: AtomicUsize,
    /// Counts the answers.
    answer_count: watch::Sender<u64>,
}

impl ListDelay {
    pub(super) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed)
    }

    pub(super) fn mark_late(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// Whether a request is open.
    pub(super) fn has_pending_request(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > 0
    }

    /// A channel that changes with the next answer.
    pub(super) fn subscribe_arrivals(&self) -> watch::Receiver<u64> {
        self.answer_count.subscribe()
    }

    /// Counts a request as open.
    pub(super) fn begin_request(self: &Arc<Self>) -> PendingList {
        self.pending.fetch_add(1, Ordering::Relaxed);
        PendingList(self.clone())
    }
}

/// A list request without an answer.
#[derive(Debug)]
pub(super) struct PendingList(Arc<ListDelay>);

impl PendingList {
    /// Ends the request. `has_answered`: the server answered with a list.
    pub(super) fn finish_request(self, has_answered: bool) {
        if has_answered {
            self.0.is_late.store(false, Ordering::Relaxed);
            self.0.answer_count.send_modify(|count| *count += 1);
        }
    }
}

impl Drop for PendingList {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}
