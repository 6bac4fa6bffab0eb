//! Background tasks of the desktop: one ends idle services, one sets the screen's size.

use super::idle::{DesktopActivity, DesktopMode};
use super::{Desktop, cdp};
use crate::companion::service::{ServiceNeed, Services};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// Maximum and minimum time between two checks; the configured idle time may be longer.
const MAX_IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
const MIN_IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Suffix of the browser's partial downloads.
const PARTIAL_DOWNLOAD_SUFFIX: &str = ".crdownload";

/// Delay before a failed change of the screen's size is tried again.
const SCREEN_RESIZE_RETRY_DELAY: Duration = Duration::from_millis(250);

pub(super) async fn stop_idle_services(desktop: Desktop, mut stop: watch::Receiver<bool>) {
    let Ok(services) = desktop.services() else {
        return;
    };
    let DesktopIdleSettings { mode, idle_timeout } = DesktopIdleSettings::from_desktop(&desktop);
    if mode == DesktopMode::Always {
        services.set_need(ServiceNeed::Display, true);
    }
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(idle_timeout.clamp(MIN_IDLE_CHECK_INTERVAL, MAX_IDLE_CHECK_INTERVAL)) => {}
        }
        if services.has_finished(ServiceNeed::Browser) {
            services.set_need(ServiceNeed::Browser, false);
        }
        if !services.is_needed(ServiceNeed::Display) {
            continue;
        }
        let signs = read_activity(&desktop, services, idle_timeout).await;
        if signs.can_stop_browser(idle_timeout) && is_idle_time_over(&desktop, idle_timeout) {
            tracing::info!("no client uses the browser; the companion stops the browser");
            services.set_need(ServiceNeed::Browser, false);
        }
        if signs.can_stop_viewer_services(idle_timeout) {
            services.set_need(ServiceNeed::Viewer, false);
        }
        if signs.is_idle(mode, idle_timeout) && is_idle_time_over(&desktop, idle_timeout) {
            tracing::info!("no client uses the desktop; the companion stops the desktop");
            services.set_need(ServiceNeed::Display, false);
        }
    }
}

/// Sets the size of each display server that starts: a server starts at its maximum size.
pub(super) async fn apply_screen_size(desktop: Desktop, mut stop: watch::Receiver<bool>) {
    let Ok(services) = desktop.services() else {
        return;
    };
    let mut generation = 0;
    loop {
        generation = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            generation = services.wait_next_display_server(generation) => generation,
        };
        // Viewers wait for the size, so a failed attempt is repeated.
        while services.display_server_start_count() == generation {
            let (width, height) = *desktop.0.resolution.lock();
            match desktop.0.display.resize_screen(width, height).await {
                Ok(_) => {
                    desktop.0.sized_generation.send_replace(generation);
                    break;
                }
                Err(why) => tracing::warn!(%why, "the companion can't set the size of the screen"),
            }
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(SCREEN_RESIZE_RETRY_DELAY) => {}
            }
        }
    }
}

/// The settings that this task needs.
struct DesktopIdleSettings {
    mode: DesktopMode,
    idle_timeout: Duration,
}

impl DesktopIdleSettings {
    fn from_desktop(desktop: &Desktop) -> Self {
        let settings = &desktop.0.settings;
        Self {
            mode: settings.mode,
            idle_timeout: settings.idle_timeout,
        }
    }
}

async fn read_activity(desktop: &Desktop, services: &Services, idle: Duration) -> DesktopActivity {
    let windows = match services.start_count_if_ready(ServiceNeed::Display) {
        Some(_) => desktop.0.display.list_windows().await.ok(),
        None => Some(Vec::new()),
    };
    let has_browser = services.is_needed(ServiceNeed::Browser);
    // The browser is queried only when the answer makes a difference.
    let is_asked = has_browser && is_idle_time_over(desktop, idle);
    let has_pages = !is_asked || cdp::has_pages(desktop.cdp_port()).await.unwrap_or(true);
    let has_downloads = has_pages
        || services
            .has_open_file(ServiceNeed::Browser, PARTIAL_DOWNLOAD_SUFFIX)
            .await;
    DesktopActivity {
        viewers: desktop.0.viewers.load(Ordering::Relaxed),
        debugger_clients: desktop.0.debugger_clients.load(Ordering::Relaxed),
        has_browser,
        has_pages,
        has_downloads,
        has_windows: windows.is_none_or(|windows| !windows.is_empty()),
        idle_time: time_since_use(desktop),
    }
}

fn is_idle_time_over(desktop: &Desktop, idle: Duration) -> bool {
    let used = [&desktop.0.viewers, &desktop.0.debugger_clients];
    let is_left = used.iter().all(|who| who.load(Ordering::Relaxed) == 0);
    is_left && time_since_use(desktop) >= idle
}

fn time_since_use(desktop: &Desktop) -> Duration {
    desktop.0.last_used.lock().elapsed()
}
