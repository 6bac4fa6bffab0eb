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
//! [`Stay`], and the task in [`owner`] ends the services when [`idle`], a pure function, says so.
//! The secret of a VNC client is checked in [`gate`] before anything is started.

pub(crate) mod cdp;
mod copied;
mod debugger;
mod gate;
mod idle;
mod owner;
mod page;
mod reading;
mod rest;
mod rfb;
mod shot;
mod tickets;

pub(crate) use copied::Copied;
pub(crate) use idle::Mode;
pub(crate) use tickets::{CODE, PASS, Tickets};

use super::display::{self, Display, Picture, Region};
use super::service::{self, Declarations, Need, Services};
use crate::protocol::display::{Action, Browser, Place as Point, Screen, Window};
use crate::protocol::service::Service;
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
const LARGEST: (u16, u16) = (2560, 1600);

/// In which a screen that was just started gets its size.
const SIZING: Duration = Duration::from_secs(5);

/// How often a picture is taken again when the screen was started anew meanwhile.
const ATTEMPTS: usize = 3;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
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

impl Settings {
    /// Whether there is to be a desktop at all.
    pub(crate) fn has_one(&self) -> bool {
        !self.is_embedded && self.mode != Mode::Off
    }
}

/// Why nothing is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is none here, and why.
    Absent(String),
    /// It is not ready; why.
    Unready(String),
    Display(display::Refusal),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(why) => write!(f, "there is no desktop: {why}"),
            Self::Unready(why) => f.write_str(why),
            Self::Display(refusal) => refusal.fmt(f),
        }
    }
}

impl From<display::Refusal> for Refusal {
    fn from(refusal: display::Refusal) -> Self {
        Self::Display(refusal)
    }
}

/// The desktop, for everyone who needs it.
#[derive(Debug, Clone)]
pub(crate) struct Desktop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    /// Or why there are none.
    services: Result<Services, String>,
    display: Display,
    viewers: AtomicUsize,
    /// Who is connected to the browser's debugger.
    clients: AtomicUsize,
    /// The screen's size, as last asked for.
    resolution: Mutex<(u16, u16)>,
    used: Mutex<Instant>,
    /// The life of the server whose size was set.
    sized: watch::Sender<u64>,
    reading: reading::Reading,
    /// Told when the companion ends.
    stop: watch::Receiver<bool>,
}

/// Where somebody uses it.
#[derive(Debug, Clone, Copy)]
enum Place {
    Screen,
    Debugger,
}

/// Somebody uses it, until this is dropped.
#[derive(Debug)]
pub(crate) struct Stay(Desktop, Place);

impl Drop for Stay {
    fn drop(&mut self) {
        self.0.count(self.1).fetch_sub(1, Ordering::Relaxed);
        self.0.touch();
    }
}

/// The desktop's own sockets.
#[derive(Debug)]
pub(crate) struct Ports {
    /// For VNC clients.
    pub(crate) vnc: TcpListener,
    /// For clients of the browser's debugger.
    pub(crate) debugger: TcpListener,
}

impl Desktop {
    /// The handle, and the tasks that end when `stop` is told.
    pub(crate) fn start(
        settings: Settings,
        ports: Option<Ports>,
        stop: &watch::Receiver<bool>,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let mut tasks = Vec::new();
        let services = declared(&settings).map(|declarations| {
            let (services, owners) = Services::start(&declarations, stop);
            tasks = owners;
            services
        });
        if let (Err(why), true) = (&services, settings.has_one()) {
            tracing::error!("there is no desktop: {why}");
        }
        let desktop = Self(Arc::new(Inner {
            services,
            display: Display::default(),
            viewers: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
            resolution: Mutex::new(settings.resolution),
            used: Mutex::new(Instant::now()),
            sized: watch::Sender::new(0),
            reading: reading::Reading::default(),
            stop: stop.clone(),
            settings,
        }));
        if desktop.0.services.is_ok() {
            tasks.push(tokio::spawn(owner::run(desktop.clone(), stop.clone())));
            tasks.push(tokio::spawn(owner::size(desktop.clone(), stop.clone())));
            if let Some(Ports { vnc, debugger }) = ports {
                tasks.push(tokio::spawn(gate::serve(
                    desktop.clone(),
                    vnc,
                    stop.clone(),
                )));
                let debugger = debugger::serve(desktop.clone(), debugger, stop.clone());
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
    pub(crate) async fn needed(&self) -> Result<(), Refusal> {
        self.moment().await.map(drop)
    }

    /// The same; the number is another one once the screen, or what paints it, was started anew.
    async fn moment(&self) -> Result<u64, Refusal> {
        // However long it takes to start, and however short the time after which nobody needs it.
        let _waits = self.stay(Place::Screen);
        let services = self.services()?;
        services.need(Need::Display, true);
        let moment = services.ready(Need::Display).await;
        let moment = moment.map_err(Refusal::Unready)?;
        // A server that was just started is as large as it can be.
        let mut sized = self.0.sized.subscribe();
        let sized = sized.wait_for(|sized| *sized == services.server());
        let is_sized = tokio::time::timeout(SIZING, sized).await.is_ok();
        if !is_sized {
            return Err(Refusal::Unready("the screen has not got its size".into()));
        }
        Ok(moment)
    }

    /// The debugger's address of the one browser, started unless it runs. What it shows, everyone
    /// sees who looks at the screen.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn browser(&self) -> Result<String, Refusal> {
        let _waits = self.stay(Place::Screen);
        self.needed().await?;
        let services = self.services()?;
        if services.has_finished(Need::Browser) {
            services.forget(Need::Browser).await;
        }
        services.need(Need::Browser, true);
        let ready = services.ready(Need::Browser).await;
        ready.map_err(Refusal::Unready)?;
        Ok(cdp::address(DEBUGGER_PORT))
    }

    /// Waits for the browser if it runs or is about to, also again after a crash; starts none.
    ///
    /// # Errors
    /// When there is none to wait for.
    async fn browser_of_now(&self) -> Result<(), Refusal> {
        let _waits = self.stay(Place::Screen);
        let services = self.services()?;
        if !services.is_needed(Need::Browser) || services.has_finished(Need::Browser) {
            let why = "the browser was closed; `GET /json/version` starts it";
            return Err(Refusal::Unready(why.into()));
        }
        let ready = services.ready(Need::Browser).await;
        ready.map(drop).map_err(Refusal::Unready)
    }

    /// Counts a client of the debugger, for as long as the stay.
    fn attached(&self) -> Stay {
        self.stay(Place::Debugger)
    }

    /// The browser, with a page in a new tab where one is named.
    ///
    /// # Errors
    /// Why it does not show the page.
    pub(crate) async fn browse(&self, url: &str) -> Result<Browser, Refusal> {
        let _waits = self.stay(Place::Screen);
        self.browser().await?;
        if !url.is_empty() {
            let opened = cdp::open(CDP_PORT, url).await;
            opened.map_err(|why| Refusal::Unready(format!("the browser: {why}")))?;
        }
        self.look_at_browser()
    }

    /// Ends the browser, which keeps its profile.
    ///
    /// # Errors
    /// Where there is no desktop.
    pub(crate) fn close_browser(&self) -> Result<Browser, Refusal> {
        self.services()?.need(Need::Browser, false);
        self.look_at_browser()
    }

    /// # Errors
    /// Where there is no desktop.
    pub(crate) fn look_at_browser(&self) -> Result<Browser, Refusal> {
        let services = self.services()?;
        let running = services.moment(Need::Browser).is_some();
        Ok(Browser {
            running,
            cdp_url: Some(cdp::address(DEBUGGER_PORT)),
            detail: services.detail(Need::Browser),
        })
    }

    /// What is on the screen at this moment: never a picture of before, and never one of a screen
    /// that nobody has painted yet.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn capture(&self, region: Option<Region>) -> Result<Picture, Refusal> {
        let mut refusal = Refusal::Unready("the screen is started over and over".into());
        for _ in 0..ATTEMPTS {
            let moment = self.moment().await?;
            match self.0.display.capture(region).await {
                Ok(picture) => {
                    if self.is_at(moment)? {
                        return Ok(picture);
                    }
                }
                Err(gone @ display::Refusal::Gone(_)) => refusal = gone.into(),
                Err(other) => return Err(other.into()),
            }
        }
        Err(refusal)
    }

    pub(crate) async fn act(&self, actions: Vec<Action>) -> Result<Point, Refusal> {
        self.needed().await?;
        Ok(self.0.display.act(actions).await?)
    }

    pub(crate) async fn read_clipboard(&self) -> Result<String, Refusal> {
        self.needed().await?;
        Ok(self.0.display.read_clipboard().await?)
    }

    pub(crate) async fn write_clipboard(&self, text: String) -> Result<(), Refusal> {
        self.needed().await?;
        Ok(self.0.display.write_clipboard(text).await?)
    }

    pub(crate) async fn windows(&self) -> Result<Vec<Window>, Refusal> {
        self.needed().await?;
        Ok(self.0.display.windows().await?)
    }

    pub(crate) async fn focus(&self, id: u32) -> Result<(), Refusal> {
        self.needed().await?;
        Ok(self.0.display.focus(id).await?)
    }

    pub(crate) async fn screen(&self) -> Result<Screen, Refusal> {
        self.needed().await?;
        Ok(self.0.display.screen().await?)
    }

    /// Changes the screen's size, until the companion ends. A screen, or what paints it, that is started
    /// anew meanwhile gets it then.
    ///
    /// # Errors
    /// Why it has not got it.
    pub(crate) async fn resize(&self, width: u16, height: u16) -> Result<Screen, Refusal> {
        let mut refusal = Refusal::Unready("the screen is started over and over".into());
        for _ in 0..ATTEMPTS {
            let moment = self.moment().await?;
            match self.0.display.resize(width, height).await {
                Ok(screen) => {
                    *lock(&self.0.resolution) = (width, height);
                    if self.is_at(moment)? {
                        return Ok(screen);
                    }
                }
                Err(gone @ display::Refusal::Gone(_)) => refusal = gone.into(),
                // What covered the screen is another one now.
                Err(unmoved @ display::Refusal::Unmoved(_)) if !self.is_at(moment)? => {
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
    pub(crate) async fn visit(&self) -> Result<(UnixStream, Stay), Refusal> {
        let stay = self.stay(Place::Screen);
        let services = self.services()?;
        services.need(Need::Viewer, true);
        self.needed().await?;
        let ready = services.ready(Need::Viewer).await;
        ready.map_err(Refusal::Unready)?;
        let socket = UnixStream::connect(self.0.settings.run.join("vnc.sock")).await;
        let socket = socket.map_err(|e| Refusal::Unready(format!("`x11vnc`: {e}")))?;
        Ok((socket, stay))
    }

    /// Where the VNC client for browsers lies.
    pub(crate) fn novnc(&self) -> &Path {
        &self.0.settings.novnc
    }

    /// How its services stand, and whether all that must run do.
    pub(crate) fn health(&self) -> (Vec<Service>, bool) {
        match &self.0.services {
            Ok(services) => {
                let must = self.0.settings.mode == Mode::Always;
                let is_well = !must || services.moment(Need::Display).is_some();
                (services.views(), is_well)
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
    fn is_at(&self, moment: u64) -> Result<bool, Refusal> {
        Ok(self.services()?.moment(Need::Display) == Some(moment))
    }

    fn services(&self) -> Result<&Services, Refusal> {
        let services = self.0.services.as_ref();
        services.map_err(|why| Refusal::Absent(why.clone()))
    }

    fn stay(&self, place: Place) -> Stay {
        self.count(place).fetch_add(1, Ordering::Relaxed);
        Stay(self.clone(), place)
    }

    fn count(&self, place: Place) -> &AtomicUsize {
        match place {
            Place::Screen => &self.0.viewers,
            Place::Debugger => &self.0.clients,
        }
    }

    fn touch(&self) {
        *lock(&self.0.used) = Instant::now();
    }
}

/// Held for an assignment only, so what it guards is whole.
fn lock<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn declared(settings: &Settings) -> Result<Declarations, String> {
    if settings.is_embedded {
        return Err(
            "the embedded engine has none: only a container has a screen of its own".into(),
        );
    }
    if settings.mode == Mode::Off {
        return Err("it is off: `desktop.run` in osctl.yaml says so".into());
    }
    for folder in [&settings.run, &settings.profile] {
        private_folder(folder).map_err(|error| format!("`{}`: {error}", folder.display()))?;
    }
    let (width, height) = settings.resolution;
    let text = |path: &Path| path.display().to_string();
    let variables = [
        ("WIDTH", width.max(LARGEST.0).to_string()),
        ("HEIGHT", height.max(LARGEST.1).to_string()),
        ("DEPTH", settings.depth.to_string()),
        ("DISPLAY", display::NAME.to_owned()),
        ("RUN", text(&settings.run)),
        ("BODY", text(&settings.body)),
        ("PROFILE", text(&settings.profile)),
    ];
    service::declarations(&settings.body, &variables)
}

fn private_folder(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(path)
}
