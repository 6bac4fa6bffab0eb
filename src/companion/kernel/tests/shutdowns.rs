//! The end of a session: a stop of the companion, a deletion, and the store before a stop.

use super::fake_kernel::FakeKernel;
use super::harness::{OwnerHarness, PendingAnswer, describe_run};
use super::restores::store_query;
use crate::companion::kernel::connection::KernelQuery;
use crate::companion::kernel::{KernelRefusal, KernelRun, StopReason};
use crate::companion::tests::clock::{advance_seconds, settle};
use crate::protocol::kernel::Execute;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

const GRACE: Duration = Duration::from_secs(10);

/// A session with a run and a queued run that is being shut down.
async fn shut_down_busy_session(
    grace: Duration,
    why: StopReason,
) -> (OwnerHarness, FakeKernel, [Arc<KernelRun>; 2]) {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let runs = [
        harness.execute("first").await,
        harness.execute("second").await,
    ];
    kernel.expect("execute").await;
    harness.shut_down(grace, why).await;
    (harness, kernel, runs)
}

async fn assert_ends_idle(mut harness: OwnerHarness, mut kernel: FakeKernel) {
    // The kernel releases its resources first.
    kernel.exit_when_shut_down().await;
    harness.wait_ended().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_kernel_releases_its_resources_and_exits() {
    for grace in [Duration::ZERO, GRACE] {
        for why in [StopReason::Shutdown, StopReason::Deleted] {
            let (harness, kernel) = OwnerHarness::start_ready().await;
            harness.shut_down(grace, why).await;
            assert_ends_idle(harness, kernel).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_without_a_kernel_ends() {
    let mut harness = OwnerHarness::start();
    harness.shut_down(GRACE, StopReason::Shutdown).await;
    // The template delivers the kernel, and it ends.
    let mut kernel = harness.deliver_kernel().await;
    kernel.exit_when_ended().await;
    harness.wait_ended().await;

    let mut harness = OwnerHarness::start();
    for _ in 0..3 {
        harness.refuse_kernel("not now").await;
    }
    harness.shut_down(GRACE, StopReason::Shutdown).await;
    harness.wait_ended().await;
}

#[tokio::test(start_paused = true)]
async fn runs_end_within_the_grace_of_a_stop() {
    let (harness, mut kernel, runs) = shut_down_busy_session(GRACE, StopReason::Shutdown).await;
    let refused = harness.execute_request(Execute::new("third")).await;
    assert_eq!(refused.err(), Some(KernelRefusal::ShuttingDown));
    let query = harness.query(KernelQuery::Probe).await;
    assert_eq!(query.text().await, "refused: ShuttingDown");
    kernel.send_done("completed").await;
    kernel.expect("execute").await;
    kernel.send_done("failed").await;
    assert_eq!(describe_run(&runs[0]), "completed; kept 1");
    assert_eq!(describe_run(&runs[1]), "failed; kept 1");
    assert_ends_idle(harness, kernel).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_beyond_the_grace_is_interrupted() {
    let (harness, mut kernel, runs) = shut_down_busy_session(GRACE, StopReason::Shutdown).await;
    advance_seconds(10).await;
    kernel.wait_interrupted().await;
    assert_eq!(
        describe_run(&runs[1]),
        "failed; NotStarted: the companion was stopped before the code started; kept 1"
    );
    kernel.send_done("interrupted").await;
    kernel.expect("probe").await;
    kernel.send_reply(Value::Null).await;
    assert_eq!(
        describe_run(&runs[0]),
        "interrupted; Interrupted: the companion was stopped while the code ran; the code was interrupted, and its \
         kernel ends; kept 1"
    );
    assert_ends_idle(harness, kernel).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ignores_the_end_of_the_grace_is_killed() {
    let (mut harness, mut kernel, runs) = shut_down_busy_session(GRACE, StopReason::Shutdown).await;
    for seconds in [10, 2, 2] {
        assert_eq!(kernel.next_command().await, None);
        advance_seconds(seconds).await;
    }
    kernel.exit_when_ended().await;
    assert_eq!(
        describe_run(&runs[0]),
        "interrupted; Interrupted: the companion was stopped while the code ran; the code ignored the interrupt, so \
         the kernel was killed; variables are lost; lost 1"
    );
    harness.wait_ended().await;
    harness.expect_no_fork_request().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_without_grace_names_itself() {
    let cases = [
        (
            StopReason::Shutdown,
            "the companion was stopped while the code ran; the code was interrupted, and then the companion ended the \
             kernel because a restart or a shutdown was requested; variables are lost",
            "the companion was stopped before the code started",
            KernelRefusal::ShuttingDown,
        ),
        (
            StopReason::Deleted,
            "the session was deleted while the code ran; variables are lost",
            "the session was deleted before the code started",
            KernelRefusal::NoSession("default".into()),
        ),
    ];
    for (why, ran, queued, refusal) in cases {
        let (mut harness, mut kernel, runs) = shut_down_busy_session(Duration::ZERO, why).await;
        let end = format!("failed; NotStarted: {queued}; kept 1");
        assert_eq!(describe_run(&runs[1]), end);
        let refused = harness.execute_request(Execute::new("third")).await;
        assert_eq!(refused.err(), Some(refusal.clone()));
        let query = harness.query(KernelQuery::Probe).await;
        assert_eq!(query.text().await, format!("refused: {refusal:?}"));
        kernel.exit_when_ended().await;
        let end = format!("interrupted; Interrupted: {ran}; lost 1");
        assert_eq!(describe_run(&runs[0]), end);
        harness.wait_ended().await;
        harness.expect_no_fork_request().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_stop_without_grace_ends_the_first() {
    let (mut harness, mut kernel, runs) = shut_down_busy_session(GRACE, StopReason::Shutdown).await;
    harness
        .shut_down(Duration::ZERO, StopReason::Shutdown)
        .await;
    kernel.exit_when_ended().await;
    for run in runs {
        assert_ne!(describe_run(&run), "running");
    }
    harness.wait_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_does_not_end_its_kernel_is_killed() {
    let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
    harness.shut_down(GRACE, StopReason::Shutdown).await;
    kernel.expect_shut_down().await;
    advance_seconds(5).await;
    kernel.wait_killed().await;
    kernel.kill_supervisor().await;
    harness.wait_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_drained_session_can_be_stored() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let run = harness.execute("f()").await;
    kernel.expect("execute").await;
    let handle = harness.handle();
    let drained = tokio::spawn(async move { handle.drain_runs(GRACE).await });
    settle().await;
    let early = harness.query(store_query(1)).await;
    assert_eq!(early.text().await, "refused: ShuttingDown");
    assert!(!drained.is_finished());
    kernel.send_done("completed").await;
    assert_eq!(describe_run(&run), "completed; kept 1");
    settle().await;
    assert!(drained.is_finished());
    let reset = harness.query(KernelQuery::Reset).await;
    assert_eq!(reset.text().await, "refused: ShuttingDown");
    let store: PendingAnswer = harness.query(store_query(1)).await;
    kernel.expect("cryo_store").await;
    // A stop waits for the store.
    kernel.send_reply(Value::Null).await;
    assert_eq!(store.text().await, "kept 1");
    harness.shut_down(GRACE, StopReason::Shutdown).await;
    assert_ends_idle(harness, kernel).await;
}

#[tokio::test(start_paused = true)]
async fn only_an_idle_session_is_released() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let idle = Duration::from_secs(60);
    let release = async |harness: &OwnerHarness| {
        let handle = harness.handle();
        let released = tokio::spawn(async move { handle.release_if_idle(idle).await });
        settle().await;
        released.await.unwrap()
    };
    advance_seconds(59).await;
    assert!(!release(&harness).await);
    harness.execute("f()").await;
    advance_seconds(120).await;
    assert!(!release(&harness).await);
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    assert!(!release(&harness).await);
    advance_seconds(60).await;
    assert!(release(&harness).await);
    assert_ends_idle(harness, kernel).await;
}
