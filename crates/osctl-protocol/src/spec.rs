//! The complete specification of a container: `up` creates it, and `evolve` replaces it.
//!
//! Every property of the container is in [`ContainerSpec`], so two containers with the same specification are equal.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// Label of intermediate images of the classic builder: the build that created them.
pub const BUILD_LABEL: &str = "osctl.build";

/// Prefix of the value of [`BUILD_LABEL`]; the instance's name follows.
pub const BUILD_LABEL_PREFIX: &str = "osctl-";

/// Everything that an engine needs to create the container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerSpec {
    pub name: String,
    pub hostname: String,
    pub image: String,
    /// The network of the container; `None` disables networking.
    pub network: Option<String>,
    pub mounts: Vec<Mount>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    pub ports: Vec<Port>,
    pub env: ContainerEnv,
    pub limits: ContainerLimits,
    pub workload: Workload,
    pub capabilities: Vec<String>,
    pub security: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// The health check command, which the engine runs in the container.
    pub health_check: Vec<String>,
    /// Seconds between the stop request and the kill.
    pub stop_timeout: u32,
    /// Whether the root file system is read-only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
    #[serde(default, skip_serializing_if = "ContainerRestartPolicy::is_usual")]
    pub restart: ContainerRestartPolicy,
}

/// When the engine restarts the container automatically.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerRestartPolicy {
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
pub struct Mount {
    pub host: PathBuf,
    pub container: String,
    pub read_only: bool,
}

/// A volume of the engine, mounted in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The name; `None` is an anonymous volume, which is removed with the container.
    pub name: Option<String>,
    pub container: String,
    pub read_only: bool,
}

/// A port of the container, published on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    pub bind: IpAddr,
    pub host: u16,
    pub container: u16,
}

/// Resource limits of the container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerLimits {
    /// CPUs; `None` means no limit.
    pub cpus: Option<f64>,
    /// Bytes; `None` means no limit.
    pub memory: Option<u64>,
    /// Maximum number of processes and threads.
    pub pids: u32,
    /// Size of `/dev/shm` in bytes.
    pub shm: u64,
}

/// The user of the agent's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    pub uid: u32,
    pub gid: u32,
}

impl Workload {
    pub const ROOT_USER: Self = Self { uid: 0, gid: 0 };
}

/// Environment variables; their values never reach a log.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContainerEnv(pub BTreeMap<String, String>);

impl ContainerEnv {
    pub fn set(&mut self, key: &str, value: impl Into<String>) {
        self.0.insert(key.into(), value.into());
    }

    pub fn unset(&mut self, key: &str) {
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
