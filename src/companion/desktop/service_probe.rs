//! Readiness probes of the desktop's services, which ask the service itself.

use super::cdp;
use crate::companion::display;
use crate::companion::service::ServiceProbe;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::path::Path;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// Whether the service answers its probe.
pub(super) fn probe_service(probe: &ServiceProbe) -> BoxFuture<'_, bool> {
    async move {
        match probe {
            ServiceProbe::Display => probe_blocking(display::is_server_responding).await,
            ServiceProbe::WindowManager => probe_blocking(display::has_window_manager).await,
            ServiceProbe::Desktop => probe_blocking(display::is_desktop_painted).await,
            ServiceProbe::Taskbar => probe_blocking(display::has_taskbar).await,
            ServiceProbe::Socket(path) => UnixStream::connect(path).await.is_ok(),
            ServiceProbe::Rfb(path) => is_rfb_server(path).await,
            ServiceProbe::Cdp(port) => cdp::is_browser_responding(*port).await,
        }
    }
    .boxed()
}

/// Asks the display over its own connection, which blocks.
async fn probe_blocking(probe: impl FnOnce() -> bool + Send + 'static) -> bool {
    tokio::task::spawn_blocking(probe).await.unwrap_or(false)
}

async fn is_rfb_server(path: &Path) -> bool {
    let greeting = async {
        let mut stream = UnixStream::connect(path).await?;
        let mut greeting = [0; 4];
        stream.read_exact(&mut greeting).await?;
        std::io::Result::Ok(greeting)
    };
    greeting.await.is_ok_and(|greeting| &greeting == b"RFB ")
}
