//! What `up` makes of each state in which it can find the containers of an instance.

use super::harness::{ASIDE, FIRST_IMAGE, HOST, SECOND_IMAGE, UpHarness};
use crate::engine::fake_engine::{CallEffect, FakeContainer};
use crate::engine::{ContainerPhase, OWNER_LABEL};
use crate::error::Error;
use crate::host::up::UpOutcome;

type Arrange = fn(&mut UpHarness);

fn change(harness: &UpHarness, change: impl FnOnce(&mut FakeContainer)) {
    harness
        .engine
        .with(|objects| change(objects.container(HOST).unwrap()));
}

/// The container as a swap of the keeper sets it aside.
fn set_aside(container: &mut FakeContainer) {
    (container.name, container.phase) = (ASIDE.into(), ContainerPhase::Paused);
    (container.restarts_automatically, container.networks) = (false, [].into());
}

#[tokio::test]
async fn one_container_runs_whatever_up_finds() {
    let cases: [(&str, Arrange, UpOutcome); 14] = [
        ("it runs", |_| {}, UpOutcome::Unchanged),
        (
            "it was stopped",
            |harness| change(harness, |one| one.phase = ContainerPhase::Stopped),
            UpOutcome::Started,
        ),
        (
            "it was paused by a person",
            |harness| change(harness, |one| one.phase = ContainerPhase::Paused),
            UpOutcome::Continued,
        ),
        (
            "it was paused by a swap",
            |harness| {
                change(harness, |one| {
                    set_aside(one);
                    one.name = HOST.into();
                });
            },
            UpOutcome::Continued,
        ),
        (
            "it runs without its ports",
            |harness| change(harness, |one| one.networks.clear()),
            UpOutcome::Started,
        ),
        (
            "it crashes in a loop",
            |harness| {
                change(harness, |one| {
                    (one.phase, one.exit_code) = (ContainerPhase::Restarting, 1);
                });
            },
            UpOutcome::Replaced,
        ),
        (
            "the engine can't start it",
            |harness| {
                change(harness, |one| one.phase = ContainerPhase::Stopped);
                harness.engine.at("start os-host", |_| CallEffect::Refuse);
            },
            UpOutcome::Replaced,
        ),
        (
            "it was never started",
            |harness| change(harness, |one| one.phase = ContainerPhase::Created),
            UpOutcome::Created,
        ),
        (
            "its removal was interrupted",
            |harness| change(harness, |one| one.phase = ContainerPhase::Dead),
            UpOutcome::Created,
        ),
        (
            "it was removed",
            |harness| harness.engine.with(|objects| objects.containers.clear()),
            UpOutcome::Created,
        ),
        (
            "only a container aside exists, which a swap has paused",
            |harness| change(harness, set_aside),
            UpOutcome::Unchanged,
        ),
        (
            "only a container aside exists, which has ended",
            |harness| {
                change(harness, |one| {
                    set_aside(one);
                    one.phase = ContainerPhase::Stopped;
                });
            },
            UpOutcome::Unchanged,
        ),
        (
            "a container aside, and one that was never started",
            |harness| {
                harness.add_copy(ASIDE, FIRST_IMAGE, ContainerPhase::Stopped);
                change(harness, |one| one.phase = ContainerPhase::Created);
            },
            UpOutcome::Unchanged,
        ),
        (
            "a container aside beside a healthy one",
            |harness| harness.add_copy(ASIDE, SECOND_IMAGE, ContainerPhase::Stopped),
            UpOutcome::Unchanged,
        ),
    ];
    for (case, arrange, outcome) in cases {
        let mut harness = UpHarness::start().await;
        arrange(&mut harness);
        assert_eq!(harness.up().await.unwrap(), outcome, "{case}");
        harness.assert_one_runs(FIRST_IMAGE, case);
    }
}

#[tokio::test]
async fn a_container_aside_replaces_an_unhealthy_one() {
    let harness = UpHarness::start().await;
    harness.add_copy(ASIDE, FIRST_IMAGE, ContainerPhase::Stopped);
    harness.add_copy("unused", "sha256:broken", ContainerPhase::Created);
    change(&harness, |one| one.image = "sha256:broken".into());
    harness.change_image("sha256:broken", |image| {
        image.kernel_error = Some("no kernel".into());
    });
    assert_eq!(harness.up().await.unwrap(), UpOutcome::Unchanged);
    harness.assert_one_runs(FIRST_IMAGE, "unhealthy");
    assert_eq!(harness.container().id, "copy-os-host.old");
}

#[tokio::test]
async fn a_container_of_another_owner_is_not_touched() {
    let harness = UpHarness::start().await;
    change(&harness, |one| {
        one.labels.insert(OWNER_LABEL.into(), "another".into());
    });
    let error = harness.up().await.unwrap_err();
    let is_foreign = matches!(error.downcast_ref(), Some(Error::ForeignObject { .. }));
    assert!(is_foreign, "{error:#}");
    harness.assert_one_runs(FIRST_IMAGE, "another owner");
}
