//! The task that ends what nobody needs any more.

use super::idle::{Mode, Signs};
use super::{CDP_PORT, Desktop, cdp, lock};
use crate::companion::service::{Need, Services};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Between two looks, at most and at least; a desktop may be idle for longer.
const TICK: Duration = Duration::from_secs(5);
const SHORTEST: Duration = Duration::from_secs(1);

/// How the browser names a file that it has not fetched whole.
const UNFINISHED: &str = ".crdownload";

/// Before a screen that has not got its size is asked again.
const PAUSE: Duration = Duration::from_millis(250);

pub(super) async fn run(desktop: Desktop, mut stop: watch::Receiver<bool>) {
    let Ok(services) = desktop.services() else {
        return;
    };
    let Settings { mode, idle } = Settings::of(&desktop);
    if mode == Mode::Always {
        services.need(Need::Display, true);
    }
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(idle.clamp(SHORTEST, TICK)) => {}
        }
        if services.has_finished(Need::Browser) {
            services.need(Need::Browser, false);
        }
        if !services.is_needed(Need::Display) {
            continue;
        }
        let signs = look(&desktop, services, idle).await;
        if signs.is_unbrowsed(idle) && is_still_quiet(&desktop, idle) {
            tracing::info!("desktop: nobody browses, so the browser ends");
            services.need(Need::Browser, false);
        }
        if signs.is_unseen(idle) {
            services.need(Need::Viewer, false);
        }
        if signs.is_idle(mode, idle) && is_still_quiet(&desktop, idle) {
            tracing::info!("desktop: nobody needs it, so it ends");
            services.need(Need::Display, false);
        }
    }
}

/// Gives each server that starts its size: it starts as large as it can ever be.
pub(super) async fn size(desktop: Desktop, mut stop: watch::Receiver<bool>) {
    let Ok(services) = desktop.services() else {
        return;
    };
    let mut life = 0;
    loop {
        life = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            life = services.next_server(life) => life,
        };
        // Until then nobody is shown anything, so one that could not be asked just now is asked again.
        while services.server() == life {
            let (width, height) = *lock(&desktop.0.resolution);
            match desktop.0.display.resize(width, height).await {
                Ok(_) => {
                    desktop.0.sized.send_replace(life);
                    break;
                }
                Err(why) => tracing::warn!("desktop: the screen has not got its size: {why}"),
            }
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

/// What of the settings is needed here.
struct Settings {
    mode: Mode,
    idle: Duration,
}

impl Settings {
    fn of(desktop: &Desktop) -> Self {
        let settings = &desktop.0.settings;
        Self {
            mode: settings.mode,
            idle: settings.idle,
        }
    }
}

async fn look(desktop: &Desktop, services: &Services, idle: Duration) -> Signs {
    let windows = match services.moment(Need::Display) {
        Some(_) => desktop.0.display.windows().await.ok(),
        None => Some(Vec::new()),
    };
    let browser = services.is_needed(Need::Browser);
    // The browser is asked only where its answer matters.
    let is_asked = browser && is_still_quiet(desktop, idle);
    let pages = !is_asked || cdp::has_pages(CDP_PORT).await.unwrap_or(true);
    let downloads = pages || services.has_open(Need::Browser, UNFINISHED).await;
    Signs {
        viewers: desktop.0.viewers.load(Ordering::Relaxed),
        clients: desktop.0.clients.load(Ordering::Relaxed),
        browser,
        pages,
        downloads,
        windows: windows.is_none_or(|windows| !windows.is_empty()),
        quiet: quiet(desktop),
    }
}

fn is_still_quiet(desktop: &Desktop, idle: Duration) -> bool {
    let used = [&desktop.0.viewers, &desktop.0.clients];
    let is_left = used.iter().all(|who| who.load(Ordering::Relaxed) == 0);
    is_left && quiet(desktop) >= idle
}

fn quiet(desktop: &Desktop) -> Duration {
    Instant::now().saturating_duration_since(*lock(&desktop.0.used))
}
