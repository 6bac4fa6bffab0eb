//! Runs and queries that end in the kernel: their output, interrupts and time limits.

use super::fake_kernel::FakeKernel;
use super::harness::{OwnerHarness, PendingAnswer, describe_run};
use crate::companion::kernel::connection::KernelQuery;
use crate::companion::kernel::{KernelRefusal, KernelRun};
use crate::companion::tests::clock::advance_seconds;
use crate::protocol::kernel::{Execute, KernelReport};
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test(start_paused = true)]
async fn a_run_gets_its_output_and_its_result() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let run = harness.execute("f()").await;
    assert_eq!(kernel.expect("execute").await["code"], "f()");
    assert_eq!(
        (harness.state(), describe_run(&run)),
        ("executing 1".into(), "running".into())
    );
    kernel.write_output(false, "out\n");
    kernel.write_output(true, "err\n");
    let result = json!({"type": "result", "data": {"text/plain": "2"}, "metadata": {}});
    kernel.send(result).await;
    kernel.send_done("completed").await;
    assert_eq!(describe_run(&run), "completed; kept 1");
    let reply = run.build_reply(KernelReport::lost(0));
    assert_eq!(
        (&*reply.stdout, &*reply.stderr, reply.result.as_deref()),
        ("out\n", "err\n", Some("2"))
    );
    assert_eq!(harness.state(), "idle 1");
}

#[tokio::test(start_paused = true)]
async fn the_kernel_decides_how_code_ended() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    for (status, expected) in [
        ("failed", "failed; ValueError: no; kept 1"),
        ("interrupted", "interrupted; ValueError: no; kept 1"),
    ] {
        let run = harness.execute("f()").await;
        kernel.expect("execute").await;
        send_code_error(&mut kernel).await;
        kernel.send_done(status).await;
        assert_eq!(describe_run(&run), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_saw_another_generation_reads_a_loss() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    for (seen, expected) in [(None, "completed; kept 1"), (Some(7), "completed; lost 1")] {
        let request = Execute {
            seen,
            ..Execute::new("f()")
        };
        let run = harness.execute_request(request).await.unwrap();
        kernel.expect("execute").await;
        kernel.send_done("completed").await;
        assert_eq!(describe_run(&run), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_wait_is_refused_while_code_runs() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let first = harness.execute("first").await;
    let second = harness.execute("second").await;
    let refused = harness.execute_request(Execute::new("third")).await;
    assert_eq!(refused.err(), Some(KernelRefusal::Busy));
    let query = harness.query(KernelQuery::Reset).await;
    assert_eq!(query.text().await, "refused: Busy");
    assert_eq!(harness.view().queued, 1);
    for (run, code) in [(&first, "first"), (&second, "second")] {
        assert_eq!(kernel.expect("execute").await["code"], code);
        kernel.expect_no_request().await;
        kernel.send_done("completed").await;
        assert_eq!(describe_run(run), "completed; kept 1");
    }
}

#[tokio::test(start_paused = true)]
async fn a_queued_run_that_is_interrupted_never_starts() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let first = harness.execute("first").await;
    let second = harness.execute("second").await;
    harness.interrupt_run(&second).await;
    assert_eq!(
        describe_run(&second),
        "interrupted; Interrupted: the run was removed from the queue before it started; kept 1"
    );
    // The interrupt of a run that has ended concerns no other run.
    harness.interrupt_run(&second).await;
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    kernel.expect_no_request().await;
    assert_eq!(describe_run(&first), "completed; kept 1");
    assert_eq!(harness.interrupt().await.text().await, "kept 1");
}

/// What asks the code to stop.
#[derive(Debug, Clone, Copy)]
enum StopCause {
    Request,
    TimeLimit,
}

impl StopCause {
    /// Starts a run, and waits until the run is asked to stop. Returns the caller of the interrupt, too.
    async fn stop_run(
        self,
        harness: &OwnerHarness,
        kernel: &mut FakeKernel,
    ) -> (Arc<KernelRun>, Option<PendingAnswer>) {
        let request = Execute {
            timeout: matches!(self, Self::TimeLimit).then_some(5.0),
            ..Execute::new("f()")
        };
        let run = harness.execute_request(request).await.unwrap();
        kernel.expect("execute").await;
        let caller = match self {
            Self::Request => Some(harness.interrupt().await),
            Self::TimeLimit => {
                advance_seconds(4).await;
                assert_eq!(harness.state(), "executing 1");
                advance_seconds(1).await;
                None
            }
        };
        assert_eq!(harness.state(), "being interrupted 1");
        kernel.wait_interrupted().await;
        (run, caller)
    }

    /// The start of the error of the run.
    fn error_start(self) -> &'static str {
        match self {
            Self::Request => "Interrupted: the code",
            Self::TimeLimit => "Timeout: the code ran longer than 5 s and",
        }
    }
}

/// What the code does after the interrupt.
#[derive(Debug, Clone, Copy)]
enum AfterInterrupt {
    /// Ends with this status, and the kernel answers the probe.
    Ends(&'static str),
    /// Ends, and the kernel does not answer the probe.
    EndsWithoutProbe,
    Ignores,
    Exits,
}

impl AfterInterrupt {
    async fn play(self, kernel: &mut FakeKernel) {
        match self {
            Self::Ends(status) => {
                send_code_error(kernel).await;
                kernel.send_done(status).await;
                kernel.expect("probe").await;
                kernel.send_reply(Value::Null).await;
            }
            Self::EndsWithoutProbe => {
                kernel.send_done("interrupted").await;
                kernel.expect("probe").await;
                advance_seconds(5).await;
                kernel.exit_when_ended().await;
            }
            Self::Ignores => {
                advance_seconds(2).await;
                assert_eq!(kernel.next_command().await, None);
                advance_seconds(2).await;
                kernel.exit_when_ended().await;
            }
            Self::Exits => kernel.exit(3).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_end_of_stopped_code_has_its_reply() {
    let kept = " was interrupted; variables are kept; kept 1";
    let cases = [
        (AfterInterrupt::Ends("failed"), kept, "kept 1"),
        (AfterInterrupt::Ends("interrupted"), kept, "kept 1"),
        (
            AfterInterrupt::EndsWithoutProbe,
            " was interrupted, and then the companion ended the kernel because the kernel did not answer a probe after \
             its code had stopped; variables are lost; lost 1",
            "lost 1",
        ),
        (
            AfterInterrupt::Ignores,
            " ignored the interrupt, so the kernel was killed; variables are lost; lost 1",
            "lost 1",
        ),
        (
            AfterInterrupt::Exits,
            " was interrupted, and then the kernel exited with code 3; variables are lost; lost 1",
            "lost 1",
        ),
    ];
    for cause in [StopCause::Request, StopCause::TimeLimit] {
        for (after, end, caller_reads) in cases {
            let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
            let (run, caller) = cause.stop_run(&harness, &mut kernel).await;
            let queued = harness.execute("queued").await;
            after.play(&mut kernel).await;
            let expected = format!("interrupted; {}{end}", cause.error_start());
            assert_eq!(describe_run(&run), expected, "{after:?}");
            if let Some(caller) = caller {
                assert_eq!(caller.text().await, caller_reads, "{after:?}");
            }
            let is_lost = caller_reads == "lost 1";
            if is_lost {
                kernel = harness.start_kernel().await;
            }
            assert_eq!(kernel.expect("execute").await["code"], "queued");
            kernel.send_done("completed").await;
            let expected = match is_lost {
                true => ("completed; lost 2", "idle 2"),
                false => ("completed; kept 1", "idle 1"),
            };
            assert_eq!(
                (&*describe_run(&queued), &*harness.state()),
                expected,
                "{after:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn code_that_ends_beside_its_interrupt_is_complete() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let (run, caller) = StopCause::Request.stop_run(&harness, &mut kernel).await;
    kernel.send_done("completed").await;
    kernel.expect("probe").await;
    kernel.send_reply(Value::Null).await;
    assert_eq!(describe_run(&run), "completed; kept 1");
    assert_eq!(caller.unwrap().text().await, "kept 1");
}

#[tokio::test(start_paused = true)]
async fn each_end_of_a_query_has_its_reply() {
    let limit = "Timeout: the code ran longer than 10 s and";
    let cases = [
        (
            AfterInterrupt::Ends("failed"),
            format!("{limit} was interrupted; variables are kept; kept 1"),
        ),
        (
            AfterInterrupt::EndsWithoutProbe,
            "refused: KernelLost(\"the code ran longer than 10 s and was interrupted, and then the companion ended the \
             kernel because the kernel did not answer a probe after its code had stopped; variables are lost\")"
                .into(),
        ),
        (
            AfterInterrupt::Ignores,
            "refused: KernelLost(\"the code ran longer than 10 s and ignored the interrupt, so the kernel was killed; \
             variables are lost\")"
                .into(),
        ),
        (
            AfterInterrupt::Exits,
            "refused: KernelLost(\"the code ran longer than 10 s and was interrupted, and then the kernel exited with \
             code 3; variables are lost\")"
                .into(),
        ),
    ];
    for (after, expected) in cases {
        let (_harness, mut kernel, query) = start_query().await;
        advance_seconds(10).await;
        kernel.wait_interrupted().await;
        if matches!(
            after,
            AfterInterrupt::Ends(_) | AfterInterrupt::EndsWithoutProbe
        ) {
            kernel
                .send_error_reply("KeyboardInterrupt", "stopped")
                .await;
            kernel.expect("probe").await;
        }
        match after {
            AfterInterrupt::Ends(_) => kernel.send_reply(Value::Null).await,
            AfterInterrupt::EndsWithoutProbe => {
                advance_seconds(5).await;
                kernel.exit_when_ended().await;
            }
            AfterInterrupt::Ignores | AfterInterrupt::Exits => after.play(&mut kernel).await,
        }
        assert_eq!(query.text().await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_query_gets_the_exception_of_its_code() {
    let (harness, mut kernel, query) = start_query().await;
    kernel.send_error_reply("ValueError", "no").await;
    assert_eq!(query.text().await, "ValueError: no; kept 1");
    assert_eq!(harness.state(), "idle 1");
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_ends_during_a_query_is_named() {
    let (mut harness, mut kernel, query) = start_query().await;
    kernel.exit(3).await;
    assert_eq!(
        query.text().await,
        "refused: KernelLost(\"the kernel exited with code 3 during the request; variables are lost\")"
    );
    let _kernel = harness.start_kernel().await;
    assert_eq!(harness.state(), "idle 2");
}

#[tokio::test(start_paused = true)]
async fn output_between_runs_belongs_to_no_run() {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let run = harness.execute("f()").await;
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    kernel.write_output(false, "late");
    let next = harness.query(KernelQuery::Probe).await;
    kernel.expect("probe").await;
    kernel.send_reply(Value::Null).await;
    assert_eq!(next.text().await, "kept 1");
    assert_eq!(run.build_reply(KernelReport::lost(0)).stdout, "");
}

/// Sends a query that the kernel has received.
async fn start_query() -> (OwnerHarness, FakeKernel, PendingAnswer) {
    let (harness, mut kernel) = OwnerHarness::start_ready().await;
    let query = harness.query(KernelQuery::Variables { limit: None }).await;
    kernel.expect("variables").await;
    (harness, kernel, query)
}

async fn send_code_error(kernel: &mut FakeKernel) {
    let error = json!({"type": "ValueError", "message": "no", "traceback": ["line 1"]});
    kernel.send(json!({"type": "error", "error": error})).await;
}
