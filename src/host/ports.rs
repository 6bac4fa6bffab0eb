//! The ports of the host that an instance uses, and the addresses at which they are reached.

use super::instance::InstanceRecord;
use crate::config::{ConfigSource, PortsConfig, ResolvedConfig};
use crate::engine::Engine;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// The machine on which the ports are published.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PortMachine {
    /// This machine, at this address.
    Local(IpAddr),
    /// The engine's machine, at this address; only the ports of its containers can be checked.
    Remote(IpAddr),
}

impl PortMachine {
    /// The machine on which this engine publishes ports bound to `bind`.
    pub(crate) fn from_engine(engine: &Engine, bind: IpAddr) -> Self {
        match engine.remote_host() {
            None => Self::Local(bind),
            Some(_) => Self::Remote(bind),
        }
    }

    fn bind_address(self) -> IpAddr {
        match self {
            Self::Local(bind) | Self::Remote(bind) => bind,
        }
    }
}

/// The configured ports; else the recorded ports; else the default ports.
pub(crate) fn wanted_ports(
    resolved: &ResolvedConfig,
    recorded: Option<&InstanceRecord>,
) -> PortsConfig {
    let configured = resolved.config.ports;
    let Some(InstanceRecord { ports, .. }) = recorded else {
        return configured;
    };
    let choose = |key: &str, configured: u16, recorded: u16| {
        let value = resolved.values.get(key);
        match value.is_some_and(|(_, source)| *source != ConfigSource::Default) {
            true => configured,
            false => recorded,
        }
    };
    PortsConfig {
        kernel: choose("ports.kernel", configured.kernel, ports.kernel),
        mcp: choose("ports.mcp", configured.mcp, ports.mcp),
        vnc: choose("ports.vnc", configured.vnc, ports.vnc),
    }
}

/// Whether the user has chosen the ports of this instance, or whether others may be taken.
pub(crate) fn are_chosen_for_instance(resolved: &ResolvedConfig) -> bool {
    let has_source = |key: &str, is_own: fn(&ConfigSource) -> bool| {
        let value = resolved.values.get(key);
        value.is_some_and(|(_, source)| is_own(source))
    };
    let is_own = |source: &ConfigSource| {
        matches!(
            source,
            ConfigSource::Instance { .. } | ConfigSource::Variable(_)
        )
    };
    has_source("auto_ports", |source| *source != ConfigSource::Default)
        || ["ports.kernel", "ports.mcp", "ports.vnc"]
            .iter()
            .any(|key| has_source(key, is_own))
}

/// The wanted ports if they are free or `held` by the instance itself; otherwise the next free ones, or an error that
/// names the owner. `auto` lists ports known to be in use; if it is `Some`, other ports may be chosen.
///
/// # Errors
/// [`Error::PortTaken`] without `auto`, or when the machine allows no port to be bound.
pub(crate) async fn choose_ports(
    wanted: PortsConfig,
    held: Option<PortsConfig>,
    machine: PortMachine,
    auto: Option<&[u16]>,
    engine: &Engine,
) -> Result<PortsConfig> {
    let bind = machine.bind_address();
    let held = held.map_or_else(Vec::new, |p| vec![p.kernel, p.mcp, p.vnc]);
    let is_free = async |port: u16| match (held.contains(&port), machine) {
        (true, _) => Ok(true),
        (false, PortMachine::Local(bind)) => is_free(bind, port),
        // A port in use by another program is reported when the container is created.
        (false, PortMachine::Remote(_)) => Ok(publishing_container(port, engine).await.is_none()),
    };
    let taken_by = |port: u16, owner: String| Error::PortTaken {
        bind: bind.to_string(),
        port,
        owner,
    };
    let mut taken = auto.unwrap_or_default().to_vec();
    let auto = auto.is_some();
    let mut chosen = [wanted.kernel, wanted.mcp, wanted.vnc];
    for port in &mut chosen {
        let first = *port;
        loop {
            let fits = match is_free(*port).await {
                Ok(free) => free && !taken.contains(port),
                Err(error) if auto && error.kind() == ErrorKind::PermissionDenied => false,
                Err(error) => return Err(bind_error(bind, *port, &error).into()),
            };
            match (fits, auto, port.checked_add(1)) {
                (true, _, _) => break,
                (false, true, Some(next)) => *port = next,
                (false, true, None) => return Err(taken_by(first, String::new()).into()),
                (false, false, _) if taken.contains(port) => {
                    let owner = " by another port of this instance".into();
                    return Err(taken_by(first, owner).into());
                }
                (false, false, _) => {
                    let owner = describe_owner(*port, machine, engine).await;
                    return Err(taken_by(first, owner).into());
                }
            }
        }
        taken.push(*port);
    }
    let [kernel, mcp, vnc] = chosen;
    Ok(PortsConfig { kernel, mcp, vnc })
}

/// Whether no program uses the port.
///
/// # Errors
/// When the port cannot be bound for another reason.
fn is_free(bind: IpAddr, port: u16) -> io::Result<bool> {
    match TcpListener::bind(SocketAddr::new(bind, port)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(false),
        Err(error) => Err(error),
    }
}

/// The error for a free port that cannot be bound.
fn bind_error(bind: IpAddr, port: u16, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::AddrNotAvailable => Error::precondition(
            format!("`{bind}` is not an address of this machine"),
            "set `bind` to an address of this machine, such as `127.0.0.1`, with `osctl config edit`",
        ),
        ErrorKind::PermissionDenied => Error::precondition(
            format!("permission denied for port {port} on {bind}: {error}"),
            "set ports above 1023 with `osctl config edit`, or run `osctl up --auto-ports`",
        ),
        _ => Error::precondition(
            format!("can't use port {port} on {bind}: {error}"),
            "change `bind` or `ports` with `osctl config edit`",
        ),
    }
}

/// ` by …`, or an empty string if the owner is unknown.
async fn describe_owner(port: u16, machine: PortMachine, engine: &Engine) -> String {
    let owner = match (publishing_container(port, engine).await, machine) {
        (Some(name), _) => Some(format!("the container `{name}`")),
        (None, PortMachine::Local(_)) => listening_process(port),
        (None, PortMachine::Remote(_)) => None,
    };
    owner.map(|name| format!(" by {name}")).unwrap_or_default()
}

/// The container that publishes the port, if the engine knows one.
async fn publishing_container(port: u16, engine: &Engine) -> Option<String> {
    let publisher = engine.docker()?.find_port_publisher(port).await;
    publisher.ok().flatten()
}

/// The process that listens on the port, if this user may see it.
#[cfg(target_os = "linux")]
pub(super) fn listening_process(port: u16) -> Option<String> {
    let wanted = format!(":{port:04X}");
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|t| std::fs::read_to_string(t).unwrap_or_default());
    let inode = tables
        .iter()
        .flat_map(|t| t.lines().skip(1))
        .find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = fields.get(1)?.ends_with(&wanted) && *fields.get(3)? == "0A";
            listens.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]")))?
        })?;
    let is_process = |name: &std::ffi::OsStr| name.to_string_lossy().parse::<u32>().is_ok();
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    for entry in processes.filter(|e| is_process(&e.file_name())) {
        let Ok(fds) = std::fs::read_dir(entry.path().join("fd")) else {
            continue;
        };
        if fds
            .flatten()
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|l| l.as_os_str() == inode.as_str()))
        {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some(format!(
                "`{}` (process {})",
                name.trim(),
                entry.file_name().to_string_lossy()
            ));
        }
    }
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn listening_process(_port: u16) -> Option<String> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{bind_error, is_free, listening_process};
    use std::io::{Error, ErrorKind};
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn only_a_port_in_use_is_taken() {
        let here = Ipv4Addr::LOCALHOST.into();
        let listener = TcpListener::bind((here, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(here, port).unwrap());
        // An address of a network reserved for documentation.
        let far = Ipv4Addr::new(192, 0, 2, 1).into();
        let error = is_free(far, port).unwrap_err();
        let message = bind_error(far, port, &error).to_string();
        assert_eq!(message, "`192.0.2.1` is not an address of this machine");
        let denied = bind_error(here, 80, &Error::from(ErrorKind::PermissionDenied));
        assert!(denied.hint().unwrap().contains("1023"), "{denied}");
    }

    #[test]
    fn the_owner_of_a_port_is_found_by_name() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let owner = listening_process(listener.local_addr().unwrap().port()).unwrap();
        assert!(
            owner.contains(&format!("process {}", std::process::id())),
            "{owner}"
        );
    }
}

/// The published addresses of an instance's ports, by purpose.
pub(crate) fn endpoints(record: &InstanceRecord, bind: IpAddr) -> BTreeMap<&'static str, String> {
    let at = |port| SocketAddr::new(connect_address(bind), port);
    let ports = record.ports;
    BTreeMap::from([
        ("kernel", format!("http://{}", at(ports.kernel))),
        ("mcp", format!("http://{}", at(ports.mcp))),
        ("vnc", at(ports.vnc).to_string()),
    ])
}

/// An address to which a client connects if the port is bound to `bind`.
pub(super) fn connect_address(bind: IpAddr) -> IpAddr {
    match bind {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        chosen => chosen,
    }
}
