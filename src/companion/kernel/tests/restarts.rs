//! Restarts and resets in each state of the kernel.

use super::fake_kernel::FakeKernel;
use super::harness::{OwnerHarness, describe_run};
use crate::companion::kernel::StopReason;
use crate::companion::kernel::connection::KernelQuery;
use crate::companion::tests::clock::advance_seconds;
use serde_json::Value;
use std::time::Duration;

/// Completes a run, so that a caller has read the generation.
async fn complete_run(harness: &OwnerHarness, kernel: &mut FakeKernel) -> String {
    let run = harness.execute("f()").await;
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    describe_run(&run)
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_an_idle_kernel_begins_a_generation() {
    let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
    assert_eq!(
        complete_run(&harness, &mut kernel).await,
        "completed; kept 1"
    );
    let (first, second) = (harness.restart().await, harness.restart().await);
    assert_eq!(harness.state(), "stopping 1");
    kernel.exit_when_ended().await;
    let mut kernel = harness.start_kernel().await;
    // The first reply names the loss.
    assert_eq!(first.text().await, "lost 2");
    assert_eq!(second.text().await, "kept 2");
    assert_eq!(
        complete_run(&harness, &mut kernel).await,
        "completed; kept 2"
    );
}

#[tokio::test(start_paused = true)]
async fn a_restart_ends_the_current_run_and_keeps_the_queue() {
    for (why, error) in [
        (
            StopReason::Restart,
            "Interrupted: the kernel was restarted while the code ran; variables are lost",
        ),
        (
            StopReason::MemoryLimit(7),
            "OutOfMemory: the session exceeded its memory limit of 7 bytes while the code ran; variables are lost",
        ),
    ] {
        let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
        let run = harness.execute("f()").await;
        kernel.expect("execute").await;
        let queued = harness.execute("queued").await;
        let interrupt = harness.interrupt().await;
        let restart = harness.restart_because(why).await;
        kernel.exit_when_ended().await;
        // The first reason counts.
        let first = "Interrupted: the code was interrupted, and then the companion ended the kernel because a restart \
                     or a shutdown was requested; variables are lost";
        assert_eq!(describe_run(&run), format!("interrupted; {first}; lost 1"));
        assert_eq!(interrupt.text().await, "lost 1");
        assert_eq!(restart.text().await, "waits");

        let mut kernel = harness.start_kernel().await;
        kernel.expect("execute").await;
        let run = harness.execute("last").await;
        let restart = harness.restart_because(why).await;
        kernel.exit_when_ended().await;
        let end = format!("interrupted; {error}; lost 2");
        assert_eq!(describe_run(&queued), end);
        let mut kernel = harness.start_kernel().await;
        assert_eq!(restart.text().await, "lost 3");
        assert_eq!(kernel.expect("execute").await["code"], "last");
        kernel.send_done("completed").await;
        assert_eq!(describe_run(&run), "completed; kept 3");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_a_starting_kernel_waits_for_the_next_one() {
    let mut harness = OwnerHarness::start();
    // The template has not forked yet.
    let restart = harness.restart().await;
    let mut kernel = harness.deliver_kernel().await;
    kernel.exit_when_ended().await;
    let mut kernel = harness.deliver_kernel().await;
    kernel.send_hello().await;
    let again = harness.restart().await;
    kernel.exit_when_ended().await;
    let queued = harness.execute("queued").await;
    let mut kernel = harness.start_kernel().await;
    assert_eq!(restart.text().await, "kept 1");
    assert_eq!(again.text().await, "kept 1");
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    assert_eq!(describe_run(&queued), "completed; kept 1");
    assert_eq!(harness.state(), "idle 1");
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_a_kernel_that_waits_to_restart_starts_it_at_once() {
    let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
    complete_run(&harness, &mut kernel).await;
    kernel.exit(1).await;
    for _ in 0..3 {
        harness.refuse_kernel("not now").await;
    }
    assert!(harness.state().starts_with("can't be started, retrying: "));
    let restart = harness.restart().await;
    assert_eq!(harness.state(), "starting 1");
    let _kernel = harness.start_kernel().await;
    assert_eq!(restart.text().await, "lost 2");
    // The timer of the earlier wait is void.
    advance_seconds(60).await;
    harness.expect_no_fork_request().await;

    // A start that fails again is the answer.
    let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
    kernel.exit(1).await;
    for _ in 0..3 {
        harness.refuse_kernel("not now").await;
    }
    let restart = harness.restart().await;
    harness.refuse_kernel("still not").await;
    assert_eq!(
        restart.text().await,
        "refused: NoKernel(\"no kernel process was created: still not\")"
    );
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_a_shutdown_overtakes_is_refused() {
    let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
    let restart = harness.restart().await;
    harness
        .shut_down(Duration::ZERO, StopReason::Shutdown)
        .await;
    kernel.exit_when_ended().await;
    assert_eq!(restart.text().await, "refused: ShuttingDown");
    harness.wait_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_begins_a_generation_in_the_same_kernel() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    complete_run(&harness, &mut kernel).await;
    assert!(!harness.view().is_blank());
    let reset = harness.query(KernelQuery::Reset).await;
    kernel.expect("reset").await;
    kernel.execution_count = 0;
    kernel.send_reply(Value::Null).await;
    assert_eq!(reset.text().await, "lost 2");
    assert_eq!(harness.state(), "idle 2");
    assert!(harness.view().is_blank());
    assert_eq!(
        complete_run(&harness, &mut kernel).await,
        "completed; kept 2"
    );
}

#[tokio::test(start_paused = true)]
async fn a_reset_that_fails_keeps_the_generation() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let reset = harness.query(KernelQuery::Reset).await;
    kernel.expect("reset").await;
    kernel.send_error_reply("ValueError", "no").await;
    assert_eq!(reset.text().await, "ValueError: no; kept 1");
    assert_eq!(harness.state(), "idle 1");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_a_kernel_did_not_receive_runs_in_the_next_kernel() {
    let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
    kernel.close_connection().await;
    let run = harness.execute("f()").await;
    assert_eq!(describe_run(&run), "running");
    kernel.exit(1).await;
    let mut kernel = harness.start_kernel().await;
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    assert_eq!(describe_run(&run), "completed; kept 2");
}
