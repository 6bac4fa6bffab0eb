//! Settings that parts of the companion share, and the readers of the environment variables in which the engine passes
//! settings. Each part reads its own limits with these readers. This module imports no part.

use crate::error::{Error, Result};
use anyhow::Context;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use std::{env, fs};

/// Name of the private socket in the run folder.
pub(super) const COMPANION_SOCKET_FILE: &str = "companion.sock";

/// Seconds that running code may take to finish; the engine kills the container ten seconds later.
const COMPANION_GRACE_SECONDS: u64 = 10;

/// Variables for the companion only: kernels, commands and terminals don't get them.
pub(super) const COMPANION_ONLY_VARIABLES: [&str; 6] = [
    "OSCTL_TOKEN_SHA256",
    "OSCTL_AUTH",
    "OSCTL_HOSTS",
    "OSCTL_LISTEN",
    "OSCTL_MCP_LISTEN",
    "OSCTL_LOG_FORMAT",
];

/// The companion's environment without the companion's own variables.
pub(super) fn inherited_environment() -> impl Iterator<Item = (OsString, OsString)> {
    env::vars_os().filter(|(name, _)| !COMPANION_ONLY_VARIABLES.iter().any(|own| name == own))
}

#[derive(Debug, Clone)]
pub(crate) struct CompanionSettings {
    pub(crate) listen: SocketAddr,
    /// Address of the hub of MCP servers.
    pub(crate) mcp: SocketAddr,
    /// Folder of sockets; only this user can read it.
    pub(crate) run_folder: PathBuf,
    /// State that survives the container.
    pub(crate) data_folder: PathBuf,
    /// Root folder of the files that are resources of the built-in MCP server.
    pub(crate) root: PathBuf,
    /// The project, where kernels and shells start.
    pub(crate) project_folder: PathBuf,
    /// The body's folder, which contains `kernel/`.
    pub(crate) body_folder: PathBuf,
    /// The Python interpreter of the kernel's environment.
    pub(crate) python: PathBuf,
    /// SHA-256 of the token in hexadecimal; `None` when authentication is off.
    pub(crate) required_token_digest: Option<String>,
    /// The same digest, also set when authentication is off: with it the companion proves its identity.
    pub(crate) token_digest: Option<String>,
    /// Host names besides loopback names that requests may use.
    pub(crate) hosts: Vec<String>,
    /// Whether the companion is a plain process without isolation.
    pub(crate) embedded: bool,
    /// Whether the container has the permissions to checkpoint processes.
    pub(crate) criu: bool,
    pub(crate) shutdown_grace: Duration,
}

impl CompanionSettings {
    /// # Errors
    /// Outside of a container that osctl's engine started.
    pub(crate) fn from_environment() -> Result<Self> {
        let embedded = env::var_os("OSCTL_EMBEDDED").is_some();
        let token_digest = read_variable("OSCTL_TOKEN_SHA256");
        let off = read_variable("OSCTL_AUTH").as_deref() == Some("off");
        let required_token_digest = token_digest.clone().filter(|_| !off);
        if !(embedded || is_container()) || (required_token_digest.is_none() && !off) {
            return Err(Error::usage(
                "`osctl companion` runs only inside the container",
                "run `osctl up` to start the container with the companion",
            )
            .into());
        }
        let address = |name: &str, port| {
            let default = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            anyhow::Ok(read_value(name)?.unwrap_or(default))
        };
        let hosts = read_variable("OSCTL_HOSTS").unwrap_or_default();
        Ok(Self {
            listen: address("OSCTL_LISTEN", 8080)?,
            mcp: address("OSCTL_MCP_LISTEN", 8765)?,
            run_folder: Self::run_folder(),
            data_folder: read_path("OSCTL_DATA", "/data"),
            root: read_path("FILESYSTEM_ROOT", "/root"),
            project_folder: find_project_folder(embedded),
            body_folder: read_path("OSCTL_BODY", "/opt/osctl/body"),
            python: read_path("OSCTL_PYTHON", "/opt/osctl/kernel-env/bin/python"),
            required_token_digest,
            token_digest,
            hosts: hosts
                .split(',')
                .map(str::to_owned)
                .filter(|h| !h.is_empty())
                .collect(),
            embedded,
            criu: read_variable("OSCTL_CRIU").is_some(),
            shutdown_grace: Duration::from_secs(COMPANION_GRACE_SECONDS),
        })
    }

    pub(crate) fn run_folder() -> PathBuf {
        find_run_folder(read_variable)
    }

    /// Folder of the stored variables.
    pub(crate) fn cryo_folder(&self) -> PathBuf {
        self.data_folder.join("cryo")
    }

    pub(crate) fn socket_path(&self) -> PathBuf {
        self.run_folder.join(COMPANION_SOCKET_FILE)
    }
}

/// The former name of the variable is that of osctl before 0.1.0, which may have started this process.
fn find_run_folder(read: impl Fn(&str) -> Option<String>) -> PathBuf {
    let set = ["OSCTL_RUN_FOLDER", "OSCTL_RUN"].into_iter().find_map(read);
    set.map_or_else(|| "/run/osctl".into(), PathBuf::from)
}

/// Without a container, the engine starts the companion in the project.
fn find_project_folder(embedded: bool) -> PathBuf {
    let mounted = PathBuf::from("/repo");
    match !embedded && mounted.is_dir() {
        true => mounted,
        false => env::current_dir().unwrap_or_else(|_| "/".into()),
    }
}

/// The value of a variable. An empty variable counts as unset.
pub(super) fn read_variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|v| !v.is_empty())
}

pub(super) fn read_path(name: &str, default: &str) -> PathBuf {
    read_variable(name).map_or_else(|| default.into(), PathBuf::from)
}

/// The parsed value of a variable; `None` when the variable is unset.
///
/// # Errors
/// When the value is invalid: an invalid address must not fall back to an open one, nor a limit to another limit.
pub(super) fn parse_variable<T>(
    name: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>> {
    let parsed = read_variable(name).map(|value| {
        let invalid = || format!("`{value}` is not a valid value of {name}");
        parse(&value).with_context(invalid)
    });
    parsed.transpose()
}

/// Like [`parse_variable`], for types with one text form.
///
/// # Errors
/// When the value is invalid.
pub(super) fn read_value<T: FromStr>(name: &str) -> Result<Option<T>> {
    parse_variable(name, |value| value.parse().ok())
}

/// # Errors
/// When the value is not a number.
pub(super) fn read_seconds(name: &str) -> Result<Option<Duration>> {
    Ok(read_value(name)?.map(Duration::from_secs))
}

/// Engines create a marker file in their containers.
fn is_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"]
        .iter()
        .any(|marker| fs::exists(marker).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::{find_run_folder, parse_variable, read_seconds, read_value};
    use std::path::Path;

    #[test]
    fn an_invalid_value_is_an_error_and_an_unset_variable_is_none() {
        // The tests have this variable.
        let invalid = format!(
            "`{}` is not a valid value of PATH",
            std::env::var("PATH").unwrap()
        );
        for error in [
            parse_variable("PATH", |_| None::<()>).unwrap_err(),
            read_value::<u64>("PATH").unwrap_err(),
            read_seconds("PATH").unwrap_err(),
        ] {
            assert_eq!(error.to_string(), invalid);
        }
        let parsed = parse_variable("PATH", |value| Some(value.len())).unwrap();
        assert!(parsed > Some(0));
        assert_eq!(parse_variable("OF_NO_TEST", |_| None::<()>).unwrap(), None);
    }

    #[test]
    fn the_former_name_of_the_run_folder_is_read_last() {
        let find =
            |set: &[&str]| find_run_folder(|name| set.contains(&name).then(|| format!("/{name}")));
        assert_eq!(
            find(&["OSCTL_RUN", "OSCTL_RUN_FOLDER"]),
            Path::new("/OSCTL_RUN_FOLDER")
        );
        assert_eq!(find(&["OSCTL_RUN"]), Path::new("/OSCTL_RUN"));
        assert_eq!(find(&[]), Path::new("/run/osctl"));
    }
}
