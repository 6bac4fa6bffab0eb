//! Admission of requests: the gate that closes when the container quiesces.
//!
//! ```text
//!       close_to_outside    close_and_drain
//! Open ────────────────▶ Inside ────────▶ Closed     Inside: running work may finish, and may send
//!  ▲                       │                │        requests to the companion for that; the gate
//!  └───────────────────────┴────── open ────┘        refuses requests from outside
//! ```
//!
//! In every state, a container that is not verified yet refuses requests from outside: their effects would be lost if
//! the keeper rolled the container back.
//!
//! This module does not depend on HTTP. The transports decide how a refusal looks, and which requests need no
//! admission.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Which requests that change something are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AdmissionState {
    Open,
    Inside,
    Closed,
}

/// The listener that a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerKind {
    /// TCP, for every client with the token.
    Outside,
    /// The private socket.
    Inside,
}

/// The shared handle of the gate.
#[derive(Debug, Clone)]
pub(crate) struct AdmissionControl {
    state: Arc<watch::Sender<AdmissionState>>,
    is_verified: Arc<watch::Sender<bool>>,
    /// Number of admitted requests without a reply.
    pending_requests: Arc<watch::Sender<usize>>,
}

/// An admitted request, until its reply.
#[derive(Debug)]
pub(crate) struct AdmissionPermit(AdmissionControl);

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        self.0.pending_requests.send_modify(|count| *count -= 1);
    }
}

impl Default for AdmissionControl {
    fn default() -> Self {
        Self {
            state: Arc::new(watch::Sender::new(AdmissionState::Open)),
            is_verified: Arc::new(watch::Sender::new(true)),
            pending_requests: Arc::new(watch::Sender::new(0)),
        }
    }
}

impl AdmissionControl {
    /// Admits a request that may change something; nothing, when the client must retry later.
    pub(crate) fn admit(&self, listener: ListenerKind) -> Option<AdmissionPermit> {
        let is_fine = match (*self.state.borrow(), listener) {
            (AdmissionState::Open, ListenerKind::Outside) => *self.is_verified.borrow(),
            (AdmissionState::Open | AdmissionState::Inside, ListenerKind::Inside) => true,
            (AdmissionState::Inside, ListenerKind::Outside) | (AdmissionState::Closed, _) => false,
        };
        is_fine.then(|| {
            self.pending_requests.send_modify(|count| *count += 1);
            AdmissionPermit(self.clone())
        })
    }

    /// Whether all listeners are admitted.
    pub(crate) fn is_open(&self) -> bool {
        *self.state.borrow() == AdmissionState::Open && *self.is_verified.borrow()
    }

    pub(crate) fn open(&self) {
        self.state.send_replace(AdmissionState::Open);
    }

    /// From now on admits only requests over the private socket.
    pub(crate) fn close_to_outside(&self) {
        self.state.send_replace(AdmissionState::Inside);
    }

    /// Marks the container as not verified yet.
    pub(crate) fn mark_unverified(&self) {
        self.is_verified.send_replace(false);
    }

    pub(crate) fn mark_verified(&self) {
        self.is_verified.send_replace(true);
    }

    /// Returns when the container is verified.
    pub(crate) async fn wait_verified(&self) {
        // The channel stays open while `self` holds the sender.
        let _ = self.is_verified.subscribe().wait_for(|is| *is).await;
    }

    /// From now on admits no request; `true` if every admitted request was answered within `time_limit`.
    pub(crate) async fn close_and_drain(&self, time_limit: Duration) -> bool {
        self.state.send_replace(AdmissionState::Closed);
        let mut within = self.pending_requests.subscribe();
        // The channel stays open while `self` holds the sender.
        let empty = within.wait_for(|count| *count == 0);
        timeout(time_limit, empty).await.is_ok()
    }

    /// Whether no change is allowed any more, not even one by the companion.
    pub(crate) fn is_closed(&self) -> bool {
        *self.state.borrow() == AdmissionState::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::{AdmissionControl, ListenerKind};
    use std::time::Duration;

    #[tokio::test]
    async fn unverified_admits_only_inside() {
        let gate = AdmissionControl::default();
        gate.mark_unverified();
        let admits = |listener| gate.admit(listener).is_some();
        assert!(admits(ListenerKind::Inside) && !admits(ListenerKind::Outside));
        // The restore of checkpoints closes the gate and opens it again.
        gate.close_to_outside();
        gate.open();
        assert!(!admits(ListenerKind::Outside));
        gate.mark_verified();
        gate.wait_verified().await;
        assert!(admits(ListenerKind::Outside));
        gate.mark_unverified();
        gate.close_and_drain(Duration::ZERO).await;
        gate.mark_verified();
        assert!(!admits(ListenerKind::Outside) && !admits(ListenerKind::Inside));
    }

    #[tokio::test]
    async fn inside_is_admitted_until_closed() {
        let gate = AdmissionControl::default();
        assert!(gate.admit(ListenerKind::Outside).is_some());
        gate.close_to_outside();
        assert!(gate.admit(ListenerKind::Outside).is_none());
        let within = gate.admit(ListenerKind::Inside).unwrap();
        assert!(!gate.is_closed() && !gate.close_and_drain(Duration::ZERO).await);
        assert!(gate.is_closed() && gate.admit(ListenerKind::Inside).is_none());
        drop(within);
        assert!(gate.close_and_drain(Duration::ZERO).await);
        gate.open();
        assert!(gate.admit(ListenerKind::Outside).is_some());
    }
}
