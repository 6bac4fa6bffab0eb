//! Kernels that leave their owner for a checkpoint, and kernels that were restored from one.

use super::fake_kernel::FakeKernel;
use super::harness::{FakeGenerations, OwnerHarness, PendingAnswer, describe_answer, describe_run};
use crate::companion::kernel::connection::KernelQuery;
use crate::companion::kernel::{
    DetachedKernel, KernelCheckpoint, KernelRefusal, RestoredKernel, SessionRestoring, StopReason,
};
use crate::companion::tests::clock::{advance_seconds, settle};
use crate::protocol::kernel::Execute;
use serde_json::Value;
use std::fs;
use std::time::Duration;
use tokio::task::JoinHandle;

type PendingDetach = JoinHandle<Result<DetachedKernel, KernelRefusal>>;

async fn begin_detach(harness: &OwnerHarness) -> PendingDetach {
    let handle = harness.handle();
    let detach = tokio::spawn(async move { handle.detach().await });
    settle().await;
    detach
}

/// A session that has read generation 1, and whose kernel is detached.
async fn start_detached() -> (OwnerHarness, FakeKernel, DetachedKernel) {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let run = harness.execute("x = 1").await;
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    assert_eq!(describe_run(&run), "completed; kept 1");
    let detach = begin_detach(&harness).await;
    kernel.expect("let_go").await;
    kernel.send_reply(Value::Null).await;
    kernel.close_connection().await;
    let detached = detach.await.unwrap().unwrap();
    assert_eq!(harness.state(), "being checkpointed 1");
    (harness, kernel, detached)
}

fn checkpoint(harness: &OwnerHarness) -> KernelCheckpoint {
    let marker = harness.path("marker");
    fs::write(&marker, "{}").unwrap();
    KernelCheckpoint {
        id: "/data/criu/1".into(),
        marker: Some(marker),
    }
}

/// A session whose kernel is in a checkpoint.
async fn start_checkpointed() -> OwnerHarness {
    let (harness, mut kernel, detached) = start_detached().await;
    let checkpoint = checkpoint(&harness);
    let finish = tokio::spawn(detached.finish_checkpoint(checkpoint));
    kernel.exit_when_ended().await;
    finish.await.unwrap();
    assert_eq!(harness.state(), "checkpointed 1");
    harness
}

async fn restore_process(harness: &OwnerHarness, restored: RestoredKernel) -> PendingAnswer {
    let handle = harness.handle();
    PendingAnswer::start(async move { handle.restore_process(restored).await }).await
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_is_not_checkpointed_keeps_its_generation() {
    for is_dropped in [false, true] {
        let (harness, mut kernel, detached) = start_detached().await;
        let queued = harness.execute("queued").await;
        let reattach = match is_dropped {
            true => {
                drop(detached);
                None
            }
            false => Some(PendingAnswer::start(detached.reattach()).await),
        };
        kernel.accept().await;
        assert_eq!(harness.state(), "starting 1");
        kernel.expect("probe").await;
        kernel.send_reply(Value::Null).await;
        if let Some(reattach) = reattach {
            assert_eq!(reattach.text().await, "kept 1");
        }
        kernel.expect("execute").await;
        kernel.send_done("completed").await;
        assert_eq!(describe_run(&queued), "completed; kept 1");
        assert_eq!(harness.state(), "idle 1");
    }
}

#[tokio::test(start_paused = true)]
async fn a_detached_kernel_refuses_what_would_change_it() {
    let (harness, _kernel, detached) = start_detached().await;
    assert_eq!(harness.restart().await.text().await, "refused: Busy");
    let query = harness.query(KernelQuery::Reset).await;
    assert_eq!(query.text().await, "refused: Busy");
    let second = begin_detach(&harness).await.await.unwrap();
    assert_eq!(second.err(), Some(KernelRefusal::Busy));
    let (_other, restored) = FakeKernel::restored(harness.path("other.sock"));
    let restore = restore_process(&harness, restored).await;
    assert_eq!(restore.text().await, "refused: Busy");
    // The interrupt is answered after the decision.
    let interrupt = harness.interrupt().await;
    assert_eq!(interrupt.text().await, "waits");
    let interrupt = harness.interrupt().await;
    drop(detached);
    assert_eq!(interrupt.text().await, "kept 1");
}

#[tokio::test(start_paused = true)]
async fn a_detached_kernel_that_is_gone_is_lost() {
    let (mut harness, mut kernel, detached) = start_detached().await;
    kernel.remove_socket();
    let reattach = PendingAnswer::start(detached.reattach()).await;
    kernel.exit(137).await;
    assert_eq!(
        reattach.text().await,
        "refused: NoKernel(\"the kernel was killed by SIGKILL\")"
    );
    let _kernel = harness.start_kernel().await;
    assert_eq!(harness.state(), "idle 2");
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_holds_a_resource_stays() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let detach = begin_detach(&harness).await;
    kernel.expect("let_go").await;
    kernel
        .send_error_reply("RuntimeError", "a window is open")
        .await;
    let refused = detach.await.unwrap();
    let expected = KernelRefusal::ResourceHeld("a window is open".into());
    assert_eq!(refused.err(), Some(expected));
    assert_eq!(harness.state(), "idle 1");
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_does_not_detach_is_lost() {
    // The kernel does not answer the request.
    let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
    let detach = begin_detach(&harness).await;
    for seconds in [10, 2, 2] {
        advance_seconds(seconds).await;
    }
    kernel.exit_when_ended().await;
    let refused = detach.await.unwrap();
    let why = "the code ran longer than 10 s and ignored the interrupt, so the kernel was killed; variables are lost";
    assert_eq!(refused.err(), Some(KernelRefusal::KernelLost(why.into())));
    let _kernel = harness.start_kernel().await;

    // The kernel keeps its connection.
    let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
    let detach = begin_detach(&harness).await;
    kernel.expect("let_go").await;
    kernel.send_reply(Value::Null).await;
    advance_seconds(5).await;
    kernel.exit_when_ended().await;
    let refused = detach.await.unwrap();
    let why = "the companion ended the kernel because the kernel did not release its connection: timed out \
               during the request; variables are lost";
    assert_eq!(refused.err(), Some(KernelRefusal::KernelLost(why.into())));
    let _kernel = harness.start_kernel().await;
    assert_eq!(harness.state(), "idle 2");
}

#[tokio::test(start_paused = true)]
async fn a_checkpointed_session_refuses_requests() {
    let (harness, mut kernel, detached) = start_detached().await;
    let queued = harness.execute("queued").await;
    let finish = tokio::spawn(detached.finish_checkpoint(checkpoint(&harness)));
    kernel.exit_when_ended().await;
    finish.await.unwrap();
    assert_eq!(
        describe_run(&queued),
        "failed; NotStarted: the kernel was checkpointed to `/data/criu/1` before the code started; kept 1"
    );
    assert_eq!(harness.view().checkpoint.as_deref(), Some("/data/criu/1"));
    let refusal = KernelRefusal::Checkpointed {
        session: "default".into(),
        checkpoint: "/data/criu/1".into(),
    };
    let refused = harness.execute_request(Execute::new("f()")).await;
    assert_eq!(refused.err(), Some(refusal.clone()));
    let query = harness.query(KernelQuery::Probe).await;
    assert_eq!(query.text().await, format!("refused: {refusal:?}"));
    assert_eq!(harness.interrupt().await.text().await, "kept 1");
    assert!(harness.path("marker").exists());
}

#[tokio::test(start_paused = true)]
async fn a_restart_or_reset_of_a_checkpointed_session_starts_an_empty_kernel() {
    for is_reset in [false, true] {
        let mut harness = start_checkpointed().await;
        let request = match is_reset {
            true => harness.query(KernelQuery::Reset).await,
            false => harness.restart().await,
        };
        assert!(harness.path("marker").exists());
        let _kernel = harness.start_kernel().await;
        assert_eq!(request.text().await, "lost 2");
        assert_eq!(harness.state(), "idle 2");
        assert!(!harness.path("marker").exists());
    }
}

#[tokio::test(start_paused = true)]
async fn a_restored_kernel_begins_a_generation_with_the_same_variables() {
    let mut harness = start_checkpointed().await;
    let (mut kernel, restored) = FakeKernel::restored(harness.next_socket());
    let restore = restore_process(&harness, restored).await;
    kernel.send_hello().await;
    kernel.expect("probe").await;
    assert!(harness.path("marker").exists());
    kernel.send_reply(Value::Null).await;
    assert_eq!(restore.text().await, "restored 2");
    assert_eq!(harness.state(), "idle 2");
    assert!(!harness.path("marker").exists());
    let run = harness.execute("x").await;
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    assert_eq!(describe_run(&run), "completed; restored 2");
}

#[tokio::test(start_paused = true)]
async fn a_restored_kernel_replaces_an_idle_kernel() {
    let (mut harness, mut old) = OwnerHarness::start_ready().await;
    let (mut kernel, restored) = FakeKernel::restored(harness.next_socket());
    let restore = restore_process(&harness, restored).await;
    old.exit_when_shut_down().await;
    kernel.send_hello().await;
    kernel.expect("probe").await;
    kernel.send_reply(Value::Null).await;
    // No caller has read generation 1.
    assert_eq!(restore.text().await, "kept 2");
    assert_eq!(harness.state(), "idle 2");
}

#[tokio::test(start_paused = true)]
async fn a_restored_kernel_that_does_not_answer_is_replaced_by_an_empty_one() {
    let mut harness = start_checkpointed().await;
    let (mut kernel, restored) = FakeKernel::restored(harness.next_socket());
    let restore = restore_process(&harness, restored).await;
    kernel.exit(139).await;
    assert_eq!(
        restore.text().await,
        "refused: NoKernel(\"the kernel was killed by SIGSEGV\")"
    );
    let _kernel = harness.start_kernel().await;
    assert_eq!(harness.state(), "idle 2");
    let run = harness.execute("x").await;
    assert_eq!(describe_run(&run), "running");
}

#[tokio::test(start_paused = true)]
async fn a_stop_leaves_the_session_in_its_checkpoint_and_a_deletion_does_not() {
    for (why, stays) in [(StopReason::Shutdown, true), (StopReason::Deleted, false)] {
        let mut harness = start_checkpointed().await;
        harness.shut_down(Duration::ZERO, why).await;
        harness.wait_ended().await;
        assert_eq!(harness.path("marker").exists(), stays);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_detached_kernel() {
    let (mut harness, mut kernel, detached) = start_detached().await;
    harness
        .shut_down(Duration::from_secs(10), StopReason::Shutdown)
        .await;
    drop(detached);
    kernel.exit_when_ended().await;
    harness.wait_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_checkpoint_cannot_be_restored_starts_with_stored_objects() {
    let restoring = SessionRestoring::Objects {
        checkpoint: KernelCheckpoint {
            id: "/data/criu/1".into(),
            marker: None,
        },
        folders: vec![FakeGenerations::folder(9)],
    };
    let mut harness = OwnerHarness::start_with(FakeGenerations::default(), Some(restoring));
    let mut kernel = harness.start_kernel().await;
    kernel.expect("cryo_reload").await;
    kernel.send_reply(Value::Null).await;
    assert_eq!(harness.state(), "idle 1");
    assert_eq!(harness.view().checkpoint, None);
    let answer = harness.handle().view().report;
    assert!(answer.restored, "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_in_a_checkpoint_starts_no_kernel() {
    let restoring = SessionRestoring::Checkpointed(KernelCheckpoint {
        id: "/data/criu/1".into(),
        marker: None,
    });
    let mut harness = OwnerHarness::start_with(FakeGenerations::default(), Some(restoring));
    harness.expect_no_fork_request().await;
    assert_eq!(harness.state(), "checkpointed 0");
    assert!(harness.view().ready);
    let detach = begin_detach(&harness).await.await.unwrap();
    let refused = detach.map(|_| unreachable!());
    let text = describe_answer(refused);
    assert!(text.starts_with("refused: Checkpointed"), "{text}");
}
