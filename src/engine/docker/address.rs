//! Where the engine listens: `DOCKER_HOST`, the current Docker context, the usual sockets.

use crate::error::{Error, Result};
use crate::protocol::hex::hex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::{env, fmt, fs};

/// One place where an engine may answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// `unix:///path`, `tcp://host:port` or `npipe:////./pipe/name`.
    pub(crate) url: String,
    /// `ca.pem`, `cert.pem` and `key.pem`, when the engine wants TLS.
    pub(super) certificates: Option<PathBuf>,
    /// Chosen by the person, so nothing else is tried.
    pub(super) chosen: bool,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl Address {
    fn chosen(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            certificates: None,
            chosen: true,
        }
    }

    fn usual(path: &Path) -> Self {
        Self {
            url: format!("unix://{}", path.display()),
            certificates: None,
            chosen: false,
        }
    }

    /// The socket's path, where it is one.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.url.strip_prefix("unix://").map(Path::new)
    }

    /// The addresses to try, in order; one only when the person chose it.
    ///
    /// # Errors
    /// When the chosen Docker context can't be read.
    pub(super) fn candidates(home: &Path) -> Result<Vec<Self>> {
        if let Some(host) = variable("DOCKER_HOST") {
            let mut address = Self::chosen(host);
            if variable("DOCKER_TLS_VERIFY").is_some() {
                let folder = variable("DOCKER_CERT_PATH")
                    .map_or_else(|| home.join(".docker"), PathBuf::from);
                address.certificates = Some(folder);
            }
            return Ok(vec![address]);
        }
        let folder = variable("DOCKER_CONFIG").map_or_else(|| home.join(".docker"), PathBuf::from);
        if let Some(context) = current_context(&folder) {
            return Ok(vec![of_context(&folder, &context)?]);
        }
        let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
        let mut sockets = vec![PathBuf::from("/var/run/docker.sock")];
        sockets.extend(runtime.iter().map(|r| r.join("docker.sock")));
        sockets.push(home.join(".docker/run/docker.sock"));
        sockets.push(PathBuf::from("/run/podman/podman.sock"));
        sockets.extend(runtime.iter().map(|r| r.join("podman/podman.sock")));
        let mut found: Vec<_> = sockets.iter().map(|s| Self::usual(s)).collect();
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

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|v| !v.is_empty())
}

/// The context that is not the built-in `default`.
fn current_context(folder: &Path) -> Option<String> {
    let named = variable("DOCKER_CONTEXT").or_else(|| {
        let text = fs::read_to_string(folder.join("config.json")).ok()?;
        let config: Value = serde_json::from_str(&text).ok()?;
        Some(config.get("currentContext")?.as_str()?.to_owned())
    })?;
    (!named.is_empty() && named != "default").then_some(named)
}

/// Contexts are stored under the digest of their name.
fn of_context(folder: &Path, name: &str) -> Result<Address> {
    let digest = hex(Sha256::digest(name.as_bytes()));
    let meta = folder.join("contexts/meta").join(&digest).join("meta.json");
    let host = fs::read_to_string(&meta)
        .ok()
        .and_then(|text| serde_json::from_str::<Value>(&text).ok())
        .and_then(|meta| Some(meta.pointer("/Endpoints/docker/Host")?.as_str()?.to_owned()))
        .ok_or_else(|| {
            Error::precondition(
                format!("the Docker context `{name}` has no readable endpoint"),
                "`docker context ls` lists them, `docker context use default` leaves it",
            )
        })?;
    let certificates = folder.join("contexts/tls").join(&digest).join("docker");
    let mut address = Address::chosen(host);
    address.certificates = certificates
        .join("cert.pem")
        .is_file()
        .then_some(certificates);
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::{Address, of_context};
    use std::fs;

    #[test]
    fn a_context_is_read_from_its_metadata() {
        let folder = tempfile::tempdir().unwrap();
        // SHA-256 of "colima", as the Docker client names the folder.
        let digest = "f24fd3749c1368328e2b149bec149cb6795619f244c5b584e844961215dadd16";
        let meta = folder.path().join("contexts/meta").join(digest);
        fs::create_dir_all(&meta).unwrap();
        let text = r#"{"Name":"colima","Endpoints":{"docker":{"Host":"unix:///home/a/.colima/docker.sock"}}}"#;
        fs::write(meta.join("meta.json"), text).unwrap();
        let address = of_context(folder.path(), "colima").unwrap();
        assert_eq!(
            address,
            Address::chosen("unix:///home/a/.colima/docker.sock")
        );
        assert_eq!(
            address.socket().unwrap().to_str().unwrap(),
            "/home/a/.colima/docker.sock"
        );
    }

    #[test]
    fn a_context_without_metadata_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let error = of_context(folder.path(), "gone").unwrap_err().to_string();
        assert!(error.contains("`gone`"), "{error}");
    }
}
