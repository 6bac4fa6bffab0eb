//! What a keeper does when it starts: reconciliation of the containers, retries, and the end when they do not help.

use super::harness::{HOST, KeeperHarness, OLD_IMAGE, evolve_request};
use crate::engine::ContainerPhase;
use crate::engine::fake_engine::{CallEffect, FakeContainer, FakeEngineObjects, FakeImage};
use crate::keeper::retry_policy::is_engine_away;
use crate::protocol::evolve::EvolveStage::{Failed, RolledBack, Succeeded};
use crate::protocol::evolve::{DEPLOY_CONFIG_FILE, EvolveRunId, EvolveStage};
use std::fs;
use std::time::Duration;
use tokio::time::sleep;

const ASIDE: &str = "os-host.old";

/// A container of the instance under this name, as an interrupted replacement leaves it.
fn add_copy(objects: &mut FakeEngineObjects, name: &str, image: &str, phase: ContainerPhase) {
    let present = objects.container("old").unwrap().clone();
    let copy = FakeContainer {
        id: format!("copy-{name}"),
        name: name.into(),
        image: image.into(),
        phase,
        ..present
    };
    objects.images.entry(image.into()).or_default();
    objects.containers.insert(copy.id.clone(), copy);
}

#[tokio::test(start_paused = true)]
async fn a_keeper_leaves_one_container_of_those_that_it_finds() {
    type Arrange = fn(&mut FakeEngineObjects);
    let cases: [(&str, Arrange, &str); 4] = [
        (
            "a container aside beside one that runs",
            |o| {
                add_copy(o, ASIDE, "sha256:aside", ContainerPhase::Paused);
            },
            OLD_IMAGE,
        ),
        (
            "only a paused container aside",
            |o| {
                let old = o.container(HOST).unwrap();
                (old.name, old.phase) = (ASIDE.into(), ContainerPhase::Paused);
                (old.restarts_automatically, old.networks) = (false, [].into());
            },
            OLD_IMAGE,
        ),
        (
            "a container aside, and one that was never started",
            |o| {
                let old = o.container(HOST).unwrap();
                (old.name, old.phase) = (ASIDE.into(), ContainerPhase::Paused);
                add_copy(o, HOST, "sha256:new", ContainerPhase::Created);
            },
            OLD_IMAGE,
        ),
        (
            "a container that the engine could not start",
            |o| {
                let old = o.container(HOST).unwrap();
                (old.phase, old.error) =
                    (ContainerPhase::Stopped, "port is already allocated".into());
            },
            OLD_IMAGE,
        ),
    ];
    for (case, arrange, image) in cases {
        let mut harness = KeeperHarness::prepare();
        harness.engine.with(arrange);
        harness.start_keeper();
        harness.settle().await;
        harness.assert_one_runs(image, case);
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_a_person_stopped_stays_stopped() {
    let mut harness = KeeperHarness::prepare();
    harness.engine.with(|objects| {
        let old = objects.container(HOST).unwrap();
        (old.phase, old.exit_code) = (ContainerPhase::Stopped, 143);
    });
    harness.start_keeper();
    harness.settle().await;
    assert_eq!(harness.container().phase, ContainerPhase::Stopped);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_the_host_started_is_in_the_history() {
    let mut harness = KeeperHarness::start().await;
    harness.engine.at("start os-host", |_| CallEffect::Refuse);
    assert_eq!(harness.evolve().await.status, RolledBack);
    harness.kill_keeper().await;
    harness.engine.with(|objects| {
        objects
            .images
            .insert("sha256:hosts".into(), FakeImage::default());
        objects.container(HOST).unwrap().image = "sha256:hosts".into();
    });
    harness.start_keeper();
    harness.settle().await;
    let record = harness.latest();
    assert_eq!(
        (record.status, record.image.as_deref()),
        (Succeeded, Some("sha256:hosts"))
    );
    assert_eq!(record.previous_image.as_deref(), Some(OLD_IMAGE));
}

/// Interrupts a run at this call, which the engine refuses as often as the keeper asks afterwards.
async fn evolve_and_refuse(
    call: &'static str,
    refused: &'static str,
) -> (KeeperHarness, EvolveRunId) {
    let mut harness = KeeperHarness::start().await;
    harness.engine.at(call, |_| CallEffect::HangBefore);
    let run = harness.begin(evolve_request()).await;
    harness.engine.hung().await;
    harness.kill_keeper().await;
    harness.engine.always_at(refused, CallEffect::Refuse);
    harness.start_keeper();
    (harness, run)
}

#[tokio::test(start_paused = true)]
async fn a_run_that_can_not_be_ended_is_given_up_with_the_reason() {
    let cases: [(&str, &str, EvolveStage, &str); 3] = [
        (
            "exec os-host.trial selftest",
            "remove os-host.trial",
            Failed,
            "could not be cleaned up",
        ),
        (
            "start os-host",
            "remove os-host",
            Failed,
            "the rollback failed",
        ),
        (
            "remove os-host.old",
            "remove os-host.old",
            Succeeded,
            "could not be cleaned up",
        ),
    ];
    for (call, refused, status, why) in cases {
        let (harness, run) = evolve_and_refuse(call, refused).await;
        harness.settle().await;
        let record = harness.run_store.read_record(&run).unwrap().unwrap();
        assert_eq!(record.status, status, "{call}: {:?}", record.why);
        let reason = record.why.unwrap();
        assert!(
            reason.contains(why) && reason.contains("refuses this call"),
            "{reason}"
        );
        assert_eq!(harness.journal(), None, "{call}");
        assert_eq!(
            harness.latest().run,
            run,
            "{call}: the history has another record"
        );
        // The keeper accepts the next run.
        harness.engine.reset_calls();
        let next = harness.evolve().await;
        assert_eq!(next.status, Succeeded, "{call}: {:?}", next.why);
        harness.assert_one_runs(&next.image.unwrap(), call);
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_keeper_restores_the_old_container_of_a_run_that_was_given_up() {
    let (mut harness, run) = evolve_and_refuse("start os-host", "remove os-host").await;
    harness.settle().await;
    assert_ne!(harness.container().image, OLD_IMAGE);
    harness.kill_keeper().await;
    harness.engine.reset_calls();
    harness.start_keeper();
    harness.settle().await;
    harness.assert_one_runs(OLD_IMAGE, "given up");
    assert_eq!(harness.latest().run, run);
}

#[tokio::test(start_paused = true)]
async fn a_keeper_whose_engine_stays_away_ends() {
    let mut harness = KeeperHarness::start().await;
    harness.engine.at("exec os-host verify", |objects| {
        objects.leave_for(Duration::from_secs(600));
        CallEffect::LoseReply
    });
    harness.begin(evolve_request()).await;
    let error = harness.keeper_end().await.unwrap_err();
    assert!(is_engine_away(&error), "{error:#}");
    sleep(Duration::from_secs(600)).await;
    harness.start_keeper();
    harness.settle().await;
    assert_eq!(harness.latest().status, RolledBack);
    harness.assert_one_runs(OLD_IMAGE, "the next keeper");
}

#[tokio::test(start_paused = true)]
async fn an_old_container_that_is_gone_is_created_again() {
    let mut harness = KeeperHarness::start().await;
    harness
        .engine
        .at("exec os-host verify", |_| CallEffect::HangBefore);
    harness.begin(evolve_request()).await;
    harness.engine.hung().await;
    harness.kill_keeper().await;
    harness
        .engine
        .with(|objects| objects.containers.retain(|_, one| one.name != ASIDE));
    harness.start_keeper();
    harness.settle().await;
    let record = harness.latest();
    assert_eq!(record.status, RolledBack);
    let why = record.why.unwrap();
    for part in [
        "the old container no longer existed",
        "the keeper created another container of the old image",
    ] {
        assert!(why.contains(part), "{why}");
    }
    harness.assert_one_runs(OLD_IMAGE, "created again");
}

#[tokio::test(start_paused = true)]
async fn a_container_that_the_host_created_during_a_run_stays() {
    let harness = KeeperHarness::start().await;
    harness.engine.at("exec os-host verify", |objects| {
        objects.containers.retain(|_, one| one.name != HOST);
        add_copy(objects, HOST, "sha256:hosts", ContainerPhase::Running);
        CallEffect::Refuse
    });
    let record = harness.evolve().await;
    let why = record.why.unwrap();
    assert_eq!(record.status, Failed, "{why}");
    assert!(
        why.contains("another container, which no evolve created"),
        "{why}"
    );
    let container = harness.container();
    assert_eq!(container.image, "sha256:hosts");
}

#[tokio::test(start_paused = true)]
async fn only_images_that_a_rollback_needs_are_kept() {
    let harness = KeeperHarness::start().await;
    let images = || {
        harness
            .engine
            .with(|objects| objects.images.keys().cloned().collect::<Vec<_>>())
    };
    for (call, status) in [
        ("start os-host.trial", Failed),
        ("start os-host", RolledBack),
    ] {
        harness.engine.at(call, |_| CallEffect::Refuse);
        assert_eq!(harness.evolve().await.status, status);
        assert_eq!(images(), [OLD_IMAGE], "{call}");
    }
    let new = harness.evolve().await.image.unwrap();
    assert_eq!(images(), [new, OLD_IMAGE.into()]);
    let previous = harness
        .engine
        .with(|objects| objects.image_id("os:previous"));
    assert_eq!(previous.as_deref(), Some(OLD_IMAGE));
}

#[tokio::test(start_paused = true)]
async fn a_keeper_waits_for_its_deploy_config() {
    let mut harness = KeeperHarness::prepare();
    let config = harness.settings.state_folder.join(DEPLOY_CONFIG_FILE);
    let text = fs::read(&config).unwrap();
    fs::remove_file(&config).unwrap();
    harness.start_keeper();
    sleep(Duration::from_secs(300)).await;
    assert_eq!(harness.engine.calls(), [""; 0]);
    fs::write(&config, text).unwrap();
    harness.settle().await;
    assert_eq!(harness.evolve().await.status, Succeeded);
}
