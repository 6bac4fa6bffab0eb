//! The container's specification, made from the configuration and the instance.

use super::agent_folders::canonicalize_existing;
use super::instance::{INSTANCE_LABEL, Instance, InstanceRecord};
use super::passed_env::{PassedEnv, passed_variable_names};
use crate::config::{self, Config, ContainerLogFormat};
use crate::engine::set_spec_digest;
use crate::error::Result;
use crate::protocol::evolve::KEEPER_SOCKET_FOLDER;
use crate::protocol::hex::hex;
use crate::protocol::proof::sha256_fingerprint;
use crate::protocol::spec::{
    ContainerEnv, ContainerLimits, ContainerRestartPolicy, ContainerSpec, Mount, Port, Volume,
    Workload,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

/// The variable with the format of the logs of container and keeper, if it is not text.
pub(super) const LOG_FORMAT_VARIABLE: &str = "OSCTL_LOG_FORMAT";

/// The persistent files, as the container sees them.
pub(crate) const CONTAINER_FILES_PATH: &str = "/root/host";
pub(crate) const CONTAINER_DATA_PATH: &str = "/data";
pub(crate) const CONTAINER_PROJECT_PATH: &str = "/repo";

/// Label of a container: the digest of the passed variables.
pub(crate) const PASSED_ENV_DIGEST_LABEL: &str = "osctl.inherited";

/// The capabilities that a package manager and ordinary services need as root, and none that affects the host. Without
/// SETFCAP, packages with file capabilities (`mtr-tiny`, `gstreamer1.0`) fall back to setuid when they are installed; a
/// file capability in a mounted folder would be valid on the host, too.
const CONTAINER_CAPABILITIES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
];

/// The capabilities for checkpoints: to read and write other processes (SYS_PTRACE); to restore a process under its old
/// ids, and to keep these ids free with a private /proc (SYS_ADMIN, because CHECKPOINT_RESTORE does not allow mounts,
/// and older engines do not know it).
const CRIU_CAPABILITIES: &[&str] = &["SYS_ADMIN", "SYS_PTRACE"];

/// Seconds in which running code may finish when the container is stopped.
const CONTAINER_STOP_TIMEOUT: u32 = 20;

/// Properties of the engine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EngineContext<'a> {
    /// Its socket on this machine.
    pub(crate) socket: Option<&'a Path>,
    /// Whether it also confines containers with AppArmor.
    pub(crate) apparmor: bool,
}

/// The specification of the instance's container, which runs `image_id`, and receives only the token's digest.
///
/// # Errors
/// When the digest cannot be computed.
pub(crate) fn make_container_spec(
    config: &Config,
    instance: &Instance,
    record: &InstanceRecord,
    token: &str,
    image_id: &str,
    engine: EngineContext<'_>,
    passed: &PassedEnv,
) -> Result<ContainerSpec> {
    let bind = config.bind;
    let ports = [
        (record.ports.kernel, 8080),
        (record.ports.mcp, 8765),
        (record.ports.vnc, 5900),
    ];
    let (mut mounts, mut volumes) = (Vec::new(), Vec::new());
    match record.remote {
        None => mounts.extend([
            writable_mount(&instance.files_folder(), CONTAINER_FILES_PATH),
            writable_mount(&instance.data_folder(), CONTAINER_DATA_PATH),
            writable_mount(&record.project, CONTAINER_PROJECT_PATH),
        ]),
        Some(_) => {
            let places = instance.volume_names().into_iter().zip([
                CONTAINER_FILES_PATH,
                CONTAINER_DATA_PATH,
                CONTAINER_PROJECT_PATH,
            ]);
            volumes.extend(places.map(|(name, container)| Volume {
                name: Some(name),
                container: container.into(),
                read_only: false,
            }));
        }
    }
    volumes.push(Volume {
        name: Some(instance.keeper_socket_volume()),
        container: KEEPER_SOCKET_FOLDER.into(),
        read_only: true,
    });
    for text in &config.mounts {
        mounts.extend(
            config::parse_mount(text).map(|(host, container, read_only)| Mount {
                // Resolve links now: the keeper replays the specification, and the path must keep its current meaning.
                host: canonicalize_existing(&host),
                container,
                read_only,
            }),
        );
    }
    if let (true, Some(socket)) = (config.docker_socket, engine.socket) {
        mounts.push(writable_mount(socket, "/var/run/docker.sock"));
    }
    let mut spec = ContainerSpec {
        name: instance.container_name(),
        hostname: instance.container_name(),
        image: image_id.into(),
        network: Some(instance.network_name()),
        mounts,
        volumes,
        ports: ports
            .map(|(host, container)| Port {
                bind,
                host,
                container,
            })
            .into(),
        env: spec_environment(config, instance, record, token, passed),
        limits: container_limits(config),
        workload: Workload::ROOT_USER,
        capabilities: container_capabilities(config),
        security: security_options(config, engine),
        labels: BTreeMap::from([(INSTANCE_LABEL.into(), instance.name.clone())]),
        health_check: vec!["osctl".into(), "health".into()],
        stop_timeout: CONTAINER_STOP_TIMEOUT,
        read_only: false,
        // Also after an engine was killed, which some engines treat as a stopped container.
        restart: ContainerRestartPolicy::Always,
    };
    spec.labels.insert(
        PASSED_ENV_DIGEST_LABEL.into(),
        digest_json(passed.values())?,
    );
    let passing = passed_variable_names(&spec.env, config);
    set_spec_digest(&mut spec, &passing)?;
    Ok(spec)
}

/// The resource limits of the container.
pub(super) fn container_limits(config: &Config) -> ContainerLimits {
    ContainerLimits {
        cpus: config.limits.cpus,
        memory: config.limits.memory.as_deref().and_then(config::parse_size),
        pids: config.limits.pids,
        shm: config::parse_size(&config.limits.shm).unwrap_or(1 << 30),
    }
}

/// Sets the passed variables to those of the running container, instead of this shell's values, which are no reason to
/// replace the container: a later replacement must not lose the container's keys.
pub(crate) fn keep_running_variables(
    spec: &mut ContainerSpec,
    config: &Config,
    running: &BTreeMap<String, String>,
    label: Option<&String>,
) -> Vec<String> {
    let mut changed = Vec::new();
    for key in passed_variable_names(&spec.env, config) {
        if spec.env.0.get(&key) != running.get(&key) {
            changed.push(format!("`{key}`"));
        }
        match running.get(&key) {
            Some(value) => spec.env.set(&key, value),
            None => spec.env.unset(&key),
        }
    }
    match label {
        Some(label) => spec
            .labels
            .insert(PASSED_ENV_DIGEST_LABEL.into(), label.clone()),
        None => spec.labels.remove(PASSED_ENV_DIGEST_LABEL),
    };
    changed
}

fn container_capabilities(config: &Config) -> Vec<String> {
    let more = if config.criu { CRIU_CAPABILITIES } else { &[] };
    let all = CONTAINER_CAPABILITIES.iter().chain(more);
    all.map(|c| (*c).into()).collect()
}

fn security_options(config: &Config, engine: EngineContext<'_>) -> Vec<String> {
    let mut options = vec!["no-new-privileges".into()];
    if config.criu {
        // Under any seccomp profile, the system does not let a tracer suspend the filter of the checkpointed process.
        options.push("seccomp=unconfined".into());
        // The default profile denies mounts.
        options.extend(engine.apparmor.then(|| "apparmor=unconfined".into()));
    }
    options
}

fn writable_mount(host: &Path, container: &str) -> Mount {
    Mount {
        host: host.into(),
        container: container.into(),
        read_only: false,
    }
}

fn spec_environment(
    config: &Config,
    instance: &Instance,
    record: &InstanceRecord,
    token: &str,
    passed: &PassedEnv,
) -> ContainerEnv {
    let mut env = ContainerEnv::default();
    passed.apply_to(&mut env);
    env.set("HOST_HOME", instance.home().display().to_string());
    env.set("HOST_PWD", record.project.display().to_string());
    env.set("BROWSER_USE_HEADLESS", "false");
    env.set("FILESYSTEM_ROOT", "/root");
    for (key, value) in &config.env {
        env.set(key, value);
    }
    env.set("OSCTL_SESSIONS_MAX", config.sessions.max.to_string());
    env.set("OSCTL_SESSIONS_IDLE", config.sessions.idle.to_string());
    env.set("OSCTL_SESSIONS_CHECK", config.sessions.check.to_string());
    if let Some(bytes) = config
        .sessions
        .memory
        .as_deref()
        .and_then(config::parse_size)
    {
        env.set("OSCTL_SESSIONS_MEMORY", bytes.to_string());
    }
    env.set("OSCTL_TERMINALS_MAX", config.terminals.max.to_string());
    env.set("OSCTL_TERMINALS_IDLE", config.terminals.idle.to_string());
    env.set("OSCTL_CRYO_KEEP", config.cryo.keep.to_string());
    env.set("OSCTL_CRYO_AGE", config.cryo.age.to_string());
    if let Some(bytes) = config::parse_size(&config.cryo.budget) {
        env.set("OSCTL_CRYO_BUDGET", bytes.to_string());
    }
    if let Some(seconds) = config.cryo.every {
        env.set("OSCTL_CRYO_EVERY", seconds.to_string());
    }
    if !is_stored_at_stop(&config.cryo.before) {
        env.set("OSCTL_CRYO_AT_STOP", "off");
    }
    if config.cryo.compression == config::Compression::Zstd {
        env.set("OSCTL_CRYO_COMPRESSION", "zstd");
    }
    if config.criu {
        env.set("OSCTL_CRIU", "true");
    }
    if config.log_format == ContainerLogFormat::Json {
        env.set(LOG_FORMAT_VARIABLE, "json");
    }
    env.set("OSCTL_DESKTOP_RUN", config.desktop.run.name());
    env.set("OSCTL_DESKTOP_IDLE", config.desktop.idle.to_string());
    env.set("OSCTL_DESKTOP_RESOLUTION", &config.desktop.resolution);
    env.set("OSCTL_DESKTOP_DEPTH", config.desktop.depth.to_string());
    // Set the variables that protect the companion last, so that no earlier variable can override them.
    env.set("OSCTL_TOKEN_SHA256", sha256_fingerprint(token));
    if !config.auth {
        env.set("OSCTL_AUTH", "off");
    }
    // A client that can reach the chosen address may use its number as the host.
    let hosts = config
        .hosts
        .iter()
        .cloned()
        .chain([host_header(config.bind), instance.web_page_host()]);
    env.set("OSCTL_HOSTS", hosts.collect::<Vec<_>>().join(","));
    env
}

/// An address in the form of a `Host` header.
fn host_header(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

fn digest_json(value: &impl serde::Serialize) -> Result<String> {
    let bytes = serde_json::to_vec(value)?;
    Ok(hex(Sha256::digest(&bytes)))
}

/// Whether the companion stores its state if the engine alone stops it, which counts as `down`: osctl's own verbs
/// announce their choice before the stop.
fn is_stored_at_stop(before: &[String]) -> bool {
    before.iter().any(|verb| verb == "down")
}

#[cfg(test)]
mod tests {
    use super::{
        EngineContext, LOG_FORMAT_VARIABLE, PASSED_ENV_DIGEST_LABEL, container_capabilities,
        is_stored_at_stop, keep_running_variables, make_container_spec, security_options,
    };
    use crate::config::{Config, ContainerLogFormat, EngineChoice};
    use crate::host::applied_settings::AppliedSettings;
    use crate::host::folders::Folders;
    use crate::host::instance::{Instance, InstanceRecord};
    use crate::host::passed_env::PassedEnv;
    use crate::protocol::proof::sha256_fingerprint;
    use crate::protocol::spec::ContainerSpec;
    use std::path::Path;

    #[test]
    fn the_container_gets_the_tokens_digest_and_never_the_token() {
        let home = tempfile::tempdir().unwrap();
        let folders = Folders::beneath(home.path());
        let instance = Instance::new("two", &folders).unwrap();
        let config = Config::default();
        let record = InstanceRecord {
            project: "/p".into(),
            engine: EngineChoice::Docker,
            ports: config.ports,
            criu: false,
            remote: None,
            applied: AppliedSettings::default(),
        };
        let make = |config: &Config| {
            let token = "osctl_secret";
            let engine = EngineContext::default();
            let passed = PassedEnv::default();
            make_container_spec(
                config, &instance, &record, token, "sha256:1", engine, &passed,
            )
            .unwrap()
        };
        let spec = make(&config);
        let text = serde_json::to_string(&spec).unwrap();
        assert!(!text.contains("osctl_secret"));
        assert_eq!(
            spec.env.0["OSCTL_TOKEN_SHA256"],
            sha256_fingerprint("osctl_secret")
        );
        assert_eq!(spec.env.0["OSCTL_HOSTS"], "127.0.0.1,os-host-two.localhost");
        // Text is the default, so that a container of an earlier version is up to date.
        assert_eq!(spec.env.0.get(LOG_FORMAT_VARIABLE), None);
        let json = Config {
            log_format: ContainerLogFormat::Json,
            ..config.clone()
        };
        assert_eq!(make(&json).env.0[LOG_FORMAT_VARIABLE], "json");
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
    fn a_companion_that_the_engine_stops_stores_as_before_down() {
        let at_stop = |verbs: &[&str]| {
            let verbs: Vec<String> = verbs.iter().map(|&verb| verb.into()).collect();
            is_stored_at_stop(&verbs)
        };
        assert!(at_stop(&["down"]) && at_stop(&["evolve", "down"]));
        assert!(!at_stop(&["evolve", "restart"]) && !at_stop(&[]));
    }

    #[test]
    fn only_a_container_with_criu_gets_its_capabilities() {
        let mut config = Config::default();
        let confined = EngineContext {
            apparmor: true,
            ..EngineContext::default()
        };
        assert_eq!(security_options(&config, confined), ["no-new-privileges"]);
        let before = container_capabilities(&config);
        assert!(!before.iter().any(|c| c.contains("SYS_ADMIN")));
        config.criu = true;
        let after = container_capabilities(&config);
        assert_eq!(after[before.len()..], ["SYS_ADMIN", "SYS_PTRACE"]);
        let options = security_options(&config, EngineContext::default());
        assert_eq!(options, ["no-new-privileges", "seccomp=unconfined"]);
        assert!(security_options(&config, confined).contains(&"apparmor=unconfined".to_owned()));
    }

    #[test]
    fn the_container_can_give_no_file_capabilities() {
        let all = container_capabilities(&Config::default());
        assert!(!all.contains(&"SETFCAP".to_owned()), "{all:?}");
    }

    #[test]
    fn the_configured_environment_can_not_replace_the_token_digest() {
        let mut config = Config::default();
        config
            .env
            .insert("OSCTL_TOKEN_SHA256".into(), "mine".into());
        let spec = specified(&config);
        assert_eq!(spec.env.0["OSCTL_TOKEN_SHA256"], sha256_fingerprint("t"));
    }

    #[test]
    fn passed_variables_of_the_running_container_are_kept() {
        let mut config = Config::default();
        config.env.insert("https_proxy".into(), "mine".into());
        let mut spec = specified(&config);
        spec.env.set("ANTHROPIC_API_KEY", "of this shell");
        let names = "OPENAI_API_KEY,ANTHROPIC_API_KEY";
        spec.env.set("OSCTL_PASSED_ENV", names);
        let running = [("OPENAI_API_KEY", "k"), ("https_proxy", "old")];
        let running = running.map(|(key, value)| (key.into(), value.into()));
        keep_running_variables(&mut spec, &config, &running.into(), Some(&"l".into()));
        assert_eq!(spec.env.0["OPENAI_API_KEY"], "k");
        assert_eq!(spec.env.0["https_proxy"], "mine");
        assert!(!spec.env.0.contains_key("ANTHROPIC_API_KEY"));
        assert_eq!(spec.labels[PASSED_ENV_DIGEST_LABEL], "l");
    }

    /// The specification of an instance with the token `t`.
    fn specified(config: &Config) -> ContainerSpec {
        let home = Path::new("/h");
        let folders = Folders::beneath(home);
        let instance = Instance::new("two", &folders).unwrap();
        let record = InstanceRecord {
            project: "/p".into(),
            engine: EngineChoice::Docker,
            ports: config.ports,
            criu: false,
            remote: None,
            applied: AppliedSettings::default(),
        };
        let token = "t";
        let engine = EngineContext::default();
        let passed = PassedEnv::default();
        make_container_spec(config, &instance, &record, token, "i", engine, &passed).unwrap()
    }
}
