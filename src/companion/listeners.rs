//! The sockets on which the companion serves.

use super::CompanionSettings;
use super::desktop::{DEBUGGER_PORT, DesktopListeners, DesktopSettings};
use crate::error::Result;
use anyhow::Context;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokio::net::{TcpListener, UnixListener};

/// The default port of VNC clients.
const VNC_PORT: u16 = 5900;

/// The sockets on which the companion serves.
#[derive(Debug)]
pub(crate) struct CompanionListeners {
    /// For clients with the token.
    pub(crate) tcp: TcpListener,
    /// The same, for MCP clients.
    pub(crate) mcp: TcpListener,
    /// For processes inside the container; the permissions of the folder guard the socket.
    pub(crate) unix: UnixListener,
    /// For clients of the desktop, if there is one.
    pub(crate) desktop: Option<DesktopListeners>,
}

impl CompanionListeners {
    /// # Errors
    /// When a socket can't be opened.
    pub(super) async fn open(
        settings: &CompanionSettings,
        desktop: &DesktopSettings,
    ) -> Result<Self> {
        create_private_folder(&settings.run_folder)?;
        let path = settings.socket_path();
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).context("removing a stale socket");
            }
            _ => {}
        }
        let unix = UnixListener::bind(&path)
            .with_context(|| format!("listening on `{}`", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let tcp = bind_listener(settings.listen).await?;
        let mcp = bind_listener(settings.mcp).await?;
        let desktop = match desktop.is_configured() {
            true => Some(DesktopListeners {
                vnc: bind_listener(SocketAddr::new(settings.listen.ip(), VNC_PORT)).await?,
                debugger: bind_listener((Ipv4Addr::LOCALHOST, DEBUGGER_PORT).into()).await?,
            }),
            false => None,
        };
        Ok(Self {
            tcp,
            mcp,
            unix,
            desktop,
        })
    }
}

async fn bind_listener(address: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.with_context(|| format!("listening on {address}"))
}

fn create_private_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("creating `{}`", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    Ok(())
}
