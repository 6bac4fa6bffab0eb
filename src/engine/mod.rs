//! Engines that run bodies: a container engine, or plain processes of this machine.
//!
//! An [`Engine`] takes a [`ContainerSpec`] and reports the result. It has no policy: `host` and `keeper` decide what
//! to build, when to replace a container and what to show to users.

mod container;
mod docker;
mod embedded;
mod identity;
mod process_lock;

pub(crate) use container::{Container, ContainerPhase, ContainerUsage, EngineProgress, LogOptions};
#[cfg(test)]
pub(crate) use docker::fake_engine;
pub(crate) use docker::{
    ClassicBuild, Docker, EngineAddress, EngineExecPipes, EngineImage, ImageBuild, ImageBuilder,
};
pub(crate) use embedded::EmbeddedEngine;
pub(crate) use identity::{IMAGE_LABEL, OWNER_LABEL, SPEC_DIGEST_LABEL, set_spec_digest};
pub(crate) use process_lock::{ProcessLock, create_lock_file};

use crate::error::Result;
use crate::protocol::spec::ContainerSpec;
use std::path::Path;

/// The supported engines.
#[derive(Debug, Clone)]
pub(crate) enum Engine {
    Docker(Docker),
    Embedded(EmbeddedEngine),
}

impl Engine {
    /// The name of the engine for users.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Docker(_) => "docker",
            Self::Embedded(_) => "embedded",
        }
    }

    /// The container engine: only it has images, networks, pauses and restarts.
    pub(crate) fn docker(&self) -> Option<&Docker> {
        match self {
            Self::Docker(docker) => Some(docker),
            Self::Embedded(_) => None,
        }
    }

    /// The machine of the engine, unless it is this one.
    pub(crate) fn remote_host(&self) -> Option<&str> {
        self.docker()?.address().remote_host()
    }

    /// The socket of the engine, if it has one on this machine.
    pub(crate) fn socket_path(&self) -> Option<&Path> {
        self.docker()?.address().socket_path()
    }

    /// The container of this name, if it exists.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn inspect(&self, name: &str) -> Result<Option<Container>> {
        match self {
            Self::Docker(docker) => docker.inspect(name).await,
            Self::Embedded(embedded) => embedded.inspect(name),
        }
    }

    /// What a running container uses.
    pub(crate) async fn usage(&self, name: &str) -> ContainerUsage {
        match self {
            Self::Docker(docker) => docker.container_usage(name).await,
            Self::Embedded(_) => ContainerUsage::default(),
        }
    }

    /// Creates the container and starts it.
    ///
    /// # Errors
    /// When the engine refuses; no container is left then.
    pub(crate) async fn create_and_start(&self, spec: &ContainerSpec) -> Result<()> {
        match self {
            Self::Docker(docker) => docker.create_and_start(spec).await,
            Self::Embedded(embedded) => embedded.create_and_start(spec),
        }
    }

    /// Starts a container that is stopped.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn start(&self, name: &str) -> Result<()> {
        match self {
            Self::Docker(docker) => docker.start(name).await,
            Self::Embedded(embedded) => embedded.start(name),
        }
    }

    /// Stops a container and waits until it has ended.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn stop(&self, name: &str) -> Result<()> {
        match self {
            Self::Docker(docker) => docker.stop(name).await,
            Self::Embedded(embedded) => embedded.stop(name).await,
        }
    }

    /// Renames a container.
    ///
    /// # Errors
    /// When another container has that name, or the engine refuses.
    pub(crate) async fn rename(&self, name: &str, to: &str) -> Result<()> {
        match self {
            Self::Docker(docker) => docker.rename(name, to).await,
            Self::Embedded(embedded) => embedded.rename(name, to),
        }
    }

    /// The names of the containers with this label, running or not.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn list_labelled_containers(
        &self,
        (key, value): (&str, &str),
    ) -> Result<Vec<String>> {
        match self {
            Self::Docker(docker) => {
                let label = format!("{key}={value}");
                docker.list_labelled_containers(&label).await
            }
            Self::Embedded(embedded) => embedded.list_labelled_containers((key, value)),
        }
    }

    /// Removes a container, running or not. It is not an error if the container does not exist.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        match self {
            Self::Docker(docker) => docker.remove(name).await,
            Self::Embedded(embedded) => embedded.remove(name).await,
        }
    }

    /// Passes each line of the container's log to `on_line`, up to its current end or, with `follow`, while the
    /// container runs.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn logs(
        &self,
        name: &str,
        options: LogOptions,
        on_line: &mut (dyn FnMut(&str) -> Result<()> + Send),
    ) -> Result<()> {
        match self {
            Self::Docker(docker) => docker.logs(name, options, on_line).await,
            Self::Embedded(embedded) => embedded.logs(name, options, on_line).await,
        }
    }
}
