//! Requests and replies for opening the desktop in a browser.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The file in the data folder that holds the password of VNC clients.
pub const VNC_PASSWORD_FILE: &str = "vnc-password";

/// The reply to `POST /desktop/link`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DesktopLinkReply {
    /// Opens the desktop once: a path on the same host and port.
    pub path: String,
    /// Seconds until the link expires.
    pub expires: u64,
}

/// The query of `GET /desktop/enter`.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct DesktopEnterQuery {
    pub code: String,
}
