//! Whether requests are let in: the gate that closes when the container comes to rest.
//!
//! ```text
//!        close          shut
//!  Open ───────▶ Inside ─────▶ Closed      Inside: what runs is let finish, and may need the
//!   ▲               │            │         companion for that; everybody else is refused
//!   └───────────────┴── open ────┘
//! ```
//!
//! However it stands, a container that is not proved yet refuses all but those inside: what was done in
//! one that is taken back would be lost.
//!
//! It knows nothing of HTTP: who is refused, and what may always be asked, is said by the faces.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Who may ask for something that changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AdmissionState {
    Open,
    Inside,
    Closed,
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerKind {
    /// By TCP, from everybody who has the token.
    Outside,
    /// By the private socket.
    Inside,
}

/// The gate, for everyone who asks and who closes it.
#[derive(Debug, Clone)]
pub(crate) struct AdmissionControl {
    stand: Arc<watch::Sender<AdmissionState>>,
    is_proved: Arc<watch::Sender<bool>>,
    /// Requests that were let in and are not answered yet.
    within: Arc<watch::Sender<usize>>,
}

/// A request that was let in, until it is answered.
#[derive(Debug)]
pub(crate) struct AdmissionPermit(AdmissionControl);

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        self.0.within.send_modify(|count| *count -= 1);
    }
}

impl Default for AdmissionControl {
    fn default() -> Self {
        Self {
            stand: Arc::new(watch::Sender::new(AdmissionState::Open)),
            is_proved: Arc::new(watch::Sender::new(true)),
            within: Arc::new(watch::Sender::new(0)),
        }
    }
}

impl AdmissionControl {
    /// Lets a request in that may change something; nothing, when it is to come again later.
    pub(crate) fn admit(&self, door: ListenerKind) -> Option<AdmissionPermit> {
        let is_fine = match (*self.stand.borrow(), door) {
            (AdmissionState::Open, ListenerKind::Outside) => *self.is_proved.borrow(),
            (AdmissionState::Open | AdmissionState::Inside, ListenerKind::Inside) => true,
            (AdmissionState::Inside, ListenerKind::Outside) | (AdmissionState::Closed, _) => false,
        };
        is_fine.then(|| {
            self.within.send_modify(|count| *count += 1);
            AdmissionPermit(self.clone())
        })
    }

    /// Whether everybody is let in.
    pub(crate) fn is_open(&self) -> bool {
        *self.stand.borrow() == AdmissionState::Open && *self.is_proved.borrow()
    }

    pub(super) fn open(&self) {
        self.stand.send_replace(AdmissionState::Open);
    }

    /// Only those inside are let in from now on.
    pub(super) fn close_to_outside(&self) {
        self.stand.send_replace(AdmissionState::Inside);
    }

    /// The container is to be proved first.
    pub(super) fn mark_unproved(&self) {
        self.is_proved.send_replace(false);
    }

    pub(super) fn mark_proved(&self) {
        self.is_proved.send_replace(true);
    }

    /// Returns when the container is proved.
    pub(super) async fn wait_proved(&self) {
        // It can't end while `self` holds the sender.
        let _ = self.is_proved.subscribe().wait_for(|is| *is).await;
    }

    /// Nobody is let in from now on, and when this returns `true`, nobody is within.
    pub(super) async fn close_and_drain(&self, patience: Duration) -> bool {
        self.stand.send_replace(AdmissionState::Closed);
        let mut within = self.within.subscribe();
        // It can't end while `self` holds the sender.
        let empty = within.wait_for(|count| *count == 0);
        timeout(patience, empty).await.is_ok()
    }

    /// Whether nothing may be changed any more, not even by the companion itself.
    pub(crate) fn is_closed(&self) -> bool {
        *self.stand.borrow() == AdmissionState::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::{AdmissionControl, ListenerKind};
    use std::time::Duration;

    #[tokio::test]
    async fn one_that_is_not_proved_lets_those_inside_in_alone() {
        let gate = AdmissionControl::default();
        gate.mark_unproved();
        let admits = |door| gate.admit(door).is_some();
        assert!(admits(ListenerKind::Inside) && !admits(ListenerKind::Outside));
        // What was frozen is brought back meanwhile.
        gate.close_to_outside();
        gate.open();
        assert!(!admits(ListenerKind::Outside));
        gate.mark_proved();
        gate.wait_proved().await;
        assert!(admits(ListenerKind::Outside));
        gate.mark_unproved();
        gate.close_and_drain(Duration::ZERO).await;
        gate.mark_proved();
        assert!(!admits(ListenerKind::Outside) && !admits(ListenerKind::Inside));
    }

    #[tokio::test]
    async fn those_inside_are_let_in_until_it_is_shut() {
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
