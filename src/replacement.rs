//! Replacement of an instance's container: the steps that every replacement has, with a keeper or without one.
//!
//! ```text
//!       set aside                  create, start                    proven
//! old ─────────────▶ aside alone ─────────────────▶ aside and new ─────────▶ new alone
//!  ▲                      │                               │ anything else
//!  └──────────────────────┴───────────────────────────────┘
//!                      put back
//! ```
//!
//! The callers own the gates: when a container may be set aside, how it stops working, and whether the new one is
//! proven. `host::replace` asks only for its health; `keeper::run` has the stages of an evolve and a journal. Each step
//! asks the engine for the current state, so a caller that was interrupted can repeat it.

use crate::engine::{Container, ContainerPhase, Docker, Engine, OWNER_LABEL};
use crate::error::{Error, Result};
use crate::protocol::evolve::container_reports::ResumeReply;
use crate::protocol::evolve::portless_network;
use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::time::timeout;

/// The path of the binary in every body.
pub(crate) const CONTAINER_OSCTL_PATH: &str = "/opt/osctl/bin/osctl";
/// How long a companion may take to answer requests again.
const RESUME_VERB_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_RESUME_OUTPUT_BYTES: usize = 1 << 20;

/// The containers of one instance in its engine: the one in its place, and the one that was set aside.
#[derive(Debug, Clone)]
pub(crate) struct ContainerPlaces {
    pub(crate) engine: Engine,
    /// The name of the instance, which owns the containers.
    pub(crate) instance: String,
    /// The name of the container in its place.
    pub(crate) name: String,
    /// The name of the container that was set aside.
    pub(crate) aside: String,
    pub(crate) network: Option<String>,
}

impl ContainerPlaces {
    /// A container of the instance, by name or id.
    ///
    /// # Errors
    /// When the container belongs to another owner.
    pub(crate) async fn find(&self, name: &str) -> Result<Option<Container>> {
        match self.engine.inspect(name).await? {
            Some(found) if found.labels.get(OWNER_LABEL) != Some(&self.instance) => {
                Err(Error::ForeignObject {
                    what: "container",
                    name: name.into(),
                }
                .into())
            }
            // Its removal was interrupted: it can only be removed.
            Some(found) if found.phase == ContainerPhase::Dead => {
                self.engine.remove(&found.id).await?;
                Ok(None)
            }
            found => Ok(found),
        }
    }

    /// Makes the name free under which a container is set aside.
    ///
    /// # Errors
    /// When a container of another owner has the name.
    pub(crate) async fn clear_aside(&self) -> Result<()> {
        match self.find(&self.aside).await? {
            Some(left) => self.engine.remove(&left.id).await,
            None => Ok(()),
        }
    }

    /// Sets a container aside, after `quiet` has paused or stopped it: without ports, and never started by the engine,
    /// because it must not run beside the new container on the same data.
    ///
    /// # Errors
    /// When the engine refuses; [`ContainerPlaces::put_back`] undoes the steps.
    pub(crate) async fn set_aside(
        &self,
        old: &Container,
        quiet: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<()> {
        if let Some(docker) = self.engine.docker() {
            docker.set_restart_policy(&old.id, false).await?;
        }
        quiet().await?;
        self.engine.rename(&old.id, &self.aside).await?;
        match (self.engine.docker(), &self.network) {
            (Some(docker), Some(network)) => docker.leave_network(&old.id, network).await,
            _ => Ok(()),
        }
    }

    /// Decides between the container that was set aside and the one in its place, and removes one of them. Returns
    /// whether the place is free for the container that was set aside.
    ///
    /// # Errors
    /// When the container in place belongs to another owner.
    pub(crate) async fn choose_over_aside(
        &self,
        aside: &Container,
        is_proven: impl AsyncFnOnce(&Container) -> Result<bool>,
    ) -> Result<bool> {
        let Some(new) = self.find(&self.name).await? else {
            return Ok(true);
        };
        let stays = new.phase != ContainerPhase::Created && is_proven(&new).await?;
        let removed = if stays { aside } else { &new };
        self.engine.remove(&removed.id).await?;
        Ok(!stays)
    }

    /// Puts a container back in its place, which is free, and continues it. `starts` also starts a container that has
    /// ended; if that fails, the container is in its place nevertheless.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn put_back(&self, old: &Container, starts: bool) -> Result<()> {
        if let Some(docker) = self.engine.docker() {
            docker.set_restart_policy(&old.id, true).await?;
        }
        let continued = match (old.phase, self.engine.docker()) {
            (ContainerPhase::Paused, Some(docker)) => docker.unpause(&old.id).await,
            (ContainerPhase::Created | ContainerPhase::Stopped, _) if starts => {
                self.engine.start(&old.id).await
            }
            _ => Ok(()),
        };
        // The last step: a caller that is interrupted before finds the container aside, and repeats all steps.
        let named = self.find(&self.name).await?;
        if named.is_none_or(|named| named.id != old.id) {
            self.engine.rename(&old.id, &self.name).await?;
        }
        continued
    }

    /// Reconnects a container to its network, with its ports, unless it has them.
    ///
    /// # Errors
    /// When the engine refuses, for example because another program uses a port.
    pub(crate) async fn restore_network(&self, container: &Container) -> Result<()> {
        let (Some(docker), Some(network)) = (self.engine.docker(), &self.network) else {
            return Ok(());
        };
        let has_lost_ports = self.has_lost_ports(container);
        let is_joined = container.networks.contains(network);
        if is_joined && has_lost_ports {
            // The engine lists a container on its network although the container was refused a port.
            docker.leave_network(&container.id, network).await?;
        }
        if !is_joined || has_lost_ports {
            docker.join_network(&container.id, network).await?;
            let found = self.find(&container.id).await?;
            if found.is_some_and(|found| self.has_lost_ports(&found)) {
                bail!("the engine does not publish the container's ports");
            }
        }
        let portless = portless_network(network);
        if container.networks.contains(&portless) {
            docker.leave_network(&container.id, &portless).await?;
            let owner = (OWNER_LABEL, self.instance.as_str());
            docker.remove_network(&portless, owner).await?;
        }
        Ok(())
    }

    /// Whether a live container has no ports. A container that has ended never has any.
    pub(crate) fn has_lost_ports(&self, container: &Container) -> bool {
        let is_alive = matches!(
            container.phase,
            ContainerPhase::Running | ContainerPhase::Paused
        );
        let keeps_ports = self
            .engine
            .docker()
            .is_none_or(Docker::has_persistent_ports);
        is_alive && !container.has_ports && !keeps_ports
    }

    /// Starts a stopped container, or one that runs without its ports, with its ports.
    ///
    /// # Errors
    /// When the engine refuses, for example because a port is in use.
    pub(crate) async fn restart_with_ports(&self, container: &Container) -> Result<()> {
        self.engine.stop(&container.id).await?;
        if let Some(ended) = self.find(&container.id).await? {
            self.restore_network(&ended).await?;
        }
        self.engine.start(&container.id).await
    }

    /// Makes the companion in a container answer requests again.
    ///
    /// # Errors
    /// When the companion does not confirm it in time.
    pub(crate) async fn resume_requests(&self, container: &str) -> Result<()> {
        let verb = ["resume", "--json"];
        let limits = (RESUME_VERB_TIMEOUT, MAX_RESUME_OUTPUT_BYTES);
        let resumed: ResumeReply = self.exec_verb(container, &verb, limits).await?;
        match resumed.resumed {
            true => Ok(()),
            false => bail!("the companion did not resume"),
        }
    }

    /// Runs a hidden verb of `osctl` in a container, and parses the JSON document that it prints.
    ///
    /// # Errors
    /// When the verb prints no such document of at most `max_bytes` within the time limit; the error includes its
    /// stderr.
    pub(crate) async fn exec_verb<A: DeserializeOwned>(
        &self,
        container: &str,
        verb: &[&str],
        (limit, max_bytes): (Duration, usize),
    ) -> Result<A> {
        let docker = self
            .engine
            .docker()
            .context("the engine runs no commands")?;
        let command = [&[CONTAINER_OSCTL_PATH][..], verb].concat();
        let what = format!("`osctl {}`", verb.first().unwrap_or(&""));
        let mut answer = Vec::new();
        let mut on_output = |bytes: &[u8]| {
            answer.extend_from_slice(bytes);
            match answer.len() > max_bytes {
                true => bail!("{what} printed more than {max_bytes} bytes"),
                false => Ok(()),
            }
        };
        let exec = docker.exec(container, &command, &mut on_output);
        let Ok(exec) = timeout(limit, exec).await else {
            bail!("{what} did not answer within {} s", limit.as_secs());
        };
        let output = exec?;
        if output.code != 0 {
            let stderr = output.stderr.trim();
            bail!("{what} ended with exit code {}: {stderr}", output.code);
        }
        serde_json::from_slice(&answer).with_context(|| format!("{what} printed unexpected output"))
    }
}
