//! The idle policy of the desktop: a pure function of the observed activity.

use std::time::Duration;

/// When the desktop runs, according to the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DesktopMode {
    /// From the first use until it has been idle for the configured time.
    Lazy,
    Always,
    Off,
}

/// The observed activity.
#[derive(Debug, Clone, Copy)]
pub(super) struct DesktopActivity {
    /// Connected viewers.
    pub(super) viewers: usize,
    /// Programs connected to the browser.
    pub(super) debugger_clients: usize,
    /// A browser runs or is starting.
    pub(super) has_browser: bool,
    /// A tab shows something other than an empty new tab; unknown counts as `true`.
    pub(super) has_pages: bool,
    /// The browser is downloading a file, which needs no tab; unknown counts as `true`.
    pub(super) has_downloads: bool,
    /// Windows are open, which may hold a person's work; unknown counts as `true`.
    pub(super) has_windows: bool,
    /// Time since the last request, or since the last client left.
    pub(super) idle_time: Duration,
}

impl DesktopActivity {
    pub(super) fn is_idle(self, mode: DesktopMode, idle_timeout: Duration) -> bool {
        let is_used = self.viewers > 0 || self.has_browser || self.has_windows;
        mode == DesktopMode::Lazy && !is_used && self.idle_time >= idle_timeout
    }

    /// Whether the browser can end: there are no viewers and no clients, all its tabs are blank, and it downloads
    /// nothing.
    pub(super) fn can_stop_browser(self, idle_timeout: Duration) -> bool {
        let is_used =
            self.viewers > 0 || self.debugger_clients > 0 || self.has_pages || self.has_downloads;
        self.has_browser && !is_used && self.idle_time >= idle_timeout
    }

    /// Whether the services that only viewers need can end.
    pub(super) fn can_stop_viewer_services(self, idle_timeout: Duration) -> bool {
        self.viewers == 0 && self.idle_time >= idle_timeout
    }
}

#[cfg(test)]
mod tests {
    use super::{DesktopActivity, DesktopMode};
    use std::time::Duration;

    const TEST_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
    const IDLE_ACTIVITY: DesktopActivity = DesktopActivity {
        viewers: 0,
        debugger_clients: 0,
        has_browser: false,
        has_pages: false,
        has_downloads: false,
        has_windows: false,
        idle_time: TEST_IDLE_TIMEOUT,
    };

    #[test]
    fn an_unused_desktop_ends_after_a_while() {
        assert!(IDLE_ACTIVITY.is_idle(DesktopMode::Lazy, TEST_IDLE_TIMEOUT));
        let just_now = DesktopActivity {
            idle_time: Duration::ZERO,
            ..IDLE_ACTIVITY
        };
        assert!(!just_now.is_idle(DesktopMode::Lazy, TEST_IDLE_TIMEOUT));
    }

    #[test]
    fn viewers_and_windows_prevent_idle() {
        for used in [
            DesktopActivity {
                viewers: 1,
                ..IDLE_ACTIVITY
            },
            DesktopActivity {
                has_browser: true,
                ..IDLE_ACTIVITY
            },
            DesktopActivity {
                has_windows: true,
                ..IDLE_ACTIVITY
            },
        ] {
            assert!(
                !used.is_idle(DesktopMode::Lazy, TEST_IDLE_TIMEOUT),
                "{used:?}"
            );
        }
    }

    #[test]
    fn a_browser_without_pages_ends() {
        let blank = DesktopActivity {
            has_browser: true,
            has_windows: true,
            ..IDLE_ACTIVITY
        };
        assert!(blank.can_stop_browser(TEST_IDLE_TIMEOUT));
        assert!(
            !IDLE_ACTIVITY.can_stop_browser(TEST_IDLE_TIMEOUT),
            "no browser runs"
        );
        for used in [
            DesktopActivity {
                has_pages: true,
                ..blank
            },
            DesktopActivity {
                has_downloads: true,
                ..blank
            },
            DesktopActivity {
                debugger_clients: 1,
                ..blank
            },
            DesktopActivity {
                viewers: 1,
                ..blank
            },
            DesktopActivity {
                idle_time: Duration::ZERO,
                ..blank
            },
        ] {
            assert!(!used.can_stop_browser(TEST_IDLE_TIMEOUT), "{used:?}");
        }
    }

    #[test]
    fn always_mode_is_never_idle() {
        assert!(!IDLE_ACTIVITY.is_idle(DesktopMode::Always, TEST_IDLE_TIMEOUT));
        assert!(IDLE_ACTIVITY.can_stop_viewer_services(TEST_IDLE_TIMEOUT));
    }
}
