//! A client of the browser's debugger protocol (CDP) over HTTP, inside the container only.

use crate::error::Result;
use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::net::TcpStream;

const CDP_REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Addresses of an empty new tab. Chromium decides at run time which of them it uses.
const BLANK_TAB_URLS: [&str; 5] = [
    "",
    "about:blank",
    "chrome://newtab/",
    "chrome://new-tab-page/",
    "chrome://new-tab-page-third-party/",
];

pub(super) fn debugger_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

pub(super) async fn is_browser_responding(port: u16) -> bool {
    send_cdp_request(Method::GET, port, "/json/version")
        .await
        .is_ok()
}

/// Opens a page in a new tab; returns the id of the tab.
///
/// # Errors
/// When the browser does not open the tab.
pub(super) async fn open_tab(port: u16, url: &str) -> Result<String> {
    let path = format!("/json/new?{}", percent_encode_url(url));
    let answer = await_cdp_reply(send_cdp_request(Method::PUT, port, &path)).await?;
    let tab: CdpTab = serde_json::from_slice(&answer)?;
    Ok(tab.id)
}

/// Closes a tab, if it exists.
pub(super) async fn close_tab(port: u16, tab: &str) {
    let path = format!("/json/close/{tab}");
    // A tab that does not exist, perhaps because its browser has ended, counts as closed.
    let _ = await_cdp_reply(send_cdp_request(Method::GET, port, &path)).await;
}

/// The path of the WebSocket of the running browser process.
///
/// # Errors
/// When the browser does not return the path.
pub(super) async fn browser_ws_path(port: u16) -> Result<String> {
    #[derive(Deserialize)]
    struct CdpVersion {
        #[serde(rename = "webSocketDebuggerUrl")]
        url: String,
    }
    let answer = await_cdp_reply(send_cdp_request(Method::GET, port, "/json/version")).await?;
    let CdpVersion { url } = serde_json::from_slice(&answer)?;
    let path = url.find("/devtools/").map(|at| url[at..].to_owned());
    path.with_context(|| format!("`{url}` is not the address of a debugger"))
}

/// Whether this tab exists.
pub(super) async fn has_tab(port: u16, tab: &str) -> bool {
    let tabs = list_tabs(port).await.unwrap_or_default();
    tabs.iter().any(|one| one.id == tab)
}

/// Whether a tab shows something other than an empty new tab.
///
/// # Errors
/// When the browser does not list its tabs.
pub(super) async fn has_pages(port: u16) -> Result<bool> {
    let shows = |tab: &CdpTab| tab.r#type == "page" && !BLANK_TAB_URLS.contains(&&*tab.url);
    Ok(list_tabs(port).await?.iter().any(shows))
}

/// Lists all targets of the debugger.
async fn list_tabs(port: u16) -> Result<Vec<CdpTab>> {
    let answer = await_cdp_reply(send_cdp_request(Method::GET, port, "/json/list")).await?;
    Ok(serde_json::from_slice(&answer)?)
}

#[derive(Debug, Deserialize)]
struct CdpTab {
    id: String,
    r#type: String,
    url: String,
}

async fn await_cdp_reply<T>(reply: impl Future<Output = Result<T>>) -> Result<T> {
    let waited = tokio::time::timeout(CDP_REPLY_TIMEOUT, reply).await;
    waited.context("no answer from the browser")?
}

async fn send_cdp_request(method: Method, port: u16, path: &str) -> Result<Bytes> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (mut client, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", format!("127.0.0.1:{port}"))
        .body(Empty::<Bytes>::new())?;
    let response = client.send_request(request).await?;
    let status = response.status();
    let read = response.into_body().collect().await;
    driver.abort();
    let body = read?.to_bytes();
    ensure!(status == StatusCode::OK, "the browser answered {status}");
    Ok(body)
}

/// Escapes all but plain characters as `%XX`, so that the address of a page cannot end the address of the request.
fn percent_encode_url(url: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte);
    let encode = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    url.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::percent_encode_url;

    #[test]
    fn page_url_is_percent_encoded() {
        assert_eq!(
            percent_encode_url("https://a.example/b?c=d&e#f ä"),
            "https://a.example/b%3Fc%3Dd%26e%23f%20%C3%A4"
        );
    }
}
