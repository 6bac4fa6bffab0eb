//! Tests of a quiesce: the grace time, and what follows.

use super::harness::QuiesceHarness;
use crate::companion::admission::ListenerKind;
use crate::companion::tests::clock::{advance, advance_seconds, settle, wait_event};
use crate::protocol::kernel::RunStatus;
use std::time::Duration;

/// The code of a session during a quiesce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunningCode {
    Absent,
    EndsInTime,
    Continues,
}

#[tokio::test(start_paused = true)]
async fn a_quiesce_waits_for_running_code_within_the_grace_time() {
    use RunningCode::{Absent, Continues, EndsInTime};
    for (code, force, is_quiesced, status) in [
        (Absent, false, true, None),
        (Absent, true, true, None),
        (EndsInTime, false, true, Some(RunStatus::Interrupted)),
        (EndsInTime, true, true, Some(RunStatus::Interrupted)),
        (Continues, false, false, Some(RunStatus::Running)),
        (Continues, true, true, Some(RunStatus::Interrupted)),
    ] {
        let what = format!("{code:?} {force}");
        let harness = QuiesceHarness::start().await;
        let run = match code {
            Absent => None,
            EndsInTime | Continues => Some(harness.execute("f()").await),
        };
        let quiesce = harness.begin_quiesce(10, force).await;
        if let Some(run) = &run {
            advance(Duration::from_millis(9999)).await;
            assert_eq!(harness.gate(), "inside", "{what}");
            assert!(!quiesce.is_finished(), "{what}");
            match code {
                EndsInTime => harness.interrupt(run).await,
                Absent | Continues => advance(Duration::from_millis(1)).await,
            }
        }
        let reply = wait_event(quiesce).await.unwrap();
        assert_eq!(reply.quiesced, is_quiesced, "{what}: {reply:?}");
        assert_eq!(run.as_ref().map(|run| run.status()), status, "{what}");
        if is_quiesced {
            assert_eq!((harness.gate(), &reply.why), ("closed", &None), "{what}");
            assert!(harness.path("data/runs/waiting").exists(), "{what}");
        } else {
            let id = run.unwrap().id.clone();
            let why = format!("still running after the grace time: run `{id}` (`f()`)");
            assert_eq!((reply.why, reply.running), (Some(why), vec![id]), "{what}");
            assert_eq!(harness.gate(), "open", "{what}");
            assert!(!harness.path("data/runs/waiting").exists(), "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_forced_quiesce_interrupts_queued_code_before_it_starts() {
    let harness = QuiesceHarness::start().await;
    let runs = [
        harness.execute("first").await,
        harness.execute("second").await,
        harness.execute("third").await,
    ];
    let quiesce = harness.begin_quiesce(0, true).await;
    assert!(wait_event(quiesce).await.unwrap().quiesced);
    assert!(
        runs.iter()
            .all(|run| run.status() == RunStatus::Interrupted)
    );
}

/// A request that was admitted before the quiesce.
#[derive(Debug, Clone, Copy)]
enum AdmittedRequest {
    AnsweredInTime,
    WithoutReply,
}

#[tokio::test(start_paused = true)]
async fn a_quiesce_waits_for_replies_to_admitted_requests() {
    use AdmittedRequest::{AnsweredInTime, WithoutReply};
    for listener in [ListenerKind::Outside, ListenerKind::Inside] {
        for (request, force, is_quiesced) in [
            (AnsweredInTime, false, true),
            (AnsweredInTime, true, true),
            (WithoutReply, false, false),
            (WithoutReply, true, true),
        ] {
            let what = format!("{listener:?} {request:?} {force}");
            let harness = QuiesceHarness::start().await;
            let permit = harness.admit(listener).unwrap();
            let quiesce = harness.begin_quiesce(0, force).await;
            advance(Duration::from_millis(4999)).await;
            assert_eq!(harness.gate(), "closed", "{what}");
            assert!(!quiesce.is_finished(), "{what}");
            match request {
                AnsweredInTime => drop(permit),
                WithoutReply => {
                    advance(Duration::from_millis(1)).await;
                    std::mem::forget(permit);
                }
            }
            let reply = wait_event(quiesce).await.unwrap();
            assert_eq!(reply.quiesced, is_quiesced, "{what}");
            let gate = if is_quiesced { "closed" } else { "open" };
            assert_eq!(harness.gate(), gate, "{what}");
            if !is_quiesced {
                let why = "a request that was admitted before has no reply yet";
                assert_eq!(reply.why.as_deref(), Some(why), "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn code_that_the_last_request_started_prevents_the_quiesce() {
    for force in [false, true] {
        let harness = QuiesceHarness::start().await;
        let permit = harness.admit(ListenerKind::Inside).unwrap();
        let quiesce = harness.begin_quiesce(0, force).await;
        let run = harness.execute("late()").await;
        drop(permit);
        let reply = wait_event(quiesce).await.unwrap();
        assert_eq!(reply.quiesced, force);
        let is_running = run.status() == RunStatus::Running;
        assert_eq!(
            (reply.running.len(), is_running),
            (usize::from(!force), !force)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_during_the_grace_time_cancels_the_quiesce() {
    for force in [false, true] {
        let harness = QuiesceHarness::start().await;
        let run = harness.execute("f()").await;
        let quiesce = harness.begin_quiesce(10, force).await;
        advance_seconds(5).await;
        harness.resume().await;
        let reply = wait_event(quiesce).await.unwrap();
        assert_eq!(reply.why.as_deref(), Some("the quiesce was cancelled"));
        // The code continues, also if the quiesce would have interrupted it.
        assert_eq!(run.status(), RunStatus::Running);
        assert_eq!(harness.gate(), "open");
        advance_seconds(10).await;
        assert_eq!(run.status(), RunStatus::Running);
        // The next quiesce is not cancelled.
        let quiesce = harness.begin_quiesce(0, true).await;
        assert!(wait_event(quiesce).await.unwrap().quiesced);
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiesced_companion_answers_a_second_request_with_the_same_reply() {
    let harness = QuiesceHarness::start().await;
    let first = harness.quiesce().await;
    let again = harness.begin_quiesce(0, true).await;
    assert_eq!(wait_event(again).await.unwrap(), first);
    harness.resume().await;
    assert_eq!(harness.gate(), "open");
    harness.quiesce().await;
}

#[tokio::test(start_paused = true)]
async fn two_requests_during_the_grace_time_give_one_quiesce() {
    let harness = QuiesceHarness::start().await;
    let run = harness.execute("f()").await;
    let first = harness.begin_quiesce(10, false).await;
    let second = harness.begin_quiesce(0, true).await;
    settle().await;
    assert_eq!(run.status(), RunStatus::Running);
    harness.interrupt(&run).await;
    let first = wait_event(first).await.unwrap();
    assert!(first.quiesced);
    assert_eq!(wait_event(second).await.unwrap(), first);
}

#[tokio::test(start_paused = true)]
async fn a_quiesce_continues_without_its_caller() {
    let harness = QuiesceHarness::start().await;
    let run = harness.execute("f()").await;
    let quiesce = harness.begin_quiesce(10, true).await;
    quiesce.abort();
    advance_seconds(10).await;
    wait_event(run.wait_finished()).await;
    let reply = harness.begin_quiesce(0, false).await;
    assert!(wait_event(reply).await.unwrap().quiesced);
    assert_eq!(harness.gate(), "closed");
}

#[tokio::test(start_paused = true)]
async fn a_companion_that_cannot_save_its_state_is_not_quiesced() {
    let harness = QuiesceHarness::start().await;
    // A file can't replace a folder.
    std::fs::create_dir(harness.path("data/session-state.json")).unwrap();
    let quiesce = harness.begin_quiesce(0, false).await;
    let reply = wait_event(quiesce).await.unwrap();
    let why = reply.why.unwrap();
    let begin = "cannot save the state of the shells: ";
    assert!(!reply.quiesced && why.starts_with(begin), "{why}");
    assert_eq!(harness.gate(), "open");
}
