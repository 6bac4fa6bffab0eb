//! Docker, and other engines with its API. The only module that uses bollard.

mod address;
mod build_output;
mod container;
mod container_ops;
mod environment;
mod exec;
#[cfg(test)]
pub(crate) mod fake_engine;
mod image;
mod network;
#[cfg(unix)]
mod ssh;
mod step_output;
mod usage;

pub(crate) use address::EngineAddress;
pub(crate) use exec::EngineExecPipes;
pub(crate) use image::{ClassicBuild, EngineImage, ImageBuild, ImageBuilder};

use crate::error::{Error, Result};
use bollard::API_DEFAULT_VERSION;
use bollard::errors::Error as ApiError;
use bollard::models::SystemVersionComponents;
use ssh::EngineSshTunnel;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The tunnel needs a Unix socket, which this platform does not have.
#[cfg(not(unix))]
mod ssh {
    use std::io;
    use std::path::PathBuf;

    #[derive(Debug)]
    pub(super) enum EngineSshTunnel {}

    impl EngineSshTunnel {
        pub(super) fn open(_url: &str) -> io::Result<Self> {
            Err(io::Error::other(
                "osctl supports `ssh://` on Linux and macOS only",
            ))
        }

        pub(super) fn socket_path(&self) -> PathBuf {
            match *self {}
        }

        pub(super) fn last_stderr_line(&self) -> Option<String> {
            match *self {}
        }
    }
}

/// Seconds until a request without an answer fails; imports and stops take long.
const ENGINE_REQUEST_TIMEOUT: u64 = 600;
/// The timeout for uploading an archive that is created while it is sent, such as a whole project.
const ENGINE_UPLOAD_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The timeout for queries.
const ENGINE_QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to an engine that answered.
#[derive(Debug, Clone)]
pub(crate) struct Docker {
    api: bollard::Docker,
    address: EngineAddress,
    /// Keeps the ssh tunnel open while the client exists.
    _ssh: Option<Arc<EngineSshTunnel>>,
    version: String,
    architecture: String,
    /// The engine's components, with their versions.
    components: Arc<BTreeMap<String, String>>,
    has_buildkit: bool,
    is_podman: bool,
}

/// The first API version whose engines have BuildKit unless they run Windows containers (Docker 18.09).
const MIN_BUILDKIT_API: (u32, u32) = (1, 39);

impl Docker {
    /// Connects to the engine that the user chose, or to the first usual address that answers.
    ///
    /// # Errors
    /// When the chosen engine does not answer, or none does: [`Error::NoEngine`], or [`Error::EnginePermissionDenied`]
    /// when this user may not connect to an existing one.
    pub(crate) async fn find(home: &Path, hint: &str) -> Result<Self> {
        let candidates = EngineAddress::candidates(home)?;
        let mut tried = Vec::new();
        let mut barred = None;
        for address in candidates {
            match Self::connect(address.clone()).await {
                Ok(docker) => return Ok(docker),
                Err(_) if address.is_permission_denied() => {
                    barred.get_or_insert(address.url);
                }
                Err(why) if address.chosen => {
                    return Err(Error::EngineUnreachable {
                        address: address.url,
                        why,
                    }
                    .into());
                }
                Err(_) => tried.push(address.url),
            }
        }
        if let Some(address) = barred {
            return Err(Error::EnginePermissionDenied { address }.into());
        }
        Err(Error::NoEngine {
            tried: format!("tried {}", tried.join(", ")),
            hint: hint.into(),
        }
        .into())
    }

    /// Connects to the engine at this socket.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn connect_at_socket(socket: &Path) -> Result<Self> {
        Self::connect_to(&EngineAddress::from_socket(socket)).await
    }

    /// Connects to the engine at this address.
    ///
    /// # Errors
    /// When the engine does not answer, or osctl does not support the address.
    pub(crate) async fn connect_to(address: &EngineAddress) -> Result<Self> {
        let connected = Self::connect(address.clone()).await;
        connected.map_err(|why| {
            Error::EngineUnreachable {
                address: address.url.clone(),
                why,
            }
            .into()
        })
    }

    async fn connect(address: EngineAddress) -> std::result::Result<Self, String> {
        let ssh = match address.url.starts_with("ssh://") {
            true => Some(EngineSshTunnel::open(&address.url).map_err(|e| e.to_string())?),
            false => None,
        };
        let socket = ssh
            .as_ref()
            .map(|ssh| format!("unix://{}", ssh.socket_path().display()));
        let api = open_api_client(&address, socket.as_deref()).map_err(|e| root_cause(&e))?;
        let handshake = async {
            let version = api.version().await.map_err(|e| root_cause(&e))?;
            // Use the newest API version that both sides support.
            let api = api.negotiate_version().await.map_err(|e| root_cause(&e))?;
            Ok((version, api))
        };
        let (version, api) = tokio::time::timeout(ENGINE_QUERY_TIMEOUT, handshake)
            .await
            .unwrap_or_else(|_| {
                Err(format!(
                    "no answer within {} s",
                    ENGINE_QUERY_TIMEOUT.as_secs()
                ))
            })
            // The last line of ssh's stderr says more than the closed connection.
            .map_err(|why| {
                ssh.as_ref()
                    .and_then(EngineSshTunnel::last_stderr_line)
                    .unwrap_or(why)
            })?;
        Ok(Self {
            api,
            address,
            _ssh: ssh.map(Arc::new),
            has_buildkit: has_buildkit(version.os.as_deref(), version.api_version.as_deref()),
            architecture: version.arch.unwrap_or_default(),
            version: version.version.unwrap_or_default(),
            is_podman: is_podman(version.components.as_deref().unwrap_or_default()),
            components: Arc::new(
                (version.components.into_iter().flatten())
                    .map(|part| (part.name, part.version))
                    .collect(),
            ),
        })
    }

    pub(crate) fn address(&self) -> &EngineAddress {
        &self.address
    }

    /// Whether the engine confines containers by AppArmor.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn has_apparmor(&self) -> Result<bool> {
        let action = "reading the engine's security options";
        let info = with_query_timeout(action, self.api.info()).await?;
        let options = info
            .map_err(|e| explain_api_error(action, e))?
            .security_options;
        let is_it = |option: &String| option.starts_with("name=apparmor");
        Ok(options.unwrap_or_default().iter().any(is_it))
    }

    /// The engine's own version.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// The versions of the engine's components by name, if the engine reports them: `runc`, `containerd`.
    pub(crate) fn components(&self) -> &BTreeMap<String, String> {
        &self.components
    }

    /// Whether the engine builds with BuildKit, from its version before a build. The header `Builder-Version` of
    /// `/_ping` does not show this: it names the default, which is the classic builder up to Docker 20.10.
    pub(crate) fn has_buildkit(&self) -> bool {
        self.has_buildkit
    }

    /// Whether a container that is paused and disconnected from its network keeps its ports: with Podman a container
    /// keeps its ports while it runs.
    pub(crate) fn has_persistent_ports(&self) -> bool {
        self.is_podman
    }

    /// The engine's data folder on this machine. `None` if the engine runs in a virtual machine, as on macOS: its
    /// folder is not on this machine then.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn local_data_root(&self) -> Result<Option<PathBuf>> {
        let action = "reading the engine's data folder";
        let info = with_query_timeout(action, self.api.info()).await?;
        let info = info.map_err(|e| explain_api_error(action, e))?;
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let here = info.kernel_version.is_some_and(|k| k == kernel.trim());
        let here = here && self.address.remote_host().is_none();
        let root = info.docker_root_dir.map(PathBuf::from);
        Ok(root.filter(|root| here && root.is_dir()))
    }

    /// Whether a build that names an image uses the engine's own. With containerd's image store, BuildKit asks a
    /// registry first.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn can_build_on_local_images(&self) -> Result<bool> {
        let action = "reading the engine's image store";
        let info = with_query_timeout(action, self.api.info()).await?;
        let status = info
            .map_err(|e| explain_api_error(action, e))?
            .driver_status;
        let mut words = status.iter().flatten().flatten();
        Ok(!words.any(|word| word.contains("containerd.snapshotter")))
    }

    /// The architecture of the containers that the engine runs, by Docker's name.
    pub(crate) fn architecture(&self) -> &str {
        &self.architecture
    }
}

fn has_buildkit(os: Option<&str>, api: Option<&str>) -> bool {
    let api = api.and_then(|api| {
        let (major, minor) = api.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    os.is_none_or(|os| os.eq_ignore_ascii_case("linux"))
        && api.is_none_or(|api: (u32, u32)| api >= MIN_BUILDKIT_API)
}

fn is_podman(components: &[SystemVersionComponents]) -> bool {
    components
        .iter()
        .any(|part| part.name.starts_with("Podman"))
}

/// Connects to the engine's own address, or to the socket of the tunnel.
fn open_api_client(
    address: &EngineAddress,
    socket: Option<&str>,
) -> std::result::Result<bollard::Docker, ApiError> {
    let url = socket.unwrap_or(&address.url);
    #[cfg(test)]
    if let Some(api) = fake_engine::open_fake_client(url) {
        return Ok(api);
    }
    if let Some(folder) = &address.certificates {
        let (key, cert, ca) = (
            folder.join("key.pem"),
            folder.join("cert.pem"),
            folder.join("ca.pem"),
        );
        return bollard::Docker::connect_with_ssl(
            url,
            &key,
            &cert,
            &ca,
            ENGINE_REQUEST_TIMEOUT,
            API_DEFAULT_VERSION,
        );
    }
    if url.starts_with("tcp://") || url.starts_with("http://") {
        return bollard::Docker::connect_with_http(
            url,
            ENGINE_REQUEST_TIMEOUT,
            API_DEFAULT_VERSION,
        );
    }
    bollard::Docker::connect_with_socket(url, ENGINE_REQUEST_TIMEOUT, API_DEFAULT_VERSION)
}

/// The innermost error, which is the specific one.
fn root_cause(error: &ApiError) -> String {
    let mut inner: &dyn std::error::Error = error;
    let mut why = inner.to_string();
    while let Some(source) = inner.source() {
        inner = source;
        // Some errors have an empty message.
        let words = inner.to_string();
        if !words.is_empty() {
            why = words;
        }
    }
    match error {
        ApiError::DockerResponseServerError { message, .. } => message.clone(),
        ApiError::DockerStreamError { error } => error.trim().to_owned(),
        _ => why,
    }
}

/// Converts an API error into an error for the user.
fn explain_api_error(action: &str, error: ApiError) -> anyhow::Error {
    let why = root_cause(&error);
    if why.contains("no space left on device") {
        return Error::DiskFull { why }.into();
    }
    match error {
        ApiError::DockerResponseServerError { .. } | ApiError::DockerStreamError { .. } => {
            Error::precondition(
                format!("the engine reported an error while {action}: {why}"),
                "run `osctl doctor` to check the setup",
            )
            .into()
        }
        _ => Error::EngineLost {
            doing: action.into(),
            why,
        }
        .into(),
    }
}

/// Waits for the answer to a query with a short timeout. An engine that gives none is lost.
async fn with_query_timeout<T>(
    action: &str,
    question: impl Future<Output = std::result::Result<T, ApiError>>,
) -> Result<std::result::Result<T, ApiError>> {
    tokio::time::timeout(ENGINE_QUERY_TIMEOUT, question)
        .await
        .map_err(|_| {
            Error::EngineLost {
                doing: action.into(),
                why: format!("no answer within {} s", ENGINE_QUERY_TIMEOUT.as_secs()),
            }
            .into()
        })
}

fn is_status(error: &ApiError, wanted: u16) -> bool {
    matches!(error, ApiError::DockerResponseServerError { status_code, .. } if *status_code == wanted)
}

#[cfg(test)]
mod tests {
    use super::has_buildkit;

    #[test]
    fn the_engine_version_determines_the_builder() {
        for api in ["1.39", "1.41", "1.53", "2.0"] {
            assert!(has_buildkit(Some("linux"), Some(api)), "{api}");
        }
        for api in ["1.24", "1.38"] {
            assert!(!has_buildkit(Some("linux"), Some(api)), "{api}");
        }
        assert!(!has_buildkit(Some("windows"), Some("1.45")));
        assert!(
            has_buildkit(None, None),
            "an engine without a version counts as current"
        );
    }
}
