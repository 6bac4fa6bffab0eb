//! The idle policy of the desktop: a pure function of the observed activity.

use std::time::Duration;

/// When the desktop runs, according to the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DesktopMode {
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
    pub(super) clients: usize,
    /// A browser runs or is starting.
    pub(super) browser: bool,
    /// A tab shows something other than an empty new tab; unknown counts as `true`.
    pub(super) pages: bool,
    /// The browser is downloading a file, which needs no tab; unknown counts as `true`.
    pub(super) downloads: bool,
    /// Windows are open, which may hold a person's work; unknown counts as `true`.
    pub(super) windows: bool,
    /// Time since the last request, or since the last client left.
    pub(super) quiet: Duration,
}

impl DesktopActivity {
    pub(super) fn is_idle(self, mode: DesktopMode, patience: Duration) -> bool {
        let is_used = self.viewers > 0 || self.browser || self.windows;
        mode == DesktopMode::Lazy && !is_used && self.quiet >= patience
    }

    /// Whether the browser can end: there are no viewers and no clients, all its tabs are blank, and it downloads
    /// nothing.
    pub(super) fn is_unbrowsed(self, patience: Duration) -> bool {
        let is_used = self.viewers > 0 || self.clients > 0 || self.pages || self.downloads;
        self.browser && !is_used && self.quiet >= patience
    }

    /// Whether the services that only viewers need can end.
    pub(super) fn is_unseen(self, patience: Duration) -> bool {
        self.viewers == 0 && self.quiet >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::{DesktopActivity, DesktopMode};
    use std::time::Duration;

    const TEST_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
    const QUIET: DesktopActivity = DesktopActivity {
        viewers: 0,
        clients: 0,
        browser: false,
        pages: false,
        downloads: false,
        windows: false,
        quiet: TEST_IDLE_TIMEOUT,
    };

    #[test]
    fn an_unused_desktop_ends_after_a_while() {
        assert!(QUIET.is_idle(DesktopMode::Lazy, TEST_IDLE_TIMEOUT));
        let just_now = DesktopActivity {
            quiet: Duration::ZERO,
            ..QUIET
        };
        assert!(!just_now.is_idle(DesktopMode::Lazy, TEST_IDLE_TIMEOUT));
    }

    #[test]
    fn who_looks_browses_or_has_a_window_open_keeps_it() {
        for used in [
            DesktopActivity {
                viewers: 1,
                ..QUIET
            },
            DesktopActivity {
                browser: true,
                ..QUIET
            },
            DesktopActivity {
                windows: true,
                ..QUIET
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
            browser: true,
            windows: true,
            ..QUIET
        };
        assert!(blank.is_unbrowsed(TEST_IDLE_TIMEOUT));
        assert!(!QUIET.is_unbrowsed(TEST_IDLE_TIMEOUT), "no browser runs");
        for used in [
            DesktopActivity {
                pages: true,
                ..blank
            },
            DesktopActivity {
                downloads: true,
                ..blank
            },
            DesktopActivity {
                clients: 1,
                ..blank
            },
            DesktopActivity {
                viewers: 1,
                ..blank
            },
            DesktopActivity {
                quiet: Duration::ZERO,
                ..blank
            },
        ] {
            assert!(!used.is_unbrowsed(TEST_IDLE_TIMEOUT), "{used:?}");
        }
    }

    #[test]
    fn always_is_always() {
        assert!(!QUIET.is_idle(DesktopMode::Always, TEST_IDLE_TIMEOUT));
        assert!(QUIET.is_unseen(TEST_IDLE_TIMEOUT));
    }
}
