//! Snapshots that nobody asks for one by one: on a schedule, before the container goes, and when
//! the companion is stopped.
//!
//! Which verb stops a companion is said before, by who stops it ([`Cryo::before`]); a stop by the
//! engine alone is as the configuration wants it for `down`.

use super::{Cryo, Refusal, locked};
use crate::companion::kernel::{self, View};
use crate::protocol::cryo::{Reason, Snapshot, Store, Stored};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// A session that is busy when its turn has come is asked again so soon.
const AGAIN: Duration = Duration::from_secs(5);

/// How long a companion that is stopped may store, beyond the time in which code may finish: the
/// engine kills it three seconds later.
const AT_STOP: Duration = Duration::from_secs(7);

/// A stop that comes later is another one than was said.
const SAID: Duration = Duration::from_secs(60);

/// What was stored so shortly before an end is not stored again: `down` asks for it, and then the
/// companion is stopped.
const JUST_NOW: Duration = Duration::from_secs(10);

impl Cryo {
    /// Stores every session under its own name, but those that hold nothing, or were stored just now.
    pub(crate) async fn snapshot(
        &self,
        reason: Reason,
    ) -> Vec<(String, Result<Option<Stored>, Refusal>)> {
        let sessions = self.sessions.all();
        let each = sessions.into_iter().map(|(session, view)| async move {
            if !self.is_due(&session, &view, reason) {
                return (session, Ok(None));
            }
            let stored = self.store(own(&session, &view), reason).await;
            (session, stored.map(Some))
        });
        futures_util::future::join_all(each).await
    }

    /// The same, and the stop that follows is by that verb; it stores nothing when that is not wanted.
    pub(crate) async fn before(
        &self,
        wish: Snapshot,
    ) -> Vec<(String, Result<Option<Stored>, Refusal>)> {
        let Snapshot { reason, store } = wish;
        if matches!(reason, Reason::Down | Reason::Restart) {
            *locked(&self.said) = Some((Instant::now(), store));
        }
        match store {
            true => self.snapshot(reason).await,
            false => Vec::new(),
        }
    }

    /// Stores what the sessions hold as soon as nothing runs in them: what does may finish within
    /// `grace`, and is stopped then.
    pub(crate) async fn store_before_end(&self, grace: Duration) {
        let said = locked(&self.said).map(|(when, store)| (when.elapsed(), store));
        if !is_wanted(said, self.settings.at_stop) {
            return;
        }
        let sessions = self.sessions.all().into_iter();
        let each = sessions.map(|(session, _)| self.store_at_rest(session, grace));
        let all = futures_util::future::join_all(each);
        if timeout(grace + AT_STOP, all).await.is_err() {
            tracing::warn!("not all that the sessions hold could be stored before the end");
        }
    }

    async fn store_at_rest(&self, session: String, grace: Duration) {
        let Ok(kernel) = self.sessions.kernel(&session) else {
            return;
        };
        kernel.close(grace).await;
        let view = kernel.view();
        if !self.is_due(&session, &view, Reason::Stop) {
            return;
        }
        match self.store(own(&session, &view), Reason::Stop).await {
            Ok(stored) => tracing::info!(session, "stored: {}", stored.message),
            Err(refusal) => tracing::warn!(session, "not stored: {refusal:?}"),
        }
    }

    pub(super) async fn keep_on_storing(self, every: Duration) {
        loop {
            sleep(every).await;
            for (session, view) in self.sessions.all() {
                // One that is being stored has its turn when that has ended, so none pile up.
                let is_free = self.turn(&session).try_lock().is_ok();
                if is_free && self.is_due(&session, &view, Reason::Schedule) {
                    tokio::spawn(self.clone().store_when_idle(session, view, every));
                }
            }
        }
    }

    async fn store_when_idle(self, session: String, view: View, within: Duration) {
        let storing = async {
            loop {
                match self.store(own(&session, &view), Reason::Schedule).await {
                    Err(Refusal::Kernel(kernel::Refusal::Busy)) => sleep(AGAIN).await,
                    Err(refusal) => break tracing::warn!(session, "not stored: {refusal:?}"),
                    Ok(stored) => break tracing::info!(session, "stored: {}", stored.message),
                }
            }
        };
        // The next turn comes then anyway.
        let _ = timeout(within, storing).await;
    }

    /// On a schedule, whether code was run since it was stored. At an end, also whether a thread of it
    /// may have done something by itself.
    fn is_due(&self, session: &str, view: &View, reason: Reason) -> bool {
        let is_new = match locked(&self.fresh).get(session) {
            None => true,
            // Code that ended while it was stored may not be in it.
            Some(stored) if view.changed > stored.start => true,
            Some(stored) => reason != Reason::Schedule && stored.end.elapsed() > JUST_NOW,
        };
        view.ready && view.checkpoint.is_none() && !view.is_blank() && is_new
    }
}

/// Whether a stop stores: as was said of it so long ago, else as is configured.
fn is_wanted(said: Option<(Duration, bool)>, configured: bool) -> bool {
    let said = said.filter(|(ago, _)| *ago < SAID);
    said.map_or(configured, |(_, store)| store)
}

/// Under its own name, and of the kernel that was looked at: another one may be empty, and would come back instead.
fn own(session: &str, view: &View) -> Store {
    Store {
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
    use super::{SAID, is_wanted};
    use std::time::Duration;

    #[test]
    fn a_stop_is_the_one_that_was_said_or_the_engines_own() {
        let now = Duration::ZERO;
        assert!(is_wanted(None, true) && !is_wanted(None, false));
        assert!(is_wanted(Some((now, true)), false));
        assert!(!is_wanted(Some((now, false)), true));
        // What was said long ago was of another one, which did not come.
        assert!(is_wanted(Some((SAID, false)), true));
        assert!(!is_wanted(Some((SAID, true)), false));
    }
}
