//! The desktop: a screen that people and agents share, started on demand.
//!
//! ```text
//! VNC client ── :5900 ── vnc_listener (password) ──┐
//! browser ── /desktop/socket (cookie) ─────────────┴── x11vnc ──┐
//! agents ── /display/… ── companion::display ───────────────────┴── Xvfb ── openbox, pcmanfm, chromium
//! tools ── :9221 ── debugger ──────────────────────────────────────────────────────── :9222 ──┘
//! ```
//!
//! [`Desktop`] is the handle, and decides when the services run. `companion::service` supervises the services, and
//! `companion::display` is the client of the screen. A user of the desktop holds a [`DesktopLease`]; the task in
//! [`background_tasks`] ends the services according to [`idle`], a pure function. [`vnc_listener`] checks the password
//! of a VNC client before any service starts.

mod background_tasks;
mod cdp;
mod clipboard;
mod debugger;
mod evolve_checks;
mod idle;
mod one_time_tokens;
mod page;
mod page_reader;
mod refusal;
mod rfb;
mod screenshot;
mod service_declarations;
mod service_probe;
mod settings;
#[cfg(test)]
mod tests;
mod vnc_listener;

pub(crate) use clipboard::ClipboardWatcher;
pub(crate) use one_time_tokens::{DESKTOP_COOKIE_TIMEOUT, ONE_TIME_TOKEN_TIMEOUT, OneTimeTokens};
pub(crate) use refusal::DesktopRefusal;
pub(crate) use settings::DesktopSettings;

use super::activity::ActivityLog;
use super::display::{self, DisplayClient, ScreenPicture, ScreenRegion};
use super::service::{ServiceFunctions, ServiceNeed, Services};
use crate::protocol::display::{Browser, InputAction, ScreenPoint as Point, ScreenSize, Window};
use crate::protocol::service::ServiceStatus;
use idle::DesktopMode;
use parking_lot::Mutex;
use service_declarations::declare_services;
use service_probe::probe_service;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The port inside on which the debugger is always reachable.
pub(crate) const DEBUGGER_PORT: u16 = 9221;

/// The default maximum size of the screen. Memory for the maximum size is always allocated.
const DEFAULT_MAX_SCREEN_SIZE: (u16, u16) = (2560, 1600);

/// Maximum time for a new screen to get its size.
const SCREEN_SIZE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a VNC server that is ready may take to answer a new connection.
const VNC_GREETING_TIMEOUT: Duration = Duration::from_secs(8);

/// Maximum number of attempts of an operation during which the screen was restarted.
const MAX_SCREEN_ATTEMPTS: usize = 3;

/// A handle to the desktop.
#[derive(Debug, Clone)]
pub(crate) struct Desktop(Arc<DesktopInner>);

#[derive(Debug)]
struct DesktopInner {
    settings: DesktopSettings,
    /// The services, or the reason why no desktop is available.
    services: Result<Services, String>,
    display: DisplayClient,
    viewers: AtomicUsize,
    /// Number of clients of the browser's debugger.
    debugger_clients: AtomicUsize,
    /// The last requested size of the screen.
    resolution: Mutex<(u16, u16)>,
    last_used: Mutex<Instant>,
    /// The generation of the display server whose size was set.
    sized_generation: watch::Sender<u64>,
    page_reader: page_reader::PageReader,
    /// Becomes `true` when the companion ends.
    stop: watch::Receiver<bool>,
}

/// The part of the desktop that is in use.
#[derive(Debug, Clone, Copy)]
enum DesktopUse {
    Screen,
    Debugger,
}

/// A use of the desktop, until this is dropped.
#[derive(Debug)]
pub(crate) struct DesktopLease(Desktop, DesktopUse);

impl Drop for DesktopLease {
    fn drop(&mut self) {
        self.0.lease_count(self.1).fetch_sub(1, Ordering::Relaxed);
        self.0.record_use();
    }
}

/// The desktop's own sockets.
#[derive(Debug)]
pub(crate) struct DesktopListeners {
    /// For VNC clients.
    pub(crate) vnc: TcpListener,
    /// For clients of the browser's debugger.
    pub(crate) debugger: TcpListener,
}

impl Desktop {
    /// Starts the tasks, which end when `stop` becomes `true`, and returns the handle.
    pub(crate) fn start(
        settings: DesktopSettings,
        ports: Option<DesktopListeners>,
        activity: ActivityLog,
        stop: &watch::Receiver<bool>,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let functions = ServiceFunctions::with_probe(probe_service);
        let ports = ports.map(|ports| (ports, activity));
        Self::start_with(functions, DisplayClient::default(), settings, ports, stop)
    }

    fn start_with(
        functions: ServiceFunctions,
        display: DisplayClient,
        settings: DesktopSettings,
        ports: Option<(DesktopListeners, ActivityLog)>,
        stop: &watch::Receiver<bool>,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let mut tasks = Vec::new();
        let services = declare_services(&settings).map(|declarations| {
            let (services, owners) = Services::start(&declarations, functions, stop);
            tasks = owners;
            services
        });
        if let (Err(why), true) = (&services, settings.is_configured()) {
            tracing::error!(%why, "the desktop cannot start");
        }
        let desktop = Self(Arc::new(DesktopInner {
            services,
            display,
            viewers: AtomicUsize::new(0),
            debugger_clients: AtomicUsize::new(0),
            resolution: Mutex::new(settings.resolution),
            last_used: Mutex::new(Instant::now()),
            sized_generation: watch::Sender::new(0),
            page_reader: page_reader::PageReader::default(),
            stop: stop.clone(),
            settings,
        }));
        if desktop.0.services.is_ok() {
            tasks.push(tokio::spawn(background_tasks::stop_idle_services(
                desktop.clone(),
                stop.clone(),
            )));
            tasks.push(tokio::spawn(background_tasks::apply_screen_size(
                desktop.clone(),
                stop.clone(),
            )));
            if let Some((DesktopListeners { vnc, debugger }, activity)) = ports {
                tasks.push(tokio::spawn(vnc_listener::serve_vnc(
                    desktop.clone(),
                    vnc,
                    activity,
                    stop.clone(),
                )));
                let debugger = debugger::serve_debugger(desktop.clone(), debugger, stop.clone());
                tasks.push(tokio::spawn(debugger));
            }
        }
        (desktop, tasks)
    }

    /// Starts the screen unless it runs, and waits until the desktop is drawn. Tools that need `DISPLAY` call this
    /// before they start.
    ///
    /// # Errors
    /// Why there is no screen.
    pub(crate) async fn ensure_screen(&self) -> Result<(), DesktopRefusal> {
        self.ensure_screen_generation().await.map(drop)
    }

    /// As [`Self::ensure_screen`]; returns a number that changes when the screen, or the service that paints it, was
    /// restarted.
    async fn ensure_screen_generation(&self) -> Result<u64, DesktopRefusal> {
        // The lease keeps the services running during a start that takes longer than the idle time.
        let _waits = self.acquire_lease(DesktopUse::Screen);
        let services = self.services()?;
        services.set_need(ServiceNeed::Display, true);
        let generation = services.wait_ready(ServiceNeed::Display).await;
        let generation = generation.map_err(DesktopRefusal::NotReady)?;
        // A new display server has its maximum size until the task has set the size.
        let mut sized = self.0.sized_generation.subscribe();
        let sized = sized.wait_for(|sized| *sized == services.display_server_start_count());
        let is_sized = tokio::time::timeout(SCREEN_SIZE_TIMEOUT, sized)
            .await
            .is_ok();
        if !is_sized {
            return Err(DesktopRefusal::NotReady(
                "the size of the screen is not set yet".into(),
            ));
        }
        Ok(generation)
    }

    /// Starts the browser unless it runs, and returns the address of its debugger. All clients share the browser, and
    /// every viewer of the screen sees its pages.
    ///
    /// # Errors
    /// Why there is no browser.
    pub(crate) async fn ensure_browser(&self) -> Result<String, DesktopRefusal> {
        let _waits = self.acquire_lease(DesktopUse::Screen);
        self.ensure_screen().await?;
        let services = self.services()?;
        if services.has_finished(ServiceNeed::Browser) {
            services.reset_finished(ServiceNeed::Browser).await;
        }
        services.set_need(ServiceNeed::Browser, true);
        let ready = services.wait_ready(ServiceNeed::Browser).await;
        ready.map_err(DesktopRefusal::NotReady)?;
        Ok(cdp::debugger_url(DEBUGGER_PORT))
    }

    /// Waits for the browser if it runs or is starting, also after a crash; never starts it.
    ///
    /// # Errors
    /// When the browser neither runs nor is starting.
    async fn wait_for_running_browser(&self) -> Result<(), DesktopRefusal> {
        let _waits = self.acquire_lease(DesktopUse::Screen);
        let services = self.services()?;
        if !services.is_needed(ServiceNeed::Browser) || services.has_finished(ServiceNeed::Browser)
        {
            let why = "the browser was closed; `GET /json/version` starts the browser";
            return Err(DesktopRefusal::NotReady(why.into()));
        }
        let ready = services.wait_ready(ServiceNeed::Browser).await;
        ready.map(drop).map_err(DesktopRefusal::NotReady)
    }

    /// Counts a client of the debugger until the lease is dropped.
    fn lease_debugger(&self) -> DesktopLease {
        self.acquire_lease(DesktopUse::Debugger)
    }

    /// Starts the browser, and opens `url` in a new tab unless it is empty.
    ///
    /// # Errors
    /// Why the browser does not show the page.
    pub(crate) async fn open_url(&self, url: &str) -> Result<Browser, DesktopRefusal> {
        let _waits = self.acquire_lease(DesktopUse::Screen);
        self.ensure_browser().await?;
        if !url.is_empty() {
            let opened = cdp::open_tab(self.cdp_port(), url).await;
            opened.map_err(|why| DesktopRefusal::NotReady(format!("the browser failed: {why}")))?;
        }
        self.browser_status()
    }

    /// Ends the browser, which keeps its profile.
    ///
    /// # Errors
    /// When there is no desktop.
    pub(crate) fn close_browser(&self) -> Result<Browser, DesktopRefusal> {
        self.services()?.set_need(ServiceNeed::Browser, false);
        self.browser_status()
    }

    /// # Errors
    /// When there is no desktop.
    pub(crate) fn browser_status(&self) -> Result<Browser, DesktopRefusal> {
        let services = self.services()?;
        let running = services
            .start_count_if_ready(ServiceNeed::Browser)
            .is_some();
        Ok(Browser {
            running,
            cdp_url: Some(cdp::debugger_url(DEBUGGER_PORT)),
            detail: services.describe_state(ServiceNeed::Browser),
        })
    }

    /// Captures the current content of the screen: never an older picture, and never a screen that is not drawn yet.
    ///
    /// # Errors
    /// Why there is no picture.
    pub(crate) async fn capture_screen(
        &self,
        region: Option<ScreenRegion>,
    ) -> Result<ScreenPicture, DesktopRefusal> {
        let mut refusal = DesktopRefusal::NotReady("the screen restarts repeatedly".into());
        for _ in 0..MAX_SCREEN_ATTEMPTS {
            let generation = self.ensure_screen_generation().await?;
            match self.0.display.capture_screen(region).await {
                Ok(picture) => {
                    if self.is_current_screen_generation(generation)? {
                        return Ok(picture);
                    }
                }
                Err(gone @ display::DisplayRefusal::Unavailable(_)) => refusal = gone.into(),
                Err(other) => return Err(other.into()),
            }
        }
        Err(refusal)
    }

    pub(crate) async fn perform_actions(
        &self,
        actions: Vec<InputAction>,
    ) -> Result<Point, DesktopRefusal> {
        self.ensure_screen().await?;
        Ok(self.0.display.perform_actions(actions).await?)
    }

    pub(crate) async fn read_clipboard(&self) -> Result<String, DesktopRefusal> {
        self.ensure_screen().await?;
        Ok(self.0.display.read_clipboard().await?)
    }

    pub(crate) async fn write_clipboard(&self, text: String) -> Result<(), DesktopRefusal> {
        self.ensure_screen().await?;
        Ok(self.0.display.write_clipboard(text).await?)
    }

    pub(crate) async fn list_windows(&self) -> Result<Vec<Window>, DesktopRefusal> {
        self.ensure_screen().await?;
        Ok(self.0.display.list_windows().await?)
    }

    pub(crate) async fn focus_window(&self, id: u32) -> Result<(), DesktopRefusal> {
        self.ensure_screen().await?;
        Ok(self.0.display.focus_window(id).await?)
    }

    pub(crate) async fn screen_info(&self) -> Result<ScreenSize, DesktopRefusal> {
        self.ensure_screen().await?;
        Ok(self.0.display.screen_info().await?)
    }

    /// Changes the size of the screen, until the companion ends. If the screen, or the service that paints it, is
    /// restarted during the change, the size is set again.
    ///
    /// # Errors
    /// Why the size was not set.
    pub(crate) async fn resize_screen(
        &self,
        width: u16,
        height: u16,
    ) -> Result<ScreenSize, DesktopRefusal> {
        let mut refusal = DesktopRefusal::NotReady("the screen restarts repeatedly".into());
        for _ in 0..MAX_SCREEN_ATTEMPTS {
            let generation = self.ensure_screen_generation().await?;
            match self.0.display.resize_screen(width, height).await {
                Ok(screen) => {
                    *self.0.resolution.lock() = (width, height);
                    if self.is_current_screen_generation(generation)? {
                        return Ok(screen);
                    }
                }
                Err(gone @ display::DisplayRefusal::Unavailable(_)) => refusal = gone.into(),
                // The service that covers the screen was restarted.
                Err(unmoved @ display::DisplayRefusal::NotApplied(_))
                    if !self.is_current_screen_generation(generation)? =>
                {
                    refusal = unmoved.into();
                }
                Err(other) => return Err(other.into()),
            }
        }
        Err(refusal)
    }

    /// Connects to the VNC server, without a password; the connection keeps the desktop running until the lease is
    /// dropped.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(crate) async fn connect_viewer(
        &self,
    ) -> Result<(UnixStream, DesktopLease), DesktopRefusal> {
        let stay = self.acquire_lease(DesktopUse::Screen);
        let services = self.services()?;
        services.set_need(ServiceNeed::Viewer, true);
        self.ensure_screen().await?;
        let ready = services.wait_ready(ServiceNeed::Viewer).await;
        ready.map_err(DesktopRefusal::NotReady)?;
        let socket = UnixStream::connect(self.0.settings.run_folder.join("vnc.sock")).await;
        let socket = socket
            .map_err(|e| DesktopRefusal::NotReady(format!("cannot connect to `x11vnc`: {e}")))?;
        // A VNC server speaks first.
        let greeting = tokio::time::timeout(VNC_GREETING_TIMEOUT, socket.readable());
        if greeting.await.is_err() {
            services.restart_silent(ServiceNeed::Viewer);
            let why = "`x11vnc` does not answer; the companion restarts it";
            return Err(DesktopRefusal::NotReady(why.into()));
        }
        Ok((socket, stay))
    }

    /// The folder of the VNC client for browsers.
    pub(crate) fn novnc_folder(&self) -> &Path {
        &self.0.settings.novnc_folder
    }

    /// The state of the services, and whether all required services run.
    pub(crate) fn health(&self) -> (Vec<ServiceStatus>, bool) {
        match &self.0.services {
            Ok(services) => {
                let must = self.0.settings.mode == DesktopMode::Always;
                let is_well = !must
                    || services
                        .start_count_if_ready(ServiceNeed::Display)
                        .is_some();
                (services.list_services(), is_well)
            }
            Err(why) => {
                let absent = ServiceStatus {
                    name: "desktop".into(),
                    ready: false,
                    idle: true,
                    detail: why.clone(),
                };
                (vec![absent], true)
            }
        }
    }

    /// Whether the screen, and the service that paints it, have not been restarted since `generation`.
    fn is_current_screen_generation(&self, generation: u64) -> Result<bool, DesktopRefusal> {
        Ok(self.services()?.start_count_if_ready(ServiceNeed::Display) == Some(generation))
    }

    /// The port on which the browser's debugger listens.
    fn cdp_port(&self) -> u16 {
        self.0.settings.cdp_port
    }

    fn services(&self) -> Result<&Services, DesktopRefusal> {
        let services = self.0.services.as_ref();
        services.map_err(|why| DesktopRefusal::NotAvailable(why.clone()))
    }

    fn acquire_lease(&self, usage: DesktopUse) -> DesktopLease {
        self.lease_count(usage).fetch_add(1, Ordering::Relaxed);
        DesktopLease(self.clone(), usage)
    }

    fn lease_count(&self, usage: DesktopUse) -> &AtomicUsize {
        match usage {
            DesktopUse::Screen => &self.0.viewers,
            DesktopUse::Debugger => &self.0.debugger_clients,
        }
    }

    fn record_use(&self) {
        *self.0.last_used.lock() = Instant::now();
    }
}
