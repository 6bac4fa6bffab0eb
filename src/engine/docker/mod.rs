//! Docker, and what speaks its API. The only place that names bollard.

mod address;
mod build_output;
mod container;
mod container_ops;
mod environment;
mod exec;
mod image;
mod network;
#[cfg(unix)]
mod ssh;

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

/// It takes a Unix socket, which is not to be had here.
#[cfg(not(unix))]
mod ssh {
    use std::io;
    use std::path::PathBuf;

    #[derive(Debug)]
    pub(super) enum EngineSshTunnel {}

    impl EngineSshTunnel {
        pub(super) fn open(_url: &str) -> io::Result<Self> {
            Err(io::Error::other(
                "osctl goes through ssh on Linux and macOS alone",
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

/// Seconds until a request without an answer counts as lost; imports and stops take long.
const ENGINE_REQUEST_TIMEOUT: u64 = 600;
/// The same for an archive that is made while it is sent, which may be a whole project.
const ENGINE_UPLOAD_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The same for what is only asked.
const ENGINE_QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to an engine that answered.
#[derive(Debug, Clone)]
pub(crate) struct Docker {
    api: bollard::Docker,
    address: EngineAddress,
    /// What leads there, as long as somebody talks to it.
    _ssh: Option<Arc<EngineSshTunnel>>,
    version: String,
    architecture: String,
    /// The parts that it names, with their versions.
    components: Arc<BTreeMap<String, String>>,
    has_buildkit: bool,
    is_podman: bool,
}

/// The first API whose engines have BuildKit unless they run Windows containers (Docker 18.09).
const MIN_BUILDKIT_API: (u32, u32) = (1, 39);

impl Docker {
    /// The engine of the person's choice, else the first usual one that answers.
    ///
    /// # Errors
    /// When the chosen one does not answer, or none does: [`Error::NoEngine`], or
    /// [`Error::EngineBarred`] when there is one that this user may not talk to.
    pub(crate) async fn find(home: &Path, hint: &str) -> Result<Self> {
        let candidates = EngineAddress::candidates(home)?;
        let mut tried = Vec::new();
        let mut barred = None;
        for address in candidates {
            match Self::connect(address.clone()).await {
                Ok(docker) => return Ok(docker),
                Err(_) if address.is_barred() => {
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
            return Err(Error::EngineBarred { address }.into());
        }
        Err(Error::NoEngine {
            tried: format!("tried {}", tried.join(", ")),
            hint: hint.into(),
        }
        .into())
    }

    /// The engine that listens at that socket.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) async fn connect_at_socket(socket: &Path) -> Result<Self> {
        Self::connect_to(&EngineAddress::from_socket(socket)).await
    }

    /// The engine of that address.
    ///
    /// # Errors
    /// When it does not answer, or its address is none that osctl can use.
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
        let meet = async {
            let version = api.version().await.map_err(|e| root_cause(&e))?;
            // Old and new engines are met at the newest version that both sides know.
            let api = api.negotiate_version().await.map_err(|e| root_cause(&e))?;
            Ok((version, api))
        };
        let (version, api) = tokio::time::timeout(ENGINE_QUERY_TIMEOUT, meet)
            .await
            .unwrap_or_else(|_| {
                Err(format!(
                    "no answer within {} s",
                    ENGINE_QUERY_TIMEOUT.as_secs()
                ))
            })
            // Its own words tell more than that the connection ended.
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

    /// Whether it confines containers by AppArmor.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) async fn has_apparmor(&self) -> Result<bool> {
        let doing = "asking how it confines containers";
        let info = with_query_timeout(doing, self.api.info()).await?;
        let options = info
            .map_err(|e| explain_api_error(doing, e))?
            .security_options;
        let is_it = |option: &String| option.starts_with("name=apparmor");
        Ok(options.unwrap_or_default().iter().any(is_it))
    }

    /// The engine's own version.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// The parts of the engine by name, as far as it names them: `runc`, `containerd`.
    pub(crate) fn components(&self) -> &BTreeMap<String, String> {
        &self.components
    }

    /// Whether it builds with BuildKit, by what it says of itself before a build. The header `Builder-Version`
    /// of `/_ping` does not tell: it names the default, which is the classic builder up to Docker 20.10.
    pub(crate) fn has_buildkit(&self) -> bool {
        self.has_buildkit
    }

    /// Whether a container that is paused and off its network still has its ports: Podman's have them
    /// as long as they run.
    pub(crate) fn keeps_ports(&self) -> bool {
        self.is_podman
    }

    /// The folder of this machine that images and containers are in. Nothing when the engine runs
    /// in a virtual machine, as it does on macOS: its folder is not here then.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn root_here(&self) -> Result<Option<PathBuf>> {
        let doing = "asking for its folder";
        let info = with_query_timeout(doing, self.api.info()).await?;
        let info = info.map_err(|e| explain_api_error(doing, e))?;
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let here = info.kernel_version.is_some_and(|k| k == kernel.trim());
        let here = here && self.address.remote_host().is_none();
        let root = info.docker_root_dir.map(PathBuf::from);
        Ok(root.filter(|root| here && root.is_dir()))
    }

    /// Whether a build that names an image gets the engine's own. With containerd's image store, BuildKit asks a registry
    /// first.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub(crate) async fn builds_on_own_images(&self) -> Result<bool> {
        let doing = "asking for its image store";
        let info = with_query_timeout(doing, self.api.info()).await?;
        let status = info.map_err(|e| explain_api_error(doing, e))?.driver_status;
        let mut words = status.iter().flatten().flatten();
        Ok(!words.any(|word| word.contains("containerd.snapshotter")))
    }

    /// The architecture of the containers it runs, as Docker names it.
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

/// By its own address, or by the socket that leads there.
fn open_api_client(
    address: &EngineAddress,
    socket: Option<&str>,
) -> std::result::Result<bollard::Docker, ApiError> {
    let url = socket.unwrap_or(&address.url);
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

/// The innermost reason, which is the one that tells.
fn root_cause(error: &ApiError) -> String {
    let mut inner: &dyn std::error::Error = error;
    let mut why = inner.to_string();
    while let Some(source) = inner.source() {
        inner = source;
        // Some have no words of their own.
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

/// What an API error means for the person.
fn explain_api_error(doing: &str, error: ApiError) -> anyhow::Error {
    let why = root_cause(&error);
    if why.contains("no space left on device") {
        return Error::DiskFull { why }.into();
    }
    match error {
        ApiError::DockerResponseServerError { .. } | ApiError::DockerStreamError { .. } => {
            Error::precondition(
                format!("the engine refused {doing}: {why}"),
                "`osctl doctor` tells what is wrong",
            )
            .into()
        }
        _ => Error::EngineLost {
            doing: doing.into(),
            why,
        }
        .into(),
    }
}

/// The answer to a question that costs the engine nothing; one that gives none has gone.
async fn with_query_timeout<T>(
    doing: &str,
    question: impl Future<Output = std::result::Result<T, ApiError>>,
) -> Result<std::result::Result<T, ApiError>> {
    tokio::time::timeout(ENGINE_QUERY_TIMEOUT, question)
        .await
        .map_err(|_| {
            Error::EngineLost {
                doing: doing.into(),
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
    fn the_builder_is_known_from_the_engines_version() {
        for api in ["1.39", "1.41", "1.53", "2.0"] {
            assert!(has_buildkit(Some("linux"), Some(api)), "{api}");
        }
        for api in ["1.24", "1.38"] {
            assert!(!has_buildkit(Some("linux"), Some(api)), "{api}");
        }
        assert!(!has_buildkit(Some("windows"), Some("1.45")));
        assert!(
            has_buildkit(None, None),
            "what others say nothing of is usual"
        );
    }
}
