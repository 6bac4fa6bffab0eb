//! Tests of the end of a quiesce.

use super::fake_keeper::FakeStatusKeeper;
use super::harness::QuiesceHarness;
use crate::companion::tests::clock::{advance_seconds, settle, wait_until};
use crate::protocol::evolve::EvolveStage;

/// Moves the clock as it moves in a container that is not paused: the lease counts seconds.
async fn pass_seconds(seconds: u64) {
    for _ in 0..seconds {
        advance_seconds(1).await;
    }
}

async fn wait_open(harness: &QuiesceHarness) {
    wait_until(|| harness.gate() == "open").await;
}

#[tokio::test(start_paused = true)]
async fn a_companion_that_no_keeper_replaces_resumes_after_the_lease() {
    let harness = QuiesceHarness::start().await;
    harness.quiesce().await;
    pass_seconds(59).await;
    assert_eq!(harness.gate(), "closed");
    pass_seconds(1).await;
    wait_open(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_paused_container_does_not_count() {
    let harness = QuiesceHarness::start().await;
    harness.quiesce().await;
    pass_seconds(30).await;
    // The clock of the system continues during the pause.
    advance_seconds(3600).await;
    pass_seconds(28).await;
    assert_eq!(harness.gate(), "closed");
    pass_seconds(1).await;
    wait_open(&harness).await;
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_an_earlier_quiesce_does_not_end_a_later_one() {
    let harness = QuiesceHarness::start().await;
    harness.quiesce().await;
    pass_seconds(30).await;
    harness.resume().await;
    harness.quiesce().await;
    pass_seconds(59).await;
    assert_eq!(harness.gate(), "closed");
    pass_seconds(1).await;
    wait_open(&harness).await;
}

/// How the run of the keeper ends.
#[derive(Debug, Clone, Copy)]
enum KeeperRun {
    /// No run is in progress when the companion has quiesced.
    Absent,
    RolledBack,
    Failed,
    Succeeded,
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_run_decides_when_the_companion_resumes() {
    for (run, resumes_after) in [
        (KeeperRun::Absent, 10),
        (KeeperRun::RolledBack, 31),
        (KeeperRun::Failed, 31),
        // The new container has replaced this one, which waits for its removal.
        (KeeperRun::Succeeded, 60),
    ] {
        let harness = QuiesceHarness::start().await;
        let keeper = FakeStatusKeeper::start(&harness.path("keeper.sock"));
        if !matches!(run, KeeperRun::Absent) {
            keeper.begin_run();
        }
        harness.quiesce().await;
        settle().await;
        for second in 1..=60 {
            pass_seconds(1).await;
            if second == 30 {
                match run {
                    KeeperRun::Absent => {}
                    KeeperRun::RolledBack => keeper.end_run(EvolveStage::RolledBack),
                    KeeperRun::Failed => keeper.end_run(EvolveStage::Failed),
                    KeeperRun::Succeeded => keeper.end_run(EvolveStage::Succeeded),
                }
            }
            if second < resumes_after {
                assert_eq!(harness.gate(), "closed", "{run:?} after {second} s");
            } else {
                wait_open(&harness).await;
            }
        }
    }
}
