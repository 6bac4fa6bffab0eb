//! The size of the screen, and screens that restart during a request.

use super::harness::{DesktopHarness, TEST_RESOLUTION, UserRequest, now};
use crate::companion::desktop::DesktopRefusal;
use crate::companion::display::DisplayRefusal;
use crate::companion::service::fake_processes::{FakeService, start_needed};
use crate::companion::tests::clock::{advance, advance_seconds, settle};
use std::time::Duration;

fn unavailable() -> DisplayRefusal {
    DisplayRefusal::Unavailable("the server is gone".into())
}

/// Ends the screen, and starts it again with the services that need it.
async fn restart_screen(services: &mut Vec<FakeService>) {
    for mut service in services.drain(..) {
        match service.name.as_str() {
            "screen" => service.exit(1).await,
            _ => service.exit_when_killed().await,
        }
    }
    advance_seconds(1).await;
    *services = start_needed().await;
}

#[tokio::test(start_paused = true)]
async fn users_wait_until_the_screen_has_its_size() {
    let harness = DesktopHarness::start().await;
    harness.display.refuse(Some(unavailable()));
    let answer = harness.send(UserRequest::Screen).await;
    let _services = start_needed().await;
    for _ in 0..3 {
        advance(Duration::from_millis(250)).await;
    }
    assert!(!answer.is_finished());
    harness.display.refuse(None);
    advance(Duration::from_millis(250)).await;
    assert_eq!(now(answer).await, Some(Ok(())));
    assert_eq!(harness.display.take_sizes(), [TEST_RESOLUTION]);
}

#[tokio::test(start_paused = true)]
async fn a_screen_that_does_not_get_its_size_is_not_ready() {
    let harness = DesktopHarness::start().await;
    harness.display.refuse(Some(unavailable()));
    let answer = harness.send(UserRequest::Screen).await;
    let _services = start_needed().await;
    advance_seconds(5).await;
    let why = "the size of the screen is not set yet".to_owned();
    assert_eq!(now(answer).await, Some(Err(DesktopRefusal::NotReady(why))));
}

#[tokio::test(start_paused = true)]
async fn a_screen_that_restarts_gets_the_last_requested_size() {
    let (harness, mut services) = DesktopHarness::start_used(UserRequest::Screen).await;
    harness.desktop.resize_screen(800, 600).await.unwrap();
    assert_eq!(harness.display.take_sizes(), [TEST_RESOLUTION, (800, 600)]);
    for _ in 0..2 {
        restart_screen(&mut services).await;
        assert_eq!(harness.display.take_sizes(), [(800, 600)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_screenshot_of_a_screen_that_restarted_is_taken_again() {
    let (harness, mut services) = DesktopHarness::start_used(UserRequest::Screen).await;
    harness.display.pause();
    let desktop = harness.desktop.clone();
    let picture = tokio::spawn(async move { desktop.capture_screen(None).await });
    settle().await;
    assert_eq!(harness.display.waiting_count(), 1);
    restart_screen(&mut services).await;
    // The picture is of the former screen. The new one gets its size, and then the next request.
    harness.display.answer_waiting().await;
    assert!(!picture.is_finished());
    harness.display.answer_waiting().await;
    assert!(now(picture).await.unwrap().is_ok());
    assert_eq!(harness.display.take_sizes().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_screenshot_fails_after_three_restarts_during_it() {
    let (harness, mut services) = DesktopHarness::start_used(UserRequest::Screen).await;
    let desktop = harness.desktop.clone();
    harness.display.pause();
    let picture = tokio::spawn(async move { desktop.capture_screen(None).await });
    for _ in 0..3 {
        settle().await;
        assert!(!picture.is_finished());
        let mut painter = services.pop().unwrap();
        painter.exit(1).await;
        advance_seconds(1).await;
        services.append(&mut start_needed().await);
        harness.display.answer_waiting().await;
    }
    let refused = now(picture).await.unwrap().err();
    let why = "the screen restarts repeatedly".to_owned();
    assert_eq!(refused, Some(DesktopRefusal::NotReady(why)));
}

#[tokio::test(start_paused = true)]
async fn a_size_that_the_screen_refuses_is_reported() {
    let (harness, _services) = DesktopHarness::start_used(UserRequest::Screen).await;
    let refusal = DisplayRefusal::Invalid("too large".into());
    harness.display.refuse(Some(refusal.clone()));
    let refused = harness.desktop.resize_screen(1, 1).await.err();
    assert_eq!(refused, Some(DesktopRefusal::Display(refusal)));
}
