//! Stores, requested reloads, and the reload of stored variables at the start.

use super::fake_kernel::FakeKernel;
use super::harness::{FakeGenerations, OwnerHarness, PendingAnswer, SESSION, describe_run};
use crate::companion::kernel::connection::KernelQuery;
use crate::companion::kernel::{KernelRun, StopReason};
use crate::companion::tests::clock::advance_seconds;
use crate::protocol::restored::SkippedGeneration;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Stores the namespace under the session's name.
pub(super) fn store_query(generation: u64) -> KernelQuery {
    KernelQuery::CryoStore {
        folder: FakeGenerations::folder(generation),
        name: SESSION.into(),
        generation,
        reason: "manual",
        session: SESSION.into(),
        strict: false,
        dry_run: false,
        files: false,
        compress: false,
        runs: 0,
        seen: None,
    }
}

fn generations(reloadable: &[u64]) -> FakeGenerations {
    FakeGenerations {
        reloadable: reloadable.to_vec(),
        ..FakeGenerations::default()
    }
}

fn skipped(generation: u64, why: &str) -> SkippedGeneration {
    SkippedGeneration {
        generation,
        why: why.into(),
    }
}

/// A session whose variables were stored by an earlier companion, and whose first run waits.
async fn start_stored(generations: FakeGenerations) -> (OwnerHarness, FakeKernel, Arc<KernelRun>) {
    let mut harness = OwnerHarness::start_with(generations, None);
    let mut kernel = harness.start_kernel().await;
    harness.execute("x = 1").await;
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    let store = harness.query(store_query(1)).await;
    kernel.expect("cryo_store").await;
    kernel.send_reply(Value::Null).await;
    assert_eq!(store.text().await, "kept 1");
    harness
        .shut_down(Duration::ZERO, StopReason::Shutdown)
        .await;
    kernel.exit(0).await;
    harness.start_next_companion().await;
    // The caller does not wait for the reload alone.
    let run = harness.execute("x").await;
    let kernel = harness.start_kernel().await;
    (harness, kernel, run)
}

/// The answer of a kernel to the reload of a generation.
#[derive(Debug, Clone, Copy)]
enum ReloadAnswer {
    Loaded,
    Fails(&'static str),
    Exits,
    /// Does not end within the time limit, and stops when interrupted.
    Hangs,
    /// Does not end, and ignores the interrupts.
    HangsAndIgnores,
    /// A request interrupts the reload.
    Interrupted,
}

impl ReloadAnswer {
    /// Plays the answer. Returns the kernel of the next answer.
    async fn play(self, harness: &mut OwnerHarness, mut kernel: FakeKernel) -> FakeKernel {
        match self {
            Self::Loaded => kernel.send_reply(json!({"receipt": []})).await,
            Self::Fails(why) => kernel.send_error_reply("ValueError", why).await,
            Self::Exits => {
                kernel.exit(139).await;
                return harness.start_kernel().await;
            }
            Self::Hangs | Self::Interrupted => {
                match self {
                    Self::Hangs => advance_seconds(90).await,
                    _ => drop(harness.interrupt().await),
                }
                kernel.wait_interrupted().await;
                kernel
                    .send_error_reply("KeyboardInterrupt", "stopped")
                    .await;
                kernel.expect("probe").await;
                kernel.send_reply(Value::Null).await;
            }
            Self::HangsAndIgnores => {
                for seconds in [90, 2, 2] {
                    advance_seconds(seconds).await;
                }
                kernel.exit_when_ended().await;
                return harness.start_kernel().await;
            }
        }
        kernel
    }
}

#[tokio::test(start_paused = true)]
async fn each_answer_to_a_reload_at_the_start_has_its_reply() {
    use ReloadAnswer::{Exits, Fails, Hangs, HangsAndIgnores, Interrupted, Loaded};
    let lost = |why: &str| format!("idle, without its variables, which can't be reloaded: {why}");
    let timeout = "the code ran longer than 90 s and was interrupted; variables are kept";
    let twice = "the kernel ended twice during the reload";
    let idle = || "idle".to_owned();
    // The generations, the answer to each reload of one, the state, and the reply to the first run.
    type Case<'a> = (&'a [u64], &'a [(u64, ReloadAnswer)], String, &'a str);
    let cases: &[Case<'_>] = &[
        (&[1], &[(1, Loaded)], idle(), "restored 2 from 1"),
        (
            &[2, 1],
            &[(2, Fails("no module")), (1, Loaded)],
            idle(),
            "restored 2 from 1",
        ),
        (
            &[2, 1],
            &[(2, Fails("no module")), (1, Fails("damaged"))],
            lost("no module"),
            "lost 2",
        ),
        (
            &[2, 1],
            &[(2, Exits), (2, Loaded)],
            idle(),
            "restored 3 from 2",
        ),
        (
            &[2, 1],
            &[(2, Exits), (2, Exits), (1, Loaded)],
            idle(),
            "restored 4 from 1",
        ),
        (&[1], &[(1, Exits), (1, Exits)], lost(twice), "lost 4"),
        // After a time limit or an interrupt, older generations are not tried.
        (&[2, 1], &[(2, Hangs)], lost(timeout), "lost 2"),
        (
            &[2, 1],
            &[(2, Interrupted)],
            lost("the code was interrupted; variables are kept"),
            "lost 2",
        ),
        (
            &[2, 1],
            &[(2, HangsAndIgnores), (2, Loaded)],
            idle(),
            "restored 3 from 2",
        ),
    ];
    for (reloadable, answers, state, reply) in cases {
        let (mut harness, mut kernel, run) = start_stored(generations(reloadable)).await;
        for (generation, answer) in *answers {
            let reload = kernel.expect("cryo_reload").await;
            let folder = reload["folder"].as_str().unwrap();
            assert_eq!(Path::new(folder), FakeGenerations::folder(*generation));
            assert!(!harness.view().ready, "{answers:?}");
            assert!(
                harness.state().starts_with("reloading variables"),
                "{answers:?}"
            );
            assert_eq!(describe_run(&run), "running");
            kernel = answer.play(&mut harness, kernel).await;
        }
        kernel.expect("execute").await;
        kernel.send_done("completed").await;
        assert_eq!(
            describe_run(&run),
            format!("completed; {reply}"),
            "{answers:?}"
        );
        let generation = harness.view().report.generation;
        let expected = format!("{state} {generation}");
        assert_eq!(harness.state(), expected, "{answers:?}");
        assert!(harness.view().ready);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_names_its_losses_and_the_skipped_generations() {
    let stored = FakeGenerations {
        damaged: vec![skipped(5, "its manifest is damaged")],
        lost_counts: BTreeMap::from([(2, 3)]),
        ..generations(&[4, 3, 2, 1])
    };
    let (mut harness, mut kernel, run) = start_stored(stored).await;
    for answer in [
        ReloadAnswer::Fails("no module"),
        ReloadAnswer::Fails("no class"),
        ReloadAnswer::Loaded,
    ] {
        kernel.expect("cryo_reload").await;
        kernel = answer.play(&mut harness, kernel).await;
    }
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    assert_eq!(describe_run(&run), "completed; restored 2 from 2");
    let records = harness.generations.reload_records.lock();
    let [from] = &records[..] else {
        panic!("{records:?}")
    };
    assert_eq!((from.generation, from.lost_count), (2, 3));
    let expected = [
        skipped(5, "its manifest is damaged"),
        skipped(4, "no module"),
        skipped(3, "no class"),
    ];
    assert_eq!(from.skipped, expected);
}

#[tokio::test(start_paused = true)]
async fn a_reload_whose_manifest_cannot_be_read_succeeds_without_its_source() {
    let stored = FakeGenerations {
        unreadable: vec![1],
        ..generations(&[2, 1])
    };
    let (mut harness, mut kernel, run) = start_stored(stored).await;
    for answer in [ReloadAnswer::Fails("no module"), ReloadAnswer::Loaded] {
        kernel.expect("cryo_reload").await;
        kernel = answer.play(&mut harness, kernel).await;
    }
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    assert_eq!(describe_run(&run), "completed; restored 2");
    assert_eq!(harness.state(), "idle 2");
}

#[tokio::test(start_paused = true)]
async fn damaged_generations_are_named_and_not_reloaded() {
    let stored = FakeGenerations {
        damaged: vec![skipped(1, "its manifest is damaged")],
        ..FakeGenerations::default()
    };
    let (harness, mut kernel, run) = start_stored(stored).await;
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    assert_eq!(describe_run(&run), "completed; lost 2");
    assert_eq!(
        harness.state(),
        "idle, without its variables, which can't be reloaded: its manifest is damaged 2"
    );
}

#[tokio::test(start_paused = true)]
async fn a_restart_during_a_reload_discards_the_stored_variables() {
    let (mut harness, mut kernel, run) = start_stored(generations(&[1])).await;
    kernel.expect("cryo_reload").await;
    let restart = harness.restart().await;
    kernel.exit_when_ended().await;
    let mut kernel = harness.start_kernel().await;
    assert_eq!(restart.text().await, "lost 3");
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    assert_eq!(describe_run(&run), "completed; kept 3");
    assert_eq!(harness.state(), "idle 3");
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_a_reload_keeps_the_stored_variables() {
    let (mut harness, mut kernel, run) = start_stored(generations(&[1])).await;
    kernel.expect("cryo_reload").await;
    harness
        .shut_down(Duration::ZERO, StopReason::Shutdown)
        .await;
    kernel.exit_when_ended().await;
    assert_eq!(
        describe_run(&run),
        "failed; NotStarted: the companion was stopped before the code started; lost 2"
    );
    harness.start_next_companion().await;
    let mut kernel = harness.start_kernel().await;
    kernel.expect("cryo_reload").await;
    let _kernel = ReloadAnswer::Loaded.play(&mut harness, kernel).await;
    assert_eq!(harness.state(), "idle 3");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_wait_is_accepted_during_a_reload() {
    let mut harness = OwnerHarness::start_with(generations(&[1]), None);
    let mut kernel = harness.start_kernel().await;
    let store = harness.query(store_query(1)).await;
    kernel.expect("cryo_store").await;
    kernel.send_reply(Value::Null).await;
    assert_eq!(store.text().await, "kept 1");
    harness
        .shut_down(Duration::ZERO, StopReason::Shutdown)
        .await;
    kernel.exit(0).await;
    harness.start_next_companion().await;
    let mut kernel = harness.start_kernel().await;
    kernel.expect("cryo_reload").await;
    let query = harness.query(KernelQuery::Probe).await;
    let refused = harness.query(KernelQuery::Probe).await;
    assert_eq!(refused.text().await, "refused: Busy");
    let mut kernel = ReloadAnswer::Loaded.play(&mut harness, kernel).await;
    kernel.expect("probe").await;
    kernel.send_reply(Value::Null).await;
    // No caller has read generation 1.
    assert_eq!(query.text().await, "kept 2");
}

/// Stores the variables of a session in which a caller has read generation 1.
async fn begin_store(query: KernelQuery) -> (OwnerHarness, FakeKernel, PendingAnswer) {
    let mut harness = OwnerHarness::start_with(generations(&[1]), None);
    let mut kernel = harness.start_kernel().await;
    harness.execute("x = 1").await;
    kernel.expect("execute").await;
    kernel.send_done("completed").await;
    let store = harness.query(query).await;
    let request = kernel.expect("cryo_store").await;
    assert_eq!(request["runs"], 1);
    (harness, kernel, store)
}

/// Whether the next companion reloads the variables.
async fn is_reloaded(mut harness: OwnerHarness, mut kernel: FakeKernel) -> bool {
    harness
        .shut_down(Duration::ZERO, StopReason::Shutdown)
        .await;
    kernel.exit(0).await;
    harness.start_next_companion().await;
    let _kernel = harness.start_kernel().await;
    harness.state().starts_with("reloading variables")
}

#[tokio::test(start_paused = true)]
async fn only_a_store_of_the_session_is_reloaded() {
    for (is_dry, stored_name, expected) in [
        (false, SESSION, true),
        (true, SESSION, false),
        (false, "copy", false),
    ] {
        let mut query = store_query(1);
        if let KernelQuery::CryoStore { dry_run, name, .. } = &mut query {
            (*dry_run, *name) = (is_dry, stored_name.into());
        }
        let (harness, mut kernel, store) = begin_store(query).await;
        kernel.send_reply(Value::Null).await;
        assert_eq!(store.text().await, "kept 1");
        assert_eq!(is_reloaded(harness, kernel).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_not_reloaded() {
    let (harness, mut kernel, store) = begin_store(store_query(1)).await;
    kernel.send(json!({"type": "progress", "bytes": 5})).await;
    assert_eq!(harness.view().transferred_bytes, 5);
    kernel.send_error_reply("OSError", "the disk is full").await;
    assert_eq!(store.text().await, "OSError: the disk is full; kept 1");
    assert!(!is_reloaded(harness, kernel).await);

    // The kernel of an older body does not know the request, and stays.
    let (harness, mut kernel, store) = begin_store(store_query(1)).await;
    let error = json!({"type": "Unknown", "message": "unknown request", "traceback": []});
    kernel
        .send(json!({"type": "refused", "error": error}))
        .await;
    assert_eq!(store.text().await, "Unknown: unknown request; kept 1");
    assert!(!is_reloaded(harness, kernel).await);

    // A store has no time limit.
    let (mut harness, mut kernel, store) = begin_store(store_query(1)).await;
    advance_seconds(3600).await;
    assert_eq!(harness.state(), "executing 1");
    kernel.exit(139).await;
    assert_eq!(
        store.text().await,
        "refused: KernelLost(\"the kernel was killed by SIGSEGV during the request; variables are lost\")"
    );
    let kernel = harness.start_kernel().await;
    assert!(!is_reloaded(harness, kernel).await);
}

#[tokio::test(start_paused = true)]
async fn a_store_stores_only_the_generation_that_its_caller_saw() {
    let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
    // The kernel dies before it gets the store.
    kernel.close_connection().await;
    let store = harness.query(store_query(1)).await;
    kernel.exit(1).await;
    let mut kernel = harness.start_kernel().await;
    assert_eq!(
        store.text().await,
        "refused: GenerationMismatch { seen: 1, generation: 2 }"
    );
    kernel.expect_no_request().await;
    assert_eq!(harness.state(), "idle 2");
}

#[tokio::test(start_paused = true)]
async fn a_requested_reload_begins_a_generation() {
    for (answer, expected, state) in [
        (ReloadAnswer::Loaded, "restored 2 from 7", "idle 2"),
        (
            ReloadAnswer::Fails("no module"),
            "ValueError: no module; kept 1",
            "idle 1",
        ),
    ] {
        let (mut harness, mut kernel) = OwnerHarness::start_ready().await;
        let folder = FakeGenerations::folder(7);
        let reload = harness.query(KernelQuery::CryoReload { folder }).await;
        kernel.expect("cryo_reload").await;
        assert_eq!(harness.state(), "executing 1");
        advance_seconds(3600).await;
        let _kernel = answer.play(&mut harness, kernel).await;
        assert_eq!(reload.text().await, expected);
        assert_eq!(harness.state(), state);
        assert!(harness.generations.reload_records.lock().is_empty());
    }
}
