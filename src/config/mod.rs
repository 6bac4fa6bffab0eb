//! The configuration: flags override `OSCTL_*` variables, which override the user's file, which overrides the project's
//! file, which overrides the defaults. In the user's file, the section of the instance overrides the general values. The
//! configuration is resolved once, and each value keeps its source.
//!
//! The project's own file may set only a few keys, because the agent can write it. Mounts, ports and privileges come
//! from the user only.

mod layers;
mod project;
mod published;
mod servers;
mod variables;

pub(crate) use layers::{ConfigSource, ResolvedConfig};

use crate::error::{Error, Result};
use crate::protocol::mcp::McpServerEntry;
use crate::protocol::packages::PackageLists;
use published::PublishedImage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Config {
    /// The engine that runs the container.
    pub(crate) engine: EngineChoice,
    /// The folder of the body, beneath the project.
    pub(crate) body: PathBuf,
    /// The base image of bodies.
    pub(crate) base: String,
    pub(crate) image: PublishedImage,
    /// Whether the image contains compilers.
    pub(crate) build_tools: bool,
    /// A Linux binary of osctl, for hosts with another system.
    pub(crate) companion: Option<PathBuf>,
    /// The address of the host that ports are published on.
    pub(crate) bind: IpAddr,
    pub(crate) ports: PortsConfig,
    /// Use the next free port if a port is taken.
    pub(crate) auto_ports: bool,
    /// Whether requests need the token.
    pub(crate) auth: bool,
    /// Additional host names by which browsers and clients may call the companion.
    pub(crate) hosts: Vec<String>,
    pub(crate) limits: LimitsConfig,
    pub(crate) sessions: SessionsConfig,
    pub(crate) terminals: TerminalsConfig,
    pub(crate) cryo: CryoConfig,
    pub(crate) evolve: EvolveConfig,
    /// Packages of the project.
    pub(crate) packages: PackageLists,
    /// Additional MCP servers, as in `mcpServers`.
    pub(crate) servers: BTreeMap<String, Value>,
    pub(crate) mcp: McpStdioConfig,
    pub(crate) desktop: DesktopConfig,
    /// Additional environment variables of the container.
    pub(crate) env: BTreeMap<String, String>,
    /// Names of variables that are passed in from the environment of `up`.
    pub(crate) pass_env: Vec<String>,
    /// Additional mounts: `HOST:CONTAINER` or `HOST:CONTAINER:ro`.
    pub(crate) mounts: Vec<String>,
    /// Mount the engine's socket: a process that can use it is equivalent to root on the host.
    pub(crate) docker_socket: bool,
    /// The socket path of an engine on another machine, on that machine; used by the keeper.
    pub(crate) remote_socket: PathBuf,
    /// Give the container the privileges that checkpointing processes needs, with which code in the container can become
    /// root on the host.
    pub(crate) criu: bool,
    /// The format of the logs of container and keeper.
    pub(crate) log_format: ContainerLogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ContainerLogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EngineChoice {
    Docker,
    /// Plain processes of this machine, without isolation.
    Embedded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PortsConfig {
    pub(crate) kernel: u16,
    pub(crate) mcp: u16,
    pub(crate) vnc: u16,
}

impl PortsConfig {
    pub(crate) fn all(self) -> [u16; 3] {
        [self.kernel, self.mcp, self.vnc]
    }
}

/// Limits of terminals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TerminalsConfig {
    pub(crate) max: u32,
    /// Seconds after which a terminal without connections and output is ended.
    pub(crate) idle: u64,
}

/// When the sessions' variables are stored automatically, and how long generations are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CryoConfig {
    /// The verbs before which variables are stored: `down`, `restart`, `evolve`.
    pub(crate) before: Vec<String>,
    /// Seconds between two periodic stores; null disables them.
    pub(crate) every: Option<u64>,
    /// Generations kept of each name.
    pub(crate) keep: u32,
    /// Seconds after which a generation is removed; the newest of each name is kept.
    pub(crate) age: u64,
    /// Maximum size of all generations, such as `20g`; the newest of each name is always kept.
    pub(crate) budget: String,
    /// `none` or `zstd`.
    pub(crate) compression: Compression,
}

/// Time limits of the keeper, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct EvolveConfig {
    /// Time to build an image.
    pub(crate) build: u64,
    /// Time for a new container to become healthy.
    pub(crate) start: u64,
    /// Grace time for running code to end.
    pub(crate) grace: u64,
    /// Watch period after success, in which a failing container is rolled back.
    pub(crate) watch_period: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Compression {
    None,
    Zstd,
}

/// Options of `osctl mcp stdio`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct McpStdioConfig {
    /// Whether it starts an instance that has been up before and is not running.
    pub(crate) start: bool,
}

/// The container's screen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DesktopConfig {
    pub(crate) run: DesktopRun,
    /// Seconds after which a lazy desktop without viewers and open windows is stopped.
    pub(crate) idle: u64,
    /// The resolution, such as `1280x800`.
    pub(crate) resolution: String,
    /// Bits per pixel: 24 or 16.
    pub(crate) depth: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DesktopRun {
    /// Started when a viewer connects or a program needs it.
    Lazy,
    Always,
    Off,
}

impl DesktopRun {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lazy => "lazy",
            Self::Always => "always",
            Self::Off => "off",
        }
    }
}

/// Limits of sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionsConfig {
    /// Maximum number of sessions, including the default one.
    pub(crate) max: u32,
    /// Maximum memory of a session with its child processes, such as `512m`; null means no limit.
    pub(crate) memory: Option<String>,
    /// Seconds without a request after which a session is released; the default session never is.
    pub(crate) idle: u64,
    /// Seconds without a request after which a kernel's health is checked. A kernel that has not answered after twice
    /// this time is replaced.
    pub(crate) check: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LimitsConfig {
    /// CPUs; null means no limit.
    pub(crate) cpus: Option<f64>,
    /// Memory, such as `4g` or `512m`; null means no limit.
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
            image: PublishedImage::default(),
            build_tools: true,
            companion: None,
            bind: Ipv4Addr::LOCALHOST.into(),
            ports: PortsConfig {
                kernel: 8080,
                mcp: 8765,
                vnc: 5900,
            },
            auto_ports: false,
            auth: true,
            hosts: Vec::new(),
            limits: LimitsConfig {
                cpus: None,
                memory: None,
                pids: 4096,
                shm: "1g".into(),
            },
            sessions: SessionsConfig {
                max: 16,
                memory: None,
                idle: 24 * 3600,
                check: 30,
            },
            terminals: TerminalsConfig {
                max: 16,
                idle: 24 * 3600,
            },
            cryo: CryoConfig {
                before: ["down", "restart", "evolve"].map(str::to_owned).to_vec(),
                every: None,
                keep: 5,
                age: 30 * 24 * 3600,
                budget: "20g".into(),
                compression: Compression::None,
            },
            evolve: EvolveConfig {
                build: 1800,
                start: 60,
                grace: 20,
                watch_period: 60,
            },
            packages: PackageLists::default(),
            servers: BTreeMap::new(),
            mcp: McpStdioConfig { start: false },
            desktop: DesktopConfig {
                run: DesktopRun::Lazy,
                idle: 600,
                resolution: "1280x800".into(),
                depth: 24,
            },
            env: BTreeMap::new(),
            pass_env: Vec::new(),
            mounts: Vec::new(),
            docker_socket: false,
            remote_socket: "/var/run/docker.sock".into(),
            criu: false,
            log_format: ContainerLogFormat::Text,
        }
    }
}

/// Parses a size such as `512m` to bytes; units are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
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

/// Parses `1280x800` as width and height; `None` if a screen can't have that size.
pub(crate) fn parse_resolution(text: &str) -> Option<(u16, u16)> {
    let (width, height) = text.split_once('x')?;
    let side = |text: &str| text.parse().ok().filter(|side| (200..=7680).contains(side));
    Some((side(width)?, side(height)?))
}

/// What [`parse_resolution`] accepts.
pub(crate) const RESOLUTION_RULE: &str = "width and height, each from 200 to 7680 pixels";

/// A valid value of a key with a form of its own.
fn example_value(key: &str) -> Option<&'static str> {
    Some(match key {
        "limits.memory" | "limits.shm" | "sessions.memory" => "4g",
        "cryo.budget" => "20g",
        "limits.cpus" => "2",
        "desktop.resolution" => "1280x800",
        _ => return None,
    })
}

/// Splits `HOST:CONTAINER[:ro]` into its parts.
pub(crate) fn parse_mount(text: &str) -> Option<(PathBuf, String, bool)> {
    let (text, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text.strip_suffix(":rw").unwrap_or(text), false),
    };
    let (host, container) = text.rsplit_once(':')?;
    let absolute = Path::new(host).is_absolute() && container.starts_with('/');
    absolute.then(|| (host.into(), container.into(), read_only))
}

/// Whether a variable of that name can be passed in; osctl's own variables can't.
pub(crate) fn is_passable_variable(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_letter)
        && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
        && !name.starts_with("OSCTL_")
}

/// Whether an instance can have the name: containers, images and volumes contain it.
pub(crate) fn is_instance_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(is_letter)
        && name.len() <= 40
        && name.chars().all(|c| is_letter(c) || c == '-' || c == '_')
}

impl ResolvedConfig {
    /// Checks values beyond their types.
    fn check_values(&self) -> Result<()> {
        let config = &self.config;
        let place = |key: &str| {
            let value = self.values.get(key);
            value
                .map(|(_, source)| format!("{source:#}"))
                .unwrap_or_default()
        };
        let bad = |key: &str, why: String| Error::BadValue {
            key: key.into(),
            place: place(key),
            why,
            example: example_value(key),
        };
        if !config.auth && !config.bind.is_loopback() {
            return Err(bad(
                "auth",
                format!(
                    "`auth: false` requires a loopback address, and `bind` is {}",
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
            return Err(bad("body", "the folder must be in the project".into()).into());
        }
        if let Some(from) = &config.image.from
            && !published::is_reference_by_digest(from)
        {
            let why = format!(
                "`{from}` is not an image with a digest: `NAME@sha256:` and 64 hexadecimal digits"
            );
            return Err(bad("image.from", why).into());
        }
        for (key, text) in [
            ("limits.memory", config.limits.memory.as_deref()),
            ("limits.shm", Some(config.limits.shm.as_str())),
            ("sessions.memory", config.sessions.memory.as_deref()),
            ("cryo.budget", Some(config.cryo.budget.as_str())),
        ] {
            if let Some(text) = text {
                parse_size(text).ok_or_else(|| {
                    bad(
                        key,
                        format!("`{text}` is not a size such as `512m` or `4g`"),
                    )
                })?;
            }
        }
        if config
            .limits
            .cpus
            .is_some_and(|c| c <= 0.0 || !c.is_finite())
        {
            return Err(bad("limits.cpus", "the value must be above zero".into()).into());
        }
        if config.limits.pids < 64 {
            return Err(bad("limits.pids", "the minimum is 64".into()).into());
        }
        if config.sessions.max == 0 {
            let why = "the minimum is 1, the default session".into();
            return Err(bad("sessions.max", why).into());
        }
        if config.sessions.check == 0 {
            let why = "the value must be above zero".into();
            return Err(bad("sessions.check", why).into());
        }
        if config.cryo.keep == 0 || config.cryo.every == Some(0) {
            let key = if config.cryo.keep == 0 {
                "cryo.keep"
            } else {
                "cryo.every"
            };
            return Err(bad(key, "the value must be above zero".into()).into());
        }
        let ports = config.ports;
        for (key, port) in [
            ("ports.kernel", ports.kernel),
            ("ports.mcp", ports.mcp),
            ("ports.vnc", ports.vnc),
        ] {
            if port == 0 {
                let why = "the value must be above zero; `auto_ports` finds a free port".into();
                return Err(bad(key, why).into());
            }
        }
        const CRYO_BEFORE_VERBS: [&str; 3] = ["down", "restart", "evolve"];
        for word in &config.cryo.before {
            if !CRYO_BEFORE_VERBS.contains(&word.as_str()) {
                let why = format!("`{word}` is not one of {}", CRYO_BEFORE_VERBS.join(", "));
                return Err(bad("cryo.before", why).into());
            }
        }
        for (name, server) in &config.servers {
            if let Some((key, nearest)) = McpServerEntry::find_misspelt_key(server) {
                let key = format!("servers.{name}.{key}");
                let (place, nearest) = (place("servers"), Some(nearest.to_owned()));
                return Err(Error::UnknownKey {
                    key,
                    place,
                    nearest,
                }
                .into());
            }
            servers::check_server(name, server).map_err(|why| bad("servers", why))?;
        }
        let desktop = &config.desktop;
        if parse_resolution(&desktop.resolution).is_none() {
            let text = &desktop.resolution;
            let why = format!("`{text}` is not a resolution; give {RESOLUTION_RULE}");
            return Err(bad("desktop.resolution", why).into());
        }
        if ![16, 24].contains(&desktop.depth) {
            return Err(bad("desktop.depth", "the depth must be 24 or 16".into()).into());
        }
        if desktop.idle == 0 {
            let why =
                "the value must be above zero; `run: always` keeps the desktop running".into();
            return Err(bad("desktop.idle", why).into());
        }
        if let Some(name) = config
            .pass_env
            .iter()
            .find(|name| !is_passable_variable(name))
        {
            let why = format!("`{name}` is not a variable name, or is reserved for osctl");
            return Err(bad("pass_env", why).into());
        }
        for mount in &config.mounts {
            crate::config::parse_mount(mount).ok_or_else(|| {
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
mod tests;
