//! Automatic snapshots: on a schedule, before the container is removed, and when the companion is stopped.
//!
//! The caller that stops the companion announces its verb before ([`CryoService::snapshot_before_stop`]). A stop by the
//! engine alone follows the configuration for `down`.

use super::{CryoRefusal, CryoService};
use crate::companion::kernel::{self, KernelView};
use crate::protocol::cryo::{CryoStore, CryoStored, SnapshotRequest, StoreReason};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Delay before a busy session is tried again.
const SNAPSHOT_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Time that a stopped companion has for stores, in addition to the time in which code may finish: the engine kills the
/// companion three seconds later.
const STOP_SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(7);

/// An announced stop must come within this time; a later stop is a different one.
const ANNOUNCED_STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// A session that was stored this recently before an end is not stored again: `down` requests a store, and then the
/// companion is stopped.
const FRESH_SNAPSHOT_AGE: Duration = Duration::from_secs(10);

impl CryoService {
    /// Stores each session under its own name, except sessions without variables and sessions that were stored just
    /// now.
    pub(crate) async fn snapshot_sessions(
        &self,
        reason: StoreReason,
    ) -> Vec<(String, Result<Option<CryoStored>, CryoRefusal>)> {
        let sessions = self.sessions.list_sessions();
        let each = sessions.into_iter().map(|(session, view)| async move {
            if !self.is_due(&session, &view, reason) {
                return (session, Ok(None));
            }
            let stored = self.store(snapshot_request(&session, &view), reason).await;
            (session, stored.map(Some))
        });
        futures_util::future::join_all(each).await
    }

    /// Stores like [`CryoService::snapshot_sessions`], and announces the stop that follows, which then does the same.
    /// Without `store`, nothing is stored, also at the stop.
    pub(crate) async fn snapshot_before_stop(
        &self,
        request: SnapshotRequest,
    ) -> Vec<(String, Result<Option<CryoStored>, CryoRefusal>)> {
        let SnapshotRequest { reason, store } = request;
        if matches!(reason, StoreReason::Down | StoreReason::Restart) {
            *self.announced_stop.lock() = Some((Instant::now(), store));
        }
        match store {
            true => self.snapshot_sessions(reason).await,
            false => Vec::new(),
        }
    }

    /// Stores each session as soon as it is idle. Running code may finish within `grace`, and is stopped then.
    pub(crate) async fn snapshot_before_exit(&self, grace: Duration) {
        let announced = self
            .announced_stop
            .lock()
            .map(|(when, store)| (when.elapsed(), store));
        if !is_stop_snapshot_enabled(announced, self.settings.snapshot_on_stop) {
            return;
        }
        let sessions = self.sessions.list_sessions().into_iter();
        let each = sessions.map(|(session, _)| self.store_after_drain(session, grace));
        let all = futures_util::future::join_all(each);
        if timeout(grace + STOP_SNAPSHOT_TIMEOUT, all).await.is_err() {
            tracing::warn!("not all sessions could be stored before the companion ends");
        }
    }

    async fn store_after_drain(&self, session: String, grace: Duration) {
        let Ok(kernel) = self.sessions.find_kernel(&session) else {
            return;
        };
        kernel.drain_runs(grace).await;
        let view = kernel.view();
        if !self.is_due(&session, &view, StoreReason::Stop) {
            return;
        }
        match self
            .store(snapshot_request(&session, &view), StoreReason::Stop)
            .await
        {
            Ok(stored) => {
                tracing::info!(session, summary = stored.message, "the session was stored")
            }
            Err(refusal) => tracing::warn!(session, ?refusal, "the session was not stored"),
        }
    }

    pub(super) async fn run_schedule(self, every: Duration) {
        loop {
            sleep(every).await;
            for (session, view) in self.sessions.list_sessions() {
                // A session that is being stored is skipped, so that stores do not pile up.
                let is_free = self.name_lock(&session).try_lock().is_ok();
                if is_free && self.is_due(&session, &view, StoreReason::Schedule) {
                    tokio::spawn(self.clone().store_when_idle(session, view, every));
                }
            }
        }
    }

    async fn store_when_idle(self, session: String, view: KernelView, within: Duration) {
        let storing = async {
            loop {
                match self
                    .store(snapshot_request(&session, &view), StoreReason::Schedule)
                    .await
                {
                    Err(CryoRefusal::Kernel(kernel::KernelRefusal::Busy)) => {
                        sleep(SNAPSHOT_RETRY_DELAY).await
                    }
                    Err(refusal) => {
                        break tracing::warn!(session, ?refusal, "the session was not stored");
                    }
                    Ok(stored) => {
                        break tracing::info!(
                            session,
                            summary = stored.message,
                            "the session was stored"
                        );
                    }
                }
            }
        };
        // After a timeout, the next scheduled store follows.
        let _ = timeout(within, storing).await;
    }

    /// Whether the session must be stored. On a schedule: if code has run since the last store. At an end: also if a
    /// thread of the session may have changed variables since then.
    fn is_due(&self, session: &str, view: &KernelView, reason: StoreReason) -> bool {
        let is_new = match self.last_stores.lock().get(session) {
            None => true,
            // The store may miss changes of code that ended during the store.
            Some(stored) if view.last_changed > stored.start => true,
            Some(stored) => {
                reason != StoreReason::Schedule && stored.end.elapsed() > FRESH_SNAPSHOT_AGE
            }
        };
        view.ready && view.checkpoint.is_none() && !view.is_blank() && is_new
    }
}

/// Whether a stop stores variables: as announced recently, else as configured.
fn is_stop_snapshot_enabled(announced: Option<(Duration, bool)>, configured: bool) -> bool {
    let announced = announced.filter(|(ago, _)| *ago < ANNOUNCED_STOP_TIMEOUT);
    announced.map_or(configured, |(_, store)| store)
}

/// Request for a snapshot under the session's own name. The snapshot is bound to the generation in `view`: a later
/// kernel may be empty, and the next start would reload the empty state.
fn snapshot_request(session: &str, view: &KernelView) -> CryoStore {
    CryoStore {
        name: None,
        session: session.to_owned(),
        strict: false,
        dry_run: false,
        files: false,
        seen: Some(view.report.generation),
    }
}

#[cfg(test)]
mod tests {
    use super::{ANNOUNCED_STOP_TIMEOUT, is_stop_snapshot_enabled};
    use std::time::Duration;

    #[test]
    fn stop_follows_announcement_or_config() {
        let now = Duration::ZERO;
        assert!(is_stop_snapshot_enabled(None, true) && !is_stop_snapshot_enabled(None, false));
        assert!(is_stop_snapshot_enabled(Some((now, true)), false));
        assert!(!is_stop_snapshot_enabled(Some((now, false)), true));
        // An announcement this old belongs to a stop that did not come.
        assert!(is_stop_snapshot_enabled(
            Some((ANNOUNCED_STOP_TIMEOUT, false)),
            true
        ));
        assert!(!is_stop_snapshot_enabled(
            Some((ANNOUNCED_STOP_TIMEOUT, true)),
            false
        ));
    }
}
