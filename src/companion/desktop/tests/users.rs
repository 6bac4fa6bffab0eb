//! Users that are connected while a part of the desktop ends.

use super::harness::{DesktopHarness, UserRequest, now};
use crate::companion::desktop::DesktopRefusal;
use crate::companion::service::fake_processes::{expect_started, start_needed, take_service};
use crate::companion::tests::clock::{advance, advance_seconds, settle};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn each_service_that_ends_while_a_user_is_connected_restarts() {
    for name in ["screen", "painter", "viewer", "browser"] {
        let (harness, mut services) = DesktopHarness::start_used(UserRequest::Browser).await;
        let (lease, mut viewer) = harness.connect_viewer().await;
        services.append(&mut viewer);
        let dependents: &[&str] = match name {
            "screen" => &["painter", "viewer", "browser"],
            "painter" => &["viewer", "browser"],
            _ => &[],
        };
        take_service(&mut services, name).exit(1).await;
        for dependent in dependents {
            take_service(&mut services, dependent)
                .exit_when_killed()
                .await;
        }
        advance_seconds(1).await;
        services.append(&mut start_needed().await);
        let ready = "screen: ready; painter: ready; viewer: ready; browser: ready";
        assert_eq!(harness.states(), ready, "{name}");
        // The user may be away for any time.
        for _ in 0..3 {
            harness.pass_idle_time().await;
        }
        assert_eq!(harness.states(), ready, "{name}");
        drop(lease);
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_who_connects_while_the_desktop_ends_gets_a_new_one() {
    let (harness, mut services) = DesktopHarness::start_used(UserRequest::Screen).await;
    harness.pass_idle_time().await;
    assert!(
        harness
            .states()
            .starts_with("screen: ending; painter: ending")
    );
    let answer = harness.send(UserRequest::Screen).await;
    assert!(!answer.is_finished());
    for service in &mut services {
        service.exit_when_shut_down().await;
    }
    let services = start_needed().await;
    assert_eq!(services.len(), 2);
    assert_eq!(now(answer).await, Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn a_companion_that_ends_ends_the_desktop_of_a_connected_user() {
    let (harness, mut services) = DesktopHarness::start_used(UserRequest::Browser).await;
    let (lease, mut viewer) = harness.connect_viewer().await;
    services.append(&mut viewer);
    harness.stop().await;
    for name in ["viewer", "browser", "painter", "screen"] {
        take_service(&mut services, name)
            .exit_when_shut_down()
            .await;
    }
    drop(lease);
    harness.wait_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_browser_that_is_closed_ends_under_its_clients() {
    let (harness, mut services) = DesktopHarness::start_used(UserRequest::Browser).await;
    let client = harness.desktop.lease_debugger();
    assert!(harness.desktop.is_browser_active());
    let desktop = harness.desktop.clone();
    let limit = Duration::from_secs(12);
    let quiesce = tokio::spawn(async move { desktop.quiesce_browser(limit).await });
    settle().await;
    take_service(&mut services, "browser")
        .exit_when_shut_down()
        .await;
    assert_eq!(now(quiesce).await, Some(true));
    // A client that reconnects starts no browser.
    let waited = harness.desktop.wait_for_running_browser().await;
    let why = "the browser was closed; `GET /json/version` starts the browser".to_owned();
    assert_eq!(waited, Err(DesktopRefusal::NotReady(why)));
    assert!(start_needed().await.is_empty());
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn a_browser_that_does_not_end_is_reported() {
    let (harness, _services) = DesktopHarness::start_used(UserRequest::Browser).await;
    let desktop = harness.desktop.clone();
    let limit = Duration::from_secs(1);
    let quiesce = tokio::spawn(async move { desktop.quiesce_browser(limit).await });
    advance_seconds(1).await;
    assert_eq!(now(quiesce).await, Some(false));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reconnects_waits_for_a_browser_that_crashed() {
    let (harness, mut services) = DesktopHarness::start_used(UserRequest::Browser).await;
    take_service(&mut services, "browser").exit(139).await;
    let desktop = harness.desktop.clone();
    let client = tokio::spawn(async move { desktop.wait_for_running_browser().await });
    advance(Duration::from_millis(50)).await;
    assert!(!client.is_finished());
    let browser = expect_started("browser").await;
    browser.become_ready().await;
    assert_eq!(now(client).await, Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn a_vnc_server_that_sends_nothing_is_restarted() {
    let harness = DesktopHarness::start().await;
    let (request, _server) = harness.send_viewer().await;
    let mut services = start_needed().await;
    advance_seconds(8).await;
    let why = "`x11vnc` does not answer; the companion restarts it".to_owned();
    let refused = now(request).await.unwrap().err();
    assert_eq!(refused, Some(DesktopRefusal::NotReady(why)));
    take_service(&mut services, "viewer")
        .exit_when_killed()
        .await;
    let (connected, mut started) = {
        let (request, mut server) = harness.send_viewer().await;
        advance(Duration::from_millis(50)).await;
        let started = start_needed().await;
        server.greet().await;
        (now(request).await.unwrap(), started)
    };
    assert!(connected.is_ok());
    assert_eq!(started.pop().unwrap().name, "viewer");
}
