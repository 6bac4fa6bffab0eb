//! Settings of the companion, which the engine passes as environment variables.

use super::cryo;
use super::desktop;
use super::kernel::SessionLimits;
use super::pty;
use super::runs::RetainedRuns;
use crate::error::{Error, Result};
use crate::protocol::desktop::VNC_PASSWORD_FILE;
use crate::protocol::hex::hex;
use anyhow::Context;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

/// Name of the private socket in the run folder.
pub(super) const COMPANION_SOCKET_FILE: &str = "companion.sock";

/// Seconds that running code may take to finish; the engine kills the container ten seconds later.
const COMPANION_GRACE_SECONDS: u64 = 10;

/// Defaults of the configuration.
const DEFAULT_MAX_SESSIONS: usize = 16;
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(30);
const DEFAULT_MAX_TERMINALS: usize = 16;
const DEFAULT_MAX_CRYO_GENERATIONS: usize = 5;
const DEFAULT_MAX_CRYO_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
const DEFAULT_MAX_CRYO_BYTES: u64 = 20 << 30;
const DEFAULT_DESKTOP_IDLE_TIMEOUT: Duration = Duration::from_secs(600);
const DEFAULT_DESKTOP_RESOLUTION: (u16, u16) = (1280, 800);

/// Variables for the companion only: kernels, commands and terminals don't get them.
pub(super) const COMPANION_ONLY_VARIABLES: [&str; 5] = [
    "OSCTL_TOKEN_SHA256",
    "OSCTL_AUTH",
    "OSCTL_HOSTS",
    "OSCTL_LISTEN",
    "OSCTL_MCP_LISTEN",
];

#[derive(Debug, Clone)]
pub(crate) struct CompanionSettings {
    pub(crate) listen: SocketAddr,
    /// Address of the hub of MCP servers.
    pub(crate) mcp: SocketAddr,
    /// Folder of sockets; only this user can read it.
    pub(crate) run_folder: PathBuf,
    /// State that survives the container.
    pub(crate) data_folder: PathBuf,
    /// Folder to which runs write output that exceeds memory limits.
    pub(crate) retained_runs: RetainedRuns,
    /// Root folder of the files that are resources of the built-in MCP server.
    pub(crate) root: PathBuf,
    /// The body's folder, which contains `kernel/`.
    pub(crate) body_folder: PathBuf,
    /// The Python interpreter of the kernel's environment.
    pub(crate) python: PathBuf,
    /// SHA-256 of the token in hexadecimal; `None` when authentication is off.
    pub(crate) required_token_digest: Option<String>,
    /// The same digest, also set when authentication is off: with it the companion proves its identity.
    pub(crate) token_digest: Option<String>,
    /// Host names besides loopback names that requests may use.
    pub(crate) hosts: Vec<String>,
    /// Whether the companion is a plain process without isolation.
    pub(crate) embedded: bool,
    /// Whether the container has the permissions to checkpoint processes.
    pub(crate) criu: bool,
    pub(crate) shutdown_grace: Duration,
    /// Limits of sessions.
    pub(crate) sessions: SessionLimits,
    /// Number and lifetime of terminals.
    pub(crate) terminals: pty::PtyLimits,
    /// What is stored, when, and for how long.
    pub(crate) cryo: cryo::CryoSettings,
    pub(crate) desktop: desktop::DesktopSettings,
}

impl CompanionSettings {
    /// # Errors
    /// Outside of a container that osctl's engine started.
    pub(crate) fn from_environment() -> Result<Self> {
        let embedded = env::var_os("OSCTL_EMBEDDED").is_some();
        let token_digest = read_variable("OSCTL_TOKEN_SHA256");
        let off = read_variable("OSCTL_AUTH").as_deref() == Some("off");
        let required_token_digest = token_digest.clone().filter(|_| !off);
        if !(embedded || is_container()) || (required_token_digest.is_none() && !off) {
            return Err(Error::usage(
                "`osctl companion` runs only inside the container",
                "run `osctl up` to start the container with the companion",
            )
            .into());
        }
        let path = |name: &str, default: &str| {
            read_variable(name).map_or_else(|| default.into(), PathBuf::from)
        };
        // An invalid address must not fall back to an open one.
        let address = |name: &str, port| match read_variable(name) {
            Some(address) => address
                .parse()
                .with_context(|| format!("`{address}` is not a valid value of {name}")),
            None => Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
        };
        let data_folder = path("OSCTL_DATA", "/data");
        let (run_folder, body_folder) = (Self::run_folder(), path("OSCTL_BODY", "/opt/osctl/body"));
        let desktop = desktop::DesktopSettings {
            mode: read_desktop_mode()?,
            // An idle time of 0 would stop the desktop immediately.
            idle_timeout: read_number_variable("OSCTL_DESKTOP_IDLE")?
                .map_or(DEFAULT_DESKTOP_IDLE_TIMEOUT, |seconds| {
                    Duration::from_secs(seconds.max(1))
                }),
            resolution: read_desktop_resolution()?,
            depth: match read_number_variable("OSCTL_DESKTOP_DEPTH")? {
                None | Some(24) => 24,
                Some(16) => 16,
                Some(other) => {
                    anyhow::bail!("`{other}` is not a valid value of OSCTL_DESKTOP_DEPTH")
                }
            },
            password_file: data_folder.join(VNC_PASSWORD_FILE),
            body_folder: body_folder.clone(),
            run_folder: run_folder.join("desktop"),
            profile_folder: path("OSCTL_BROWSER_PROFILE", "/root/host/.browser"),
            novnc_folder: path("OSCTL_NOVNC", "/opt/osctl/novnc"),
            is_embedded: embedded,
        };
        Ok(Self {
            listen: address("OSCTL_LISTEN", 8080)?,
            mcp: address("OSCTL_MCP_LISTEN", 8765)?,
            run_folder,
            cryo: cryo::CryoSettings {
                folder: data_folder.join("cryo"),
                limits: cryo::CryoLimits {
                    max_generations: read_number_variable("OSCTL_CRYO_KEEP")?
                        .map_or(DEFAULT_MAX_CRYO_GENERATIONS, |n| n as usize),
                    max_age: read_number_variable("OSCTL_CRYO_AGE")?
                        .map_or(DEFAULT_MAX_CRYO_AGE, Duration::from_secs),
                    max_total_bytes: read_number_variable("OSCTL_CRYO_BUDGET")?
                        .unwrap_or(DEFAULT_MAX_CRYO_BYTES),
                },
                snapshot_interval: read_number_variable("OSCTL_CRYO_EVERY")?
                    .map(Duration::from_secs),
                snapshot_on_stop: read_variable("OSCTL_CRYO_AT_STOP").as_deref() != Some("off"),
                compress: read_variable("OSCTL_CRYO_COMPRESSION").as_deref() == Some("zstd"),
            },
            retained_runs: RetainedRuns::new(data_folder.join("runs"), generate_generation_id()?),
            data_folder,
            root: path("FILESYSTEM_ROOT", "/root"),
            body_folder,
            desktop,
            python: path("OSCTL_PYTHON", "/opt/osctl/kernel-env/bin/python"),
            required_token_digest,
            token_digest,
            hosts: read_variable("OSCTL_HOSTS")
                .unwrap_or_default()
                .split(',')
                .map(str::to_owned)
                .filter(|h| !h.is_empty())
                .collect(),
            embedded,
            criu: read_variable("OSCTL_CRIU").is_some(),
            shutdown_grace: Duration::from_secs(COMPANION_GRACE_SECONDS),
            sessions: SessionLimits {
                max_sessions: read_number_variable("OSCTL_SESSIONS_MAX")?
                    .map_or(DEFAULT_MAX_SESSIONS, |n| n as usize),
                max_memory_bytes: read_number_variable("OSCTL_SESSIONS_MEMORY")?,
                idle_timeout: read_number_variable("OSCTL_SESSIONS_IDLE")?
                    .map_or(DEFAULT_IDLE_TIMEOUT, Duration::from_secs),
                probe_interval: read_number_variable("OSCTL_SESSIONS_CHECK")?
                    .map_or(DEFAULT_SESSION_CHECK_INTERVAL, Duration::from_secs),
            },
            terminals: pty::PtyLimits {
                max_terminals: read_number_variable("OSCTL_TERMINALS_MAX")?
                    .map_or(DEFAULT_MAX_TERMINALS, |n| n as usize),
                idle_timeout: read_number_variable("OSCTL_TERMINALS_IDLE")?
                    .map_or(DEFAULT_IDLE_TIMEOUT, Duration::from_secs),
            },
        })
    }

    pub(crate) fn run_folder() -> PathBuf {
        read_variable("OSCTL_RUN").map_or_else(|| "/run/osctl".into(), PathBuf::from)
    }

    pub(crate) fn socket_path(&self) -> PathBuf {
        self.run_folder.join(COMPANION_SOCKET_FILE)
    }
}

/// Returns an identifier that no other companion generation has.
fn generate_generation_id() -> Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).context("generating an ID")?;
    Ok(hex(random))
}

fn read_desktop_mode() -> Result<desktop::DesktopMode> {
    match read_variable("OSCTL_DESKTOP_RUN").as_deref() {
        None | Some("lazy") => Ok(desktop::DesktopMode::Lazy),
        Some("always") => Ok(desktop::DesktopMode::Always),
        Some("off") => Ok(desktop::DesktopMode::Off),
        Some(other) => anyhow::bail!("`{other}` is not a valid value of OSCTL_DESKTOP_RUN"),
    }
}

fn read_desktop_resolution() -> Result<(u16, u16)> {
    let Some(value) = read_variable("OSCTL_DESKTOP_RESOLUTION") else {
        return Ok(DEFAULT_DESKTOP_RESOLUTION);
    };
    let sides = value.split_once('x');
    let sides = sides.and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    sides.with_context(|| format!("`{value}` is not a valid value of OSCTL_DESKTOP_RESOLUTION"))
}

fn read_variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|v| !v.is_empty())
}

fn read_number_variable(name: &str) -> Result<Option<u64>> {
    let parsed = read_variable(name).map(|value| {
        let number = value.parse();
        number.with_context(|| format!("`{value}` is not a valid value of {name}"))
    });
    parsed.transpose()
}

/// Engines create a marker file in their containers.
fn is_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"]
        .iter()
        .any(|marker| fs::exists(marker).unwrap_or(false))
}
