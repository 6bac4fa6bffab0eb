//! Which services run for which need, and a need that changes in each state.

use super::harness::{ALL_SERVICES, ONE_CLOSABLE_SERVICE, ServiceHarness};
use crate::companion::service::ServiceNeed;
use crate::companion::service::fake_processes::{
    FakeService, expect_started, next_started, start_needed,
};
use crate::companion::tests::clock::{advance, settle};
use std::collections::BTreeSet;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn each_need_runs_its_services_and_those_of_the_display() {
    use ServiceNeed::{Browser, Display, Viewer};
    for (needs, names) in [
        (&[][..], &[][..]),
        (&[Display], &["screen", "windows"]),
        (&[Viewer], &["screen", "viewer", "windows"]),
        (&[Browser], &["browser", "screen", "windows"]),
        (
            &[Viewer, Browser],
            &["browser", "screen", "viewer", "windows"],
        ),
    ] {
        let harness = ServiceHarness::start(ALL_SERVICES);
        for need in needs {
            harness.set_need(*need, true).await;
        }
        let mut services = start_needed().await;
        let started: BTreeSet<&str> = services.iter().map(|one| &*one.name).collect();
        assert_eq!(started, names.iter().copied().collect(), "{needs:?}");
        for need in needs {
            let is_ready = harness.services.start_count_if_ready(*need).is_some();
            assert!(is_ready, "{need:?} in {}", harness.states());
        }
        for need in needs {
            harness.set_need(*need, false).await;
        }
        for service in &mut services {
            service.exit_when_shut_down().await;
        }
        let all_off =
            "screen: on demand; windows: on demand; viewer: on demand; browser: on demand";
        assert_eq!(harness.states(), all_off, "{needs:?}");
        assert!(next_started().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_of_two_needs_runs_until_both_are_withdrawn() {
    let harness = ServiceHarness::start(ALL_SERVICES);
    harness.set_need(ServiceNeed::Display, true).await;
    harness.set_need(ServiceNeed::Viewer, true).await;
    let services = start_needed().await;
    harness.set_need(ServiceNeed::Display, false).await;
    let ready = "screen: ready; windows: ready; viewer: ready; browser: on demand";
    assert_eq!(harness.states(), ready);
    harness.set_need(ServiceNeed::Viewer, false).await;
    let ending = "screen: ending; windows: ending; viewer: ending; browser: on demand";
    assert_eq!(harness.states(), ending);
    drop(services);
}

/// The state in which a need changes.
#[derive(Debug, Clone, Copy)]
enum BeforeChange {
    Waiting,
    Starting,
    Ready,
    BackingOff,
    Finished,
}

impl BeforeChange {
    /// Each state, what follows when the need is withdrawn, when the need returns before the service has ended, and
    /// after the end.
    const ALL: [(Self, &str, &str, &str); 5] = [
        (Self::Waiting, "on demand", WAITING, WAITING),
        (Self::Starting, "ending", "ending", "starting"),
        (Self::Ready, "ending", "ending", "starting"),
        (Self::BackingOff, "on demand", "starting", "starting"),
        (Self::Finished, "on demand", "starting", "starting"),
    ];

    /// Brings the browser into this state.
    async fn reach(self) -> (ServiceHarness, Vec<FakeService>) {
        let harness = ServiceHarness::start(ALL_SERVICES);
        harness.set_need(ServiceNeed::Browser, true).await;
        let mut services = vec![expect_started("screen").await];
        if matches!(self, Self::Waiting) {
            return (harness, services);
        }
        services[0].become_ready().await;
        let windows = expect_started("windows").await;
        windows.become_ready().await;
        services.push(windows);
        let mut browser = expect_started("browser").await;
        match self {
            Self::Waiting | Self::Starting => {}
            Self::Ready => browser.become_ready().await,
            Self::BackingOff => browser.exit(1).await,
            Self::Finished => {
                browser.become_ready().await;
                browser.exit(0).await;
            }
        }
        services.push(browser);
        (harness, services)
    }

    fn has_process(self) -> bool {
        matches!(self, Self::Starting | Self::Ready)
    }
}

const WAITING: &str = "waiting for the services in `after`";

fn browser_state(harness: &ServiceHarness) -> String {
    harness.services.describe_state(ServiceNeed::Browser)
}

#[tokio::test(start_paused = true)]
async fn a_need_that_changes_is_handled_in_each_state() {
    for (before, withdrawn, returned, ended) in BeforeChange::ALL {
        let (harness, mut services) = before.reach().await;
        // The screen stays.
        harness.set_need(ServiceNeed::Display, true).await;
        harness.set_need(ServiceNeed::Browser, false).await;
        assert_eq!(browser_state(&harness), withdrawn, "{before:?}");
        harness.set_need(ServiceNeed::Browser, true).await;
        assert_eq!(browser_state(&harness), returned, "{before:?}");
        if before.has_process() {
            services.last_mut().unwrap().exit_when_shut_down().await;
        }
        assert_eq!(browser_state(&harness), ended, "{before:?}");
        if ended == "starting" {
            // A new need counts no former failure.
            assert_eq!(expect_started("browser").await.failures, 0, "{before:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_need_that_is_withdrawn_twice_ends_the_service_once() {
    let (harness, mut services) = BeforeChange::Ready.reach().await;
    harness.set_need(ServiceNeed::Display, true).await;
    for is_needed in [false, true, false] {
        harness.set_need(ServiceNeed::Browser, is_needed).await;
    }
    let browser = services.last_mut().unwrap();
    browser.exit_when_shut_down().await;
    assert_eq!(browser_state(&harness), "on demand");
    assert!(next_started().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_waits_until_all_services_are_ready() {
    let harness = ServiceHarness::start(ALL_SERVICES);
    harness.set_need(ServiceNeed::Viewer, true).await;
    let services = harness.services.clone();
    let client = tokio::spawn(async move { services.wait_ready(ServiceNeed::Viewer).await });
    let screen = expect_started("screen").await;
    screen.become_ready().await;
    let (windows, viewer) = (next_started().await.unwrap(), next_started().await.unwrap());
    windows.become_ready().await;
    assert!(!client.is_finished());
    viewer.become_ready().await;
    assert_eq!(client.await.unwrap(), Ok(3));
    assert_eq!(harness.services.wait_next_display_server(0).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_reads_which_service_is_not_ready() {
    let harness = ServiceHarness::start(ALL_SERVICES);
    harness.set_need(ServiceNeed::Display, true).await;
    let services = harness.services.clone();
    let client = tokio::spawn(async move { services.wait_ready(ServiceNeed::Display).await });
    let screen = expect_started("screen").await;
    screen.become_ready().await;
    let mut windows = expect_started("windows").await;
    advance(Duration::from_secs(10)).await;
    windows.exit(1).await;
    let mut windows = None;
    for _ in 0..10 {
        advance(Duration::from_secs(1)).await;
        windows = next_started().await.or(windows);
    }
    let why = "`windows` is not ready: restarting: ended with exit code 1";
    assert_eq!(client.await.unwrap(), Err(why.into()));
    assert_eq!(
        harness.services.start_count_if_ready(ServiceNeed::Display),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_closed_service_starts_for_a_new_need_alone() {
    let (harness, mut service) = ServiceHarness::start_one_ready(ONE_CLOSABLE_SERVICE).await;
    let services = harness.services.clone();
    service.exit(0).await;
    assert_eq!(harness.states(), "screen: closed");
    assert!(services.has_finished(ServiceNeed::Display));
    advance(Duration::from_secs(60)).await;
    assert!(next_started().await.is_none());
    services.reset_finished(ServiceNeed::Display).await;
    assert_eq!(harness.states(), "screen: on demand");
    services.wait_stopped(ServiceNeed::Display).await;
    harness.set_need(ServiceNeed::Display, true).await;
    let service = expect_started("screen").await;
    service.become_ready().await;
    settle().await;
    assert_eq!(harness.states(), "screen: ready");
}
