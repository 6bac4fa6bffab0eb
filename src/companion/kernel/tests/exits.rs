//! Kernels that end or do not start: each cause, and what runs in each state read.

use super::fake_kernel::FakeKernel;
use super::harness::{OwnerHarness, describe_run};
use crate::companion::kernel::KernelRefusal;
use crate::companion::kernel::connection::{KernelQuery, encode_frame};
use crate::companion::tests::clock::{advance, advance_seconds, settle};
use crate::protocol::kernel::Execute;
use crate::supervise::SupervisorRequest;
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// What ends a kernel.
#[derive(Debug, Clone, Copy)]
enum ExitCause {
    Code(u8),
    OutOfMemory,
    SupervisorKilled,
    ConnectionClosed,
    BrokenFrame,
    RequestRefused,
}

impl ExitCause {
    const ALL: [(Self, &str); 8] = [
        (Self::Code(3), "the kernel exited with code 3"),
        (Self::Code(139), "the kernel was killed by SIGSEGV"),
        (Self::Code(137), "the kernel was killed by SIGKILL"),
        (
            Self::OutOfMemory,
            "the kernel ran out of memory and was killed",
        ),
        (Self::SupervisorKilled, "the kernel's supervisor was killed"),
        (
            Self::ConnectionClosed,
            "the companion ended the kernel because the kernel closed its connection",
        ),
        (
            Self::BrokenFrame,
            "the companion ended the kernel because the connection to the kernel broke: invalid type: integer `1`, \
             expected internally tagged enum KernelFrame at line 1 column 1",
        ),
        (
            Self::RequestRefused,
            "the companion ended the kernel because the kernel refused a request: unknown request",
        ),
    ];

    async fn play(self, harness: &OwnerHarness, kernel: &mut FakeKernel) {
        match self {
            Self::Code(code) => return kernel.exit(code).await,
            Self::OutOfMemory => {
                fs::write(harness.path("memory.events"), "oom 1\noom_kill 1\n").unwrap();
                return kernel.exit(137).await;
            }
            Self::SupervisorKilled => return kernel.kill_supervisor().await,
            Self::ConnectionClosed => {
                kernel.close_connection().await;
                // The process may be about to exit.
                assert_eq!(kernel.next_command().await, None);
                advance(Duration::from_millis(500)).await;
            }
            Self::BrokenFrame => {
                let frame = encode_frame(&json!(1)).unwrap();
                kernel.send_bytes(&frame).await;
                advance(Duration::from_millis(500)).await;
            }
            Self::RequestRefused => {
                let error = json!({"type": "E", "message": "unknown request", "traceback": []});
                kernel
                    .send(json!({"type": "refused", "error": error}))
                    .await;
            }
        }
        assert_eq!(harness.view().detail, "stopping");
        kernel.exit_when_ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_cause_of_an_exit_is_named_to_the_run() {
    for (cause, how) in ExitCause::ALL {
        let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
        let run = harness.execute("f()").await;
        kernel.expect("execute").await;
        let queued = harness.execute("queued").await;
        cause.play(&harness, &mut kernel).await;
        let expected =
            format!("failed; KernelDied: {how} while this code ran; variables are lost; lost 1");
        assert_eq!(describe_run(&run), expected);
        assert_eq!(harness.state(), "starting 1", "{cause:?}");
        let mut kernel = harness.start_kernel().await;
        assert_eq!(kernel.expect("execute").await["code"], "queued");
        kernel.send_done("completed").await;
        assert_eq!(describe_run(&queued), "completed; lost 2", "{cause:?}");
        assert_eq!(harness.state(), "idle 2", "{cause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_ends_while_it_is_idle_is_replaced() {
    for (cause, _) in ExitCause::ALL {
        let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
        cause.play(&harness, &mut kernel).await;
        let mut kernel = harness.start_kernel().await;
        assert_eq!(harness.state(), "idle 2", "{cause:?}");
        // No caller has read a reply of the generation that was lost.
        let run = harness.execute("f()").await;
        kernel.expect("execute").await;
        kernel.send_done("completed").await;
        assert_eq!(describe_run(&run), "completed; kept 2", "{cause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_kernel_that_does_not_answer_a_probe_is_replaced() {
    let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
    harness.check_health().await;
    kernel.expect("probe").await;
    kernel.send_reply(Value::Null).await;
    assert_eq!(harness.state(), "idle 1");
    harness.check_health().await;
    kernel.expect("probe").await;
    // The kernel counts as idle, and a request waits.
    assert_eq!(harness.state(), "idle 1");
    let run = harness.execute("f()").await;
    advance_seconds(59).await;
    assert_eq!(kernel.next_command().await, None);
    advance_seconds(1).await;
    kernel.exit_when_ended().await;
    let mut kernel = harness.start_kernel().await;
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    assert_eq!(
        (describe_run(&run), harness.state()),
        ("completed; kept 2".into(), "idle 2".into())
    );
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_is_killed_and_stays_loses_its_supervisor() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let restart = harness.restart().await;
    assert_eq!(kernel.next_command().await, Some(SupervisorRequest::Kill));
    advance_seconds(2).await;
    kernel.wait_killed().await;
    kernel.kill_supervisor().await;
    assert_eq!(harness.state(), "starting 1");
    assert_eq!(restart.text().await, "waits");
}

/// Why a kernel does not start.
#[derive(Debug, Clone, Copy)]
enum StartFailure {
    NotSpawned,
    ExitsBeforeHello,
    ExitsAfterHello,
    SilentBeforeHello,
    SilentAfterHello,
    OtherProtocol,
}

impl StartFailure {
    const ALL: [(Self, &str); 6] = [
        (
            Self::NotSpawned,
            "no kernel process was created: Python can't be started",
        ),
        (
            Self::ExitsBeforeHello,
            "the kernel exited with code 1\nImportError: numpy",
        ),
        (
            Self::ExitsAfterHello,
            "the kernel exited with code 1\nImportError: numpy",
        ),
        (
            Self::SilentBeforeHello,
            "the companion ended the kernel because the kernel did not start within 60 s",
        ),
        (
            Self::SilentAfterHello,
            "the companion ended the kernel because the kernel did not start within 60 s",
        ),
        (
            Self::OtherProtocol,
            "the companion ended the kernel because the kernel speaks protocol 99, and this companion speaks 1",
        ),
    ];

    async fn play(self, harness: &mut OwnerHarness) {
        if matches!(self, Self::NotSpawned) {
            return harness.refuse_kernel("Python can't be started").await;
        }
        let mut kernel = harness.deliver_kernel().await;
        match self {
            Self::NotSpawned | Self::ExitsBeforeHello | Self::SilentBeforeHello => {}
            Self::OtherProtocol => kernel.send_hello_of_protocol(99).await,
            Self::ExitsAfterHello | Self::SilentAfterHello => kernel.send_hello().await,
        }
        match self {
            Self::ExitsBeforeHello | Self::ExitsAfterHello => {
                kernel.write_stderr_tail("ImportError: numpy");
                kernel.exit(1).await;
            }
            Self::SilentBeforeHello | Self::SilentAfterHello => {
                advance_seconds(60).await;
                kernel.exit_when_ended().await;
            }
            Self::OtherProtocol | Self::NotSpawned => kernel.exit_when_ended().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_reason_why_a_kernel_does_not_start_is_named() {
    for (failure, why) in StartFailure::ALL {
        let mut harness = OwnerHarness::start();
        let run = harness.execute("f()").await;
        for _ in 0..3 {
            failure.play(&mut harness).await;
        }
        harness.expect_no_fork_request().await;
        let state = format!("can't be started, retrying: {why} 0");
        assert_eq!(harness.state(), state);
        let end = format!("failed; NotStarted: the kernel can't be started: {why}; kept 0");
        assert_eq!(describe_run(&run), end);
        let no_kernel = KernelRefusal::NoKernel(why.into());
        let refused = harness.execute_request(Execute::new("f()")).await;
        assert_eq!(refused.err(), Some(no_kernel.clone()));
        let query = harness.query(KernelQuery::Reset).await;
        assert_eq!(query.text().await, format!("refused: {no_kernel:?}"));
        advance_seconds(1).await;
        let _kernel = harness.start_kernel().await;
        let plain = "idle, without the packages installed at run time, with which it did not start";
        assert_eq!(harness.state(), format!("{plain} 1"), "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_third_start_leaves_out_the_installed_packages() {
    let mut harness = OwnerHarness::start();
    let mut plain = Vec::new();
    for delay in [0, 0, 0, 1, 2, 4] {
        advance_seconds(delay).await;
        let request = harness.next_fork_request().await;
        plain.push(request.is_plain);
        drop(request);
        settle().await;
    }
    assert_eq!(plain, [false, false, true, true, true, true]);
    let why = "no kernel process was created: too many kernels are requested";
    assert_eq!(
        harness.state(),
        format!("can't be started, retrying: {why} 0")
    );
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_was_ready_is_started_again_with_all_packages() {
    let mut harness = OwnerHarness::start();
    for _ in 0..2 {
        harness.refuse_kernel("not now").await;
    }
    let mut kernel = harness.start_kernel().await;
    assert!(harness.state().starts_with("idle, without the packages"));
    kernel.exit(1).await;
    let request = harness.next_fork_request().await;
    assert!(!request.is_plain);
}
