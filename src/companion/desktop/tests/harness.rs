//! A desktop with scripted services, a screen in memory and a fake browser.

use super::fake_browser::FakeBrowser;
use crate::companion::desktop::idle::DesktopMode;
use crate::companion::desktop::{Desktop, DesktopLease, DesktopRefusal, DesktopSettings};
use crate::companion::display::fake_display::FakeDisplay;
use crate::companion::service::fake_processes::{
    FakeService, describe_states, fake_service_functions, start_needed,
};
use crate::companion::tests::clock::{StoppedClock, advance, assert_all_ended, settle};
use futures_util::FutureExt;
use std::fs;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A screen, a program that paints it, a viewer and a browser.
const TEST_SERVICES: &str = "
services:
- {name: screen, need: display, command: [x], ready: display}
- {name: painter, need: display, command: [x], after: [screen], ready: desktop}
- {name: viewer, need: viewer, command: [x], after: [painter], ready: {rfb: '${RUN}/vnc.sock'}}
- {name: browser, need: browser, command: [x], after: [painter], ready: {cdp: 9222}, restart: on_failure}
";

pub(super) const TEST_RESOLUTION: (u16, u16) = (1280, 800);
pub(super) const TEST_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct DesktopHarness {
    folder: TempDir,
    pub(super) desktop: Desktop,
    pub(super) display: FakeDisplay,
    pub(super) browser: FakeBrowser,
    tasks: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    _clock: StoppedClock,
}

/// What a user of the desktop asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UserRequest {
    Screen,
    Browser,
    /// The check of the service of this name.
    Check(&'static str),
}

impl DesktopHarness {
    pub(super) async fn start() -> Self {
        Self::start_with(DesktopMode::Lazy, TEST_IDLE_TIMEOUT).await
    }

    pub(super) async fn start_with(mode: DesktopMode, idle_timeout: Duration) -> Self {
        let clock = StoppedClock::start();
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("body/desktop")).unwrap();
        fs::write(path("body/desktop/services.yaml"), TEST_SERVICES).unwrap();
        let (browser, cdp_port) = FakeBrowser::start().await;
        let settings = DesktopSettings {
            mode,
            idle_timeout,
            resolution: TEST_RESOLUTION,
            depth: 24,
            password_file: path("password"),
            body_folder: path("body"),
            run_folder: path("run"),
            profile_folder: path("profile"),
            novnc_folder: path("novnc"),
            cdp_port,
            is_embedded: false,
        };
        let (display, client) = FakeDisplay::start();
        let stop = watch::Sender::new(false);
        let functions = fake_service_functions();
        let (desktop, tasks) =
            Desktop::start_with(functions, client, settings, None, &stop.subscribe());
        settle().await;
        Self {
            folder,
            desktop,
            display,
            browser,
            tasks,
            stop,
            _clock: clock,
        }
    }

    /// A desktop with these services, which were just used.
    pub(super) async fn start_used(request: UserRequest) -> (Self, Vec<FakeService>) {
        let harness = Self::start().await;
        let services = harness.use_desktop(request).await;
        (harness, services)
    }

    /// Asks for a part of the desktop; the answer is read later.
    pub(super) async fn send(
        &self,
        request: UserRequest,
    ) -> JoinHandle<Result<(), DesktopRefusal>> {
        let desktop = self.desktop.clone();
        let answer = tokio::spawn(async move {
            match request {
                UserRequest::Screen => desktop.ensure_screen().await,
                UserRequest::Browser => desktop.ensure_browser().await.map(drop),
                UserRequest::Check(name) => {
                    let checked = desktop.check_service(name).await;
                    checked.map(drop).map_err(DesktopRefusal::NotReady)
                }
            }
        });
        settle().await;
        answer
    }

    /// Asks for a part of the desktop; each service becomes ready that was started for it.
    pub(super) async fn use_desktop(&self, request: UserRequest) -> Vec<FakeService> {
        let answer = self.send(request).await;
        let services = start_needed().await;
        assert_eq!(now(answer).await, Some(Ok(())), "{}", self.states());
        services
    }

    /// Connects to the VNC server.
    pub(super) async fn connect_viewer(
        &self,
    ) -> (Result<DesktopLease, DesktopRefusal>, Vec<FakeService>) {
        let (request, mut server) = self.send_viewer().await;
        let services = start_needed().await;
        server.greet().await;
        let connected = now(request).await.expect("the viewer waits");
        (connected, services)
    }

    /// Begins to connect to the VNC server.
    pub(super) async fn send_viewer(
        &self,
    ) -> (
        JoinHandle<Result<DesktopLease, DesktopRefusal>>,
        FakeVncServer,
    ) {
        let socket = self.folder.path().join("run/vnc.sock");
        // The socket of an earlier server.
        let _ = fs::remove_file(&socket);
        let server = FakeVncServer {
            listener: UnixListener::bind(socket).unwrap(),
            connections: Vec::new(),
        };
        let desktop = self.desktop.clone();
        let connect = async move { desktop.connect_viewer().await.map(|(_, lease)| lease) };
        let request = tokio::spawn(connect);
        settle().await;
        (request, server)
    }

    /// Moves the clock by the idle time and the time between two checks.
    pub(super) async fn pass_idle_time(&self) {
        for _ in 0..13 {
            advance(Duration::from_secs(5)).await;
        }
    }

    /// Name and state of each service.
    pub(super) fn states(&self) -> String {
        let (services, _) = self.desktop.health();
        describe_states(&services)
    }

    /// The companion ends.
    pub(super) async fn stop(&self) {
        self.stop.send_replace(true);
        settle().await;
    }

    /// Waits until all tasks have ended.
    pub(super) async fn wait_ended(self) {
        assert_all_ended(self.tasks).await;
    }
}

/// The answer to a request if there is one.
pub(super) async fn now<T>(request: JoinHandle<T>) -> Option<T> {
    settle().await;
    request.now_or_never().map(Result::unwrap)
}

/// The socket of a VNC server.
pub(super) struct FakeVncServer {
    listener: UnixListener,
    connections: Vec<UnixStream>,
}

impl FakeVncServer {
    /// Accepts a connection and sends the RFB greeting.
    pub(super) async fn greet(&mut self) {
        settle().await;
        let accepted = self.listener.accept().now_or_never();
        let (mut stream, _) = accepted.expect("no viewer has connected").unwrap();
        stream.write_all(b"RFB 003.008\n").await.unwrap();
        self.connections.push(stream);
        settle().await;
    }
}
