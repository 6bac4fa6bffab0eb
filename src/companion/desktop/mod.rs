//! The desktop: a screen that people and agents share, there when somebody needs it.
//!
//! ```text
//! VNC client ── :5900 ── gate (password) ──┐
//! browser ── /desktop/socket (cookie) ─────┴── x11vnc ──┐
//! agents ── /display/… ── companion::display ───────────┴── Xvfb ── openbox, pcmanfm, chromium
//! tools ── :9221 ── debugger ──────────────────────────────────────────────── :9222 ──┘
//! ```
//!
//! [`Desktop`] is the handle. Its services are supervised by `companion::service`, its screen is
//! reached by `companion::display`; here is decided when they run. Whoever uses it holds a
//! [`DesktopLease`], and the task in [`background_tasks`] ends the services when [`idle`], a pure function, says so.
//! The secret of a VNC client is checked in [`vnc_listener`] before anything is started.

mod background_tasks;
pub(crate) mod cdp;
mod clipboard;
mod debugger;
mod declaration;
mod idle;
mod one_time_tokens;
mod page;
mod page_reader;
mod quiesce;
mod rfb;
mod screenshot;
mod vnc_listener;

pub(crate) use clipboard::ClipboardWatcher;
pub(crate) use idle::DesktopMode;
pub(crate) use one_time_tokens::{DESKTOP_COOKIE_TIMEOUT, ONE_TIME_TOKEN_TIMEOUT, OneTimeTokens};

use super::display::{self, DisplayClient, ScreenPicture, ScreenRegion};
use super::service::{ServiceNeed, Services};
use crate::protocol::display::{Browser, InputAction, ScreenPoint as Point, ScreenSize, Window};
use crate::protocol::service::Service;
use declaration::declare_services;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The port inside on which the browser's debugger listens while the browser runs.
const CDP_PORT: u16 = 9222;

/// The port inside on which it is reached at any time.
pub(crate) const DEBUGGER_PORT: u16 = 9221;

/// The largest screen, unless a larger one is configured: all of it is held in memory.
const DEFAULT_MAX_SCREEN_SIZE: (u16, u16) = (2560, 1600);

/// In which a screen that was just started gets its size.
const SCREEN_SIZE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a picture is taken again when the screen was started anew meanwhile.
const MAX_SCREEN_ATTEMPTS: usize = 3;

#[derive(Debug, Clone)]
pub(crate) struct DesktopSettings {
    pub(crate) mode: DesktopMode,
    /// How long nobody must need it until it ends.
    pub(crate) idle: Duration,
    pub(crate) resolution: (u16, u16),
    pub(crate) depth: u8,
    /// The file that says what VNC clients must know; without it there are none.
    pub(crate) password: PathBuf,
    pub(crate) body: PathBuf,
    /// Sockets; readable by this user alone.
    pub(crate) run: PathBuf,
    /// The browser's profile.
    pub(crate) profile: PathBuf,
    /// The VNC client for browsers.
    pub(crate) novnc: PathBuf,
    /// Whether this is a plain process, without isolation.
    pub(crate) is_embedded: bool,
}

impl DesktopSettings {
    /// Whether there is to be a desktop at all.
    pub(crate) fn has_one(&self) -> bool {
        !self.is_embedded && self.mode != DesktopMode::Off
    }
}

/// Why nothing is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DesktopRefusal {
    /// There is none here, and why.
    Absent(String),
    /// It is not ready; why.
    Unready(String),
    Display(display::DisplayRefusal),
}

impl fmt::Display for DesktopRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(why) => write!(f, "there is no desktop: {why}"),
            Self::Unready(why) => f.write_str(why),
            Self::Display(refusal) => refusal.fmt(f),
        }
    }
}

impl From<display::DisplayRefusal> for DesktopRefusal {
    fn from(refusal: display::DisplayRefusal) -> Self {
        Self::Display(refusal)
    }
}

/// The desktop, for everyone who needs it.
#[derive(Debug, Clone)]
pub(crate) struct Desktop(Arc<DesktopInner>);

#[derive(Debug)]
struct DesktopInner {
    settings: DesktopSettings,
    /// Or why there are none.
    services: Result<Services, String>,
    display: DisplayClient,
    viewers: AtomicUsize,
    /// Who is connected to the browser's debugger.
    clients: AtomicUsize,
    /// The screen's size, as last asked for.
    resolution: Mutex<(u16, u16)>,
    used: Mutex<Instant>,
    /// The life of the server whose size was set.
    sized: watch::Sender<u64>,
    reading: page_reader::PageReader,
    /// Told when the companion ends.
    stop: watch::Receiver<bool>,
}

/// Where somebody uses it.
#[derive(Debug, Clone, Copy)]
enum DesktopUse {
    Screen,
    Debugger,
}

/// Somebody uses it, until this is dropped.
#[derive(Debug)]
pub(crate) struct DesktopLease(Desktop, DesktopUse);

impl Drop for DesktopLease {
    fn drop(&mut self) {
        self.0.lease_count(self.1).fetch_sub(1, Ordering::Relaxed);
        self.0.mark_used();
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
    /// The handle, and the tasks that end when `stop` is told.
    pub(crate) fn start(
        settings: DesktopSettings,
        ports: Option<DesktopListeners>,
        stop: &watch::Receiver<bool>,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let mut tasks = Vec::new();
        let services = declare_services(&settings).map(|declarations| {
            let (services, owners) = Services::start(&declarations, stop);
            tasks = owners;
            services
        });
        if let (Err(why), true) = (&services, settings.has_one()) {
            tracing::error!("there is no desktop: {why}");
        }
        let desktop = Self(Arc::new(DesktopInner {
            services,
            display: DisplayClient::default(),
            viewers: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
            resolution: Mutex::new(settings.resolution),
            used: Mutex::new(Instant::now()),
            sized: watch::Sender::new(0),
            reading: page_reader::PageReader::default(),
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
            if let Some(DesktopListeners { vnc, debugger }) = ports {
                tasks.push(tokio::spawn(vnc_listener::serve_vnc(
                    desktop.clone(),
                    vnc,
                    stop.clone(),
                )));
                let debugger = debugger::serve_debugger(desktop.clone(), debugger, stop.clone());
                tasks.push(tokio::spawn(debugger));
            }
        }
        (desktop, tasks)
    }

    /// Starts the screen unless it runs, and waits until its picture is there. Tools that need
    /// `DISPLAY` call this before they start.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn ensure_screen(&self) -> Result<(), DesktopRefusal> {
        self.ensure_screen_generation().await.map(drop)
    }

    /// The same; the number is another one once the screen, or what paints it, was started anew.
    async fn ensure_screen_generation(&self) -> Result<u64, DesktopRefusal> {
        // However long it takes to start, and however short the time after which nobody needs it.
        let _waits = self.acquire_lease(DesktopUse::Screen);
        let services = self.services()?;
        services.set_need(ServiceNeed::Display, true);
        let moment = services.wait_ready(ServiceNeed::Display).await;
        let moment = moment.map_err(DesktopRefusal::Unready)?;
        // A server that was just started is as large as it can be.
        let mut sized = self.0.sized.subscribe();
        let sized = sized.wait_for(|sized| *sized == services.display_server_generation());
        let is_sized = tokio::time::timeout(SCREEN_SIZE_TIMEOUT, sized)
            .await
            .is_ok();
        if !is_sized {
            return Err(DesktopRefusal::Unready(
                "the screen has not got its size".into(),
            ));
        }
        Ok(moment)
    }

    /// The debugger's address of the one browser, started unless it runs. What it shows, everyone
    /// sees who looks at the screen.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn ensure_browser(&self) -> Result<String, DesktopRefusal> {
        let _waits = self.acquire_lease(DesktopUse::Screen);
        self.ensure_screen().await?;
        let services = self.services()?;
        if services.has_finished(ServiceNeed::Browser) {
            services.reset_finished(ServiceNeed::Browser).await;
        }
        services.set_need(ServiceNeed::Browser, true);
        let ready = services.wait_ready(ServiceNeed::Browser).await;
        ready.map_err(DesktopRefusal::Unready)?;
        Ok(cdp::debugger_url(DEBUGGER_PORT))
    }

    /// Waits for the browser if it runs or is about to, also again after a crash; starts none.
    ///
    /// # Errors
    /// When there is none to wait for.
    async fn browser_of_now(&self) -> Result<(), DesktopRefusal> {
        let _waits = self.acquire_lease(DesktopUse::Screen);
        let services = self.services()?;
        if !services.is_needed(ServiceNeed::Browser) || services.has_finished(ServiceNeed::Browser)
        {
            let why = "the browser was closed; `GET /json/version` starts it";
            return Err(DesktopRefusal::Unready(why.into()));
        }
        let ready = services.wait_ready(ServiceNeed::Browser).await;
        ready.map(drop).map_err(DesktopRefusal::Unready)
    }

    /// Counts a client of the debugger, for as long as the stay.
    fn lease_debugger(&self) -> DesktopLease {
        self.acquire_lease(DesktopUse::Debugger)
    }

    /// The browser, with a page in a new tab where one is named.
    ///
    /// # Errors
    /// Why it does not show the page.
    pub(crate) async fn open_url(&self, url: &str) -> Result<Browser, DesktopRefusal> {
        let _waits = self.acquire_lease(DesktopUse::Screen);
        self.ensure_browser().await?;
        if !url.is_empty() {
            let opened = cdp::open_tab(CDP_PORT, url).await;
            opened.map_err(|why| DesktopRefusal::Unready(format!("the browser: {why}")))?;
        }
        self.look_at_browser()
    }

    /// Ends the browser, which keeps its profile.
    ///
    /// # Errors
    /// Where there is no desktop.
    pub(crate) fn close_browser(&self) -> Result<Browser, DesktopRefusal> {
        self.services()?.set_need(ServiceNeed::Browser, false);
        self.look_at_browser()
    }

    /// # Errors
    /// Where there is no desktop.
    pub(crate) fn look_at_browser(&self) -> Result<Browser, DesktopRefusal> {
        let services = self.services()?;
        let running = services.generation_if_ready(ServiceNeed::Browser).is_some();
        Ok(Browser {
            running,
            cdp_url: Some(cdp::debugger_url(DEBUGGER_PORT)),
            detail: services.describe_state(ServiceNeed::Browser),
        })
    }

    /// What is on the screen at this moment: never a picture of before, and never one of a screen
    /// that nobody has painted yet.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn capture_screen(
        &self,
        region: Option<ScreenRegion>,
    ) -> Result<ScreenPicture, DesktopRefusal> {
        let mut refusal = DesktopRefusal::Unready("the screen is started over and over".into());
        for _ in 0..MAX_SCREEN_ATTEMPTS {
            let moment = self.ensure_screen_generation().await?;
            match self.0.display.capture_screen(region).await {
                Ok(picture) => {
                    if self.is_at(moment)? {
                        return Ok(picture);
                    }
                }
                Err(gone @ display::DisplayRefusal::Gone(_)) => refusal = gone.into(),
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

    /// Changes the screen's size, until the companion ends. A screen, or what paints it, that is started
    /// anew meanwhile gets it then.
    ///
    /// # Errors
    /// Why it has not got it.
    pub(crate) async fn resize_screen(
        &self,
        width: u16,
        height: u16,
    ) -> Result<ScreenSize, DesktopRefusal> {
        let mut refusal = DesktopRefusal::Unready("the screen is started over and over".into());
        for _ in 0..MAX_SCREEN_ATTEMPTS {
            let moment = self.ensure_screen_generation().await?;
            match self.0.display.resize_screen(width, height).await {
                Ok(screen) => {
                    *lock_unpoisoned(&self.0.resolution) = (width, height);
                    if self.is_at(moment)? {
                        return Ok(screen);
                    }
                }
                Err(gone @ display::DisplayRefusal::Gone(_)) => refusal = gone.into(),
                // What covered the screen is another one now.
                Err(unmoved @ display::DisplayRefusal::Unmoved(_)) if !self.is_at(moment)? => {
                    refusal = unmoved.into();
                }
                Err(other) => return Err(other.into()),
            }
        }
        Err(refusal)
    }

    /// A connection to the VNC server, which asks for no password, for as long as the stay.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn connect_viewer(
        &self,
    ) -> Result<(UnixStream, DesktopLease), DesktopRefusal> {
        let stay = self.acquire_lease(DesktopUse::Screen);
        let services = self.services()?;
        services.set_need(ServiceNeed::Viewer, true);
        self.ensure_screen().await?;
        let ready = services.wait_ready(ServiceNeed::Viewer).await;
        ready.map_err(DesktopRefusal::Unready)?;
        let socket = UnixStream::connect(self.0.settings.run.join("vnc.sock")).await;
        let socket = socket.map_err(|e| DesktopRefusal::Unready(format!("`x11vnc`: {e}")))?;
        Ok((socket, stay))
    }

    /// Where the VNC client for browsers lies.
    pub(crate) fn novnc_folder(&self) -> &Path {
        &self.0.settings.novnc
    }

    /// How its services stand, and whether all that must run do.
    pub(crate) fn health(&self) -> (Vec<Service>, bool) {
        match &self.0.services {
            Ok(services) => {
                let must = self.0.settings.mode == DesktopMode::Always;
                let is_well = !must || services.generation_if_ready(ServiceNeed::Display).is_some();
                (services.list_services(), is_well)
            }
            Err(why) => {
                let absent = Service {
                    name: "desktop".into(),
                    ready: false,
                    idle: true,
                    detail: why.clone(),
                };
                (vec![absent], true)
            }
        }
    }

    /// Whether the same screen, and what paints it, are there as at that moment.
    fn is_at(&self, moment: u64) -> Result<bool, DesktopRefusal> {
        Ok(self.services()?.generation_if_ready(ServiceNeed::Display) == Some(moment))
    }

    fn services(&self) -> Result<&Services, DesktopRefusal> {
        let services = self.0.services.as_ref();
        services.map_err(|why| DesktopRefusal::Absent(why.clone()))
    }

    fn acquire_lease(&self, place: DesktopUse) -> DesktopLease {
        self.lease_count(place).fetch_add(1, Ordering::Relaxed);
        DesktopLease(self.clone(), place)
    }

    fn lease_count(&self, place: DesktopUse) -> &AtomicUsize {
        match place {
            DesktopUse::Screen => &self.0.viewers,
            DesktopUse::Debugger => &self.0.clients,
        }
    }

    fn mark_used(&self) {
        *lock_unpoisoned(&self.0.used) = Instant::now();
    }
}

/// Held for an assignment only, so what it guards is whole.
fn lock_unpoisoned<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
