//! What the engine tells the companion, by environment variables.

use super::kernel::Limits;
use super::pty;
use crate::error::{Error, Result};
use anyhow::Context;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

/// The private socket's name in the run folder.
pub(super) const SOCKET: &str = "companion.sock";

/// Seconds in which running code may finish; the engine kills ten seconds later.
const GRACE: u64 = 10;

/// Unless the configuration says otherwise.
const SESSIONS: usize = 16;
const IDLE: Duration = Duration::from_secs(24 * 3600);
const TERMINALS: usize = 16;

/// What concerns the companion alone: no kernel, command or terminal sees it.
pub(super) const SECRETS: [&str; 4] = [
    "OSCTL_TOKEN_SHA256",
    "OSCTL_AUTH",
    "OSCTL_HOSTS",
    "OSCTL_LISTEN",
];

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    /// Sockets; readable by this user alone.
    pub(crate) run: PathBuf,
    /// State that survives the container.
    pub(crate) data: PathBuf,
    /// The body's folder, with `kernel/` in it.
    pub(crate) body: PathBuf,
    /// The interpreter of the kernel's environment.
    pub(crate) python: PathBuf,
    /// SHA-256 of the token in hexadecimal; `None` when authentication is off.
    pub(crate) token: Option<String>,
    /// Names besides loopback's by which the companion may be called.
    pub(crate) hosts: Vec<String>,
    /// Whether this is a plain process, without isolation.
    pub(crate) embedded: bool,
    pub(crate) grace: Duration,
    /// How much sessions may take.
    pub(crate) sessions: Limits,
    /// How many terminals, and for how long.
    pub(crate) terminals: pty::Limits,
}

impl Settings {
    /// # Errors
    /// Outside of a container that an engine of ours started.
    pub(crate) fn from_environment() -> Result<Self> {
        let embedded = env::var_os("OSCTL_EMBEDDED").is_some();
        let token = text("OSCTL_TOKEN_SHA256");
        let off = text("OSCTL_AUTH").as_deref() == Some("off");
        if !(embedded || is_container()) || (token.is_none() && !off) {
            return Err(Error::usage(
                "the companion runs inside the container",
                "`osctl up` starts it there",
            )
            .into());
        }
        let path =
            |name: &str, default: &str| text(name).map_or_else(|| default.into(), PathBuf::from);
        // A wrong address must never become an open one.
        let listen = match text("OSCTL_LISTEN") {
            Some(address) => address
                .parse()
                .with_context(|| format!("OSCTL_LISTEN is `{address}`"))?,
            None => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)),
        };
        Ok(Self {
            listen,
            run: Self::run_folder(),
            data: path("OSCTL_DATA", "/data"),
            body: path("OSCTL_BODY", "/opt/osctl/body"),
            python: path("OSCTL_PYTHON", "/opt/osctl/kernel-env/bin/python"),
            token,
            hosts: text("OSCTL_HOSTS")
                .unwrap_or_default()
                .split(',')
                .map(str::to_owned)
                .filter(|h| !h.is_empty())
                .collect(),
            embedded,
            grace: Duration::from_secs(GRACE),
            sessions: Limits {
                count: number("OSCTL_SESSIONS_MAX")?.map_or(SESSIONS, |n| n as usize),
                memory: number("OSCTL_SESSIONS_MEMORY")?,
                idle: number("OSCTL_SESSIONS_IDLE")?.map_or(IDLE, Duration::from_secs),
            },
            terminals: pty::Limits {
                count: number("OSCTL_TERMINALS_MAX")?.map_or(TERMINALS, |n| n as usize),
                idle: number("OSCTL_TERMINALS_IDLE")?.map_or(IDLE, Duration::from_secs),
            },
        })
    }

    pub(crate) fn run_folder() -> PathBuf {
        text("OSCTL_RUN").map_or_else(|| "/run/osctl".into(), PathBuf::from)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.run.join(SOCKET)
    }
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|v| !v.is_empty())
}

fn number(name: &str) -> Result<Option<u64>> {
    let parsed = text(name).map(|value| {
        let number = value.parse();
        number.with_context(|| format!("{name} is `{value}`"))
    });
    parsed.transpose()
}

/// Engines mark their containers.
fn is_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"]
        .iter()
        .any(|mark| fs::exists(mark).unwrap_or(false))
}
