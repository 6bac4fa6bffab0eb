//! Settings of the desktop.

use super::idle::DesktopMode;
use crate::companion::CompanionSettings;
use crate::companion::settings::{parse_variable, read_path, read_seconds};
use crate::error::Result;
use crate::protocol::desktop::VNC_PASSWORD_FILE;
use std::path::PathBuf;
use std::time::Duration;

/// The port in the declaration of the browser.
const CDP_PORT: u16 = 9222;

const DEFAULT_DESKTOP_IDLE_TIMEOUT: Duration = Duration::from_secs(600);
const DEFAULT_DESKTOP_RESOLUTION: (u16, u16) = (1280, 800);

#[derive(Debug, Clone)]
pub(crate) struct DesktopSettings {
    pub(super) mode: DesktopMode,
    /// Time without use after which the desktop ends.
    pub(super) idle_timeout: Duration,
    pub(super) resolution: (u16, u16),
    pub(super) depth: u8,
    /// The file with the password of VNC clients; without this file the companion admits no VNC client.
    pub(super) password_file: PathBuf,
    pub(super) body_folder: PathBuf,
    /// The folder of the sockets, readable by this user alone.
    pub(super) run_folder: PathBuf,
    /// The browser's profile.
    pub(super) profile_folder: PathBuf,
    /// The VNC client for browsers.
    pub(super) novnc_folder: PathBuf,
    /// The port inside on which the browser's debugger listens while the browser runs.
    pub(super) cdp_port: u16,
    /// Whether the companion is a plain process, without isolation.
    pub(super) is_embedded: bool,
}

impl DesktopSettings {
    /// # Errors
    /// When a variable is invalid.
    pub(crate) fn from_environment(settings: &CompanionSettings) -> Result<Self> {
        let idle_timeout = read_seconds("OSCTL_DESKTOP_IDLE")?;
        Ok(Self {
            mode: parse_variable("OSCTL_DESKTOP_RUN", parse_mode)?.unwrap_or(DesktopMode::Lazy),
            // An idle time of 0 would stop the desktop immediately.
            idle_timeout: idle_timeout
                .unwrap_or(DEFAULT_DESKTOP_IDLE_TIMEOUT)
                .max(Duration::from_secs(1)),
            resolution: parse_variable("OSCTL_DESKTOP_RESOLUTION", parse_resolution)?
                .unwrap_or(DEFAULT_DESKTOP_RESOLUTION),
            depth: parse_variable("OSCTL_DESKTOP_DEPTH", parse_depth)?.unwrap_or(24),
            password_file: settings.data_folder.join(VNC_PASSWORD_FILE),
            body_folder: settings.body_folder.clone(),
            run_folder: settings.run_folder.join("desktop"),
            profile_folder: read_path("OSCTL_BROWSER_PROFILE", "/root/host/.browser"),
            novnc_folder: read_path("OSCTL_NOVNC", "/opt/osctl/novnc"),
            cdp_port: CDP_PORT,
            is_embedded: settings.embedded,
        })
    }

    /// Whether a desktop is configured.
    pub(crate) fn is_configured(&self) -> bool {
        !self.is_embedded && self.mode != DesktopMode::Off
    }
}

fn parse_mode(name: &str) -> Option<DesktopMode> {
    match name {
        "lazy" => Some(DesktopMode::Lazy),
        "always" => Some(DesktopMode::Always),
        "off" => Some(DesktopMode::Off),
        _ => None,
    }
}

fn parse_resolution(text: &str) -> Option<(u16, u16)> {
    let (width, height) = text.split_once('x')?;
    Some((width.parse().ok()?, height.parse().ok()?))
}

fn parse_depth(text: &str) -> Option<u8> {
    text.parse().ok().filter(|depth| [16, 24].contains(depth))
}

#[cfg(test)]
mod tests {
    use super::{DesktopMode, parse_depth, parse_mode, parse_resolution};

    #[test]
    fn only_valid_values_are_parsed() {
        for (name, mode) in [
            ("lazy", Some(DesktopMode::Lazy)),
            ("always", Some(DesktopMode::Always)),
            ("off", Some(DesktopMode::Off)),
            ("Off", None),
        ] {
            assert_eq!(parse_mode(name), mode, "{name}");
        }
        for (text, resolution) in [
            ("1280x800", Some((1280, 800))),
            ("1280", None),
            ("1280x", None),
            ("1280x800x24", None),
            ("-1x800", None),
        ] {
            assert_eq!(parse_resolution(text), resolution, "{text}");
        }
        for (text, depth) in [("16", Some(16)), ("24", Some(24)), ("32", None), ("", None)] {
            assert_eq!(parse_depth(text), depth, "{text}");
        }
    }
}
