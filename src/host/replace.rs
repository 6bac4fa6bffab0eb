//! Replacement of a container without a keeper: the new one must become healthy.
//!
//! The steps are those of `replacement`; the only gate is the health of the new container. The record of the old
//! container is stored beside it, because the new one may have other ports. If osctl is interrupted at any point, the
//! next `up` finds the containers by their labels and decides in the same way. The same decision recovers a container
//! that a run of the keeper has set aside, paused and disconnected from its network.

use super::build;
use super::client::CompanionClient;
use super::health::HealthWatch;
use super::instance::{INSTANCE_LABEL, Instance, InstanceRecord};
use super::keeper::KEEPER_PART_LABEL;
use crate::engine::{Container, ContainerPhase, Engine, EngineProgress};
use crate::error::{Error, Result};
use crate::protocol::spec::ContainerSpec;
use crate::replacement::ContainerPlaces;
use std::net::IpAddr;

/// Replaces the container of an instance.
#[derive(Clone, Copy)]
pub(crate) struct ContainerReplacer<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) engine: &'a Engine,
    pub(crate) bind: IpAddr,
    pub(crate) progress: &'a dyn EngineProgress,
}

impl ContainerReplacer<'_> {
    pub(crate) fn places(&self) -> ContainerPlaces {
        let instance = self.instance;
        ContainerPlaces {
            engine: self.engine.clone(),
            instance: instance.name.clone(),
            name: instance.container_name(),
            aside: instance.replaced_container_name(),
            network: Some(instance.network_name()),
        }
    }

    /// Replaces the container, and removes the old one only after the new one is healthy. A name that is not free for
    /// the old container is found while it runs.
    ///
    /// # Errors
    /// When the new container does not become healthy; the old one then runs again.
    pub(crate) async fn replace(
        &self,
        spec: &ContainerSpec,
        record: &InstanceRecord,
        old: &Container,
    ) -> Result<()> {
        let places = self.places();
        places.clear_aside().await?;
        self.instance.back_up_record()?;
        let started = async {
            let quiet = async || self.engine.stop(&old.id).await;
            places.set_aside(old, quiet).await?;
            self.instance.save_record(record)?;
            self.engine.create_and_start(spec).await?;
            self.wait_until_healthy(record).await
        };
        let started = started.await;
        match places.find(&places.aside).await? {
            Some(aside) => {
                let is_proven = async |_: &Container| Ok(started.is_ok());
                self.resolve_aside_container(&aside, is_proven).await?;
            }
            None => self.restore_container(&places.name).await?,
        }
        started
    }

    /// Finishes an interrupted replacement, whatever the names of the instance's containers are. Removes containers
    /// that never ran, that were being removed, and trial containers. Removes any other container that was set aside if
    /// the container in place becomes healthy; otherwise puts it back in place. A container in place is unpaused, and the
    /// engine may restart it. Returns whether the container of the instance was paused in its place.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn finish_interrupted(&self) -> Result<bool> {
        let (engine, instance) = (self.engine, self.instance);
        let mut waiting = Vec::new();
        let mut was_paused = false;
        let owner = (INSTANCE_LABEL, instance.name.as_str());
        for name in engine.list_labelled_containers(owner).await? {
            let Some(found) = engine.inspect(&name).await? else {
                continue;
            };
            let is_part = found.labels.contains_key(KEEPER_PART_LABEL);
            let is_keeper = name == instance.keeper_container_name();
            let is_in_place = is_keeper || name == instance.container_name();
            let is_nothing = matches!(found.phase, ContainerPhase::Created | ContainerPhase::Dead);
            if is_nothing || (is_part && !is_in_place) {
                self.progress
                    .log(&format!("removing the leftover container `{name}`"));
                engine.remove(&name).await?;
            } else if !is_in_place {
                waiting.push(name);
            } else if let Engine::Docker(docker) = engine {
                match found.phase {
                    ContainerPhase::Paused if is_keeper => docker.unpause(&name).await?,
                    // A swap, or a user, has paused the container. It has its memory.
                    ContainerPhase::Paused => {
                        self.restore_container(&name).await?;
                        was_paused = true;
                    }
                    _ if is_keeper => {}
                    _ => {
                        // The engine refuses this for a container that is just ending.
                        let allowed = docker.set_restart_policy(&name, true).await;
                        allowed.unwrap_or_else(|error| self.progress.log(&format!("{error:#}")));
                    }
                }
            }
        }
        // The container with the usual aside name comes first: it belongs to the latest swap.
        waiting.sort_by_key(|name| *name != instance.replaced_container_name());
        for aside in waiting {
            let Some(old) = engine.inspect(&aside).await? else {
                continue;
            };
            let is_healthy = async |new: &Container| {
                let health = self.check_health(new).await;
                Ok(health
                    .inspect_err(|error| self.progress.log(&format!("{error:#}")))
                    .is_ok())
            };
            match self.resolve_aside_container(&old, is_healthy).await {
                // A later lookup of the instance's container reports the foreign one.
                Err(error) if matches!(error.downcast_ref(), Some(Error::ForeignObject { .. })) => {
                }
                // Only the start failed. Its ports may be in use by now; the rest of `up` reports or avoids this.
                Err(error) if engine.inspect(&aside).await?.is_none() => {
                    self.progress.log(&format!("{error:#}"));
                }
                done => done?,
            }
        }
        Ok(was_paused)
    }

    /// Removes a container that was set aside if the one in place is proven; otherwise puts it and its record back.
    async fn resolve_aside_container(
        &self,
        aside: &Container,
        is_proven: impl AsyncFnOnce(&Container) -> Result<bool>,
    ) -> Result<()> {
        if self.places().choose_over_aside(aside, is_proven).await? {
            let name = self.instance.container_name();
            self.progress
                .report_step(&format!("restoring the old `{name}`"));
            self.instance.restore_record()?;
            return self.restore_container(&aside.id).await;
        }
        match self.engine {
            Engine::Docker(docker) => build::remove_untagged_image(docker, &aside.image).await,
            Engine::Embedded(_) => Ok(()),
        }
    }

    /// Starts a stopped container first: it may have been healthy before the stop.
    async fn check_health(&self, new: &Container) -> Result<()> {
        let name = self.instance.container_name();
        let Some(record) = self.instance.read_record()? else {
            anyhow::bail!("no record of `{name}`");
        };
        self.instance.ensure_token()?;
        if new.phase == ContainerPhase::Stopped {
            self.engine.start(&name).await?;
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

    /// Undoes what a replacement, also one by a keeper, has changed at a container: it may be set aside, paused,
    /// quiesced, disconnected from its network, and excluded from restarts by the engine.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn restore_container(&self, name: &str) -> Result<()> {
        let places = self.places();
        let Some(found) = self.engine.inspect(name).await? else {
            return Ok(());
        };
        let reconnected = places.restore_network(&found).await;
        places.put_back(&found, true).await?;
        reconnected?;
        // The reason may be text of the container, which the host does not show.
        if found.phase == ContainerPhase::Paused && places.resume_requests(&found.id).await.is_err()
        {
            let what = "did not confirm that it answers requests again";
            self.progress.log(&format!("`{}` {what}", places.name));
        }
        Ok(())
    }
}
