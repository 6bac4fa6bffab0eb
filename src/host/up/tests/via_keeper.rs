//! Replacement through a keeper: what the host records and deploys for each end of the run.

use super::harness::{FIRST_IMAGE, SECOND_IMAGE, ScriptedKeeper, UpHarness, run_record};
use crate::config::ConfigSource;
use crate::engine::fake_engine::CallEffect;
use crate::error::{EXIT_INTERRUPTED, Error, exit_code};
use crate::host::up::UpOutcome;
use crate::protocol::error::ApiError;
use crate::protocol::evolve::{KeeperReply, refusal};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The port that the next container uses.
const OTHER_PORT: u16 = 9000;

async fn harness_with_other_port() -> UpHarness {
    let mut harness = UpHarness::start_with_keeper().await;
    harness.config.ports.mcp = OTHER_PORT;
    let source = ConfigSource::Variable("OSCTL_PORTS_MCP".into());
    harness
        .values
        .insert("ports.mcp".into(), (json!(OTHER_PORT), source));
    harness
}

#[tokio::test]
async fn a_run_that_succeeds_has_replaced_the_container() {
    let harness = harness_with_other_port().await;
    assert_eq!(harness.up().await.unwrap(), UpOutcome::ReplacedViaKeeper);
    harness.assert_one_runs(SECOND_IMAGE, "succeeded");
    let record = harness.instance.read_record().unwrap().unwrap();
    assert_eq!(record.ports.mcp, OTHER_PORT);
    assert_eq!(harness.deployed().spec.image, SECOND_IMAGE);
    assert_eq!(harness.up().await.unwrap(), UpOutcome::Unchanged);
    // The host has changed the keeper's container only.
    let calls = harness.engine.calls();
    let of_host = |call: &&String| call.ends_with(" os-host") && !call.starts_with("inspect");
    let changing: Vec<_> = calls.iter().filter(of_host).collect();
    assert_eq!(changing, ["update os-host", "update os-host"]);
}

#[tokio::test]
async fn a_run_that_fails_keeps_the_recorded_ports_and_says_what_to_do() {
    let failed = |status, stage| ScriptedKeeper {
        end: Some(run_record(status, Some(stage))),
        denial: None,
    };
    let denied = |denial| ScriptedKeeper {
        end: None,
        denial: Some(denial),
    };
    let busy = KeeperReply::Busy {
        run: run_record("building", None).run,
    };
    let limited = KeeperReply::Refused {
        error: ApiError::new(refusal::KEEPER_RATE_LIMITED, "too many evolves"),
    };
    for (script, why) in [
        (failed("failed", "building"), "a reason"),
        (failed("failed", "testing"), "a reason"),
        (failed("failed", "quiescing"), "a reason"),
        (failed("rolled_back", "swapping"), "a reason"),
        (failed("rolled_back", "verifying"), "a reason"),
        (denied(busy), "20261121-100000 is in progress"),
        (denied(limited), "too many evolves"),
    ] {
        let harness = harness_with_other_port().await;
        let case = format!("{script:?}");
        let record = harness.instance.read_record().unwrap();
        *harness.keeper.lock() = script;
        let error = harness.up().await.unwrap_err();
        assert!(format!("{error:#}").contains(why), "{case}: {error:#}");
        harness.assert_one_runs(FIRST_IMAGE, &case);
        assert_eq!(harness.instance.read_record().unwrap(), record, "{case}");
        let deployed = harness.deployed().spec;
        assert!(
            !deployed.ports.iter().any(|port| port.host == OTHER_PORT),
            "{case}: {deployed:?}"
        );
    }
}

#[tokio::test]
async fn a_keeper_that_never_answers_keeps_the_container() {
    let harness = harness_with_other_port().await;
    let record = harness.instance.read_record().unwrap();
    let asked = Arc::new(Notify::new());
    let first = Arc::clone(&asked);
    harness.engine.at("exec os-keeper keeper", move |_| {
        first.notify_one();
        CallEffect::LoseReply
    });
    harness
        .engine
        .always_at("exec os-keeper keeper", CallEffect::LoseReply);
    let time = Duration::from_secs(30);
    let ended = harness.up_while_time_passes(time, &asked).await;
    ended.unwrap_err();
    harness.engine.reset_calls();
    harness.assert_one_runs(FIRST_IMAGE, "no answer");
    assert_eq!(harness.instance.read_record().unwrap(), record);
    assert_eq!(harness.up().await.unwrap(), UpOutcome::ReplacedViaKeeper);
}

#[tokio::test]
async fn an_interrupted_up_says_that_the_keeper_continues() {
    let harness = harness_with_other_port().await;
    // The first two requests are the status and the run.
    for _ in 0..2 {
        harness
            .engine
            .at("exec os-keeper keeper", |_| CallEffect::Act);
    }
    let interrupt = Arc::clone(&harness.interrupt);
    harness.engine.at("exec os-keeper keeper", move |_| {
        interrupt.notify_one();
        CallEffect::HangBefore
    });
    let error = harness.up().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "interrupted; the keeper continues evolve `20261121-100000`"
    );
    assert_eq!(exit_code(&error), EXIT_INTERRUPTED);
    let hint = error.downcast_ref::<Error>().and_then(Error::hint);
    let follow = "`osctl evolve logs -f 20261121-100000` follows it again";
    assert_eq!(hint.as_deref(), Some(follow));
    // The keeper has replaced the container.
    harness.engine.reset_calls();
    assert_eq!(harness.up().await.unwrap(), UpOutcome::Unchanged);
    harness.assert_one_runs(SECOND_IMAGE, "interrupted");
}

#[tokio::test]
async fn a_lost_answer_to_the_log_is_asked_again() {
    let harness = harness_with_other_port().await;
    // The first two requests are the status and the run.
    for _ in 0..2 {
        harness
            .engine
            .at("exec os-keeper keeper", |_| CallEffect::Act);
    }
    harness
        .engine
        .at("exec os-keeper keeper", |_| CallEffect::LoseReply);
    assert_eq!(harness.up().await.unwrap(), UpOutcome::ReplacedViaKeeper);
    harness.assert_one_runs(SECOND_IMAGE, "lost answer");
}
