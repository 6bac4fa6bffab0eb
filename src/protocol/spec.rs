//! The complete specification of a container: `up` creates it, and `evolve` replaces it.
//!
//! Every property of the container is in [`ContainerSpec`], so two containers with the same specification are equal.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// Label of intermediate images of the classic builder: the build that created them.
pub(crate) const BUILD_LABEL: &str = "osctl.build";

/// Prefix of the value of [`BUILD_LABEL`]; the instance's name follows.
pub(crate) const BUILD_LABEL_PREFIX: &str = "osctl-";

/// Everything that an engine needs to create the container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContainerSpec {
    pub(crate) name: String,
    pub(crate) hostname: String,
    pub(crate) image: String,
    /// The network of the container; `None` disables networking.
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
    /// The health check command, which the engine runs in the container.
    pub(crate) health_check: Vec<String>,
    /// Seconds between the stop request and the kill.
    pub(crate) stop_timeout: u32,
    /// Whether the root file system is read-only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) read_only: bool,
    #[serde(default, skip_serializing_if = "ContainerRestartPolicy::is_usual")]
    pub(crate) restart: ContainerRestartPolicy,
}

/// When the engine restarts the container automatically.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContainerRestartPolicy {
    /// Unless it was stopped. Engines up to 20.10 that were killed treat the containers that they end at their next
    /// start as stopped.
    #[default]
    UnlessStopped,
    /// Always, also if it was stopped before the engine was started again.
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

/// A file or folder of the host, mounted in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mount {
    pub(crate) host: PathBuf,
    pub(crate) container: String,
    pub(crate) read_only: bool,
}

/// A volume of the engine, mounted in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Volume {
    /// The name; `None` is an anonymous volume, which is removed with the container.
    pub(crate) name: Option<String>,
    pub(crate) container: String,
    pub(crate) read_only: bool,
}

/// A port of the container, published on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) bind: IpAddr,
    pub(crate) host: u16,
    pub(crate) container: u16,
}

/// Resource limits of the container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContainerLimits {
    /// CPUs; `None` means no limit.
    pub(crate) cpus: Option<f64>,
    /// Bytes; `None` means no limit.
    pub(crate) memory: Option<u64>,
    /// Maximum number of processes and threads.
    pub(crate) pids: u32,
    /// Size of `/dev/shm` in bytes.
    pub(crate) shm: u64,
}

/// The user of the agent's code.
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
