//! The first use of the desktop: what it starts, and what the user reads if a service does not start.

use super::harness::{DesktopHarness, TEST_RESOLUTION, UserRequest, now};
use crate::companion::desktop::DesktopRefusal;
use crate::companion::desktop::idle::DesktopMode;
use crate::companion::service::fake_processes::{FakeService, expect_started, start_needed};
use crate::companion::tests::clock::{advance, advance_seconds};
use std::time::Duration;

fn names(services: &[FakeService]) -> Vec<&str> {
    services.iter().map(|service| &*service.name).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_use_starts_what_it_needs() {
    use UserRequest::{Browser, Check, Screen};
    let display = ["screen", "painter"];
    for (request, last) in [
        (Screen, None),
        (Browser, Some("browser")),
        (Check("painter"), None),
        (Check("viewer"), Some("viewer")),
        (Check("browser"), Some("browser")),
    ] {
        let harness = DesktopHarness::start().await;
        assert!(start_needed().await.is_empty());
        let services = harness.use_desktop(request).await;
        let expected: Vec<&str> = display.into_iter().chain(last).collect();
        assert_eq!(names(&services), expected, "{request:?}");
        assert_eq!(harness.display.take_sizes(), [TEST_RESOLUTION]);
        // The next use starts nothing.
        assert!(harness.use_desktop(request).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_viewer_starts_the_screen_and_its_server() {
    let harness = DesktopHarness::start().await;
    let (connected, services) = harness.connect_viewer().await;
    assert_eq!(names(&services), ["screen", "painter", "viewer"]);
    assert!(connected.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_mode_decides_what_runs_before_the_first_use() {
    for (mode, started, is_well) in [
        (DesktopMode::Lazy, &[][..], true),
        (DesktopMode::Always, &["screen", "painter"], false),
        (DesktopMode::Off, &[], true),
    ] {
        let harness = DesktopHarness::start_with(mode, Duration::from_secs(60)).await;
        assert_eq!(harness.desktop.health().1, is_well, "{mode:?}");
        let services = start_needed().await;
        assert_eq!(names(&services), started, "{mode:?}");
        assert!(harness.desktop.health().1, "{mode:?}");
        if mode == DesktopMode::Off {
            let answer = now(harness.send(UserRequest::Screen).await).await;
            let why = "`desktop.run` is `off` in osctl.yaml".to_owned();
            assert_eq!(answer, Some(Err(DesktopRefusal::NotAvailable(why))));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_takes_longer_than_the_idle_time_is_not_ended() {
    let idle_timeout = Duration::from_secs(1);
    let harness = DesktopHarness::start_with(DesktopMode::Lazy, idle_timeout).await;
    let answer = harness.send(UserRequest::Browser).await;
    let mut services = Vec::new();
    for name in ["screen", "painter", "browser"] {
        let service = expect_started(name).await;
        for _ in 0..5 {
            advance_seconds(1).await;
        }
        service.become_ready().await;
        services.push(service);
    }
    assert_eq!(now(answer).await, Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn a_user_reads_which_service_does_not_start() {
    let harness = DesktopHarness::start().await;
    let answer = harness.send(UserRequest::Screen).await;
    let screen = expect_started("screen").await;
    screen.become_ready().await;
    let mut painter = expect_started("painter").await;
    painter.exit(2).await;
    advance(Duration::from_millis(200)).await;
    let _painter = expect_started("painter").await;
    advance_seconds(20).await;
    let why = "`painter` is not ready: restarting: ended with exit code 2".to_owned();
    assert_eq!(now(answer).await, Some(Err(DesktopRefusal::NotReady(why))));
}

#[tokio::test(start_paused = true)]
async fn a_check_reads_the_state_of_its_service_alone() {
    let harness = DesktopHarness::start().await;
    let unknown = now(harness.send(UserRequest::Check("printer")).await).await;
    let why = "the service is not declared".to_owned();
    assert_eq!(unknown, Some(Err(DesktopRefusal::NotReady(why))));
    let answer = harness.send(UserRequest::Check("screen")).await;
    let screen = expect_started("screen").await;
    screen.become_ready().await;
    // The painter does not become ready, which is not the fault of the screen.
    let _painter = expect_started("painter").await;
    assert_eq!(now(answer).await, Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn a_browser_that_a_user_closed_starts_for_the_next_request() {
    let (harness, mut services) = DesktopHarness::start_used(UserRequest::Browser).await;
    let mut browser = services.pop().unwrap();
    browser.exit(0).await;
    assert!(harness.states().ends_with("browser: closed"));
    assert!(!harness.desktop.browser_status().unwrap().running);
    let services = harness.use_desktop(UserRequest::Browser).await;
    assert_eq!(names(&services), ["browser"]);
    assert!(harness.desktop.browser_status().unwrap().running);
}
