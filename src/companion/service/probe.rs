//! Readiness probes, which ask the service itself.

use super::declaration::ServiceProbe;
use crate::companion::display;
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// A service that does not answer within this time is not ready.
const SERVICE_PROBE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn is_ready(probe: &ServiceProbe) -> bool {
    let answer = async {
        match probe {
            ServiceProbe::Display => probe_blocking(display::is_server_responding).await,
            ServiceProbe::WindowManager => probe_blocking(display::has_window_manager).await,
            ServiceProbe::Desktop => probe_blocking(display::is_desktop_painted).await,
            ServiceProbe::Socket(path) => UnixStream::connect(path).await.is_ok(),
            ServiceProbe::Rfb(path) => is_rfb_server(path).await,
            ServiceProbe::Cdp(port) => {
                crate::companion::desktop::cdp::is_browser_responding(*port).await
            }
        }
    };
    tokio::time::timeout(SERVICE_PROBE_TIMEOUT, answer).await == Ok(true)
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
