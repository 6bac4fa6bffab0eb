//! The desktop in a browser.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The file in the data folder that says what VNC clients must know.
pub(crate) const VNC_PASSWORD_FILE: &str = "vnc-password";

/// The reply to `POST /desktop/link`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct DesktopLinkReply {
    /// Opens the desktop once: a path on the same host and port.
    pub(crate) path: String,
    /// Seconds until it is worth nothing.
    pub(crate) expires: u64,
}

/// The query of `GET /desktop/enter`.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct DesktopEnterQuery {
    pub(crate) code: String,
}
