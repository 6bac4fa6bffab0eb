//! From configuration and instance to the container's specification.

use super::instance::{Instance, LABEL, Record, fingerprint};
use super::trust;
use crate::config::{self, Config};
use crate::error::Result;
use crate::protocol::hex::hex;
use crate::protocol::spec::{Environment, Limits, Mount, Port, Spec, Workload};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::env;
use std::net::IpAddr;
use std::path::Path;

/// Label of a container: the digest of the specification that it was created from.
pub(crate) const DIGEST_LABEL: &str = "osctl.specification";

/// Label of a container: the digest of the keys and proxies that it was handed.
pub(crate) const INHERITED_LABEL: &str = "osctl.inherited";

/// What a package manager and ordinary services need as root; nothing that reaches the host.
const CAPABILITIES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
];

/// Handed in when they are set on the host.
const KEYS: &[&str] = &["OPENAI_API_KEY", "ANTHROPIC_API_KEY"];

/// Seconds in which running code may finish when the container is stopped.
const STOP_TIMEOUT: u32 = 20;

/// The specification of the instance's container, running `image_id`.
///
/// # Errors
/// When it can't be digested.
pub(crate) fn specification(
    config: &Config,
    instance: &Instance,
    record: &Record,
    token: &str,
    image_id: &str,
    engine_socket: Option<&Path>,
) -> Result<Spec> {
    let bind = config.bind;
    let ports = [
        (record.ports.kernel, 8080),
        (record.ports.mcp, 8765),
        (record.ports.vnc, 5900),
    ];
    let mut mounts = vec![
        bound(&instance.files(), "/root/host"),
        bound(&instance.data(), "/data"),
        bound(&record.project, "/repo"),
    ];
    for text in &config.mounts {
        mounts.extend(
            config::mount(text).map(|(host, container, read_only)| Mount {
                host,
                container,
                read_only,
            }),
        );
    }
    if let (true, Some(socket)) = (config.docker_socket, engine_socket) {
        mounts.push(bound(socket, "/var/run/docker.sock"));
    }
    let mut spec = Spec {
        name: instance.container(),
        hostname: instance.container(),
        image: image_id.into(),
        network: instance.network(),
        mounts,
        ports: ports
            .map(|(host, container)| Port {
                bind,
                host,
                container,
            })
            .into(),
        env: environment(config, instance.home(), record, token),
        limits: Limits {
            cpus: config.limits.cpus,
            memory: config.limits.memory.as_deref().and_then(config::size),
            pids: config.limits.pids,
            shm: config::size(&config.limits.shm).unwrap_or(1 << 30),
        },
        workload: Workload::ROOT,
        capabilities: CAPABILITIES.iter().map(|c| (*c).into()).collect(),
        security: vec!["no-new-privileges".into()],
        labels: BTreeMap::from([(LABEL.into(), instance.name.clone())]),
        health_check: vec!["osctl".into(), "health".into()],
        stop_timeout: STOP_TIMEOUT,
    };
    // What the calling shell happens to hand in is no reason to replace a container.
    let mut lasting = spec.clone();
    let inherited = inherited();
    lasting
        .env
        .0
        .retain(|key, _| !inherited.contains_key(key) || config.env.contains_key(key));
    spec.labels.insert(DIGEST_LABEL.into(), digest(&lasting)?);
    spec.labels
        .insert(INHERITED_LABEL.into(), digest(&inherited)?);
    Ok(spec)
}

fn bound(host: &Path, container: &str) -> Mount {
    Mount {
        host: host.into(),
        container: container.into(),
        read_only: false,
    }
}

fn environment(config: &Config, home: &Path, record: &Record, token: &str) -> Environment {
    let mut env = Environment::default();
    for (key, value) in inherited() {
        env.set(&key, value);
    }
    env.set("HOST_HOME", home.display().to_string());
    env.set("HOST_PWD", record.project.display().to_string());
    env.set("BROWSER_USE_HEADLESS", "false");
    env.set("FILESYSTEM_ROOT", "/root");
    for (key, value) in &config.env {
        env.set(key, value);
    }
    env.set("OSCTL_SESSIONS_MAX", config.sessions.max.to_string());
    env.set("OSCTL_SESSIONS_IDLE", config.sessions.idle.to_string());
    if let Some(bytes) = config.sessions.memory.as_deref().and_then(config::size) {
        env.set("OSCTL_SESSIONS_MEMORY", bytes.to_string());
    }
    env.set("OSCTL_TERMINALS_MAX", config.terminals.max.to_string());
    env.set("OSCTL_TERMINALS_IDLE", config.terminals.idle.to_string());
    // What guards the companion comes last, so that nothing above can replace it.
    if config.auth {
        env.set("OSCTL_TOKEN_SHA256", fingerprint(token));
    } else {
        env.set("OSCTL_AUTH", "off");
    }
    // Who can call an address that was chosen may call it by its number.
    let hosts = config
        .hosts
        .iter()
        .cloned()
        .chain(Some(bracketed(config.bind)));
    env.set("OSCTL_HOSTS", hosts.collect::<Vec<_>>().join(","));
    env
}

/// What the calling shell hands in: keys and proxies.
fn inherited() -> BTreeMap<String, String> {
    let set = |key: &&str| {
        Some((
            key.to_string(),
            env::var(key).ok().filter(|v| !v.is_empty())?,
        ))
    };
    let mut all = trust::proxies();
    all.extend(KEYS.iter().filter_map(set));
    all
}

/// An address as it stands in a `Host` header.
fn bracketed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

fn digest(value: &impl serde::Serialize) -> Result<String> {
    let bytes = serde_json::to_vec(value)?;
    Ok(hex(Sha256::digest(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::specification;
    use crate::config::{Config, EngineChoice};
    use crate::host::folders::Folders;
    use crate::host::instance::{Instance, Record, fingerprint};

    #[test]
    fn the_container_gets_the_tokens_digest_and_never_the_token() {
        let home = tempfile::tempdir().unwrap();
        let folders = Folders {
            home: home.path().into(),
            config: home.path().join("c"),
            state: home.path().join("s"),
        };
        let instance = Instance::new("two", &folders).unwrap();
        let config = Config::default();
        let record = Record {
            project: "/p".into(),
            engine: EngineChoice::Docker,
            ports: config.ports,
        };
        let make = |config: &Config| {
            specification(config, &instance, &record, "osctl_secret", "sha256:1", None).unwrap()
        };
        let spec = make(&config);
        let text = serde_json::to_string(&spec).unwrap();
        assert!(!text.contains("osctl_secret"));
        assert_eq!(
            spec.env.0["OSCTL_TOKEN_SHA256"],
            fingerprint("osctl_secret")
        );
        assert!(spec.ports.iter().all(|p| p.bind.is_loopback()));
        assert_eq!(spec, make(&config));
        assert!(
            !spec
                .mounts
                .iter()
                .any(|m| m.container.contains("docker.sock"))
        );
    }

    #[test]
    fn the_configured_environment_can_not_replace_the_guard() {
        let home = tempfile::tempdir().unwrap();
        let folders = Folders {
            home: home.path().into(),
            config: home.path().join("c"),
            state: home.path().join("s"),
        };
        let instance = Instance::new("two", &folders).unwrap();
        let mut config = Config::default();
        config
            .env
            .insert("OSCTL_TOKEN_SHA256".into(), "mine".into());
        let record = Record {
            project: "/p".into(),
            engine: EngineChoice::Docker,
            ports: config.ports,
        };
        let spec = specification(&config, &instance, &record, "t", "i", None).unwrap();
        assert_eq!(spec.env.0["OSCTL_TOKEN_SHA256"], fingerprint("t"));
    }
}
