//! Addresses of container engines: `DOCKER_HOST`, the current Docker context, the usual sockets.

use crate::error::{Error, Result};
use crate::protocol::hex::hex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{env, fmt, fs};

/// An address at which an engine may answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EngineAddress {
    /// `unix:///path`, `tcp://host:port` or `npipe:////./pipe/name`.
    pub(crate) url: String,
    /// The folder with `ca.pem`, `cert.pem` and `key.pem`, if the engine requires TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) certificates: Option<PathBuf>,
    /// Whether the user chose the address, so that no other address is tried.
    pub(super) chosen: bool,
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl EngineAddress {
    fn from_chosen_url(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            certificates: None,
            chosen: true,
        }
    }

    /// The address of the socket at this path, with no alternative.
    pub(super) fn from_socket(path: &Path) -> Self {
        Self::from_chosen_url(format!("unix://{}", path.display()))
    }

    fn from_default_socket(path: &Path) -> Self {
        Self {
            url: format!("unix://{}", path.display()),
            certificates: None,
            chosen: false,
        }
    }

    /// The address that the user chose, without a connection attempt.
    ///
    /// # Errors
    /// When the chosen Docker context can't be read.
    pub(crate) fn find_chosen(home: &Path) -> Result<Option<Self>> {
        Ok(Self::candidates(home)?.into_iter().find(|a| a.chosen))
    }

    /// The path of the socket, if the address is a Unix socket.
    pub(crate) fn socket_path(&self) -> Option<&Path> {
        self.url.strip_prefix("unix://").map(Path::new)
    }

    /// Whether a socket exists that this user may not connect to.
    #[cfg(unix)]
    pub(super) fn is_permission_denied(&self) -> bool {
        use std::os::unix::{fs::FileTypeExt, net::UnixStream};
        let is_there = |path: &&Path| fs::metadata(path).is_ok_and(|m| m.file_type().is_socket());
        self.socket_path().filter(is_there).is_some_and(|path| {
            UnixStream::connect(path)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
        })
    }

    #[cfg(not(unix))]
    pub(super) fn is_permission_denied(&self) -> bool {
        false
    }

    /// The host in the address, unless it is this machine. Names are not resolved: only `localhost` means this
    /// machine.
    pub(crate) fn remote_host(&self) -> Option<&str> {
        let (scheme, rest) = self.url.split_once("://")?;
        if !["tcp", "http", "https", "ssh"].contains(&scheme) {
            return None;
        }
        let authority = rest.split('/').next()?;
        let place = authority.rsplit('@').next()?;
        let host = match place.strip_prefix('[') {
            Some(rest) => rest.split(']').next()?,
            None => place.split(':').next()?,
        };
        let here = match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
            // A connection to the unspecified address leads to this machine.
            Ok(ip) => ip.is_loopback() || ip.is_unspecified(),
            Err(_) => host.is_empty() || host.eq_ignore_ascii_case("localhost"),
        };
        (!here).then_some(host)
    }

    /// The addresses to try, in order; only one if the user chose it.
    ///
    /// # Errors
    /// When the chosen Docker context can't be read.
    pub(super) fn candidates(home: &Path) -> Result<Vec<Self>> {
        Self::candidates_from_env(home, |name| env::var(name).ok())
    }

    fn candidates_from_env(
        home: &Path,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Self>> {
        let variable = |name: &str| variable(name).filter(|v| !v.is_empty());
        if let Some(host) = variable("DOCKER_HOST") {
            let mut address = Self::from_chosen_url(host);
            if variable("DOCKER_TLS_VERIFY").is_some() {
                let folder = variable("DOCKER_CERT_PATH")
                    .map_or_else(|| home.join(".docker"), PathBuf::from);
                address.certificates = Some(std::path::absolute(folder)?);
            }
            return Ok(vec![address]);
        }
        let folder = variable("DOCKER_CONFIG").map_or_else(|| home.join(".docker"), PathBuf::from);
        if let Some(context) = current_context(&folder, variable("DOCKER_CONTEXT")) {
            return Ok(vec![read_context_address(&folder, &context)?]);
        }
        let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
        let mut sockets = vec![PathBuf::from("/var/run/docker.sock")];
        sockets.extend(runtime.iter().map(|r| r.join("docker.sock")));
        sockets.push(home.join(".docker/run/docker.sock"));
        sockets.push(PathBuf::from("/run/podman/podman.sock"));
        sockets.extend(runtime.iter().map(|r| r.join("podman/podman.sock")));
        let mut found: Vec<_> = sockets
            .iter()
            .map(|s| Self::from_default_socket(s))
            .collect();
        if cfg!(windows) {
            found = vec![Self {
                url: "npipe:////./pipe/docker_engine".into(),
                certificates: None,
                chosen: false,
            }];
        }
        Ok(found)
    }
}

/// The current context, unless it is the built-in `default`.
fn current_context(folder: &Path, named: Option<String>) -> Option<String> {
    let named = named.or_else(|| {
        let text = fs::read_to_string(folder.join("config.json")).ok()?;
        let config: Value = serde_json::from_str(&text).ok()?;
        Some(config.get("currentContext")?.as_str()?.to_owned())
    })?;
    (!named.is_empty() && named != "default").then_some(named)
}

/// The address of a context. Contexts are stored under the digest of their names.
fn read_context_address(folder: &Path, name: &str) -> Result<EngineAddress> {
    let digest = hex(Sha256::digest(name.as_bytes()));
    let meta = folder.join("contexts/meta").join(&digest).join("meta.json");
    let host = fs::read_to_string(&meta)
        .ok()
        .and_then(|text| serde_json::from_str::<Value>(&text).ok())
        .and_then(|meta| Some(meta.pointer("/Endpoints/docker/Host")?.as_str()?.to_owned()))
        .ok_or_else(|| {
            Error::precondition(
                format!("the Docker context `{name}` has no readable endpoint"),
                "run `docker context ls` to list the contexts, or `docker context use default`",
            )
        })?;
    let certificates = folder.join("contexts/tls").join(&digest).join("docker");
    let mut address = EngineAddress::from_chosen_url(host);
    address.certificates = certificates
        .join("cert.pem")
        .is_file()
        .then_some(certificates);
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::{EngineAddress, read_context_address};
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_context_is_read_from_its_metadata() {
        let folder = tempfile::tempdir().unwrap();
        // SHA-256 of "colima", the folder name that the Docker client uses.
        let digest = "f24fd3749c1368328e2b149bec149cb6795619f244c5b584e844961215dadd16";
        let meta = folder.path().join("contexts/meta").join(digest);
        fs::create_dir_all(&meta).unwrap();
        let text = r#"{"Name":"colima","Endpoints":{"docker":{"Host":"unix:///home/a/.colima/docker.sock"}}}"#;
        fs::write(meta.join("meta.json"), text).unwrap();
        let address = read_context_address(folder.path(), "colima").unwrap();
        assert_eq!(
            address,
            EngineAddress::from_chosen_url("unix:///home/a/.colima/docker.sock")
        );
        assert_eq!(
            address.socket_path().unwrap().to_str().unwrap(),
            "/home/a/.colima/docker.sock"
        );
    }

    /// The candidate addresses, each with whether the user chose it.
    fn tried(home: &Path, variables: &[(&str, &str)]) -> Vec<(String, bool)> {
        let variable = |name: &str| {
            let mut found = variables.iter().filter(|(key, _)| *key == name);
            found.next().map(|(_, value)| (*value).to_owned())
        };
        let found = EngineAddress::candidates_from_env(home, variable).unwrap();
        found.into_iter().map(|a| (a.url, a.chosen)).collect()
    }

    #[test]
    fn the_host_variable_precedes_the_context_and_the_usual_sockets() {
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join(".docker");
        // SHA-256 of "colima".
        let digest = "f24fd3749c1368328e2b149bec149cb6795619f244c5b584e844961215dadd16";
        let meta = config.join("contexts/meta").join(digest);
        fs::create_dir_all(&meta).unwrap();
        let endpoint = r#"{"Endpoints":{"docker":{"Host":"unix:///colima.sock"}}}"#;
        fs::write(meta.join("meta.json"), endpoint).unwrap();
        let tried = |variables: &[(&str, &str)]| tried(home.path(), variables);
        let host = ("DOCKER_HOST", "tcp://127.0.0.1:2375");
        let context = ("DOCKER_CONTEXT", "colima");
        let colima = vec![("unix:///colima.sock".to_owned(), true)];
        assert_eq!(
            tried(&[context, host]),
            [("tcp://127.0.0.1:2375".to_owned(), true)]
        );
        assert_eq!(tried(&[context, ("DOCKER_HOST", "")]), colima);
        let current = r#"{"currentContext":"colima"}"#;
        fs::write(config.join("config.json"), current).unwrap();
        assert_eq!(tried(&[]), colima);
        let usual = tried(&[
            ("DOCKER_CONTEXT", "default"),
            ("XDG_RUNTIME_DIR", "/run/me"),
        ]);
        let own = format!("unix://{}/.docker/run/docker.sock", home.path().display());
        let expected = [
            "unix:///var/run/docker.sock",
            "unix:///run/me/docker.sock",
            &own,
            "unix:///run/podman/podman.sock",
            "unix:///run/me/podman/podman.sock",
        ];
        assert_eq!(usual, expected.map(|url| (url.to_owned(), false)));
    }

    #[test]
    fn remote_addresses_are_distinguished_from_local_ones() {
        let elsewhere = |url: &str| {
            EngineAddress::from_chosen_url(url)
                .remote_host()
                .map(str::to_owned)
        };
        for url in [
            "unix:///var/run/docker.sock",
            "npipe:////./pipe/docker_engine",
            "tcp://127.0.0.1:2375",
            "tcp://127.3.2.1:2376/",
            "tcp://[::1]:2375",
            "tcp://[::ffff:127.0.0.1]:2375",
            "tcp://0.0.0.0:2375",
            "tcp://:2375",
            "http://LocalHost:2375",
        ] {
            assert_eq!(elsewhere(url), None, "{url}");
        }
        for (url, host) in [
            ("tcp://192.0.2.1:2375", "192.0.2.1"),
            ("tcp://[2001:db8::1]:2376", "2001:db8::1"),
            ("https://engine.example", "engine.example"),
            ("ssh://ada@engine.example:22", "engine.example"),
            ("tcp://127.0.0.1.example:2375", "127.0.0.1.example"),
            ("tcp://localhost@192.0.2.1:2375", "192.0.2.1"),
        ] {
            assert_eq!(elsewhere(url).as_deref(), Some(host), "{url}");
        }
    }

    #[test]
    fn a_context_without_metadata_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let error = read_context_address(folder.path(), "gone")
            .unwrap_err()
            .to_string();
        assert!(error.contains("`gone`"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_forbidden_socket_is_barred_and_a_missing_one_is_not() {
        use std::os::unix::fs::PermissionsExt;
        use std::os::unix::net::UnixListener;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("docker.sock");
        let allow = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        allow(folder.path(), 0o755).unwrap();
        assert!(!EngineAddress::from_socket(&path).is_permission_denied());
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(!EngineAddress::from_socket(&path).is_permission_denied());
        allow(&path, 0).unwrap();
        // Run as uid 65534, in this thread only: root may open every socket.
        let barred = std::thread::spawn(move || {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
            EngineAddress::from_socket(&path).is_permission_denied()
        });
        assert!(barred.join().unwrap());
    }
}
