//! Services that need other services: the order of their starts, and dependencies that end.

use super::harness::{ALL_SERVICES, ServiceHarness};
use crate::companion::service::ServiceNeed;
use crate::companion::service::fake_processes::{
    FakeService, expect_started, next_started, start_needed,
};
use crate::companion::tests::clock::{advance, advance_seconds};
use crate::supervise::SupervisorRequest;
use std::time::Duration;

/// The state of the window manager when the screen ends.
#[derive(Debug, Clone, Copy)]
enum DependentState {
    Waiting,
    Starting,
    Ready,
    BackingOff,
}

impl DependentState {
    const ALL: [Self; 4] = [Self::Waiting, Self::Starting, Self::Ready, Self::BackingOff];

    /// A screen, and the window manager in this state.
    async fn reach(self) -> (ServiceHarness, FakeService, Option<FakeService>) {
        let harness = ServiceHarness::start(ALL_SERVICES);
        harness.set_need(ServiceNeed::Display, true).await;
        let screen = expect_started("screen").await;
        assert!(next_started().await.is_none());
        if matches!(self, Self::Waiting) {
            return (harness, screen, None);
        }
        screen.become_ready().await;
        let mut windows = expect_started("windows").await;
        match self {
            Self::Waiting | Self::Starting => {}
            Self::Ready => windows.become_ready().await,
            Self::BackingOff => windows.exit(1).await,
        }
        (harness, screen, Some(windows))
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_starts_again_after_its_dependency_in_each_state() {
    for state in DependentState::ALL {
        let (harness, mut screen, windows) = state.reach().await;
        screen.exit(1).await;
        let waiting =
            "windows: waiting for the services in `after`; viewer: on demand; browser: on demand";
        if let (Some(mut windows), DependentState::Starting | DependentState::Ready) =
            (windows, state)
        {
            // Without the screen, the window manager can save nothing.
            windows.supervisor.expect_kill().await;
            let states = harness.states();
            assert!(states.contains("windows: ending"), "{state:?}: {states}");
            windows.exit(137).await;
        }
        // Longer than the delay of each.
        advance(Duration::from_millis(500)).await;
        let screen = expect_started("screen").await;
        assert!(harness.states().ends_with(waiting), "{}", harness.states());
        assert!(next_started().await.is_none());
        screen.become_ready().await;
        let windows = expect_started("windows").await;
        windows.become_ready().await;
        let ready = "screen: ready; windows: ready; viewer: on demand; browser: on demand";
        assert_eq!(harness.states(), ready, "{state:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_first_service_restarts_all_that_need_it() {
    let harness = ServiceHarness::start(ALL_SERVICES);
    harness.set_need(ServiceNeed::Browser, true).await;
    harness.set_need(ServiceNeed::Viewer, true).await;
    let mut services = start_needed().await;
    let before = harness.services.start_count_if_ready(ServiceNeed::Browser);
    assert_eq!((services.len(), before), (4, Some(3)));
    for service in &mut services {
        match service.name.as_str() {
            "screen" => service.exit(1).await,
            _ => service.exit_when_killed().await,
        }
    }
    advance_seconds(1).await;
    let services = start_needed().await;
    let names: Vec<&str> = services.iter().map(|service| &*service.name).collect();
    assert_eq!((names[0], names[3]), ("screen", "browser"));
    // A client reads that the screen is another one.
    let after = harness.services.start_count_if_ready(ServiceNeed::Browser);
    assert_eq!(after, Some(6));
    assert!(services.iter().all(|service| {
        // Services that the companion has ended count no failure.
        service.failures == u32::from(service.name == "screen")
    }));
}

#[tokio::test(start_paused = true)]
async fn a_dependency_that_restarts_faster_than_its_dependent_ends_starts_it_again() {
    let (harness, mut screen, windows) = DependentState::Ready.reach().await;
    let mut windows = windows.unwrap();
    screen.exit(1).await;
    advance(Duration::from_millis(50)).await;
    let screen = expect_started("screen").await;
    screen.become_ready().await;
    // The window manager still uses the former screen.
    assert_eq!(
        windows.supervisor.next_request().await,
        Some(SupervisorRequest::Kill)
    );
    windows.exit(137).await;
    let windows = expect_started("windows").await;
    windows.become_ready().await;
    let ready = "screen: ready; windows: ready; viewer: on demand; browser: on demand";
    assert_eq!(harness.states(), ready);
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_does_not_kill_a_dependent_is_killed() {
    let (harness, mut screen, windows) = DependentState::Ready.reach().await;
    let mut windows = windows.unwrap();
    screen.exit(1).await;
    windows.supervisor.expect_kill().await;
    advance_seconds(5).await;
    windows.supervisor.wait_killed().await;
    windows.kill_supervisor().await;
    let _services = start_needed().await;
    let ready = "screen: ready; windows: ready; viewer: on demand; browser: on demand";
    assert_eq!(harness.states(), ready);
}
