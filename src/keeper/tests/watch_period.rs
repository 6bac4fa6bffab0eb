//! The watch period after a successful run, and the rescues that follow when its container fails.

use super::harness::{HOST, KeeperHarness, OLD_IMAGE, evolve_request};
use crate::engine::fake_engine::CallEffect;
use crate::keeper::journal::RunJournalStep;
use crate::protocol::evolve::EvolveStage::{RolledBack, Succeeded};
use crate::protocol::evolve::{EvolveCaller, EvolveRecord, RunTask};

/// Runs an evolve and returns in its watch period.
async fn evolve_until_watched(harness: &KeeperHarness) -> EvolveRecord {
    let run = harness.begin(evolve_request()).await;
    harness.run_end().await;
    let step = harness.journal().map(|entry| entry.step);
    assert_eq!(step, Some(RunJournalStep::Watching));
    harness.engine.reset_calls();
    harness.run_store.read_record(&run).unwrap().unwrap()
}

fn crash(harness: &KeeperHarness, times: u64) {
    for _ in 0..times {
        harness.engine.with(|objects| objects.crash(HOST));
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_crashes_twice_is_replaced_by_the_previous_image() {
    let harness = KeeperHarness::start().await;
    let record = evolve_until_watched(&harness).await;
    crash(&harness, 2);
    harness.settle().await;
    let rescue = harness.latest();
    let seen = (rescue.task, rescue.requested_by, rescue.status);
    assert_eq!(
        seen,
        (RunTask::Rescue, EvolveCaller::Keeper, Succeeded),
        "{rescue:?}"
    );
    assert!(
        rescue
            .reason
            .unwrap()
            .contains("the engine restarted it 2 times")
    );
    assert_eq!(
        (rescue.image.as_deref(), rescue.previous_image),
        (Some(OLD_IMAGE), record.image)
    );
    harness.assert_one_runs(OLD_IMAGE, "rescue");
    let marked = harness
        .engine
        .with(|objects| objects.image_id("os:rolled-back"));
    assert_eq!(marked.as_deref(), Some(OLD_IMAGE));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_crashes_once_passes() {
    let harness = KeeperHarness::start().await;
    let record = evolve_until_watched(&harness).await;
    crash(&harness, 1);
    harness.settle().await;
    assert_eq!(harness.latest().run, record.run);
    harness.assert_one_runs(&record.image.unwrap(), "one crash");
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_companion_hangs_is_replaced() {
    let harness = KeeperHarness::start().await;
    harness.set_watch_period(60);
    evolve_until_watched(&harness).await;
    let hang = CallEffect::HangBefore;
    harness.engine.always_at("exec os-host health", hang);
    harness.rescue_end().await;
    let rescue = harness.latest();
    assert!(rescue.reason.unwrap().contains("did not answer for 20 s"));
    assert_eq!(
        harness.container().image,
        harness.latest().previous_image.unwrap()
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_keeper_starts_the_watch_period_again() {
    let mut harness = KeeperHarness::start().await;
    let record = evolve_until_watched(&harness).await;
    harness.kill_keeper().await;
    harness.start_keeper();
    harness.run_end().await;
    crash(&harness, 2);
    harness.settle().await;
    assert_eq!(harness.latest().task, RunTask::Rescue);
    assert_eq!(harness.latest().previous_image, record.image);
    harness.assert_one_runs(OLD_IMAGE, "rescue by a new keeper");
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_in_the_watch_period_starts_the_period_again() {
    let harness = KeeperHarness::start().await;
    let watched = evolve_until_watched(&harness).await;
    harness.engine.at("start os-host", |_| CallEffect::Refuse);
    harness.write_dockerfile("FROM ${BASE}\nRUN true\n");
    let run = harness.begin(evolve_request()).await;
    harness.run_end().await;
    let record = harness.run_store.read_record(&run).unwrap().unwrap();
    assert_eq!(record.status, RolledBack, "{record:?}");
    assert_eq!(harness.journal().unwrap().run, watched.run);
    crash(&harness, 2);
    harness.settle().await;
    assert_eq!(harness.latest().image.as_deref(), Some(OLD_IMAGE));
    harness.assert_one_runs(OLD_IMAGE, "rescue after a failed run");
}

#[tokio::test(start_paused = true)]
async fn a_rescue_that_fails_is_repeated_three_times() {
    let harness = KeeperHarness::start().await;
    let record = evolve_until_watched(&harness).await;
    harness
        .engine
        .always_at("create os-host", CallEffect::Refuse);
    crash(&harness, 2);
    for _ in 0..12 {
        harness.settle().await;
    }
    let records = harness.run_store.list_records().unwrap();
    let rescues = records
        .iter()
        .filter(|record| record.task == RunTask::Rescue);
    let ends: Vec<_> = rescues.map(|rescue| rescue.status).collect();
    assert_eq!(ends, [RolledBack; 3]);
    let why = harness
        .run_store
        .read_record(&record.run)
        .unwrap()
        .unwrap()
        .why;
    assert!(why.unwrap().contains("rolled back 3 times without success"));
    harness.assert_one_runs(&record.image.unwrap(), "no rescue");
}
