//! Settings of the keeper: the paths in its container, and its own image.

use crate::protocol::evolve::{AGENT_SOCKET_FOLDER, KEEPER_IMAGE_VARIABLE};
use std::env;
use std::path::PathBuf;

#[derive(Debug, Clone)]
pub(crate) struct KeeperSettings {
    /// The keeper's state folder, which no other container sees.
    pub(crate) state_folder: PathBuf,
    /// The folder with the agent socket, which `os-host` mounts read-only at `/run/os`.
    pub(crate) socket_folder: PathBuf,
    /// The project folder, read-only.
    pub(crate) project: PathBuf,
    /// The engine's socket.
    pub(crate) engine_socket: PathBuf,
    /// The name of the keeper's own image.
    pub(crate) keeper_image: Option<String>,
    /// The binary in the images that the keeper builds; `None` is the keeper's own.
    pub(crate) binary: Option<PathBuf>,
}

impl Default for KeeperSettings {
    fn default() -> Self {
        Self {
            state_folder: "/state".into(),
            socket_folder: AGENT_SOCKET_FOLDER.into(),
            project: "/repo".into(),
            engine_socket: "/var/run/docker.sock".into(),
            keeper_image: env::var(KEEPER_IMAGE_VARIABLE).ok(),
            binary: None,
        }
    }
}

/// The socket for the host's requests, in the state folder.
pub(super) const KEEPER_HOST_SOCKET_NAME: &str = "host.sock";
/// The agent socket in [`KeeperSettings::socket_folder`]; its path in `os-host` is
/// [`KEEPER_SOCKET`](crate::protocol::evolve::KEEPER_SOCKET).
pub(super) const KEEPER_AGENT_SOCKET_NAME: &str = "keeper.sock";
