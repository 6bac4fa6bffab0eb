//! The deploy target: the instance's objects in the engine, and the keeper's calls into its containers.

use super::KeeperSettings;
use super::retry_policy::is_engine_away;
use super::run_log::RunLog;
use super::sanitize;
use crate::engine::{
    Container, ContainerPhase, Docker, Engine, EngineProgress, LogOptions, OWNER_LABEL,
    SPEC_DIGEST_LABEL, set_spec_digest,
};
use crate::error::{EXIT_PRECONDITION, EXIT_USAGE, Error, Result};
use crate::image::IMAGE_DIGEST_LABEL;
use crate::protocol::evolve::{
    DEPLOY_CONFIG_FILE, DeployConfig, EvolveRunId, FORMER_DEPLOY_CONFIG_FILE, KEEPER_SOCKET_FOLDER,
    portless_network,
};
use crate::protocol::spec::{ContainerRestartPolicy, ContainerSpec, Mount, Volume};
use crate::replacement::{CONTAINER_OSCTL_PATH, ContainerPlaces};
use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The label of a container that is only a part of the instance, with the name of the part.
const CONTAINER_PART_LABEL: &str = "osctl.part";
const TRIAL_PART: &str = "trial";
/// The label with the run that created a container.
const RUN_LABEL: &str = "osctl.run";
/// Where a trial container finds the instance's state, read-only.
pub(super) const TRIAL_STATE_FOLDER: &str = "/run/os-before";
/// How long one command in the container waits for the companion's health, and how long the companion may take to
/// answer.
const HEALTH_WAIT_DURATION: Duration = Duration::from_secs(5);
const HEALTH_REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The exit code of `osctl health` when waiting does not help; the first line of stderr is the reason.
const HEALTH_FAILURE_CODE: i64 = EXIT_PRECONDITION as i64;
/// The interval between two health checks.
const TARGET_HEALTH_INTERVAL: Duration = Duration::from_millis(50);
/// Lines of a container's log that explain why it ended.
const MAX_TARGET_LOG_LINES: usize = 20;

/// One instance in its engine.
#[derive(Debug, Clone)]
pub(super) struct DeployTarget {
    pub(super) docker: Docker,
    pub(super) places: ContainerPlaces,
    pub(super) config: Arc<DeployConfig>,
}

/// The health of the companion in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetHealth {
    Healthy,
    Unhealthy,
    /// The companion gives no answer.
    Unresponsive,
}

impl DeployTarget {
    pub(super) fn new(docker: Docker, config: DeployConfig) -> Self {
        let places = ContainerPlaces {
            engine: Engine::Docker(docker.clone()),
            instance: config.instance.clone(),
            name: config.spec.name.clone(),
            aside: config.replaced_name.clone(),
            network: config.spec.network.clone(),
        };
        Self {
            docker,
            places,
            config: Arc::new(config),
        }
    }

    pub(super) fn container_name(&self) -> &str {
        &self.config.spec.name
    }

    pub(super) fn trial_name(&self) -> String {
        format!("{}.trial", self.container_name())
    }

    /// A tag of the instance's image.
    pub(super) fn image_tag(&self, what: &str) -> String {
        format!("{}:{what}", self.config.image)
    }

    /// A container of the instance, by name or id.
    ///
    /// # Errors
    /// When the container belongs to another owner.
    pub(super) async fn find_container(&self, name: &str) -> Result<Option<Container>> {
        self.places.find(name).await
    }

    /// Whether this run created the container.
    pub(super) fn is_created_by(&self, container: &Container, run: &EvolveRunId) -> bool {
        container.labels.get(RUN_LABEL).map(String::as_str) == Some(run.as_str())
    }

    /// The specification of the instance's container with this image, as the host would create it.
    pub(super) fn successor_spec(&self, image: &str, run: &EvolveRunId) -> Result<ContainerSpec> {
        let mut spec = self.config.spec.clone();
        spec.image = image.into();
        set_spec_digest(&mut spec, &self.config.ignored_variables)?;
        spec.labels.insert(RUN_LABEL.into(), run.to_string());
        Ok(spec)
    }

    /// Whether the instance's container is healthy and is what this run would create from a body with this digest.
    pub(super) async fn runs_body(&self, digest: &str, run: &EvolveRunId) -> Result<bool> {
        let name = self.container_name();
        let Some(container) = self.find_container(name).await? else {
            return Ok(false);
        };
        let wanted = self.successor_spec(&container.image, run)?;
        if container.labels.get(SPEC_DIGEST_LABEL) != wanted.labels.get(SPEC_DIGEST_LABEL) {
            return Ok(false);
        }
        let image = self.docker.find_image(&container.image).await?;
        let built_from = image.and_then(|mut image| image.labels.remove(IMAGE_DIGEST_LABEL));
        Ok(built_from.as_deref() == Some(digest)
            && container.phase == ContainerPhase::Running
            && self.probe_health(name).await? == TargetHealth::Healthy)
    }

    /// The specification of a trial container: no ports, no access to the keeper or the engine, temporary data, and
    /// the instance's mounts read-only. Only the roots of the mounts are bound: paths beneath them may be links of
    /// the agent's, which the engine would follow on the host.
    pub(super) fn trial_spec(&self, image: &str, run: Option<&EvolveRunId>) -> ContainerSpec {
        let mut spec = self.config.spec.clone();
        spec.name = self.trial_name();
        spec.image = image.into();
        spec.ports.clear();
        let volumes = std::mem::take(&mut spec.volumes);
        spec.restart = ContainerRestartPolicy::Never;
        spec.stop_timeout = 1;
        spec.labels.remove(SPEC_DIGEST_LABEL);
        spec.labels
            .insert(CONTAINER_PART_LABEL.into(), TRIAL_PART.into());
        spec.labels
            .extend(run.map(|run| (RUN_LABEL.to_owned(), run.to_string())));
        for mount in std::mem::take(&mut spec.mounts) {
            let seen = trial_mount_view(&mount.container);
            spec.mounts.extend(seen.path.map(|place| Mount {
                container: place.into(),
                read_only: true,
                ..mount.clone()
            }));
            spec.volumes.extend(
                seen.has_temporary_volume
                    .then(|| anonymous_volume(mount.container)),
            );
        }
        for volume in volumes {
            let seen = trial_mount_view(&volume.container);
            spec.volumes.extend(seen.path.map(|place| Volume {
                container: place.into(),
                read_only: true,
                ..volume.clone()
            }));
            spec.volumes.extend(
                seen.has_temporary_volume
                    .then(|| anonymous_volume(volume.container)),
            );
        }
        spec
    }

    /// Removes the container of an earlier trial.
    pub(super) async fn remove_trial(&self) -> Result<()> {
        let name = self.trial_name();
        if self.find_container(&name).await?.is_some() {
            self.docker.remove(&name).await?;
        }
        Ok(())
    }

    /// Runs a hidden verb of `osctl` in a container, and parses the JSON document that it prints.
    ///
    /// # Errors
    /// When the verb prints no such document within the time limit; the error includes its stderr.
    pub(super) async fn exec_verb<A: DeserializeOwned>(
        &self,
        container: &str,
        verb: &[&str],
        limit: Duration,
    ) -> Result<A> {
        let max_bytes = sanitize::max_output_bytes(verb.first().unwrap_or(&""));
        let limits = (limit, max_bytes);
        self.places.exec_verb(container, verb, limits).await
    }

    /// Asks the companion for its health.
    pub(super) async fn probe_health(&self, container: &str) -> Result<TargetHealth> {
        let reply = self.exec_health(container, &[], HEALTH_REPLY_TIMEOUT);
        Ok(match reply.await?.map(|(code, _)| code) {
            Some(0) => TargetHealth::Healthy,
            Some(1 | HEALTH_FAILURE_CODE) => TargetHealth::Unhealthy,
            _ => TargetHealth::Unresponsive,
        })
    }

    /// The exit code and the stderr of `osctl health` in the container, or `None` if there is no result.
    ///
    /// # Errors
    /// When the engine is away.
    async fn exec_health(
        &self,
        container: &str,
        options: &[&str],
        limit: Duration,
    ) -> Result<Option<(i64, String)>> {
        let mut nothing = |_: &[u8]| Ok(());
        let command = [&[CONTAINER_OSCTL_PATH, "health"], options].concat();
        let exec = self.docker.exec(container, &command, &mut nothing);
        match tokio::time::timeout(limit, exec).await {
            Ok(Ok(output)) => Ok(Some((output.code, output.stderr))),
            Ok(Err(e)) if matches!(e.downcast_ref(), Some(Error::EngineLost { .. })) => Err(e),
            _ => Ok(None),
        }
    }

    /// Whether the companion became healthy within a few seconds. One command waits in the container: starting a
    /// command for each check would take more processor time than the start of the companion.
    ///
    /// # Errors
    /// When waiting does not help: the kernel can't start.
    async fn await_health(&self, container: &str, log: &RunLog) -> Result<bool> {
        let seconds = HEALTH_WAIT_DURATION.as_secs().to_string();
        let limit = HEALTH_WAIT_DURATION + HEALTH_REPLY_TIMEOUT;
        let options = ["--wait", &seconds];
        let Some((code, stderr)) = self.exec_health(container, &options, limit).await? else {
            return Ok(false);
        };
        match code {
            // The option is unknown to images of earlier versions.
            code if code == i64::from(EXIT_USAGE) => {
                Ok(self.probe_health(container).await? == TargetHealth::Healthy)
            }
            HEALTH_FAILURE_CODE => {
                self.copy_log_tail(container, log).await;
                let why = stderr.lines().next().unwrap_or_default();
                bail!("{}", why.trim_start_matches("error: "))
            }
            code => Ok(code == 0),
        }
    }

    /// Waits until the companion is healthy.
    ///
    /// # Errors
    /// When the container ends, its kernel can't start, or the time limit is over. The end of the container's log
    /// goes into `log`.
    pub(super) async fn wait_until_healthy(
        &self,
        container: &str,
        limit: Duration,
        log: &RunLog,
    ) -> Result<()> {
        let started_at = Instant::now();
        loop {
            if self.await_health(container, log).await? {
                return Ok(());
            }
            self.check_running(container, log).await?;
            if started_at.elapsed() > limit {
                self.copy_log_tail(container, log).await;
                bail!("the container was not healthy within {} s", limit.as_secs());
            }
            tokio::time::sleep(TARGET_HEALTH_INTERVAL).await;
        }
    }

    /// # Errors
    /// When the container has ended, or the engine has restarted it.
    pub(super) async fn check_running(&self, container: &str, log: &RunLog) -> Result<()> {
        let why = match self.find_container(container).await? {
            Some(found) if found.restart_count > 0 || found.exit_reason.is_some() => found
                .exit_reason
                .unwrap_or_else(|| "the container ended and was restarted".into()),
            Some(_) => return Ok(()),
            None => "the container no longer exists".into(),
        };
        self.copy_log_tail(container, log).await;
        bail!("{why}")
    }

    /// Copies the end of the container's log into `log`.
    pub(super) async fn copy_log_tail(&self, container: &str, log: &RunLog) {
        let options = LogOptions {
            follow: false,
            tail: Some(MAX_TARGET_LOG_LINES),
        };
        let mut on_output = |line: &str| {
            log.log(line);
            Ok(())
        };
        // Why the container ended matters more than why its log can't be read.
        let _ = self.docker.logs(container, options, &mut on_output).await;
    }

    /// Starts a container on a network that publishes no ports: the container works, and gets its ports when they are
    /// free.
    ///
    /// # Errors
    /// When the engine refuses this start, too.
    pub(super) async fn start_without_ports(&self, container: &Container) -> Result<()> {
        let Some(network) = &self.config.spec.network else {
            bail!("the container has no network with published ports");
        };
        let portless = portless_network(network);
        if self.docker.has_persistent_ports() {
            bail!("this engine does not start a container without its ports");
        }
        let owner = BTreeMap::from([(OWNER_LABEL.to_owned(), self.config.instance.clone())]);
        let docker = &self.docker;
        docker.ensure_internal_network(&portless, &owner).await?;
        docker.leave_network(&container.id, network).await?;
        docker.join_network(&container.id, &portless).await?;
        docker.start(&container.id).await
    }

    /// Restores the network of a container after another program used one of its ports. An engine that fails at this
    /// may leave the container's network half configured, so a trial container tests the ports first. If the
    /// container can't get its ports while it runs, it is restarted from its stored state. Returns whether it was
    /// restarted.
    ///
    /// # Errors
    /// When another program still has a port.
    pub(super) async fn restore_ports(
        &self,
        container: &Container,
        before_end: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        if !self.places.has_lost_ports(container) {
            return self.places.restore_network(container).await.map(|()| false);
        }
        let mut probe = self.trial_spec(&container.image, None);
        probe.ports.clone_from(&container.ports);
        self.remove_trial().await?;
        let free = self.docker.create_and_start(&probe).await;
        self.remove_trial().await?;
        free?;
        match self.places.restore_network(container).await {
            Ok(()) => Ok(false),
            Err(error) if is_engine_away(&error) => Err(error),
            Err(error) => {
                tracing::warn!(error = %format_args!("{error:#}"), "the keeper restarts the container");
                // Call this before the stop: if the keeper ends in between, the next keeper starts the container.
                before_end()?;
                self.places.restart_with_ports(container).await?;
                Ok(true)
            }
        }
    }
}

/// How a mount of the instance appears in a trial container.
struct TrialMountView<'a> {
    /// The path where the mount can be read.
    path: Option<&'a str>,
    /// Whether a temporary volume takes the place of the mount.
    has_temporary_volume: bool,
}

fn trial_mount_view(place: &str) -> TrialMountView<'_> {
    let (path, has_temporary_volume) = match place {
        "/data" => (Some(TRIAL_STATE_FOLDER), true),
        "/root/host" => (None, true),
        "/var/run/docker.sock" | KEEPER_SOCKET_FOLDER => (None, false),
        other => (Some(other), false),
    };
    TrialMountView {
        path,
        has_temporary_volume,
    }
}

fn anonymous_volume(container: String) -> Volume {
    Volume {
        name: None,
        container,
        read_only: false,
    }
}

/// Reads the deploy config. A host of an earlier version uploads the former file only. If the current file exists but
/// can't be read, the former file is not used, because the host may have withdrawn its permissions since. The former
/// file holds secrets of the former environment, so the keeper removes it when the current file can be read.
fn read_deploy_config(state_folder: &Path) -> io::Result<Vec<u8>> {
    match std::fs::read(state_folder.join(DEPLOY_CONFIG_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::read(state_folder.join(FORMER_DEPLOY_CONFIG_FILE))
        }
        read => {
            let former = state_folder.join(FORMER_DEPLOY_CONFIG_FILE);
            if read.is_ok()
                && let Err(error) = std::fs::remove_file(former)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, "the former deploy config can't be removed");
            }
            read
        }
    }
}

/// The deploy config that the host uploaded, with a connection to the engine.
pub(super) async fn load_target(settings: &KeeperSettings) -> Result<DeployTarget> {
    let text = read_deploy_config(&settings.state_folder)
        .context("the host has not uploaded a deploy config yet: run `osctl up`")?;
    let deploy_config: DeployConfig = serde_json::from_slice(&text)
        .context("the deploy config can't be read: run `osctl up` to upload it again")?;
    let docker = Docker::connect_at_socket(&settings.engine_socket).await?;
    Ok(DeployTarget::new(docker, deploy_config))
}

#[cfg(test)]
mod tests {
    use super::{DEPLOY_CONFIG_FILE, FORMER_DEPLOY_CONFIG_FILE, read_deploy_config};
    use std::fs;

    #[test]
    fn the_former_deploy_config_is_read_only_while_there_is_no_other() {
        let state = tempfile::tempdir().unwrap();
        let (today, former) = (
            state.path().join(DEPLOY_CONFIG_FILE),
            state.path().join(FORMER_DEPLOY_CONFIG_FILE),
        );
        assert!(read_deploy_config(state.path()).is_err());
        fs::write(&former, "former").unwrap();
        assert_eq!(read_deploy_config(state.path()).unwrap(), b"former");
        fs::create_dir(&today).unwrap();
        assert!(read_deploy_config(state.path()).is_err());
        assert!(former.exists());
        fs::remove_dir(&today).unwrap();
        fs::write(&today, "today").unwrap();
        assert_eq!(read_deploy_config(state.path()).unwrap(), b"today");
        assert!(!former.exists());
        assert_eq!(read_deploy_config(state.path()).unwrap(), b"today");
    }
}
