//! Where bodies run: a container engine, or plain processes of this machine.
//!
//! An [`Engine`] takes a [`ContainerSpec`] and says what became of it. It owns no policy: what to build,
//! when to replace and what to tell people is decided by `host` and `keeper`.

mod docker;
mod embedded;
mod identity;
mod process_lock;

pub(crate) use docker::{
    ClassicBuild, Docker, EngineAddress, EngineExecPipes, EngineImage, ImageBuild, ImageBuilder,
};
pub(crate) use embedded::EmbeddedEngine;
pub(crate) use identity::{IMAGE_LABEL, OWNER_LABEL, SPEC_DIGEST_LABEL, set_spec_digest};
pub(crate) use process_lock::{ProcessLock, create_lock_file};

use crate::error::Result;
use crate::protocol::spec::{ContainerSpec, Port};
use std::collections::{BTreeMap, BTreeSet};

/// Who is told how the work goes.
pub(crate) trait EngineProgress: Send + Sync {
    /// What is done now.
    fn step(&self, what: &str);
    /// How far it is, in bytes.
    fn amount(&self, what: &str, done: u64, total: Option<u64>);
    /// A line of detail, for those who asked for it.
    fn log(&self, line: &str);
    /// What went otherwise than was asked for.
    fn warn(&self, line: &str) {
        self.log(line);
    }
}

/// The engines there are.
#[derive(Debug, Clone)]
pub(crate) enum Engine {
    Docker(Docker),
    Embedded(EmbeddedEngine),
}

/// How a container stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerPhase {
    /// Made and never started: what an interrupted `up` leaves.
    Created,
    Running,
    Restarting,
    Paused,
    Stopped,
    /// Its removal was begun and has not ended: it can be removed, and nothing else.
    Dead,
}

/// A container that exists.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    /// What the engine calls it, whatever its name; empty where there is no such thing.
    pub(crate) id: String,
    pub(crate) phase: ContainerPhase,
    pub(crate) image: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The networks it is on.
    pub(crate) networks: BTreeSet<String>,
    /// What it was made to publish.
    pub(crate) ports: Vec<Port>,
    /// Whether it publishes all of them, as one that runs should.
    pub(crate) has_ports: bool,
    /// How often the engine has started it again by itself.
    pub(crate) restarts: u64,
    /// Why it ended, when it did.
    pub(crate) exit: Option<String>,
    /// Whether it does not run because the engine could not start it, as when a port of it was taken.
    pub(crate) failed_to_start: bool,
}

/// Lines of a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogOptions {
    pub(crate) follow: bool,
    /// The last so many; `None` is all.
    pub(crate) tail: Option<usize>,
}

impl Engine {
    /// How people call it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Docker(_) => "docker",
            Self::Embedded(_) => "embedded",
        }
    }

    /// The machine that it is on, unless that is this one.
    pub(crate) fn remote_host(&self) -> Option<&str> {
        match self {
            Self::Docker(docker) => docker.address().remote_host(),
            Self::Embedded(_) => None,
        }
    }

    /// The container of that name, if there is one.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn inspect(&self, name: &str) -> Result<Option<Container>> {
        match self {
            Self::Docker(docker) => docker.inspect(name).await,
            Self::Embedded(embedded) => embedded.inspect(name),
        }
    }

    /// Creates the container and starts it.
    ///
    /// # Errors
    /// When the engine refuses; nothing is left behind then.
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

    /// Stops it and waits until it has ended.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn stop(&self, name: &str) -> Result<()> {
        match self {
            Self::Docker(docker) => docker.stop(name).await,
            Self::Embedded(embedded) => embedded.stop(name).await,
        }
    }

    /// Removes it, running or not. Not an error when there is none.
    ///
    /// # Errors
    /// When the engine refuses.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        match self {
            Self::Docker(docker) => docker.remove(name).await,
            Self::Embedded(embedded) => embedded.remove(name).await,
        }
    }

    /// Hands each line of the container's log to `each`, until its end or, following, for ever.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn logs(
        &self,
        name: &str,
        options: LogOptions,
        each: &mut (dyn FnMut(&str) -> Result<()> + Send),
    ) -> Result<()> {
        match self {
            Self::Docker(docker) => docker.logs(name, options, each).await,
            Self::Embedded(embedded) => embedded.logs(name, options, each).await,
        }
    }
}
