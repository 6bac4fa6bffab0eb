//! Services that do not answer, and services that do not end.

use super::harness::{ONE_SERVICE, ServiceHarness};
use crate::companion::service::ServiceNeed;
use crate::companion::service::fake_processes::{expect_started, hold_probes, next_started};
use crate::companion::tests::clock::{advance, advance_seconds, settle};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_service_that_does_not_become_ready_is_killed() {
    for holds_probes in [false, true] {
        let (harness, mut service) = ServiceHarness::start_one(ONE_SERVICE).await;
        if holds_probes {
            hold_probes();
        }
        advance(Duration::from_millis(14_999)).await;
        assert_eq!(service.supervisor.next_request().await, None);
        advance(Duration::from_millis(1)).await;
        service.exit_when_killed().await;
        let states = "screen: restarting soon: ended by signal 9";
        assert_eq!(harness.states(), states, "{holds_probes}");
        advance(Duration::from_millis(200)).await;
        assert_eq!(expect_started("screen").await.failures, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_is_repeated() {
    let (harness, service) = ServiceHarness::start_one(ONE_SERVICE).await;
    hold_probes();
    // The probe that began before the service answers.
    advance(Duration::from_millis(10)).await;
    service.become_ready().await;
    assert_eq!(harness.states(), "screen: starting");
    advance(Duration::from_secs(2)).await;
    advance(Duration::from_millis(10)).await;
    assert_eq!(harness.states(), "screen: ready");
}

#[tokio::test(start_paused = true)]
async fn a_ready_service_that_answers_no_client_is_restarted() {
    let (harness, mut service) = ServiceHarness::start_one_ready(ONE_SERVICE).await;
    harness.services.restart_silent(ServiceNeed::Viewer);
    assert_eq!(service.supervisor.next_request().await, None);
    harness.services.restart_silent(ServiceNeed::Display);
    service.exit_when_killed().await;
    advance(Duration::from_millis(50)).await;
    let service = expect_started("screen").await;
    service.become_ready().await;
    assert_eq!(harness.states(), "screen: ready");
    // A number of the display that has changed means another server.
    let server = harness.services.wait_next_display_server(1).await;
    assert_eq!(server, 2);
}

#[tokio::test(start_paused = true)]
async fn a_starting_service_is_not_restarted_for_a_client() {
    let (harness, mut service) = ServiceHarness::start_one(ONE_SERVICE).await;
    harness.services.restart_silent(ServiceNeed::Display);
    assert_eq!(service.supervisor.next_request().await, None);
    service.become_ready().await;
    assert_eq!(service.supervisor.next_request().await, None);
    assert_eq!(harness.states(), "screen: ready");
}

/// Why a service must end.
#[derive(Debug, Clone, Copy)]
enum EndRequest {
    NotNeeded,
    StartTimedOut,
    Silent,
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_does_not_end_its_service_is_killed() {
    for (why, limit) in [
        // The grace time of the service is 2 s.
        (EndRequest::NotNeeded, 7),
        (EndRequest::StartTimedOut, 5),
        (EndRequest::Silent, 5),
    ] {
        let (harness, mut service) = ServiceHarness::start_one(ONE_SERVICE).await;
        match why {
            EndRequest::NotNeeded => {
                harness.set_need(ServiceNeed::Display, false).await;
                service.supervisor.expect_shut_down().await;
            }
            EndRequest::StartTimedOut => {
                advance_seconds(15).await;
                service.supervisor.expect_kill().await;
            }
            EndRequest::Silent => {
                service.become_ready().await;
                harness.services.restart_silent(ServiceNeed::Display);
                service.supervisor.expect_kill().await;
            }
        }
        advance(Duration::from_secs(limit) - Duration::from_millis(1)).await;
        assert!(service.supervisor.is_running(), "{why:?}");
        advance(Duration::from_millis(1)).await;
        service.supervisor.wait_killed().await;
        service.kill_supervisor().await;
        advance_seconds(1).await;
        let is_started = next_started().await.is_some();
        assert_eq!(is_started, !matches!(why, EndRequest::NotNeeded), "{why:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_companion_does_not_wait_for_a_supervisor_that_does_not_react() {
    let (harness, mut service) = ServiceHarness::start_one_ready(ONE_SERVICE).await;
    harness.stop().await;
    service.supervisor.expect_shut_down().await;
    advance_seconds(7).await;
    service.supervisor.wait_killed().await;
    service.kill_supervisor().await;
    settle().await;
    harness.wait_ended().await;
}
