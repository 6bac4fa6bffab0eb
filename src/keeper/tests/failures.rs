//! Each cause of a failure, in the stage that it fails: how the run ends, and that the old container keeps running.

use super::harness::{
    HOST, HOST_PORT, KeeperHarness, OLD_IMAGE, check_report, evolve_request, fails, prints,
};
use crate::engine::ContainerPhase;
use crate::engine::fake_engine::CallEffect::{
    self, Act, HangAfter, HangBefore, LoseReply, Refuse, ReplyAfter,
};
use crate::engine::fake_engine::{FakeAdmission, FakeEngineObjects};
use crate::keeper::run::BuildPolicy;
use crate::keeper::run_request::RunRequest;
use crate::protocol::evolve::EvolveStage::{
    self, Building, Failed, Quiescing, RolledBack, Succeeded, Swapping, Testing, Verifying,
};
use crate::protocol::evolve::{CANCELLED_BY_USER, EvolveCaller, RunTask};
use serde_json::json;
use std::time::Duration;

type CallRule = fn(&mut FakeEngineObjects) -> CallEffect;

const TRIAL: &str = "os-host.trial";

/// Asserts that a run with this cause ends so, and that the old container answers requests afterwards.
pub(super) async fn assert_end(
    (status, stage, why): (EvolveStage, EvolveStage, &str),
    cause: &str,
    arrange: impl FnOnce(&KeeperHarness),
) {
    let harness = KeeperHarness::start().await;
    arrange(&harness);
    let record = harness.evolve().await;
    let reason = record.why.unwrap_or_default();
    let end = (record.status, record.failed_stage);
    assert_eq!(end, (status, Some(stage)), "{cause}: {reason}");
    assert!(reason.contains(why), "{cause}: {reason}");
    harness.assert_one_runs(OLD_IMAGE, cause);
    assert_eq!(
        harness.container().admission,
        FakeAdmission::Open,
        "{cause}"
    );
}

/// Asserts how a run ends whose first such call meets this effect. The last column is a part of the reason.
async fn assert_ends(
    status: EvolveStage,
    stage: EvolveStage,
    causes: &[(&'static str, CallRule, &str)],
) {
    for (call, rule, why) in causes {
        let case = format!("{call}: {why}");
        assert_end((status, stage, why), &case, |harness| {
            harness.engine.at(call, *rule)
        })
        .await;
    }
}

/// The next container that starts under this name ends at once.
fn ends_at_once(objects: &mut FakeEngineObjects, name: &str) -> CallEffect {
    let image = objects.container(name).unwrap().image.clone();
    objects.images.get_mut(&image).unwrap().exits = Some(3);
    Act
}

fn crashes(objects: &mut FakeEngineObjects, name: &str) -> CallEffect {
    objects.crash(name);
    Act
}

fn is_removed(objects: &mut FakeEngineObjects, name: &str) -> CallEffect {
    objects.containers.retain(|_, one| one.name != name);
    Refuse
}

#[tokio::test(start_paused = true)]
async fn a_failed_build_changes_nothing() {
    assert_ends(
        Failed,
        Building,
        &[
            ("post build", |_| Refuse, "refuses this call"),
            ("post build", |_| LoseReply, "building the image"),
            (
                "post build",
                |_| HangBefore,
                "the build took longer than 30 s",
            ),
            (
                "post build",
                |objects| {
                    let error = "returned a non-zero code: 1";
                    let failed =
                        json!({"errorDetail": {"code": 1, "message": error}, "error": error});
                    objects.build_output =
                        vec![json!({"stream": "Step 2/2 : RUN false\n"}), failed];
                    Act
                },
                "returned a non-zero code: 1",
            ),
        ],
    )
    .await;
    let end = (
        Failed,
        Building,
        "line 3 of the Dockerfile: E: Unable to locate package jqq; check the name; the image has no package lists: `install-debs NAME` fetches them: exit code 100",
    );
    assert_end(end, "a step of the Dockerfile fails", |harness| {
        harness.write_dockerfile("FROM ${BASE}\n\nRUN apt-get install jqq\n");
        harness.engine.at("post build", |objects| {
            let error = "The command 'apt-get install jqq' returned a non-zero code: 100";
            objects.build_output = vec![
                json!({"stream": "Step 3/3 : RUN apt-get install jqq\n"}),
                json!({"stream": "E: Unable to locate "}),
                json!({"stream": "package jqq\n"}),
                json!({"errorDetail": {"code": 100, "message": error}, "error": error}),
            ];
            Act
        });
    })
    .await;
    let end = (Failed, Building, "only `FROM ${BASE}`");
    assert_end(end, "a rule forbids the Dockerfile", |harness| {
        harness.write_dockerfile("FROM debian\n");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_trial_changes_nothing() {
    assert_ends(
        Failed,
        Testing,
        &[
            ("create os-host.trial", |_| Refuse, "refuses this call"),
            ("start os-host.trial", |_| Refuse, "refuses this call"),
            (
                "start os-host.trial",
                |o| ends_at_once(o, TRIAL),
                "ended with exit code 3",
            ),
            (
                "exec os-host.trial selftest",
                |_| prints(&check_report(false, "1 + 1 is 3")),
                "exec: 1 + 1 is 3",
            ),
            (
                "exec os-host.trial selftest",
                |_| fails(1, "no Python"),
                "exit code 1: no Python",
            ),
            (
                "exec os-host.trial selftest",
                |_| prints(&json!("x")),
                "printed unexpected output",
            ),
            (
                "exec os-host.trial selftest",
                |_| HangBefore,
                "did not answer within 20 s",
            ),
            (
                "exec os-host.trial selftest",
                |o| crashes(o, TRIAL),
                "ended with exit code 1",
            ),
            (
                "exec os-host.trial selftest",
                |o| is_removed(o, TRIAL),
                "refuses this call",
            ),
        ],
    )
    .await;
    for effect in [fails(1, ""), HangBefore] {
        let end = (Failed, Testing, "not healthy within 20 s");
        assert_end(end, "it is never healthy", |harness| {
            harness
                .engine
                .always_at("exec os-host.trial health", effect);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_does_not_quiesce_continues() {
    assert_ends(
        Failed,
        Quiescing,
        &[
            (
                "exec os-host quiesce",
                |_| prints(&json!({"quiesced": false, "why": "run `r1`", "running": ["r1", "r2"]})),
                "run `r1` (r2)",
            ),
            (
                "exec os-host quiesce",
                |_| fails(1, "the disk is full"),
                "exit code 1: the disk is full",
            ),
            (
                "exec os-host quiesce",
                |_| HangBefore,
                "did not answer within 305 s",
            ),
            (
                "exec os-host quiesce",
                |_| HangAfter,
                "did not answer within 305 s",
            ),
            (
                "exec os-host quiesce",
                |_| LoseReply,
                "running a command in the container",
            ),
            (
                "exec os-host quiesce",
                |_| {
                    let large = "x".repeat(200 << 10);
                    let expected = json!({"healthy_before": [large], "sessions": []});
                    prints(&json!({"quiesced": true, "expected": expected}))
                },
                "the state summary is too large",
            ),
        ],
    )
    .await;
    let end = (Failed, Quiescing, "did not answer within 305 s");
    assert_end(end, "the first resume fails", |harness| {
        harness.engine.at("exec os-host quiesce", |_| HangAfter);
        harness
            .engine
            .at("exec os-host resume", |_| fails(1, "busy"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_swap_that_the_engine_refuses_is_rolled_back() {
    assert_ends(
        RolledBack,
        Swapping,
        &[
            ("update os-host", |_| Refuse, "restart policy"),
            (
                "pause os-host",
                |_| ReplyAfter(Duration::from_secs(41)),
                "accepted requests in the meantime",
            ),
            (
                "pause os-host",
                |objects| {
                    objects.container(HOST).unwrap().restarts_automatically = true;
                    crashes(objects, HOST)
                },
                "ended after its state was stored, and was restarted",
            ),
            (
                "rename os-host os-host.old",
                |_| Refuse,
                "renaming the container",
            ),
            (
                "disconnect os-net",
                |_| Refuse,
                "disconnecting the container",
            ),
            ("create os-host", |_| Refuse, "creating the container"),
            ("start os-host", |_| Refuse, "starting the container"),
            (
                "start os-host",
                |objects| {
                    let image = objects.container(HOST).unwrap().image.clone();
                    let error = "exec: no such file or directory".to_owned();
                    objects.images.get_mut(&image).unwrap().start_error = Some(error);
                    Act
                },
                "no such file or directory",
            ),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_pause_is_repeated_and_then_rolled_back() {
    let harness = KeeperHarness::start().await;
    harness.engine.at("pause os-host", |_| Refuse);
    assert_eq!(harness.evolve().await.status, Succeeded);
    let end = (RolledBack, Swapping, "pausing the container");
    assert_end(end, "each pause is refused", |harness| {
        harness.engine.always_at("pause os-host", Refuse);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_new_container_that_is_not_verified_is_rolled_back() {
    assert_ends(
        RolledBack,
        Verifying,
        &[
            (
                "start os-host",
                |o| ends_at_once(o, HOST),
                "ended with exit code 3",
            ),
            (
                "exec os-host health",
                |o| is_removed(o, HOST),
                "the container no longer exists",
            ),
            (
                "exec os-host verify",
                |_| prints(&check_report(false, "2 variables are lost")),
                "exec: 2 variables",
            ),
            (
                "exec os-host verify",
                |_| prints(&json!({"passed": false, "checks": []})),
                "failed without a reason",
            ),
            (
                "exec os-host verify",
                |_| HangBefore,
                "did not answer within 20 s",
            ),
            (
                "exec os-host verify",
                |_| LoseReply,
                "running a command in the container",
            ),
            (
                "exec os-host verify",
                |o| crashes(o, HOST),
                "the container ended and was restarted",
            ),
        ],
    )
    .await;
    let end = (
        RolledBack,
        Verifying,
        "the kernel can't start: the kernel exited with code 1: SyntaxError: invalid syntax",
    );
    assert_end(end, "its kernel can't start", |harness| {
        let why = "error: the kernel can't start: the kernel exited with code 1: SyntaxError: invalid syntax\n\nhint: x";
        harness.engine.at("exec os-host health", |_| fails(4, why));
    })
    .await;
    let end = (RolledBack, Verifying, "not healthy within 20 s");
    assert_end(end, "it is never healthy", |harness| {
        harness
            .engine
            .always_at("exec os-host health", fails(1, ""));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_in_any_stage_keeps_the_old_container() {
    for (call, effect, status, stage) in [
        ("post build", HangBefore, Failed, Building),
        ("post build", Act, Failed, Building),
        ("exec os-host remember", Act, Failed, Testing),
        ("exec os-host.trial selftest", HangBefore, Failed, Testing),
        ("exec os-host quiesce", HangAfter, Failed, Quiescing),
        ("pause os-host", Act, RolledBack, Swapping),
        ("create os-host", Act, RolledBack, Swapping),
        ("exec os-host verify", HangBefore, RolledBack, Verifying),
    ] {
        assert_end((status, stage, CANCELLED_BY_USER), call, |harness| {
            let handle = harness.handle();
            harness.engine.at(call, move |_| {
                tokio::spawn(async move { handle.cancel_run().await.unwrap() });
                effect
            });
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_without_failures_replaces_the_container() {
    let harness = KeeperHarness::start().await;
    let record = harness.evolve().await;
    assert_eq!(
        (record.status, record.failed_stage, &record.why),
        (Succeeded, None, &None)
    );
    let image = record.image.unwrap();
    harness.assert_one_runs(&image, "evolve");
    assert_eq!(harness.container().admission, FakeAdmission::Open);
    assert_eq!(record.previous_image.as_deref(), Some(OLD_IMAGE));
    let tags = harness.engine.with(|objects| {
        let id = |tag: &str| objects.image_id(tag);
        [id("os:latest"), id("os:previous"), id("os:rolled-back")]
    });
    assert_eq!(tags, [Some(image.clone()), Some(OLD_IMAGE.into()), None]);
    // And back, without a build.
    harness.engine.reset_calls();
    let back = harness
        .run(RunRequest {
            task: RunTask::Rollback,
            ..evolve_request()
        })
        .await;
    assert_eq!(
        (back.status, back.image.as_deref()),
        (Succeeded, Some(OLD_IMAGE)),
        "{back:?}"
    );
    harness.assert_one_runs(OLD_IMAGE, "rollback");
    assert!(!harness.engine.calls().contains(&"post build".into()));
}

#[tokio::test(start_paused = true)]
async fn a_run_without_a_change_replaces_nothing_unless_it_rebuilds() {
    let harness = KeeperHarness::start().await;
    let unforced = || RunRequest {
        build_policy: BuildPolicy::IfChanged,
        ..evolve_request()
    };
    // The first image has no digest, so the body counts as changed.
    let first = harness.run(unforced()).await;
    assert!(first.status == Succeeded && !first.unchanged, "{first:?}");
    let image = harness.container().image;
    let id = harness.container().id;
    harness.engine.reset_calls();
    let second = harness.run(unforced()).await;
    assert!(second.status == Succeeded && second.unchanged, "{second:?}");
    assert_eq!((second.image, second.stages.len()), (None, 1));
    assert_eq!(harness.container().id, id);
    let calls = harness.engine.calls();
    let changing = ["post build", "create", "pause", "stop", "rename"];
    let changed = |call: &String| changing.iter().any(|verb| call.starts_with(verb));
    assert!(!calls.iter().any(changed), "{calls:#?}");
    harness.assert_one_runs(&image, "unchanged");
    // An unhealthy container is replaced, and so is one of another body or by request.
    harness.engine.at("exec os-host health", |_| fails(1, ""));
    assert!(!harness.run(unforced()).await.unchanged);
    assert!(harness.run(unforced()).await.unchanged);
    assert!(!harness.evolve().await.unchanged);
    harness.write_dockerfile("FROM ${BASE}\nRUN true\n");
    assert!(!harness.run(unforced()).await.unchanged);
    // A rollback still leads to the image before.
    let back = RunRequest {
        task: RunTask::Rollback,
        ..evolve_request()
    };
    assert!(harness.run(unforced()).await.unchanged);
    assert_eq!(harness.run(back).await.status, Succeeded);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_tests_the_image_only() {
    let harness = KeeperHarness::start().await;
    let record = harness
        .run(RunRequest {
            dry_run: true,
            ..evolve_request()
        })
        .await;
    assert_eq!(record.status, Succeeded);
    harness.assert_one_runs(OLD_IMAGE, "dry run");
    let calls = harness.engine.calls();
    assert!(
        !calls.iter().any(|call| call.contains("quiesce")),
        "{calls:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn only_the_host_may_force_the_end_of_a_container_that_does_not_quiesce() {
    for (by, status) in [
        (EvolveCaller::Host, Succeeded),
        (EvolveCaller::Agent, Failed),
    ] {
        let harness = KeeperHarness::start().await;
        harness
            .engine
            .at("exec os-host quiesce", |_| fails(1, "a deadlock"));
        let request = RunRequest {
            by,
            force: true,
            ..evolve_request()
        };
        let record = harness.run(request).await;
        assert_eq!(record.status, status, "{by:?}: {:?}", record.why);
        harness.assert_one_runs(&harness.container().image, "forced");
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_container_is_replaced_only_by_force() {
    for (force, status, stage) in [(false, Failed, Some(Quiescing)), (true, Succeeded, None)] {
        let harness = KeeperHarness::start().await;
        let pause = |phase| {
            harness
                .engine
                .with(|objects| objects.container(HOST).unwrap().phase = phase);
        };
        pause(ContainerPhase::Paused);
        let record = harness
            .run(RunRequest {
                force,
                ..evolve_request()
            })
            .await;
        assert_eq!(
            (record.status, record.failed_stage),
            (status, stage),
            "{:?}",
            record.why
        );
        if !force {
            assert_eq!(harness.container().phase, ContainerPhase::Paused);
            pause(ContainerPhase::Running);
        }
        harness.assert_one_runs(&harness.container().image, "paused");
    }
}

#[tokio::test(start_paused = true)]
async fn a_port_that_another_program_takes_is_taken_back_when_it_is_free() {
    let harness = KeeperHarness::start().await;
    harness.engine.at("create os-host", |objects| {
        objects.foreign_ports.insert(HOST_PORT);
        Act
    });
    let record = harness.evolve().await;
    let why = record.why.unwrap();
    assert_eq!(
        (record.status, record.failed_stage),
        (RolledBack, Some(Swapping)),
        "{why}"
    );
    assert!(
        why.contains("can't be reached until its ports are free"),
        "{why}"
    );
    let old = harness.container();
    assert_eq!(
        (old.image.as_str(), old.phase),
        (OLD_IMAGE, ContainerPhase::Running)
    );
    harness.engine.with(|objects| objects.foreign_ports.clear());
    harness.settle().await;
    let why = harness.latest().why.unwrap();
    assert!(why.ends_with("the container has its ports again"), "{why}");
    harness.assert_one_runs(OLD_IMAGE, "taken port");
}
