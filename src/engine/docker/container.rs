//! Containers: created, started, inspected, stopped and removed.

use super::container_ops::error_contains;
use super::{Docker, explain_api_error, is_status, root_cause, with_query_timeout};
use crate::engine::{Container, ContainerPhase, LogOptions, OWNER_LABEL};
use crate::error::{Error, Result};
use crate::protocol::line_buffer::LineBuffer;
use crate::protocol::spec::{ContainerRestartPolicy, ContainerSpec, Mount, Port, Volume};
use bollard::container::LogOutput;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerStateStatusEnum, HealthConfig,
    HostConfig, HostConfigLogConfig, Mount as ApiMount, MountType, MountVolumeOptions, PortBinding,
    PortMap, RestartPolicy, RestartPolicyNameEnum,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, LogsOptionsBuilder,
    RemoveContainerOptionsBuilder, RenameContainerOptionsBuilder,
};
use futures_util::StreamExt;
use std::collections::{BTreeMap, HashMap};

/// The working directory of every process that the engine starts. No image can replace `/` by a link, as it can
/// replace the folder of its `WORKDIR`: some versions of runc follow such a link out of the container.
pub(super) const WORKING_DIR: &str = "/";
const NANOS_PER_SECOND: i64 = 1_000_000_000;
/// The maximum length of a log line; a longer line is split.
const MAX_LOG_LINE_BYTES: usize = 1 << 20;

impl Docker {
    pub(crate) async fn inspect(&self, name: &str) -> Result<Option<Container>> {
        let action = "inspecting the container";
        match with_query_timeout(action, self.api.inspect_container(name, None)).await? {
            Ok(found) => Ok(Some(container_from_inspect(found))),
            Err(e) if is_status(&e, 404) => Ok(None),
            Err(e) => Err(explain_api_error(action, e)),
        }
    }

    /// The names of the containers with this label, running or not.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn list_labelled_containers(&self, label: &str) -> Result<Vec<String>> {
        let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
        let options = ListContainersOptionsBuilder::new()
            .all(true)
            .filters(&filters)
            .build();
        let action = "listing containers";
        let found = with_query_timeout(action, self.api.list_containers(Some(options))).await?;
        let found = found.map_err(|e| explain_api_error(action, e))?;
        let names = found
            .into_iter()
            .filter_map(|c| c.names?.into_iter().next());
        Ok(names
            .map(|n| n.trim_start_matches('/').to_owned())
            .collect())
    }

    /// The container that publishes this port of the host.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn find_port_publisher(&self, port: u16) -> Result<Option<String>> {
        let action = "listing containers";
        let found = with_query_timeout(action, self.api.list_containers(None)).await?;
        let found = found.map_err(|e| explain_api_error(action, e))?;
        let owner = found.into_iter().find(|c| {
            c.ports
                .iter()
                .flatten()
                .any(|p| p.public_port == Some(port))
        });
        Ok(owner
            .and_then(|c| c.names?.into_iter().next())
            .map(|n| n.trim_start_matches('/').to_owned()))
    }

    pub(crate) async fn create_and_start(&self, spec: &ContainerSpec) -> Result<()> {
        self.create_container(spec).await?;
        if let Err(error) = self.api.start_container(&spec.name, None).await {
            let why = root_cause(&error);
            // Remove the container: it never ran, so it holds no data, and would block the name.
            self.remove(&spec.name).await?;
            return Err(match is_port_taken(&why) {
                true => self.port_taken_error(&spec.ports, &why).await,
                false => explain_api_error("starting the container", error),
            });
        }
        Ok(())
    }

    /// Creates the container without starting it.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn create_container(&self, spec: &ContainerSpec) -> Result<()> {
        if let Some(network) = &spec.network {
            self.ensure_network(network, spec).await?;
        }
        for volume in &spec.volumes {
            self.ensure_volume(volume, spec).await?;
        }
        let options = CreateContainerOptionsBuilder::new()
            .name(&spec.name)
            .build();
        let made = self
            .api
            .create_container(Some(options), container_create_body(spec))
            .await;
        match made {
            Ok(_) => Ok(()),
            Err(e) if is_status(&e, 409) => {
                let owner = spec.labels.get(OWNER_LABEL);
                Err(self.name_taken_error(&spec.name, owner).await)
            }
            Err(e) => Err(explain_api_error("creating the container", e)),
        }
    }

    /// The error for a name that another container has, which may belong to the same instance.
    async fn name_taken_error(&self, name: &str, owner: Option<&String>) -> anyhow::Error {
        let found = self.inspect(name).await;
        let holder = found.ok().flatten();
        let is_ours = holder.is_some_and(|c| owner.is_some() && c.labels.get(OWNER_LABEL) == owner);
        match is_ours {
            true => Error::precondition(
                format!("another container of the same instance has the name `{name}`"),
                "run `osctl up` to remove or restore it",
            )
            .into(),
            false => Error::ForeignObject {
                what: "container",
                name: name.into(),
            }
            .into(),
        }
    }

    async fn port_taken_error(&self, ports: &[Port], why: &str) -> anyhow::Error {
        let port = ports
            .iter()
            .find(|p| why.contains(&format!(":{}", p.host)))
            .or(ports.first());
        let Some(port) = port else {
            return anyhow::anyhow!("{why}");
        };
        let owner = self.find_port_publisher(port.host).await.ok().flatten();
        let owner = owner
            .map(|o| format!(" by the container `{o}`"))
            .unwrap_or_default();
        Error::PortTaken {
            bind: port.bind.to_string(),
            port: port.host,
            owner,
        }
        .into()
    }

    /// Renames a container.
    ///
    /// # Errors
    /// When another container has that name, or the engine refuses.
    pub(crate) async fn rename(&self, name: &str, to: &str) -> Result<()> {
        let options = RenameContainerOptionsBuilder::new().name(to).build();
        match self.api.rename_container(name, options).await {
            Err(e) if is_status(&e, 409) => {
                let renamed = self.inspect(name).await?;
                let owner = renamed.as_ref().and_then(|c| c.labels.get(OWNER_LABEL));
                Err(self.name_taken_error(to, owner).await)
            }
            Err(e) if error_contains(&e, "same name as its current name") => Ok(()),
            done => done.map_err(|e| explain_api_error("renaming the container", e)),
        }
    }

    /// Starts a container, unless it runs.
    ///
    /// # Errors
    /// [`Error::PortTaken`], or the engine's own reason.
    pub(crate) async fn start(&self, name: &str) -> Result<()> {
        let error = match self.api.start_container(name, None).await {
            Ok(()) => return Ok(()),
            Err(e) if is_status(&e, 304) => return Ok(()),
            Err(error) => error,
        };
        let why = root_cause(&error);
        match self.inspect(name).await {
            Ok(Some(found)) if is_port_taken(&why) => {
                Err(self.port_taken_error(&found.ports, &why).await)
            }
            _ => Err(explain_api_error("starting the container", error)),
        }
    }

    pub(crate) async fn stop(&self, name: &str) -> Result<()> {
        match self.api.stop_container(name, None).await {
            Ok(()) => Ok(()),
            Err(e) if is_status(&e, 304) || is_status(&e, 404) => Ok(()),
            Err(e) => Err(explain_api_error("stopping the container", e)),
        }
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        let options = RemoveContainerOptionsBuilder::new()
            .force(true)
            .v(true)
            .build();
        match self.api.remove_container(name, Some(options)).await {
            Ok(()) => Ok(()),
            Err(e) if is_status(&e, 404) => Ok(()),
            Err(e) => Err(explain_api_error("removing the container", e)),
        }
    }

    pub(crate) async fn logs(
        &self,
        name: &str,
        options: LogOptions,
        on_line: &mut (dyn FnMut(&str) -> Result<()> + Send),
    ) -> Result<()> {
        let tail = options
            .tail
            .map_or_else(|| "all".to_owned(), |n| n.to_string());
        let query = LogsOptionsBuilder::new()
            .stdout(true)
            .stderr(true)
            .follow(options.follow)
            .tail(&tail)
            .build();
        let mut stream = std::pin::pin!(self.api.logs(name, Some(query)));
        let mut lines = LineBuffer::default();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|e| explain_api_error("reading the container's log", e))?;
            let (LogOutput::StdErr { message }
            | LogOutput::StdOut { message }
            | LogOutput::StdIn { message }
            | LogOutput::Console { message }) = chunk;
            lines.push(&message);
            while let Some(line) = lines.next_line() {
                on_line(String::from_utf8_lossy(&line).trim_end())?;
            }
            if lines.unread_bytes() > MAX_LOG_LINE_BYTES {
                on_line(&String::from_utf8_lossy(&lines.take_unread()))?;
            }
        }
        if lines.unread_bytes() > 0 {
            on_line(String::from_utf8_lossy(&lines.take_unread()).trim_end())?;
        }
        Ok(())
    }
}

/// Whether the engine refused to start a container because a port of the host is in use.
fn is_port_taken(why: &str) -> bool {
    why.contains("port is already allocated") || why.contains("address already in use")
}

/// Whether an object was created for the same instance. The other labels describe versions.
pub(super) fn has_same_owner(
    found: Option<&HashMap<String, String>>,
    wanted: &BTreeMap<String, String>,
) -> bool {
    let owner = found.and_then(|labels| labels.get(OWNER_LABEL));
    owner.is_some() && owner == wanted.get(OWNER_LABEL)
}

fn container_from_inspect(found: ContainerInspectResponse) -> Container {
    let state = found.state.unwrap_or_default();
    let phase = match state.status {
        Some(ContainerStateStatusEnum::CREATED) => ContainerPhase::Created,
        Some(ContainerStateStatusEnum::RUNNING) => ContainerPhase::Running,
        Some(ContainerStateStatusEnum::RESTARTING) => ContainerPhase::Restarting,
        Some(ContainerStateStatusEnum::PAUSED) => ContainerPhase::Paused,
        Some(ContainerStateStatusEnum::DEAD | ContainerStateStatusEnum::REMOVING) => {
            ContainerPhase::Dead
        }
        _ => ContainerPhase::Stopped,
    };
    let error = state.error.filter(|e| !e.is_empty());
    let failed_to_start = phase == ContainerPhase::Stopped && error.is_some();
    let exit =
        (phase == ContainerPhase::Stopped || phase == ContainerPhase::Restarting).then(|| {
            let code = state.exit_code.unwrap_or_default();
            match (state.oom_killed, error) {
                (Some(true), _) => format!("the container ran out of memory (exit code {code})"),
                (_, Some(error)) => error,
                _ => format!("the container ended with exit code {code}"),
            }
        });
    let labels = found.config.and_then(|c| c.labels).unwrap_or_default();
    let settings = found.network_settings.unwrap_or_default();
    let wanted = found.host_config.and_then(|c| c.port_bindings);
    let wanted = wanted.unwrap_or_default();
    let has_ports = has_all_bindings(&wanted, &settings.ports.unwrap_or_default());
    Container {
        id: found.id.unwrap_or_default(),
        phase,
        image: found.image.unwrap_or_default(),
        labels: labels.into_iter().collect(),
        networks: settings.networks.unwrap_or_default().into_keys().collect(),
        ports: published_ports(&wanted),
        has_ports,
        restart_count: found.restart_count.unwrap_or_default().unsigned_abs(),
        exit_reason: exit,
        failed_to_start,
    }
}

/// The ports that are bound to an address of the host.
fn published_ports(wanted: &PortMap) -> Vec<Port> {
    let ports = wanted.iter().flat_map(|(inside, bindings)| {
        let bindings = bindings.iter().flatten();
        bindings.map(move |binding| {
            Some(Port {
                bind: binding.host_ip.as_ref()?.parse().ok()?,
                host: binding.host_port.as_ref()?.parse().ok()?,
                container: inside.strip_suffix("/tcp")?.parse().ok()?,
            })
        })
    });
    ports.flatten().collect()
}

/// Whether each requested port is bound. A port that is only exposed appears without a binding.
fn has_all_bindings(wanted: &PortMap, had: &PortMap) -> bool {
    fn has_binding(ports: &PortMap, port: &str) -> bool {
        let bindings = ports.get(port).and_then(Option::as_ref);
        bindings.is_some_and(|bindings| !bindings.is_empty())
    }
    let mut ports = wanted.keys().filter(|port| has_binding(wanted, port));
    ports.all(|port| has_binding(had, port))
}

fn container_create_body(spec: &ContainerSpec) -> ContainerCreateBody {
    let env = spec.env.0.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let user = format!("{}:{}", spec.workload.uid, spec.workload.gid);
    let test = match spec.health_check.is_empty() {
        true => vec!["NONE".to_owned()],
        false => [vec!["CMD".to_owned()], spec.health_check.clone()].concat(),
    };
    ContainerCreateBody {
        hostname: Some(spec.hostname.clone()),
        user: Some(user),
        image: Some(spec.image.clone()),
        env: Some(env),
        working_dir: Some(WORKING_DIR.into()),
        labels: Some(spec.labels.clone().into_iter().collect()),
        exposed_ports: Some(spec.ports.iter().map(container_port_key).collect()),
        stop_timeout: Some(spec.stop_timeout.into()),
        healthcheck: Some(HealthConfig {
            test: Some(test),
            interval: Some(15 * NANOS_PER_SECOND),
            timeout: Some(5 * NANOS_PER_SECOND),
            start_period: Some(30 * NANOS_PER_SECOND),
            retries: Some(3),
            ..Default::default()
        }),
        host_config: Some(host_config(spec)),
        ..Default::default()
    }
}

fn host_config(spec: &ContainerSpec) -> HostConfig {
    let mut published: BTreeMap<String, Vec<PortBinding>> = BTreeMap::new();
    for port in &spec.ports {
        published
            .entry(container_port_key(port))
            .or_default()
            .push(PortBinding {
                host_ip: Some(port.bind.to_string()),
                host_port: Some(port.host.to_string()),
            });
    }
    let mounts = spec.mounts.iter().map(bind_mount);
    let mounts = mounts.chain(spec.volumes.iter().map(volume_mount));
    let restart = match spec.restart {
        ContainerRestartPolicy::UnlessStopped => RestartPolicyNameEnum::UNLESS_STOPPED,
        ContainerRestartPolicy::Always => RestartPolicyNameEnum::ALWAYS,
        ContainerRestartPolicy::Never => RestartPolicyNameEnum::NO,
    };
    HostConfig {
        network_mode: Some(spec.network.clone().unwrap_or_else(|| "none".into())),
        mounts: Some(mounts.collect()),
        readonly_rootfs: Some(spec.read_only),
        port_bindings: Some(published.into_iter().map(|(k, v)| (k, Some(v))).collect()),
        restart_policy: Some(RestartPolicy {
            name: Some(restart),
            maximum_retry_count: None,
        }),
        cap_drop: Some(vec!["ALL".into()]),
        cap_add: Some(spec.capabilities.clone()),
        security_opt: Some(spec.security.clone()),
        nano_cpus: spec.limits.cpus.map(|c| (c * 1e9) as i64),
        memory: spec.limits.memory.map(|m| m as i64),
        // Swap beyond the limit would only delay the end of a process that uses too much memory.
        memory_swap: spec.limits.memory.map(|m| m as i64),
        pids_limit: Some(spec.limits.pids.into()),
        shm_size: Some(spec.limits.shm as i64),
        // A service that runs for months must not fill the disk with its log.
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".into()),
            config: Some(
                [("max-size", "10m"), ("max-file", "3")]
                    .map(|(k, v)| (k.into(), v.into()))
                    .into(),
            ),
        }),
        ..Default::default()
    }
}

fn container_port_key(port: &Port) -> String {
    format!("{}/tcp", port.container)
}

fn bind_mount(mount: &Mount) -> ApiMount {
    ApiMount {
        typ: Some(MountType::BIND),
        source: Some(mount.host.display().to_string()),
        target: Some(mount.container.clone()),
        read_only: Some(mount.read_only),
        ..Default::default()
    }
}

fn volume_mount(volume: &Volume) -> ApiMount {
    ApiMount {
        typ: Some(MountType::VOLUME),
        source: volume.name.clone(),
        target: Some(volume.container.clone()),
        read_only: Some(volume.read_only),
        // Do not copy the image's files at this path into the volume.
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::has_all_bindings;
    use bollard::models::{PortBinding, PortMap};

    #[test]
    fn every_requested_port_must_be_bound() {
        let bound = || Some(vec![PortBinding::default()]);
        let map = |ports: [Option<Vec<PortBinding>>; 2]| -> PortMap {
            let names = ["8080/tcp", "8765/tcp"].map(String::from);
            names.into_iter().zip(ports).collect()
        };
        let wanted = map([bound(), bound()]);
        assert!(has_all_bindings(&wanted, &map([bound(), bound()])));
        assert!(!has_all_bindings(&wanted, &map([bound(), None])));
        assert!(!has_all_bindings(
            &wanted,
            &map([bound(), Some(Vec::new())])
        ));
        assert!(!has_all_bindings(&wanted, &PortMap::new()));
        assert!(has_all_bindings(&PortMap::new(), &PortMap::new()));
        assert!(has_all_bindings(
            &map([bound(), None]),
            &map([bound(), None])
        ));
    }
}
