//! A container, described completely: what `up` creates and what later replaces it.
//!
//! Nothing about the container lives outside of [`ContainerSpec`], so a container made from the same
//! specification is the same container.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// Label of the images that the classic builder leaves between its steps: whose build it was.
pub(crate) const BUILD_LABEL: &str = "osctl.build";

/// What the value of [`BUILD_LABEL`] begins with; the instance follows.
pub(crate) const BUILD_MARK: &str = "osctl-";

/// Everything that an engine needs to create the container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContainerSpec {
    pub(crate) name: String,
    pub(crate) hostname: String,
    pub(crate) image: String,
    /// The network it is on; `None` is none at all.
    pub(crate) network: Option<String>,
    pub(crate) mounts: Vec<Mount>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<Volume>,
    pub(crate) ports: Vec<Port>,
    pub(crate) env: ContainerEnv,
    pub(crate) limits: ContainerLimits,
    pub(crate) workload: Workload,
    pub(crate) capabilities: Vec<String>,
    pub(crate) security: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
    /// Run by the engine, inside.
    pub(crate) health_check: Vec<String>,
    /// Seconds between the request to stop and the kill.
    pub(crate) stop_timeout: u32,
    /// Whether nothing but what is mounted can be written.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) read_only: bool,
    #[serde(default, skip_serializing_if = "ContainerRestartPolicy::is_usual")]
    pub(crate) restart: ContainerRestartPolicy,
}

/// When the engine starts it again by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContainerRestartPolicy {
    /// Unless it was stopped. Engines up to 20.10 take what they end when they start for stopped, if they
    /// were killed before.
    #[default]
    UnlessStopped,
    /// Also when it was stopped before the engine was started again.
    Always,
    Never,
}

impl ContainerRestartPolicy {
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A folder or file of the host, seen inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mount {
    pub(crate) host: PathBuf,
    pub(crate) container: String,
    pub(crate) read_only: bool,
}

/// Room that the engine keeps, seen inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Volume {
    /// `None` is room of its own, which goes with the container.
    pub(crate) name: Option<String>,
    pub(crate) container: String,
    pub(crate) read_only: bool,
}

/// A port inside, published on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) bind: IpAddr,
    pub(crate) host: u16,
    pub(crate) container: u16,
}

/// What the container may use at most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContainerLimits {
    /// CPUs; `None` is all.
    pub(crate) cpus: Option<f64>,
    /// Bytes; `None` is all.
    pub(crate) memory: Option<u64>,
    /// Processes and threads.
    pub(crate) pids: u32,
    /// Bytes of `/dev/shm`.
    pub(crate) shm: u64,
}

/// Who the agent's code runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Workload {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Workload {
    pub(crate) const ROOT_USER: Self = Self { uid: 0, gid: 0 };
}

/// Environment variables; their values never reach a log.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ContainerEnv(pub(crate) BTreeMap<String, String>);

impl ContainerEnv {
    pub(crate) fn set(&mut self, key: &str, value: impl Into<String>) {
        self.0.insert(key.into(), value.into());
    }

    pub(crate) fn unset(&mut self, key: &str) {
        self.0.remove(key);
    }
}

impl fmt::Debug for ContainerEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::ContainerEnv;

    #[test]
    fn values_of_the_environment_are_not_in_debug_output() {
        let mut env = ContainerEnv::default();
        env.set("OPENAI_API_KEY", "very-secret");
        let shown = format!("{env:?}");
        assert!(shown.contains("OPENAI_API_KEY"));
        assert!(!shown.contains("very-secret"));
    }
}
