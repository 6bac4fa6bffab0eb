//! Interruptions of `up` at each single call of the engine: the next `up` finishes what was interrupted.

use super::harness::{FIRST_IMAGE, SECOND_IMAGE, UpHarness, pass_time};
use crate::engine::ContainerPhase;
use crate::engine::fake_engine::{CallEffect, FakeEngineObjects};
use std::time::Duration;

/// How long the engine is away.
const AWAY_TIME: Duration = Duration::from_secs(1);

/// An `up` that is interrupted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum InterruptedUp {
    Creates,
    Replaces,
    ReplacesViaKeeper,
}

impl InterruptedUp {
    /// The instance before.
    async fn prepare(self) -> UpHarness {
        let harness = match self {
            Self::Creates => UpHarness::prepare().await,
            Self::Replaces => UpHarness::start_with_change().await,
            Self::ReplacesViaKeeper => UpHarness::start_with_keeper().await,
        };
        harness.engine.reset_calls();
        harness
    }

    fn wanted_image(self) -> &'static str {
        match self {
            Self::Creates => FIRST_IMAGE,
            Self::Replaces | Self::ReplacesViaKeeper => SECOND_IMAGE,
        }
    }
}

/// Runs an `up` whose call with each number meets an effect, and then another one.
async fn interrupt_each_call(
    name: &str,
    effect: fn(&mut FakeEngineObjects) -> CallEffect,
    assert_interrupted: impl Fn(&UpHarness, InterruptedUp, &str),
) {
    for kind in [
        InterruptedUp::Creates,
        InterruptedUp::Replaces,
        InterruptedUp::ReplacesViaKeeper,
    ] {
        let harness = kind.prepare().await;
        harness.up().await.unwrap();
        let calls = harness.engine.calls();
        assert!(calls.len() > 10, "{calls:#?}");
        for (number, call) in calls.iter().enumerate() {
            let case = format!("{name} at call {number}, `{call}`, {kind:?}");
            let harness = kind.prepare().await;
            harness.engine.at_number_with(number, effect);
            harness.up_until_hung().await;
            harness.engine.reset_calls();
            assert_interrupted(&harness, kind, &case);
            pass_time(AWAY_TIME).await;
            let next = harness.up().await;
            next.unwrap_or_else(|error| panic!("{case}: {error:#}"));
            harness.assert_one_runs(kind.wanted_image(), &case);
        }
    }
}

/// Asserts that at most one container runs.
fn assert_no_two(harness: &UpHarness, _: InterruptedUp, case: &str) {
    let had_two = harness.engine.with(|objects| objects.had_two_running);
    assert!(!had_two, "{case}: two containers ran on the same data");
}

/// Asserts that a container runs in its place if one did before, because only one call failed.
fn assert_one_in_place(harness: &UpHarness, kind: InterruptedUp, case: &str) {
    assert_no_two(harness, kind, case);
    if kind != InterruptedUp::Creates {
        harness.assert_runs(&harness.container().image, case);
    }
}

#[tokio::test]
async fn an_up_that_is_killed_before_any_call_is_finished_by_the_next() {
    interrupt_each_call("killed before", |_| CallEffect::HangBefore, assert_no_two).await;
}

#[tokio::test]
async fn an_up_that_is_killed_after_any_call_is_finished_by_the_next() {
    interrupt_each_call("killed after", |_| CallEffect::HangAfter, assert_no_two).await;
}

#[tokio::test]
async fn an_engine_that_refuses_any_call_leaves_one_container() {
    interrupt_each_call("refused", |_| CallEffect::Refuse, assert_one_in_place).await;
}

#[tokio::test]
async fn a_connection_that_is_lost_at_any_call_leaves_one_container() {
    interrupt_each_call("lost", |_| CallEffect::LoseReply, assert_one_in_place).await;
}

#[tokio::test]
async fn an_engine_that_is_away_for_a_while_leaves_one_container() {
    let leave = |objects: &mut FakeEngineObjects| {
        objects.leave_for(AWAY_TIME);
        CallEffect::LoseRequest
    };
    interrupt_each_call("away", leave, assert_no_two).await;
}

#[tokio::test]
async fn an_engine_that_restarts_at_any_call_leaves_one_container() {
    let restart = |objects: &mut FakeEngineObjects| {
        objects.kill_containers();
        objects.leave_for(AWAY_TIME / 2);
        CallEffect::LoseReply
    };
    interrupt_each_call("restarted", restart, assert_no_two).await;
}

#[tokio::test]
async fn a_restore_that_is_killed_at_any_call_is_finished_by_the_next_up() {
    let broken = async || {
        let harness = UpHarness::start_with_change().await;
        harness.change_image(SECOND_IMAGE, |image| image.kernel_error = Some("no".into()));
        harness
    };
    let harness = broken().await;
    harness.up().await.unwrap_err();
    let calls = harness.engine.calls();
    for effect in [CallEffect::HangBefore, CallEffect::HangAfter] {
        for (number, call) in calls.iter().enumerate() {
            let case = format!("{effect:?} at call {number}, `{call}`");
            let harness = broken().await;
            let before = harness.container().id;
            harness.engine.at_number(number, effect.clone());
            harness.up_until_hung().await;
            harness.engine.reset_calls();
            harness.up().await.unwrap_err();
            harness.assert_one_runs(FIRST_IMAGE, &case);
            assert_eq!(harness.container().id, before, "{case}");
            assert_eq!(harness.container().phase, ContainerPhase::Running);
        }
    }
}
