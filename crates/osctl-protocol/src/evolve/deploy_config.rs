//! The deploy config: what the keeper may do and with which settings. The host writes it at each `osctl up`.

use crate::spec::ContainerSpec;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

/// The file of the deploy config, in a volume that only the keeper mounts.
pub const DEPLOY_CONFIG_FILE: &str = "deploy-config.json";

/// The former name of [`DEPLOY_CONFIG_FILE`], which is read when today's file does not exist.
pub const FORMER_DEPLOY_CONFIG_FILE: &str = "charge.json";

/// The name under which the host stores the body of an image that it has built, beside the deploy config. Runs that
/// replace the image are compared with this body.
pub fn built_body_name(image: &str) -> String {
    format!(
        "{BUILT_BODY_PREFIX}{}.tar",
        image.trim_start_matches("sha256:")
    )
}

/// Whether a file name has the form of [`built_body_name`].
pub fn is_built_body_name(name: &str) -> bool {
    name.starts_with(BUILT_BODY_PREFIX)
}

const BUILT_BODY_PREFIX: &str = "built-";

/// The name of the network without published ports, beside the instance's network.
pub fn portless_network(network: &str) -> String {
    format!("{network}.portless")
}

/// All permissions of the keeper. Only the host can change them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeployConfig {
    pub instance: String,
    /// The container; between runs, only its image differs.
    pub spec: ContainerSpec,
    /// Variables that are ignored when specifications are compared.
    #[serde(alias = "passing")]
    pub ignored_variables: BTreeSet<String>,
    /// The name of the old container while the new one is verified.
    #[serde(alias = "aside")]
    pub replaced_name: String,
    /// The name of the images that the keeper builds.
    pub image: String,
    /// The path of the body beneath `/repo`; without it, the keeper's own body is used.
    pub body: PathBuf,
    /// The root of the project's git repository, if it is above the project.
    #[serde(default, alias = "above")]
    pub repository_root: Option<PathBuf>,
    /// The image that `FROM ${BASE}` denotes in this engine.
    pub base: String,
    /// Build arguments that affect the image.
    pub args: BTreeMap<String, String>,
    /// Build arguments that do not affect the image.
    pub proxies: ProxyVariables,
    pub certificates: Vec<CertificateAuthority>,
    /// Whether to use the classic builder and not to try BuildKit.
    #[serde(alias = "classic")]
    pub classic_builder: bool,
    #[serde(alias = "bounds")]
    pub limits: EvolveLimits,
}

/// A certificate authority that the host trusts in addition to the usual ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateAuthority {
    pub name: String,
    pub pem: Vec<u8>,
}

/// Proxy addresses, which may contain passwords and therefore never reach a log.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProxyVariables(pub BTreeMap<String, String>);

impl fmt::Debug for ProxyVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Limits of a run. Times are in seconds.
///
/// Fields that a host of another version does not set have their defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvolveLimits {
    /// Time to read the body, also from a slow disk.
    pub read: u64,
    pub build: u64,
    /// Time for a new container to become healthy.
    pub start: u64,
    pub test: u64,
    /// Time for running code to end before the state is stored.
    pub grace: u64,
    pub verify: u64,
    /// Watch period after success: a new container that ends repeatedly in this time is rolled back.
    #[serde(alias = "probation")]
    pub watch_period: u64,
    /// Maximum size of a body.
    pub context: u64,
    /// Maximum size of all retained bodies; the diffs of older runs are not available.
    pub bodies: u64,
    /// Maximum size of a run's log.
    pub log: u64,
    /// Maximum number of runs that the agent may start per hour.
    #[serde(alias = "hourly")]
    pub runs_per_hour: usize,
    /// Number of retained records, and of images for rollbacks.
    pub images: usize,
    pub runs: usize,
}

impl Default for EvolveLimits {
    fn default() -> Self {
        Self {
            read: 60,
            build: 1800,
            start: 60,
            test: 180,
            grace: 20,
            verify: 90,
            watch_period: 60,
            context: 64 << 20,
            bodies: 256 << 20,
            log: 4 << 20,
            runs_per_hour: 30,
            images: 5,
            runs: 50,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::EvolveLimits;

    #[test]
    fn limits_that_an_older_host_leaves_out_have_defaults() {
        let read: EvolveLimits = serde_json::from_str(r#"{"grace":7}"#).unwrap();
        let expected = EvolveLimits {
            grace: 7,
            ..EvolveLimits::default()
        };
        assert_eq!(read, expected);
    }
}
