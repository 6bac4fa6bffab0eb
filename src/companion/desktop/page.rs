//! Reading the visible text of a web page, with the debugger's protocol over a WebSocket, inside the container only.
//!
//! ```text
//! navigate ─▶ answered, or timed out ─▶ loaded and stable: its text stays the same ─▶ text, title, address
//! ```
//!
//! Dialogs of the page are dismissed and reported. A page that asks for confirmation before it is left holds a person's
//! input, and stays open for that person.

use crate::error::Result;
use anyhow::{Context, Error, anyhow, bail};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// Maximum wait for a reply of the debugger, unless the reply depends on a web server.
const PAGE_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two checks of a page that may still change, the number of checks during which it must stay the same,
/// and the maximum time of all checks after the page has loaded.
const PAGE_POLL_INTERVAL: Duration = Duration::from_millis(200);
const STABLE_PAGE_POLLS: u32 = 4;
const PAGE_SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of reported dialogs, and maximum characters of each.
const MAX_PAGE_DIALOGS: usize = 10;
const MAX_DIALOG_CHARS: usize = 200;

/// Returns the visible text, without scripts and hidden parts.
const VISIBLE_TEXT_SCRIPT: &str = "({text: document.body ? document.body.innerText : '', title: document.title, url: location.href, state: document.readyState})";
/// Sends the event that the browser sends before it leaves a page that a person has used. The script asks the page
/// directly, because each client of the debugger may answer the browser's own dialog, and browser-use accepts it.
const PAGE_IN_USE_SCRIPT: &str = "(() => { if (!navigator.userActivation.hasBeenActive) return false; const event = document.createEvent('BeforeUnloadEvent'); event.initEvent('beforeunload', false, true); dispatchEvent(event); return event.defaultPrevented || event.returnValue !== ''; })()";
const PAGE_STATE_SCRIPT: &str =
    "document.readyState + (document.body ? document.body.innerText.length : 0)";

/// The visible content of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebPage {
    /// The final address, after redirects.
    pub(crate) url: String,
    pub(crate) title: String,
    pub(crate) text: String,
    /// The HTTP status.
    pub(crate) status: Option<u16>,
    /// Whether the page finished loading in time.
    pub(crate) loaded: bool,
    /// Dialogs of the page, all dismissed.
    pub(crate) dialogs: Vec<String>,
}

/// Why a page was not read.
#[derive(Debug)]
pub(super) enum WebPageError {
    /// The browser did not reach the page; the tab remains usable.
    Unreachable(String),
    /// The tab holds a person's input and must not be left.
    TabInUse,
    /// The tab did not answer before the navigation started.
    NoReply(anyhow::Error),
    /// The tab is unusable.
    TabFailed(anyhow::Error),
}

/// A connection to one tab.
struct TabConnection {
    socket: WebSocketStream<TcpStream>,
    last_request_id: u64,
    events: TabEvents,
}

/// The events of a tab up to now.
#[derive(Debug, Default)]
struct TabEvents {
    /// Responses to documents: frame, loader and HTTP status, the latest last.
    documents: Vec<(String, String, u16)>,
    dialogs: Vec<String>,
    /// The page asked for confirmation before it is left; the tab stays on the page.
    is_unload_blocked: bool,
}

/// The action that an event requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TabEventAction {
    Nothing,
    /// Dismiss the dialog: a page shows nothing until its dialog is answered.
    DismissDialog,
}

impl TabEvents {
    /// # Errors
    /// When the page cannot recover.
    fn record_event(&mut self, event: &Value) -> Result<TabEventAction> {
        let params = &event["params"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match event["method"].as_str() {
            Some("Network.responseReceived") if params["type"] == "Document" => {
                let status = params["response"]["status"].as_u64();
                let status = status.and_then(|status| u16::try_from(status).ok());
                let (frame, loader) = (text(&params["frameId"]), text(&params["loaderId"]));
                self.documents
                    .extend(status.map(|status| (frame, loader, status)));
            }
            Some("Page.javascriptDialogOpening") => {
                let kind = text(&params["type"]);
                self.is_unload_blocked |= kind == "beforeunload";
                if self.dialogs.len() < MAX_PAGE_DIALOGS {
                    let message: String = text(&params["message"])
                        .chars()
                        .take(MAX_DIALOG_CHARS)
                        .collect();
                    self.dialogs.push(format!("{kind}: {message}"));
                }
                return Ok(TabEventAction::DismissDialog);
            }
            Some("Inspector.targetCrashed") => bail!("the page has crashed"),
            _ => {}
        }
        Ok(TabEventAction::Nothing)
    }

    /// The HTTP status of the main frame's document: that of this load or, after a redirect by the page, that of a
    /// later load.
    fn document_status(&self, frame: &str, loader: &str) -> Option<u16> {
        let begin = { self.documents.iter() }.position(|(_, of, _)| of == loader)?;
        let of_frame = self.documents[begin..]
            .iter()
            .rfind(|(of, _, _)| of == frame);
        of_frame.map(|(_, _, status)| *status)
    }
}

/// Whether the address is `http` or `https`: this route does not open files and scripts.
pub(super) fn is_web_url(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        ["http", "https"]
            .iter()
            .any(|web| scheme.eq_ignore_ascii_case(web))
    })
}

/// Navigates a tab to `url`, and reads the visible text.
///
/// # Errors
/// When the browser does not reach the page.
pub(super) async fn read_page(
    port: u16,
    tab: &str,
    url: &str,
    timeout: Duration,
) -> Result<WebPage, WebPageError> {
    let mut tab = TabConnection::connect_tab(port, tab)
        .await
        .map_err(WebPageError::NoReply)?;
    if tab.has_user_input().await.map_err(WebPageError::NoReply)? {
        return Err(WebPageError::TabInUse);
    }
    let deadline = Instant::now() + timeout;
    // The reply comes when the web server has answered.
    let sent = tab
        .navigate(url, deadline)
        .await
        .map_err(WebPageError::TabFailed)?;
    let Some(sent) = sent else {
        let seconds = timeout.as_secs_f64();
        let why = format!("`{url}` did not answer within {seconds} seconds");
        return Err(WebPageError::Unreachable(why));
    };
    match sent["errorText"].as_str() {
        Some(_) if tab.events.is_unload_blocked => return Err(WebPageError::TabInUse),
        Some(why) if !why.is_empty() => {
            return Err(WebPageError::Unreachable(format!(
                "`{url}` can't be opened: {why}"
            )));
        }
        _ => {}
    }
    let seen = tab.read_visible_text(deadline).await;
    let seen = seen.with_context(|| format!("`{url}` is open, but its text can't be read"));
    let seen = seen.map_err(WebPageError::TabFailed)?;
    let field = |name: &str| seen[name].as_str().unwrap_or_default().to_owned();
    let text = |name: &str| sent[name].as_str().unwrap_or_default();
    Ok(WebPage {
        url: field("url"),
        title: field("title"),
        text: field("text"),
        // A navigation within the same page loads nothing, so there is no status.
        status: tab
            .events
            .document_status(text("frameId"), text("loaderId")),
        loaded: field("state") == "complete",
        dialogs: tab.events.dialogs,
    })
}

impl TabConnection {
    /// Connects to a tab and enables its events.
    async fn connect_tab(port: u16, id: &str) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let url = format!("ws://127.0.0.1:{port}/devtools/page/{id}");
        let handshake = timeout(
            PAGE_REPLY_TIMEOUT,
            tokio_tungstenite::client_async(url, stream),
        );
        let (socket, _) = handshake.await.context("no answer from the browser")??;
        let mut tab = Self {
            socket,
            last_request_id: 0,
            events: TabEvents::default(),
        };
        tab.call_method("Page.enable", json!({})).await?;
        tab.call_method("Network.enable", json!({})).await?;
        Ok(tab)
    }

    /// Whether the page holds a person's input.
    async fn has_user_input(&mut self) -> Result<bool> {
        let params = json!({"expression": PAGE_IN_USE_SCRIPT, "returnByValue": true});
        let reply = self.call_method("Runtime.evaluate", params).await?;
        Ok(reply["result"]["value"] == true)
    }

    /// Returns the browser's reply to the navigation; `None` when the web server did not answer in time.
    async fn navigate(&mut self, url: &str, deadline: Instant) -> Result<Option<Value>> {
        let id = self
            .send_request("Page.navigate", json!({"url": url}))
            .await?;
        match timeout_at(deadline, self.wait_for_reply(id)).await {
            Ok(sent) => Ok(Some(sent?.map_err(Error::msg)?)),
            Err(_) => {
                // Discards a response that would arrive later.
                self.call_method("Page.stopLoading", json!({})).await?;
                Ok(None)
            }
        }
    }

    /// The visible text once the page is loaded and stable, or at the deadline.
    async fn read_visible_text(&mut self, deadline: Instant) -> Result<Value> {
        self.call_method("Page.bringToFront", json!({})).await?;
        self.wait_until_stable(deadline).await?;
        let params = json!({"expression": VISIBLE_TEXT_SCRIPT, "returnByValue": true});
        let mut seen = self.call_method("Runtime.evaluate", params).await?;
        Ok(seen["result"]["value"].take())
    }

    /// Waits until the page is loaded, at most to the deadline, and then until a page that still changes stays the same
    /// for a while.
    async fn wait_until_stable(&mut self, deadline: Instant) -> Result<()> {
        let (mut before, mut same) = (Value::Null, 0);
        let (mut end, mut is_loaded) = (deadline, false);
        while Instant::now() < end {
            let params = json!({"expression": PAGE_STATE_SCRIPT, "returnByValue": true});
            let id = self.send_request("Runtime.evaluate", params).await?;
            // A page that redirects or computes does not answer for a moment.
            let mut now = match timeout_at(end, self.wait_for_reply(id)).await {
                Ok(answer) => answer?.unwrap_or_default(),
                Err(_) => return Ok(()),
            };
            let now = now["result"]["value"].take();
            let is_complete = now.as_str().is_some_and(|now| now.starts_with("complete"));
            if is_complete && !is_loaded {
                is_loaded = true;
                end = Instant::now() + PAGE_SETTLE_TIMEOUT;
            }
            same = match is_complete && now == before {
                true => same + 1,
                false => 0,
            };
            if same == STABLE_PAGE_POLLS {
                return Ok(());
            }
            before = now;
            sleep(PAGE_POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Returns the next message, and records events.
    async fn receive_message(&mut self) -> Result<Value> {
        loop {
            let message = self.socket.next().await.context("the tab was closed")??;
            let Message::Text(text) = message else {
                continue;
            };
            let message: Value = serde_json::from_str(&text)?;
            if self.events.record_event(&message)? == TabEventAction::DismissDialog {
                let no = json!({"accept": false});
                self.send_request("Page.handleJavaScriptDialog", no).await?;
            }
            return Ok(message);
        }
    }

    async fn send_request(&mut self, method: &str, params: Value) -> Result<u64> {
        self.last_request_id += 1;
        let request = json!({"id": self.last_request_id, "method": method, "params": params});
        self.socket.send(Message::text(request.to_string())).await?;
        Ok(self.last_request_id)
    }

    /// Waits for the reply to a request, or for its refusal.
    ///
    /// # Errors
    /// When the connection ends.
    async fn wait_for_reply(&mut self, id: u64) -> Result<Result<Value, String>> {
        loop {
            let mut message = self.receive_message().await?;
            if message["id"] == id {
                return Ok(match message["error"]["message"].as_str() {
                    Some(why) => Err(why.to_owned()),
                    None => Ok(message["result"].take()),
                });
            }
        }
    }

    async fn call_method(&mut self, method: &str, params: Value) -> Result<Value> {
        let id = self.send_request(method, params).await?;
        let answered = timeout(PAGE_REPLY_TIMEOUT, self.wait_for_reply(id)).await;
        let answered = answered.context("no answer from the browser")??;
        answered.map_err(|why| anyhow!("{method}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_PAGE_DIALOGS, TabEventAction, TabEvents, is_web_url};
    use serde_json::json;

    #[test]
    fn only_http_urls_are_read() {
        assert!(is_web_url("http://a/b") && is_web_url("HTTPS://a"));
        for other in [
            "file:///etc/passwd",
            "chrome://version",
            "javascript:alert(1)",
            "a.example",
            "data:text/plain,http://a",
        ] {
            assert!(!is_web_url(other), "{other}");
        }
    }

    #[test]
    fn the_status_is_that_of_the_page_and_not_of_one_before_or_of_a_frame() {
        let mut seen = TabEvents::default();
        let mut answered = |frame: &str, loader: &str, status: u16| {
            let response = json!({"status": status});
            let params = json!({"type": "Document", "frameId": frame, "loaderId": loader, "response": response});
            let event = json!({"method": "Network.responseReceived", "params": params});
            assert_eq!(seen.record_event(&event).unwrap(), TabEventAction::Nothing);
        };
        answered("main", "before", 500);
        answered("main", "ours", 200);
        answered("inner", "frame", 404);
        assert_eq!(seen.document_status("main", "ours"), Some(200));
        // After a redirect by the page, the status is that of the final page.
        let response = json!({"status": 403});
        let params = json!({"type": "Document", "frameId": "main", "loaderId": "later", "response": response});
        let event = json!({"method": "Network.responseReceived", "params": params});
        seen.record_event(&event).unwrap();
        assert_eq!(seen.document_status("main", "ours"), Some(403));
        assert_eq!(seen.document_status("main", "never"), None);
    }

    #[test]
    fn dialogs_are_dismissed_and_reported() {
        let mut seen = TabEvents::default();
        let asks = |kind: &str| {
            let params = json!({"type": kind, "message": "Delete all?"});
            json!({"method": "Page.javascriptDialogOpening", "params": params})
        };
        assert_eq!(
            seen.record_event(&asks("confirm")).unwrap(),
            TabEventAction::DismissDialog
        );
        assert_eq!(seen.dialogs, ["confirm: Delete all?"]);
        assert!(!seen.is_unload_blocked);
        for _ in 0..100 {
            seen.record_event(&asks("alert")).unwrap();
        }
        assert_eq!(seen.dialogs.len(), MAX_PAGE_DIALOGS);
        seen.record_event(&asks("beforeunload")).unwrap();
        assert!(seen.is_unload_blocked);
        let crashed = json!({"method": "Inspector.targetCrashed", "params": {}});
        assert!(seen.record_event(&crashed).is_err());
    }
}
