//! Interruptions at each single call of a run: the keeper dies, the connection is lost, the engine refuses or restarts.
//! Whatever was interrupted, one container runs afterwards, and the record says of which image.

use super::harness::{KeeperHarness, OLD_IMAGE, evolve_request};
use crate::engine::fake_engine::CallEffect;
use crate::keeper::journal::RunJournalStep;
use crate::keeper::recovery::interrupted_run_end;
use crate::protocol::evolve::EvolveStage;
use std::collections::BTreeSet;
use std::time::Duration;

/// Asserts that the run has ended, and that the container runs which its record names. Returns the end.
#[track_caller]
fn assert_consistent(harness: &KeeperHarness, case: &str) -> EvolveStage {
    let record = harness.latest();
    assert!(record.status.has_ended(), "{case}: {record:?}");
    let image = match record.status {
        EvolveStage::Succeeded => record.image.as_deref().unwrap(),
        _ => OLD_IMAGE,
    };
    harness.assert_one_runs(image, &format!("{case}: {:?}", record.why));
    record.status
}

/// The calls of an evolve without interruptions, up to its end.
async fn calls_of_a_run() -> Vec<String> {
    let harness = KeeperHarness::start().await;
    harness.begin(evolve_request()).await;
    harness.run_end().await;
    harness.engine.calls()
}

/// Whether the call changes nothing, so that it does not matter whether the engine has acted.
fn is_query(call: &str) -> bool {
    let queries = [
        "inspect",
        "inspect-image",
        "list-images",
        "list-containers",
        "exec-result",
        "prepare-exec",
        "get",
    ];
    queries.contains(&call.split(' ').next().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_dies_at_any_call_is_continued_by_the_next() {
    let mut steps = BTreeSet::new();
    for effect in [CallEffect::HangBefore, CallEffect::HangAfter] {
        for (number, call) in calls_of_a_run().await.iter().enumerate() {
            if effect == CallEffect::HangAfter && is_query(call) {
                continue;
            }
            let case = format!("{effect:?} at call {number}, `{call}`");
            let mut harness = KeeperHarness::start().await;
            harness.engine.at_number(number, effect.clone());
            let handle = harness.handle();
            let begun = tokio::spawn(async move { handle.begin_run(evolve_request()).await });
            harness.engine.hung().await;
            harness.kill_keeper().await;
            begun.abort();
            let interrupted = harness.journal();
            harness.start_keeper();
            harness.settle().await;
            let Some(entry) = interrupted else {
                // The run was not accepted yet.
                harness.assert_one_runs(OLD_IMAGE, &case);
                continue;
            };
            let end = assert_consistent(&harness, &case);
            assert_eq!(
                Some(end),
                interrupted_run_end(entry.step).or(Some(end)),
                "{case}"
            );
            steps.insert(format!("{:?}", entry.step));
        }
    }
    let all = [
        RunJournalStep::Preparing,
        RunJournalStep::Quiescing,
        RunJournalStep::Swapping,
        RunJournalStep::Finalizing,
        RunJournalStep::Watching,
    ];
    assert_eq!(steps, all.map(|step| format!("{step:?}")).into());
}

/// Interrupts one evolve at each of its calls.
async fn interrupt_each_call(
    name: &str,
    interrupt: impl Fn(&KeeperHarness, usize),
) -> Vec<EvolveStage> {
    let mut ends = Vec::new();
    for (number, call) in calls_of_a_run().await.iter().enumerate() {
        let case = format!("{name} at call {number}, `{call}`");
        let harness = KeeperHarness::start().await;
        interrupt(&harness, number);
        // A request that is denied has changed nothing.
        match harness.handle().begin_run(evolve_request()).await {
            Ok(_) => {
                harness.settle().await;
                ends.push(assert_consistent(&harness, &case));
            }
            Err(_) => harness.assert_one_runs(OLD_IMAGE, &case),
        }
    }
    ends
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_refuses_any_call_leaves_one_container() {
    let ends = interrupt_each_call("refused", |harness, number| {
        harness.engine.at_number(number, CallEffect::Refuse);
    })
    .await;
    let ends: BTreeSet<_> = ends.into_iter().collect();
    assert_eq!(ends.len(), 3, "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_at_any_call_leaves_one_container() {
    interrupt_each_call("lost", |harness, number| {
        harness.engine.at_number(number, CallEffect::LoseReply);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_away_for_a_while_at_any_call_leaves_one_container() {
    interrupt_each_call("away", |harness, number| {
        harness.engine.at_number_with(number, |objects| {
            objects.leave_for(Duration::from_secs(20));
            CallEffect::LoseRequest
        });
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_restarts_at_any_call_leaves_one_container() {
    interrupt_each_call("restarted", |harness, number| {
        harness.engine.at_number_with(number, |objects| {
            objects.kill_containers();
            objects.leave_for(Duration::from_secs(3));
            CallEffect::LoseReply
        });
    })
    .await;
}
