//! Containers and the progress of an operation, as both engines report them.

use crate::protocol::spec::Port;
use std::collections::{BTreeMap, BTreeSet};

/// The receiver of an operation's progress.
pub(crate) trait EngineProgress: Send + Sync {
    /// The current step.
    fn report_step(&self, what: &str);
    /// The progress of the step, in bytes.
    fn report_amount(&self, what: &str, done: u64, total: Option<u64>);
    /// A line of detail, shown with verbose output.
    fn log(&self, line: &str);
    /// A deviation from the request.
    fn warn(&self, line: &str) {
        self.log(line);
    }
}

/// The phase of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerPhase {
    /// Created and never started, as an interrupted `up` leaves it.
    Created,
    Running,
    Restarting,
    Paused,
    Stopped,
    /// Its removal was started and has not ended: the container can only be removed.
    Dead,
}

/// An existing container.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    /// The engine's id of the container, independent of its name; the name for an engine without ids.
    pub(crate) id: String,
    pub(crate) phase: ContainerPhase,
    pub(crate) image: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The networks that the container is connected to.
    pub(crate) networks: BTreeSet<String>,
    /// The ports that the container was created to publish.
    pub(crate) ports: Vec<Port>,
    /// Whether the container publishes all of its ports, as a running container should.
    pub(crate) has_ports: bool,
    /// How often the engine has restarted the container automatically.
    pub(crate) restart_count: u64,
    /// Why the container ended, if it did.
    pub(crate) exit_reason: Option<String>,
    /// Whether the container does not run because the engine could not start it, for example because a port was
    /// in use.
    pub(crate) failed_to_start: bool,
}

/// What a running container uses, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ContainerUsage {
    /// The time of the latest start, as RFC 3339.
    pub(crate) started_at: Option<String>,
    /// The memory in use, in bytes.
    pub(crate) memory: Option<u64>,
}

/// Which lines of a log to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogOptions {
    pub(crate) follow: bool,
    /// The number of last lines; `None` is all.
    pub(crate) tail: Option<usize>,
}
