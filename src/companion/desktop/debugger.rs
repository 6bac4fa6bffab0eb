//! A proxy with a stable address for the browser's debugger, across restarts of the browser.
//!
//! ```text
//! browser-use, tools inside ── 127.0.0.1:9221 ── proxy ── 127.0.0.1:9222 ── chromium
//! ```
//!
//! An HTTP request starts the browser. A WebSocket to the browser connects to the running browser, even with the
//! address of a crashed one, so a client may simply reconnect. A WebSocket never starts the browser: clients reconnect
//! automatically, and would reopen a browser that a person has closed. After the head of the request the proxy copies
//! bytes in both directions, and each connected client keeps the browser running.

use super::{Desktop, DesktopRefusal, cdp};
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Maximum time from the connection to the end of the request's head.
const DEBUGGER_HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum bytes of a request's head.
const MAX_DEBUGGER_HEAD_BYTES: usize = 16 << 10;

/// Delay after an error of the port, such as too many open files.
const DEBUGGER_ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Path of the browser's own WebSockets, before the id of a browser process.
const BROWSER_WS_PREFIX: &str = "/devtools/browser";

/// The target of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DebuggerTarget<'a> {
    /// An HTTP request.
    Http,
    /// A WebSocket to the browser, with the id of any browser process; the head before and after the path.
    Browser(&'a str, &'a str),
    /// A WebSocket to a page.
    Page,
}

impl<'a> DebuggerTarget<'a> {
    /// Parses a complete head; `None` if it is not a request.
    fn from_head(head: &'a str) -> Option<Self> {
        let (line, _) = head.split_once("\r\n")?;
        let (method, rest) = line.split_once(' ')?;
        let (path, _) = rest.split_once(' ')?;
        if let Some(browser_id) = path.strip_prefix(BROWSER_WS_PREFIX)
            && (browser_id.is_empty() || browser_id.starts_with('/'))
        {
            let before = method.len() + 1;
            return Some(Self::Browser(&head[..before], &head[before + path.len()..]));
        }
        Some(match path.starts_with("/devtools/page/") {
            true => Self::Page,
            false => Self::Http,
        })
    }
}

pub(super) async fn serve_debugger(
    desktop: Desktop,
    port: TcpListener,
    mut stop: watch::Receiver<bool>,
) {
    let mut sessions = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            Some(_) = sessions.join_next() => continue,
            accepted = port.accept() => accepted,
        };
        match accepted {
            Ok((client, _)) => {
                let desktop = desktop.clone();
                sessions.spawn(async move {
                    if let Err(error) = proxy_debugger_client(&desktop, client).await {
                        tracing::debug!(%error, "a connection to the browser's debugger failed");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the companion can't accept a connection to the browser's debugger");
                tokio::time::sleep(DEBUGGER_ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn proxy_debugger_client(desktop: &Desktop, mut client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (head, rest) =
        tokio::time::timeout(DEBUGGER_HEAD_TIMEOUT, read_head(&mut client)).await??;
    let _stay = desktop.lease_debugger();
    let head = match prepare_request_head(desktop, &head).await {
        Ok(head) => head,
        Err(why) => return respond_unavailable(&mut client, &why).await,
    };
    let mut browser = TcpStream::connect((Ipv4Addr::LOCALHOST, desktop.cdp_port())).await?;
    browser.set_nodelay(true)?;
    browser.write_all(head.as_bytes()).await?;
    browser.write_all(&rest).await?;
    copy_bidirectional(&mut client, &mut browser).await?;
    Ok(())
}

/// Waits for the browser, and returns the head to forward.
async fn prepare_request_head(desktop: &Desktop, head: &str) -> Result<String, String> {
    let message = |refusal: DesktopRefusal| refusal.to_string();
    match DebuggerTarget::from_head(head).ok_or("invalid HTTP request")? {
        DebuggerTarget::Http => {
            desktop.ensure_browser().await.map_err(message)?;
            Ok(head.to_owned())
        }
        DebuggerTarget::Page => {
            desktop.wait_for_running_browser().await.map_err(message)?;
            Ok(head.to_owned())
        }
        DebuggerTarget::Browser(before, after) => {
            desktop.wait_for_running_browser().await.map_err(message)?;
            let path = cdp::browser_ws_path(desktop.cdp_port()).await;
            let path = path.map_err(|error| error.to_string())?;
            Ok(format!("{before}{path}{after}"))
        }
    }
}

async fn respond_unavailable(client: &mut TcpStream, why: &str) -> io::Result<()> {
    let length = why.len();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{why}"
    );
    client.write_all(answer.as_bytes()).await?;
    client.shutdown().await
}

/// Reads the head of a request, and the bytes after it.
async fn read_head(client: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            let rest = bytes.split_off(at + 4);
            let head = String::from_utf8(bytes).map_err(io::Error::other)?;
            return Ok((head, rest));
        }
        if bytes.len() > MAX_DEBUGGER_HEAD_BYTES {
            return Err(io::Error::other("the head of the request is too long"));
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DebuggerTarget;

    #[test]
    fn path_selects_the_debugger_target() {
        let rest = " HTTP/1.1\r\nHost: 127.0.0.1:9221\r\n\r\n";
        for path in ["/devtools/browser", "/devtools/browser/1f-2"] {
            let head = format!("GET {path}{rest}");
            assert_eq!(
                DebuggerTarget::from_head(&head),
                Some(DebuggerTarget::Browser("GET ", rest)),
                "{path}"
            );
        }
        let other = |path: &str| format!("GET {path}{rest}");
        assert_eq!(
            DebuggerTarget::from_head(&other("/json/version")),
            Some(DebuggerTarget::Http)
        );
        assert_eq!(
            DebuggerTarget::from_head(&other("/devtools/browsers")),
            Some(DebuggerTarget::Http)
        );
        assert_eq!(
            DebuggerTarget::from_head(&other("/devtools/page/1")),
            Some(DebuggerTarget::Page)
        );
        for none in ["", "\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n"] {
            assert_eq!(DebuggerTarget::from_head(none), None, "{none:?}");
        }
    }
}
