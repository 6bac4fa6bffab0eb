//! Timers of the owner task: deadlines, and a brief spin before an imminent reply.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

/// How long the thread polls for a reply before it sleeps. Most cells end sooner, and falling asleep costs more than
/// their execution: the wake-up, and often a move to another processor with cold caches (measured: a third of a
/// request).
const REPLY_SPIN_TIMEOUT: Duration = Duration::from_micros(400);

/// Yields for a moment, then sleeps forever; the other work of the thread continues. The spin yields the processor: the
/// kernel itself may wait for this processor when the others are busy.
pub(super) async fn spin_briefly(since: Option<std::time::Instant>) -> Infallible {
    while since.is_some_and(|since| since.elapsed() < REPLY_SPIN_TIMEOUT) {
        std::thread::yield_now();
        yield_now().await;
    }
    pending().await
}

pub(super) async fn wait_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}
