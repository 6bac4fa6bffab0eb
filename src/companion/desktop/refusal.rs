//! The reasons why a request to the desktop fails.

use crate::companion::display;
use std::fmt;

/// Why a request to the desktop failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DesktopRefusal {
    /// There is no desktop, with the reason.
    NotAvailable(String),
    /// The desktop is not ready, with the reason.
    NotReady(String),
    Display(display::DisplayRefusal),
}

impl fmt::Display for DesktopRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAvailable(why) => write!(f, "no desktop is available: {why}"),
            Self::NotReady(why) => f.write_str(why),
            Self::Display(refusal) => refusal.fmt(f),
        }
    }
}

impl From<display::DisplayRefusal> for DesktopRefusal {
    fn from(refusal: display::DisplayRefusal) -> Self {
        Self::Display(refusal)
    }
}
