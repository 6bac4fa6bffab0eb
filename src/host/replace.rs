//! Replacement of one container by another, with a rollback unless the new one becomes healthy.
//!
//! ```text
//!        rename            stop, create            healthy
//! old ───────────▶ aside ───────────────▶ both ──────────────▶ new alone
//!  ▲                 │                      │ anything else
//!  └─────────────────┴──────────────────────┘
//! ```
//!
//! The first step is the rename, and the last step of a rollback undoes it. So if osctl is interrupted at any point,
//! the next `up` finds the container that was set aside by its labels, and continues from there. The record of the old
//! container is stored beside it, because the new one may have other ports. The same steps recover a container that a
//! run of the keeper has set aside, paused and disconnected from its network.

use super::build;
use super::client::CompanionClient;
use super::health::HealthWatch;
use super::instance::{INSTANCE_LABEL, Instance, InstanceRecord};
use super::keeper::KEEPER_PART_LABEL;
use crate::engine::{Container, ContainerPhase, Docker, Engine, EngineProgress};
use crate::error::Result;
use crate::protocol::spec::ContainerSpec;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::timeout;

/// Time limit of `osctl resume` in a container that was unpaused.
const RESUME_VERB_TIMEOUT: Duration = Duration::from_secs(30);

/// Replaces the container of an instance.
#[derive(Clone, Copy)]
pub(crate) struct ContainerReplacer<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) engine: &'a Engine,
    pub(crate) docker: &'a Docker,
    pub(crate) bind: IpAddr,
    pub(crate) progress: &'a dyn EngineProgress,
}

impl ContainerReplacer<'_> {
    /// Replaces the container, and removes the old one only after the new one is healthy. The old container runs until
    /// it is renamed, so a failed rename changes nothing.
    ///
    /// # Errors
    /// When the new container does not become healthy; the old one then runs again.
    pub(crate) async fn replace(
        &self,
        spec: &ContainerSpec,
        record: &InstanceRecord,
        old: &Container,
    ) -> Result<()> {
        let (docker, aside) = (self.docker, self.instance.replaced_container_name());
        if docker
            .inspect(&aside)
            .await?
            .is_some_and(|c| self.is_own_container(&c))
        {
            docker.remove(&aside).await?;
        }
        self.instance.back_up_record()?;
        docker.rename(&spec.name, &aside).await?;
        let started = async {
            docker.stop(&aside).await?;
            self.instance.save_record(record)?;
            docker.create_and_start(spec).await?;
            self.wait_until_healthy(record).await
        };
        if let Err(error) = started.await {
            self.restore_old_container(&aside).await?;
            return Err(error);
        }
        self.remove_replaced(&aside, old).await
    }

    /// Finishes an interrupted replacement, whatever the names of the instance's containers are. Removes containers
    /// that never ran, that were being removed, and trial containers. Removes any other container that was set aside if
    /// the container in place becomes healthy; otherwise puts it back in place. A container in place is unpaused, and the
    /// engine may restart it. Returns whether the container of the instance was paused in its place.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn finish_interrupted(&self) -> Result<bool> {
        let (docker, instance) = (self.docker, self.instance);
        let mut waiting = Vec::new();
        let mut was_paused = false;
        for name in docker
            .list_labelled_containers(&format!("{INSTANCE_LABEL}={}", instance.name))
            .await?
        {
            let Some(found) = docker.inspect(&name).await? else {
                continue;
            };
            let is_part = found.labels.contains_key(KEEPER_PART_LABEL);
            let is_in_place =
                [instance.container_name(), instance.keeper_container_name()].contains(&name);
            let is_nothing = matches!(found.phase, ContainerPhase::Created | ContainerPhase::Dead);
            if is_nothing || (is_part && !is_in_place) {
                self.progress
                    .log(&format!("removing the leftover container `{name}`"));
                docker.remove(&name).await?;
            } else if !is_in_place {
                waiting.push(name);
            } else if found.phase == ContainerPhase::Paused {
                // A swap, or a user, has paused the container. It has its memory.
                self.start_restored(&name).await?;
                was_paused |= name == instance.container_name();
            } else if name == instance.container_name()
                && let Err(error) = docker.set_restart_policy(&name, true).await
            {
                // The engine refuses this for a container that is just ending.
                self.progress.log(&format!("{error:#}"));
            }
        }
        // The container with the usual aside name comes first: it belongs to the latest swap.
        waiting.sort_by_key(|name| *name != instance.replaced_container_name());
        for aside in waiting {
            self.resolve_aside_container(&aside).await?;
        }
        Ok(was_paused)
    }

    async fn resolve_aside_container(&self, aside: &str) -> Result<()> {
        let (docker, name) = (self.docker, self.instance.container_name());
        let Some(old) = docker.inspect(aside).await? else {
            return Ok(());
        };
        match docker.inspect(&name).await? {
            // A later lookup of the instance's container reports the foreign one.
            Some(new) if !self.is_own_container(&new) => return Ok(()),
            Some(new) => match self.check_health(&name, &new).await {
                Ok(()) => return self.remove_replaced(aside, &old).await,
                Err(error) => self.progress.log(&format!("{error:#}")),
            },
            None => {}
        }
        match self.restore_old_container(aside).await {
            // Only the start failed. Its ports may be in use by now; the rest of `up` reports or avoids this.
            Err(error) if docker.inspect(aside).await?.is_none() => {
                self.progress.log(&format!("{error:#}"));
                Ok(())
            }
            done => done,
        }
    }

    /// Starts a stopped container first: it may have been healthy before the stop.
    async fn check_health(&self, name: &str, new: &Container) -> Result<()> {
        let Some(record) = self.instance.read_record()? else {
            anyhow::bail!("no record of `{name}`");
        };
        self.instance.ensure_token()?;
        if new.phase == ContainerPhase::Stopped {
            self.docker.start(name).await?;
        }
        self.wait_until_healthy(&record).await
    }

    async fn wait_until_healthy(&self, record: &InstanceRecord) -> Result<()> {
        let watch = HealthWatch {
            instance: self.instance,
            engine: self.engine,
            client: &CompanionClient::new(self.instance, record, self.bind)?,
            name: &self.instance.container_name(),
            progress: self.progress,
        };
        watch.wait_until_healthy().await
    }

    /// Puts the old container and its record in the place of the new one.
    async fn restore_old_container(&self, aside: &str) -> Result<()> {
        let (docker, name) = (self.docker, self.instance.container_name());
        self.progress
            .report_step(&format!("restoring the old `{name}`"));
        if docker
            .inspect(&name)
            .await?
            .is_some_and(|c| self.is_own_container(&c))
        {
            docker.remove(&name).await?;
        }
        self.instance.restore_record()?;
        let started = self.start_restored(aside).await;
        docker.rename(aside, &name).await?;
        started
    }

    /// Undoes the changes of a keeper's swap to a container: it may be paused, quiesced, disconnected from its network,
    /// and excluded from restarts by the engine.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn start_restored(&self, aside: &str) -> Result<()> {
        let docker = self.docker;
        let Some(found) = docker.inspect(aside).await? else {
            return Ok(());
        };
        docker.set_restart_policy(aside, true).await?;
        self.restore_network(&found).await?;
        if found.phase != ContainerPhase::Paused {
            return docker.start(aside).await;
        }
        docker.unpause(aside).await?;
        let mut nothing = |_: &[u8]| Ok(());
        let resume = ["/opt/osctl/bin/osctl", "resume", "--json"];
        // The program belongs to the container, which may never end it.
        let resumed = docker.exec(aside, &resume, &mut nothing);
        match timeout(RESUME_VERB_TIMEOUT, resumed).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => self.progress.log(&format!("{error:#}")),
            Err(_) => self
                .progress
                .log(&format!("`{aside}` did not resume in time")),
        }
        Ok(())
    }

    /// Connects the container to its own network alone: a keeper may have started it on a network that publishes no
    /// ports.
    async fn restore_network(&self, container: &Container) -> Result<()> {
        let (docker, network) = (self.docker, self.instance.network_name());
        let portless = self.instance.portless_network();
        if container.networks.contains(&portless) {
            docker.leave_network(&container.id, &portless).await?;
        }
        if !container.networks.contains(&network) && docker.has_network(&network).await? {
            docker.join_network(&container.id, &network).await?;
        }
        Ok(())
    }

    /// Starts a stopped container, or one that runs without its ports, with its ports.
    ///
    /// # Errors
    /// When the engine refuses, for example because a port is in use.
    pub(crate) async fn start_with_ports(&self, container: &Container) -> Result<()> {
        self.docker.stop(&container.id).await?;
        self.restore_network(container).await?;
        self.docker.start(&container.id).await
    }

    async fn remove_replaced(&self, aside: &str, old: &Container) -> Result<()> {
        self.docker.remove(aside).await?;
        build::remove_untagged_image(self.docker, &old.image).await
    }

    fn is_own_container(&self, container: &Container) -> bool {
        container.labels.get(INSTANCE_LABEL) == Some(&self.instance.name)
    }
}
