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

/// Who replaces the container of an instance.
#[derive(Clone, Copy)]
pub(crate) struct ContainerReplacer<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) engine: &'a Engine,
    pub(crate) docker: &'a Docker,
    pub(crate) bind: IpAddr,
    pub(crate) progress: &'a dyn EngineProgress,
}

impl ContainerReplacer<'_> {
    /// Replaces the container, which goes only when the new one is healthy. It runs until it has
    /// its other name, so a name that can't be had costs nothing.
    ///
    /// # Errors
    /// When the new one does not become healthy; the old one runs again then.
    pub(crate) async fn replace(
        &self,
        spec: &ContainerSpec,
        record: &InstanceRecord,
        old: &Container,
    ) -> Result<()> {
        let (docker, aside) = (self.docker, self.instance.aside_container_name());
        if docker.inspect(&aside).await?.is_some_and(|c| self.owns(&c)) {
            docker.remove(&aside).await?;
        }
        self.instance.keep_record()?;
        docker.rename(&spec.name, &aside).await?;
        let raised = async {
            docker.stop(&aside).await?;
            self.instance.save_record(record)?;
            docker.create_and_start(spec).await?;
            self.until_healthy(record).await
        };
        if let Err(error) = raised.await {
            self.bring_back(&aside).await?;
            return Err(error);
        }
        self.remove_replaced(&aside, old).await
    }

    /// Ends what was interrupted, whatever the containers of the instance are called: one that never ran, was being
    /// removed or is a trial goes. Another one that is not in place gives way to the one that is when that proves
    /// healthy, else it takes its place.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn finish_interrupted(&self) -> Result<()> {
        let (docker, instance) = (self.docker, self.instance);
        let mut waiting = Vec::new();
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
                    .log(&format!("removing `{name}`, which was left behind"));
                docker.remove(&name).await?;
            } else if !is_in_place {
                waiting.push(name);
            }
        }
        // The usual name first: what it has is of the latest swap.
        waiting.sort_by_key(|name| *name != instance.aside_container_name());
        for aside in waiting {
            self.settle_from(&aside).await?;
        }
        Ok(())
    }

    async fn settle_from(&self, aside: &str) -> Result<()> {
        let (docker, name) = (self.docker, self.instance.container_name());
        let Some(old) = docker.inspect(aside).await? else {
            return Ok(());
        };
        match docker.inspect(&name).await? {
            // Whoever looks for the instance's container is told.
            Some(new) if !self.owns(&new) => return Ok(()),
            Some(new) => match self.check_health(&name, &new).await {
                Ok(()) => return self.remove_replaced(aside, &old).await,
                Err(error) => self.progress.log(&format!("{error:#}")),
            },
            None => {}
        }
        match self.bring_back(aside).await {
            // Only its start has failed. Its ports may be taken by now, which the rest of `up` tells
            // or avoids.
            Err(error) if docker.inspect(aside).await?.is_none() => {
                self.progress.log(&format!("{error:#}"));
                Ok(())
            }
            done => done,
        }
    }

    /// A container that was stopped meanwhile may have been healthy before.
    async fn check_health(&self, name: &str, new: &Container) -> Result<()> {
        let Some(record) = self.instance.read_record()? else {
            anyhow::bail!("nothing is recorded about `{name}`");
        };
        self.instance.ensure_token()?;
        if new.phase == ContainerPhase::Stopped {
            self.docker.start(name).await?;
        }
        self.until_healthy(&record).await
    }

    async fn until_healthy(&self, record: &InstanceRecord) -> Result<()> {
        let watch = HealthWatch {
            instance: self.instance,
            engine: self.engine,
            client: &CompanionClient::new(self.instance, record, self.bind)?,
            name: &self.instance.container_name(),
            progress: self.progress,
        };
        watch.until_healthy().await
    }

    /// The old container, with what is recorded about it, in the place of the new one.
    async fn bring_back(&self, aside: &str) -> Result<()> {
        let (docker, name) = (self.docker, self.instance.container_name());
        self.progress
            .step(&format!("bringing the old `{name}` back"));
        if docker.inspect(&name).await?.is_some_and(|c| self.owns(&c)) {
            docker.remove(&name).await?;
        }
        self.instance.restore_record()?;
        let started = self.start_restored(aside).await;
        docker.rename(aside, &name).await?;
        started
    }

    /// Undoes what a swap by the keeper has done to a container: it may be paused, at rest, off its network, and
    /// not to be started again by the engine.
    async fn start_restored(&self, aside: &str) -> Result<()> {
        let docker = self.docker;
        let Some(found) = docker.inspect(aside).await? else {
            return Ok(());
        };
        docker.let_restart(aside, true).await?;
        self.put_on_network(&found).await?;
        if found.phase != ContainerPhase::Paused {
            return docker.start(aside).await;
        }
        docker.unpause(aside).await?;
        let mut nothing = |_: &[u8]| Ok(());
        let resume = ["/opt/osctl/bin/osctl", "resume", "--json"];
        if let Err(error) = docker.exec(aside, &resume, &mut nothing).await {
            self.progress.log(&format!("{error:#}"));
        }
        Ok(())
    }

    /// On its own network alone: a keeper may have started it on one that publishes no ports.
    async fn put_on_network(&self, container: &Container) -> Result<()> {
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

    /// Starts a container that has ended, or that runs without its ports, with them.
    ///
    /// # Errors
    /// When the engine refuses, as it does when a port is taken.
    pub(crate) async fn start_with_ports(&self, container: &Container) -> Result<()> {
        self.docker.stop(&container.id).await?;
        self.put_on_network(container).await?;
        self.docker.start(&container.id).await
    }

    async fn remove_replaced(&self, aside: &str, old: &Container) -> Result<()> {
        self.docker.remove(aside).await?;
        build::remove_nameless(self.docker, &old.image).await
    }

    fn owns(&self, container: &Container) -> bool {
        container.labels.get(INSTANCE_LABEL) == Some(&self.instance.name)
    }
}
