//! Whether nobody needs the desktop any more: a pure function of what can be seen.

use std::time::Duration;

/// When the desktop runs, as the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// From the first need on, until nobody has needed it for a while.
    Lazy,
    Always,
    Off,
}

/// What can be seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signs {
    /// People who look.
    pub(super) viewers: usize,
    /// Programs that are connected to the browser.
    pub(super) clients: usize,
    /// A browser runs, or is to.
    pub(super) browser: bool,
    /// A tab shows more than a new one; unknown is as good as that.
    pub(super) pages: bool,
    /// It is fetching a file, which needs no tab; unknown is as good as that.
    pub(super) downloads: bool,
    /// Windows are open, in which somebody's work may be; unknown is as good as some.
    pub(super) windows: bool,
    /// Since somebody last asked for anything, or left.
    pub(super) quiet: Duration,
}

impl Signs {
    pub(super) fn is_idle(self, mode: Mode, patience: Duration) -> bool {
        let is_used = self.viewers > 0 || self.browser || self.windows;
        mode == Mode::Lazy && !is_used && self.quiet >= patience
    }

    /// Whether the browser can end: nobody looks or is connected, all its tabs are blank, and it fetches
    /// nothing.
    pub(super) fn is_unbrowsed(self, patience: Duration) -> bool {
        let is_used = self.viewers > 0 || self.clients > 0 || self.pages || self.downloads;
        self.browser && !is_used && self.quiet >= patience
    }

    /// Whether what only viewers need can end already.
    pub(super) fn is_unseen(self, patience: Duration) -> bool {
        self.viewers == 0 && self.quiet >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::{Mode, Signs};
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(60);
    const QUIET: Signs = Signs {
        viewers: 0,
        clients: 0,
        browser: false,
        pages: false,
        downloads: false,
        windows: false,
        quiet: PATIENCE,
    };

    #[test]
    fn a_desktop_that_nobody_uses_ends_after_a_while() {
        assert!(QUIET.is_idle(Mode::Lazy, PATIENCE));
        let just_now = Signs {
            quiet: Duration::ZERO,
            ..QUIET
        };
        assert!(!just_now.is_idle(Mode::Lazy, PATIENCE));
    }

    #[test]
    fn who_looks_browses_or_has_a_window_open_keeps_it() {
        for used in [
            Signs {
                viewers: 1,
                ..QUIET
            },
            Signs {
                browser: true,
                ..QUIET
            },
            Signs {
                windows: true,
                ..QUIET
            },
        ] {
            assert!(!used.is_idle(Mode::Lazy, PATIENCE), "{used:?}");
        }
    }

    #[test]
    fn a_browser_ends_when_nobody_has_a_page_in_it() {
        let blank = Signs {
            browser: true,
            windows: true,
            ..QUIET
        };
        assert!(blank.is_unbrowsed(PATIENCE));
        assert!(!QUIET.is_unbrowsed(PATIENCE), "there is none");
        for used in [
            Signs {
                pages: true,
                ..blank
            },
            Signs {
                downloads: true,
                ..blank
            },
            Signs {
                clients: 1,
                ..blank
            },
            Signs {
                viewers: 1,
                ..blank
            },
            Signs {
                quiet: Duration::ZERO,
                ..blank
            },
        ] {
            assert!(!used.is_unbrowsed(PATIENCE), "{used:?}");
        }
    }

    #[test]
    fn always_is_always() {
        assert!(!QUIET.is_idle(Mode::Always, PATIENCE));
        assert!(QUIET.is_unseen(PATIENCE));
    }
}
