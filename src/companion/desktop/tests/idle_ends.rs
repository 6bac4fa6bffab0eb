//! The end of an unused desktop: what counts as a use, and which services end.

use super::harness::{DesktopHarness, TEST_IDLE_TIMEOUT, UserRequest};
use crate::companion::desktop::idle::DesktopMode;
use crate::companion::display::DisplayRefusal;
use crate::companion::service::fake_processes::FakeService;
use crate::companion::tests::clock::{advance_seconds, settle, wait_until};

/// Ends each service that the companion ends.
async fn end_stopping(harness: &DesktopHarness, services: &mut [FakeService]) {
    for service in services {
        if harness
            .states()
            .contains(&format!("{}: ending", service.name))
        {
            service.exit_when_shut_down().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unused_screen_ends_after_the_idle_time() {
    let (harness, mut services) = DesktopHarness::start_used(UserRequest::Screen).await;
    // The checks are 5 s apart.
    for _ in 0..11 {
        advance_seconds(5).await;
    }
    let ready = "screen: ready; painter: ready; viewer: on demand; browser: on demand";
    assert_eq!(harness.states(), ready);
    advance_seconds(10).await;
    end_stopping(&harness, &mut services).await;
    let off = "screen: on demand; painter: on demand; viewer: on demand; browser: on demand";
    assert_eq!(harness.states(), off);
    // The next use starts all again.
    assert_eq!(harness.use_desktop(UserRequest::Screen).await.len(), 2);
}

/// What keeps the screen.
#[derive(Debug, Clone, Copy)]
enum ScreenUse {
    Window,
    UnknownWindows,
    Lease,
    RepeatedRequests,
    AlwaysMode,
}

#[tokio::test(start_paused = true)]
async fn each_use_of_the_screen_prolongs_its_time() {
    use ScreenUse::{AlwaysMode, Lease, RepeatedRequests, UnknownWindows, Window};
    for usage in [Window, UnknownWindows, Lease, RepeatedRequests, AlwaysMode] {
        let mode = match usage {
            AlwaysMode => DesktopMode::Always,
            _ => DesktopMode::Lazy,
        };
        let harness = DesktopHarness::start_with(mode, TEST_IDLE_TIMEOUT).await;
        let mut services = harness.use_desktop(UserRequest::Screen).await;
        let mut lease = None;
        match usage {
            Window => harness.display.set_window_count(1),
            UnknownWindows => {
                let refusal = DisplayRefusal::Unavailable("no answer".into());
                harness.display.refuse(Some(refusal));
            }
            Lease => {
                let (connected, mut viewer) = harness.connect_viewer().await;
                lease = Some(connected.unwrap());
                services.append(&mut viewer);
            }
            RepeatedRequests | AlwaysMode => {}
        }
        for _ in 0..6 {
            for _ in 0..6 {
                advance_seconds(5).await;
            }
            if matches!(usage, RepeatedRequests) {
                assert!(harness.use_desktop(UserRequest::Screen).await.is_empty());
            }
        }
        let states = harness.states();
        let ready = "screen: ready; painter: ready";
        assert!(states.starts_with(ready), "{usage:?}: {states}");
        // The use ends.
        drop(lease);
        harness.display.set_window_count(0);
        harness.display.refuse(None);
        harness.pass_idle_time().await;
        let is_ending = harness.states().starts_with("screen: ending");
        assert_eq!(is_ending, !matches!(usage, AlwaysMode), "{usage:?}");
        drop(services);
    }
}

/// The tabs and the clients of a browser after the idle time.
#[derive(Debug, Clone, Copy)]
enum BrowserUse {
    Blank,
    Page,
    /// The browser does not list its tabs.
    Unknown,
    DebuggerClient,
    Viewer,
}

#[tokio::test(start_paused = true)]
async fn only_a_browser_without_pages_and_clients_ends() {
    use BrowserUse::{Blank, DebuggerClient, Page, Unknown, Viewer};
    for (usage, ends) in [
        (Blank, true),
        (Page, false),
        (Unknown, false),
        (DebuggerClient, false),
        (Viewer, false),
    ] {
        let (harness, mut services) = DesktopHarness::start_used(UserRequest::Browser).await;
        let (mut viewer, mut client) = (None, None);
        harness
            .browser
            .set_tabs(Some(&["about:blank", "chrome://newtab/"]));
        match usage {
            Blank => {}
            Page => harness
                .browser
                .set_tabs(Some(&["about:blank", "https://a.example/"])),
            Unknown => harness.browser.set_tabs(None),
            DebuggerClient => client = Some(harness.desktop.lease_debugger()),
            Viewer => {
                let (connected, mut started) = harness.connect_viewer().await;
                viewer = Some(connected.unwrap());
                services.append(&mut started);
            }
        }
        // The last of these checks is the first one after the idle time.
        for _ in 0..12 {
            advance_seconds(5).await;
        }
        match usage {
            Blank | Page | Unknown => wait_until(|| harness.browser.answer_count() > 0).await,
            DebuggerClient | Viewer => harness.pass_idle_time().await,
        }
        let is_ending = || harness.states().ends_with("browser: ending");
        if ends {
            wait_until(is_ending).await;
            // The screen is in use as long as the browser runs.
            assert!(harness.states().starts_with("screen: ready"), "{usage:?}");
            end_stopping(&harness, &mut services).await;
            harness.pass_idle_time().await;
            assert!(harness.states().starts_with("screen: ending"), "{usage:?}");
        }
        assert!(
            ends || harness.states().ends_with("browser: ready"),
            "{usage:?}"
        );
        drop((viewer, client));
    }
}

#[tokio::test(start_paused = true)]
async fn the_idle_time_of_a_browser_begins_when_its_last_client_leaves() {
    let (harness, _services) = DesktopHarness::start_used(UserRequest::Browser).await;
    harness.browser.set_tabs(Some(&[""]));
    let client = harness.desktop.lease_debugger();
    harness.pass_idle_time().await;
    drop(client);
    for _ in 0..11 {
        advance_seconds(5).await;
    }
    // The browser was not asked.
    assert_eq!(harness.browser.answer_count(), 0);
    advance_seconds(5).await;
    wait_until(|| harness.states().ends_with("browser: ending")).await;
}

#[tokio::test(start_paused = true)]
async fn a_browser_that_a_user_closed_does_not_keep_the_screen() {
    let (harness, mut services) = DesktopHarness::start_used(UserRequest::Browser).await;
    services.pop().unwrap().exit(0).await;
    advance_seconds(5).await;
    assert!(harness.states().ends_with("browser: on demand"));
    harness.pass_idle_time().await;
    assert!(harness.states().starts_with("screen: ending"));
}

#[tokio::test(start_paused = true)]
async fn the_vnc_server_ends_before_a_screen_that_is_in_use() {
    let harness = DesktopHarness::start().await;
    let (connected, mut services) = harness.connect_viewer().await;
    harness.display.set_window_count(1);
    drop(connected);
    harness.pass_idle_time().await;
    let ending = "screen: ready; painter: ready; viewer: ending; browser: on demand";
    assert_eq!(harness.states(), ending);
    end_stopping(&harness, &mut services).await;
    settle().await;
    let off = "screen: ready; painter: ready; viewer: on demand; browser: on demand";
    assert_eq!(harness.states(), off);
}
