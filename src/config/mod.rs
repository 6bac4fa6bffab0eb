//! The configuration: flags over `OSCTL_*` over the person's file over the project's file over
//! defaults, resolved once, each value with where it came from.
//!
//! A project's own file may only choose among a few keys: the agent can write there, so mounts,
//! ports and privileges come from the person alone.

mod layers;

pub(crate) use layers::{Resolved, Source};

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Config {
    /// Where the container runs.
    pub(crate) engine: EngineChoice,
    /// The folder of the body, beneath the project.
    pub(crate) body: PathBuf,
    /// The image that bodies start from.
    pub(crate) base: String,
    /// Whether compilers are in the image.
    pub(crate) build_tools: bool,
    /// A Linux binary of osctl, where this one is for another system.
    pub(crate) companion: Option<PathBuf>,
    /// The address of the host that ports are published on.
    pub(crate) bind: IpAddr,
    pub(crate) ports: Ports,
    /// Take the next free port where one is taken.
    pub(crate) auto_ports: bool,
    /// Whether requests need the token.
    pub(crate) auth: bool,
    /// Further names by which browsers and clients may call the companion.
    pub(crate) hosts: Vec<String>,
    pub(crate) limits: Limits,
    pub(crate) sessions: Sessions,
    pub(crate) terminals: Terminals,
    /// Further environment variables inside.
    pub(crate) env: BTreeMap<String, String>,
    /// Further mounts: `HOST:CONTAINER` or `HOST:CONTAINER:ro`.
    pub(crate) mounts: Vec<String>,
    /// Hand the engine's socket in: whoever holds it is root on the host.
    pub(crate) docker_socket: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EngineChoice {
    Docker,
    /// Plain processes of this machine, without isolation.
    Embedded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ports {
    pub(crate) kernel: u16,
    pub(crate) mcp: u16,
    pub(crate) vnc: u16,
}

/// How many terminals there may be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Terminals {
    pub(crate) max: u32,
    /// Seconds after which one is ended that nobody is connected to and that shows nothing.
    pub(crate) idle: u64,
}

/// How much sessions may take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sessions {
    /// How many there may be, the default one included.
    pub(crate) max: u32,
    /// Such as `512m`, of one session with its child processes; any when null.
    pub(crate) memory: Option<String>,
    /// Seconds without a request after which one is released; the default one never is.
    pub(crate) idle: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// CPUs; all when null.
    pub(crate) cpus: Option<f64>,
    /// Such as `4g` or `512m`; all when null.
    pub(crate) memory: Option<String>,
    pub(crate) pids: u32,
    /// Size of `/dev/shm`.
    pub(crate) shm: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: EngineChoice::Docker,
            body: "body".into(),
            base: "debian:trixie-slim".into(),
            build_tools: true,
            companion: None,
            bind: Ipv4Addr::LOCALHOST.into(),
            ports: Ports {
                kernel: 8080,
                mcp: 8765,
                vnc: 5900,
            },
            auto_ports: false,
            auth: true,
            hosts: Vec::new(),
            limits: Limits {
                cpus: None,
                memory: None,
                pids: 4096,
                shm: "1g".into(),
            },
            sessions: Sessions {
                max: 16,
                memory: None,
                idle: 24 * 3600,
            },
            terminals: Terminals {
                max: 16,
                idle: 24 * 3600,
            },
            env: BTreeMap::new(),
            mounts: Vec::new(),
            docker_socket: false,
        }
    }
}

/// `512m` as bytes; units are powers of 1024.
pub(crate) fn size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return None,
    };
    let number: f64 = digits.trim().parse().ok()?;
    (number > 0.0 && number.is_finite()).then_some((number * f64::from(unit)) as u64)
}

/// `HOST:CONTAINER[:ro]` as its parts.
pub(crate) fn mount(text: &str) -> Option<(PathBuf, String, bool)> {
    let (text, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text.strip_suffix(":rw").unwrap_or(text), false),
    };
    let (host, container) = text.rsplit_once(':')?;
    let absolute = Path::new(host).is_absolute() && container.starts_with('/');
    absolute.then(|| (host.into(), container.into(), read_only))
}

impl Resolved {
    /// What no type can say.
    fn check(&self) -> Result<()> {
        let config = &self.config;
        let bad = |key: &str, why: String| {
            let place = self
                .values
                .get(key)
                .map(|(_, s)| s.to_string())
                .unwrap_or_default();
            Error::BadValue {
                key: key.into(),
                place,
                why,
            }
        };
        if !config.auth && !config.bind.is_loopback() {
            return Err(bad(
                "auth",
                format!(
                    "without it only loopback addresses can be bound, and `bind` is {}",
                    config.bind
                ),
            )
            .into());
        }
        if config.body.is_absolute()
            || config
                .body
                .components()
                .any(|c| c == std::path::Component::ParentDir)
        {
            return Err(bad("body", "it must lie beneath the project".into()).into());
        }
        for (key, text) in [
            ("limits.memory", config.limits.memory.as_deref()),
            ("limits.shm", Some(config.limits.shm.as_str())),
            ("sessions.memory", config.sessions.memory.as_deref()),
        ] {
            if let Some(text) = text {
                size(text)
                    .ok_or_else(|| bad(key, format!("`{text}` is no size like `512m` or `4g`")))?;
            }
        }
        if config
            .limits
            .cpus
            .is_some_and(|c| c <= 0.0 || !c.is_finite())
        {
            return Err(bad("limits.cpus", "it must be above zero".into()).into());
        }
        if config.limits.pids < 64 {
            return Err(bad("limits.pids", "below 64 nothing useful runs".into()).into());
        }
        if config.sessions.max == 0 {
            let why = "the default session is one".into();
            return Err(bad("sessions.max", why).into());
        }
        for mount in &config.mounts {
            crate::config::mount(mount).ok_or_else(|| {
                bad(
                    "mounts",
                    format!("`{mount}` is not `HOST:CONTAINER[:ro]` with absolute paths"),
                )
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{mount, size};

    #[test]
    fn sizes_and_mounts_are_read_as_docker_does() {
        assert_eq!(size("512m"), Some(512 << 20));
        assert_eq!(size("1.5g"), Some(3 << 29));
        assert_eq!(size("12"), Some(12));
        assert_eq!(size("many"), None);
        assert_eq!(mount("/a:/b:ro"), Some(("/a".into(), "/b".into(), true)));
        assert_eq!(mount("/a:/b"), Some(("/a".into(), "/b".into(), false)));
        assert_eq!(mount("a:/b"), None);
    }
}
