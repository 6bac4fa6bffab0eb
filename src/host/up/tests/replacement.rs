//! Each cause for which a replacement fails, and that the old container runs afterwards.

use super::harness::{ASIDE, FIRST_IMAGE, SECOND_IMAGE, UpHarness};
use crate::config::ConfigSource;
use crate::engine::fake_engine::CallEffect::{self, Act, LoseReply, LoseRequest, Refuse};
use crate::engine::fake_engine::{FakeEngineObjects, FakeImage};
use crate::engine::{ContainerPhase, OWNER_LABEL};
use crate::host::up::UpOutcome;
use serde_json::json;
use std::net::TcpListener;
use std::time::Duration;

/// Asserts that `up` fails with this reason, and that the old container runs with what it had.
async fn assert_kept(cause: &str, why: &str, arrange: impl FnOnce(&mut UpHarness)) {
    let mut harness = UpHarness::start_with_change().await;
    let before = harness.container();
    let record = harness.instance.read_record().unwrap();
    arrange(&mut harness);
    let error = harness.up().await.unwrap_err();
    assert!(
        format!("{error:#}").contains(why),
        "{cause}: {error:#}\n{:#?}",
        harness.engine.calls()
    );
    harness.assert_one_runs(FIRST_IMAGE, cause);
    assert_eq!(harness.container().id, before.id, "{cause}");
    assert_eq!(harness.instance.read_record().unwrap(), record, "{cause}");
}

#[tokio::test]
async fn a_healthy_container_replaces_the_old_one() {
    let harness = UpHarness::start_with_change().await;
    let old = harness.container().id;
    assert_eq!(harness.up().await.unwrap(), UpOutcome::Replaced);
    harness.assert_one_runs(SECOND_IMAGE, "replaced");
    assert_ne!(harness.container().id, old);
    // Nothing uses the old image any more.
    let images = harness
        .engine
        .with(|objects| objects.images.keys().cloned().collect::<Vec<_>>());
    assert_eq!(images, [SECOND_IMAGE]);
    assert_eq!(harness.up().await.unwrap(), UpOutcome::Unchanged);
}

#[tokio::test]
async fn a_call_that_the_engine_refuses_keeps_the_old_container() {
    for call in [
        "stop os-host",
        "rename os-host",
        "disconnect osctl os-host.old",
        "create os-host",
        "start os-host",
    ] {
        assert_kept(call, "the test refuses this call", |harness| {
            harness.engine.at(call, |_| Refuse);
        })
        .await;
    }
}

#[tokio::test]
async fn a_lost_connection_keeps_the_old_container() {
    for call in [
        "stop os-host",
        "rename os-host",
        "disconnect osctl os-host.old",
        "create os-host",
        "start os-host",
    ] {
        for effect in [LoseRequest, LoseReply] {
            let case = format!("{effect:?} at {call}");
            assert_kept(&case, "", |harness| {
                harness.engine.at(call, move |_| effect);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_new_container_that_does_not_become_healthy_is_removed() {
    type Break = fn(&mut FakeImage);
    let causes: [(&str, Break); 3] = [
        ("exec: no such file", |image| {
            image.start_error = Some("exec: no such file or directory".into());
        }),
        ("ended with exit code 3", |image| image.exits = Some(3)),
        ("SyntaxError", |image| {
            image.kernel_error = Some("the kernel exited with code 1: SyntaxError".into());
        }),
    ];
    for (why, break_image) in causes {
        assert_kept(why, why, |harness| {
            harness.change_image(SECOND_IMAGE, break_image);
        })
        .await;
    }
}

#[tokio::test]
async fn a_new_container_that_is_never_healthy_is_removed_after_two_minutes() {
    let harness = UpHarness::start_with_change().await;
    harness.change_image(SECOND_IMAGE, |image| image.stays_unhealthy = true);
    let time = Duration::from_secs(121);
    let ended = harness.up_while_time_passes(time, &harness.asked_health);
    let error = ended.await.unwrap_err().to_string();
    assert!(error.contains("not healthy within 120 s"), "{error}");
    harness.assert_one_runs(FIRST_IMAGE, "never healthy");
}

#[tokio::test]
async fn a_port_of_the_new_container_that_is_used_keeps_the_old_one() {
    let use_port = |harness: &mut UpHarness| {
        harness.config.ports.mcp = 9000;
        let source = ConfigSource::Variable("OSCTL_PORTS_MCP".into());
        harness
            .values
            .insert("ports.mcp".into(), (json!(9000), source));
    };
    // Another program has it before, and is found by a test of the port.
    let mut listener = None;
    assert_kept("listener", "port 9000", |harness| {
        use_port(harness);
        listener = Some(TcpListener::bind((harness.config.bind, 9000)).unwrap());
    })
    .await;
    drop(listener);
    // Another program takes it while the container is replaced.
    assert_kept("create", "port 9000", |harness| {
        use_port(harness);
        take_port_at_create(harness, 9000);
    })
    .await;
}

fn take_port_at_create(harness: &UpHarness, port: u16) {
    let take = move |objects: &mut FakeEngineObjects| -> CallEffect {
        objects.foreign_ports.insert(port);
        Act
    };
    harness.engine.at("create os-host", take);
}

#[tokio::test]
async fn another_port_is_chosen_when_one_is_taken_in_the_meantime() {
    let mut harness = UpHarness::prepare().await;
    harness.config.auto_ports = true;
    let wanted = harness.config.ports.kernel;
    take_port_at_create(&harness, wanted);
    assert_eq!(harness.up().await.unwrap(), UpOutcome::Created);
    harness.assert_one_runs(FIRST_IMAGE, "another port");
    let record = harness.instance.read_record().unwrap().unwrap();
    assert_eq!(record.ports.kernel, wanted + 1);
}

#[tokio::test]
async fn a_name_that_another_program_has_leaves_the_old_container_untouched() {
    let harness = UpHarness::start_with_change().await;
    harness.add_copy(ASIDE, FIRST_IMAGE, ContainerPhase::Stopped);
    harness.engine.with(|objects| {
        let foreign = objects.container(ASIDE).unwrap();
        foreign.labels.remove(OWNER_LABEL);
    });
    let error = harness.up().await.unwrap_err().to_string();
    assert!(error.contains(ASIDE), "{error}");
    harness.assert_runs(FIRST_IMAGE, "foreign name");
    let calls = harness.engine.calls();
    let is_query = |call: &String| call.starts_with("inspect");
    let changed = |call: &String| call.contains("os-host") && !is_query(call);
    // The engine may always restart the container.
    let changed = |call: &String| changed(call) && call != "update os-host";
    assert!(!calls.iter().any(changed), "{calls:#?}");
}

#[tokio::test]
async fn a_replaced_container_that_can_not_be_removed_is_removed_by_the_next_up() {
    let harness = UpHarness::start_with_change().await;
    harness.engine.at("remove os-host.old", |_| Refuse);
    harness.up().await.unwrap_err();
    harness.assert_runs(SECOND_IMAGE, "refused");
    assert_eq!(harness.up().await.unwrap(), UpOutcome::Unchanged);
    harness.assert_one_runs(SECOND_IMAGE, "next up");
}
