//! A clock that only the test moves.

use futures_util::FutureExt;
use futures_util::future::join_all;
use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, spawn_blocking, yield_now};

/// Rounds of the runtime that settle what one action of a test causes; each round also asks the system for events.
const SETTLE_ROUNDS: usize = 64;

/// Maximum time in which the system delivers an event, on a busy machine.
const SYSTEM_EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Stops the clock of the runtime until the value is dropped.
#[derive(Debug)]
pub(crate) struct StoppedClock {
    /// While a blocking task runs, the runtime does not move its clock. The task ends with this value.
    _stop: mpsc::Sender<()>,
}

impl StoppedClock {
    pub(crate) fn start() -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        // The error is the end of the sender.
        spawn_blocking(move || stopped.recv().is_err());
        Self { _stop: stop }
    }
}

/// Lets the owner handle everything that has happened. All its partners are in this thread, so no time passes.
pub(crate) async fn settle() {
    for _ in 0..SETTLE_ROUNDS {
        yield_now().await;
    }
}

/// Moves the clock. Timers that this move starts are not due.
pub(crate) async fn advance(time: Duration) {
    settle().await;
    tokio::time::advance(time).await;
    settle().await;
}

pub(crate) async fn advance_seconds(seconds: u64) {
    advance(Duration::from_secs(seconds)).await;
}

/// Asserts that these tasks have ended without a panic.
pub(crate) async fn assert_all_ended(tasks: Vec<JoinHandle<()>>) {
    settle().await;
    let ended = join_all(tasks).now_or_never();
    for task in ended.expect("a task has not ended") {
        task.unwrap();
    }
}

/// Waits for what another thread, another process or the system does. The clock of the runtime does not move.
pub(crate) async fn wait_event<T>(event: impl Future<Output = T>) -> T {
    let (mut event, begin) = (pin!(event), Instant::now());
    loop {
        tokio::select! {
            biased;
            value = &mut event => return value,
            () = yield_now() => {}
        }
        assert!(
            begin.elapsed() < SYSTEM_EVENT_TIMEOUT,
            "the event is missing"
        );
    }
}

/// As [`wait_event`], for a value that is read again and again.
pub(crate) async fn wait_until(mut is_reached: impl FnMut() -> bool) {
    wait_event(async {
        while !is_reached() {
            yield_now().await;
        }
    })
    .await;
    settle().await;
}
