//! What the host lays down for the keeper at each `osctl up`: all that it may do, and with what.

use crate::protocol::spec::ContainerSpec;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

/// Where the host puts it, in a volume that no container but the keeper sees.
pub(crate) const DEPLOY_CONFIG_FILE: &str = "charge.json";

/// Where the host puts the body of an image that it has built, beside the charge: what runs are compared
/// with that replace it.
pub(crate) fn built_body_name(image: &str) -> String {
    format!(
        "{BUILT_BODY_PREFIX}{}.tar",
        image.trim_start_matches("sha256:")
    )
}

/// Whether a file is such a body.
pub(crate) fn is_built(name: &str) -> bool {
    name.starts_with(BUILT_BODY_PREFIX)
}

const BUILT_BODY_PREFIX: &str = "built-";

/// The name of the network beside an instance's that publishes no ports.
pub(crate) fn portless_network(network: &str) -> String {
    format!("{network}.portless")
}

/// The keeper's whole leave. Nobody but the host can change it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeployConfig {
    pub(crate) instance: String,
    /// The container, which differs from one run to the next in its image alone.
    pub(crate) spec: ContainerSpec,
    /// Variables that do not tell one specification from another.
    pub(crate) passing: BTreeSet<String>,
    /// Where the container waits while another one proves itself.
    pub(crate) aside: String,
    /// The name of its images.
    pub(crate) image: String,
    /// The body, beneath `/repo`; where there is none, the keeper's own is meant.
    pub(crate) body: PathBuf,
    /// Where the project's git repository begins, if that is above the project.
    #[serde(default)]
    pub(crate) above: Option<PathBuf>,
    /// What `FROM ${BASE}` stands for in this engine.
    pub(crate) base: String,
    /// Build arguments that shape the image.
    pub(crate) args: BTreeMap<String, String>,
    /// Build arguments that do not.
    pub(crate) proxies: ProxyVariables,
    pub(crate) certificates: Vec<CertificateAuthority>,
    /// Whether BuildKit is not to be tried.
    pub(crate) classic: bool,
    pub(crate) bounds: EvolveBounds,
}

/// A certificate authority that the host trusts beyond the usual ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CertificateAuthority {
    pub(crate) name: String,
    pub(crate) pem: Vec<u8>,
}

/// Proxies may have passwords in their addresses, which never reach a log.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ProxyVariables(pub(crate) BTreeMap<String, String>);

impl fmt::Debug for ProxyVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How far a run may go. Times are in seconds.
///
/// What the host of another version has not said is as it is by default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EvolveBounds {
    /// Until the body is read, however slow its disk is.
    pub(crate) read: u64,
    pub(crate) build: u64,
    /// A new container, until it is healthy.
    pub(crate) start: u64,
    pub(crate) test: u64,
    /// What runs has so long to come to its end before it is frozen.
    pub(crate) grace: u64,
    pub(crate) verify: u64,
    /// After success, a new container that ends again and again is taken back.
    pub(crate) probation: u64,
    /// Bytes of a body.
    pub(crate) context: u64,
    /// Bytes of all bodies that are kept; of older runs it is not told any more what has changed.
    pub(crate) bodies: u64,
    /// Bytes of a run's log.
    pub(crate) log: u64,
    /// Runs that the agent may begin in an hour.
    pub(crate) hourly: usize,
    /// Images that are kept to go back to, and records.
    pub(crate) images: usize,
    pub(crate) runs: usize,
}

impl Default for EvolveBounds {
    fn default() -> Self {
        Self {
            read: 60,
            build: 1800,
            start: 60,
            test: 180,
            grace: 20,
            verify: 90,
            probation: 60,
            context: 64 << 20,
            bodies: 256 << 20,
            log: 4 << 20,
            hourly: 30,
            images: 5,
            runs: 50,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::EvolveBounds;

    #[test]
    fn what_an_older_host_does_not_know_is_as_usual() {
        let read: EvolveBounds = serde_json::from_str(r#"{"grace":7}"#).unwrap();
        let meant = EvolveBounds {
            grace: 7,
            ..EvolveBounds::default()
        };
        assert_eq!(read, meant);
    }
}
