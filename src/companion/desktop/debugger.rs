//! The browser's debugger at an address that stays, whichever life the browser is in.
//!
//! ```text
//! browser-use, tools inside ── 127.0.0.1:9221 ── here ── 127.0.0.1:9222 ── chromium
//! ```
//!
//! Whoever asks by HTTP starts the browser. A WebSocket to it goes to the browser of now, also by the
//! address of one that has crashed, so a client may simply connect again. But it starts none: clients
//! do that by themselves, and would bring back what somebody has closed. Then bytes go both ways as
//! they are, and whoever is connected keeps the browser.

use super::{Desktop, Refusal, cdp};
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// From connecting to the end of the request's head.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest head.
const HEAD: usize = 16 << 10;

/// After an error of the port itself, such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// Where a browser's own WebSockets are, before the name of its life.
const BROWSER: &str = "/devtools/browser";

/// What a request's first line wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish<'a> {
    /// Something by HTTP.
    Http,
    /// A WebSocket to the browser, by the address of some life of it; what stands around that.
    Browser(&'a str, &'a str),
    /// A WebSocket to one of its pages.
    Page,
}

impl<'a> Wish<'a> {
    /// Of a whole head; nothing where it is no request.
    fn of(head: &'a str) -> Option<Self> {
        let (line, _) = head.split_once("\r\n")?;
        let (method, rest) = line.split_once(' ')?;
        let (path, _) = rest.split_once(' ')?;
        if let Some(life) = path.strip_prefix(BROWSER)
            && (life.is_empty() || life.starts_with('/'))
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

pub(super) async fn serve(desktop: Desktop, port: TcpListener, mut stop: watch::Receiver<bool>) {
    let mut visits = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            Some(_) = visits.join_next() => continue,
            accepted = port.accept() => accepted,
        };
        match accepted {
            Ok((client, _)) => {
                let desktop = desktop.clone();
                visits.spawn(async move {
                    if let Err(error) = receive(&desktop, client).await {
                        tracing::debug!("the browser's debugger: {error}");
                    }
                });
            }
            Err(error) => {
                tracing::warn!("the browser's debugger: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn receive(desktop: &Desktop, mut client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (head, rest) = tokio::time::timeout(PATIENCE, read_head(&mut client)).await??;
    let _stay = desktop.attached();
    let head = match reached(desktop, &head).await {
        Ok(head) => head,
        Err(why) => return refuse(&mut client, &why).await,
    };
    let mut browser = TcpStream::connect((Ipv4Addr::LOCALHOST, super::CDP_PORT)).await?;
    browser.set_nodelay(true)?;
    browser.write_all(head.as_bytes()).await?;
    browser.write_all(&rest).await?;
    copy_bidirectional(&mut client, &mut browser).await?;
    Ok(())
}

/// Waits for the browser, and says what it is to be told.
async fn reached(desktop: &Desktop, head: &str) -> Result<String, String> {
    let told = |refusal: Refusal| refusal.to_string();
    match Wish::of(head).ok_or("this is no request")? {
        Wish::Http => {
            desktop.browser().await.map_err(told)?;
            Ok(head.to_owned())
        }
        Wish::Page => {
            desktop.browser_of_now().await.map_err(told)?;
            Ok(head.to_owned())
        }
        Wish::Browser(before, after) => {
            desktop.browser_of_now().await.map_err(told)?;
            let path = cdp::path(super::CDP_PORT).await;
            let path = path.map_err(|error| error.to_string())?;
            Ok(format!("{before}{path}{after}"))
        }
    }
}

async fn refuse(client: &mut TcpStream, why: &str) -> io::Result<()> {
    let length = why.len();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{why}"
    );
    client.write_all(answer.as_bytes()).await?;
    client.shutdown().await
}

/// A request's head, and what came behind it.
async fn read_head(client: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            let rest = bytes.split_off(at + 4);
            let head = String::from_utf8(bytes).map_err(io::Error::other)?;
            return Ok((head, rest));
        }
        if bytes.len() > HEAD {
            return Err(io::Error::other("its head is too long"));
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Wish;

    #[test]
    fn a_request_says_by_its_path_what_it_wants() {
        let rest = " HTTP/1.1\r\nHost: 127.0.0.1:9221\r\n\r\n";
        for path in ["/devtools/browser", "/devtools/browser/1f-2"] {
            let head = format!("GET {path}{rest}");
            assert_eq!(Wish::of(&head), Some(Wish::Browser("GET ", rest)), "{path}");
        }
        let other = |path: &str| format!("GET {path}{rest}");
        assert_eq!(Wish::of(&other("/json/version")), Some(Wish::Http));
        assert_eq!(Wish::of(&other("/devtools/browsers")), Some(Wish::Http));
        assert_eq!(Wish::of(&other("/devtools/page/1")), Some(Wish::Page));
        for none in ["", "\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n"] {
            assert_eq!(Wish::of(none), None, "{none:?}");
        }
    }
}
