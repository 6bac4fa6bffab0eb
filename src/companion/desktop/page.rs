//! Reading a page as a person sees it, by the debugger's protocol over a WebSocket, inside only.
//!
//! ```text
//! navigate ─▶ there, or out of time ─▶ loaded and settled: its text stays the same ─▶ text, title, address
//! ```
//!
//! What the page asks meanwhile is dismissed, and told. A page that asks whether it may be left has something
//! of somebody's in it, and is left to them.

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

/// For one answer of the debugger, unless it takes a server to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at a page that may still grow, for how many of them it must stay the same, and the time
/// for all of them once it is loaded.
const LOOK: Duration = Duration::from_millis(200);
const STEADY: u32 = 4;
const SETTLING: Duration = Duration::from_secs(5);
/// Dialogs that are told of, and characters of each.
const DIALOGS: usize = 10;
const WORDS: usize = 200;

/// What is visible, as text. Scripts and hidden parts are not.
const VISIBLE: &str = "({text: document.body ? document.body.innerText : '', title: document.title, url: location.href, state: document.readyState})";
/// What the browser asks a page that a person has used before it leaves it. There, each client of the debugger may answer
/// in the page's place, and browser-use says yes.
const IS_USED: &str = "(() => { if (!navigator.userActivation.hasBeenActive) return false; const event = document.createEvent('BeforeUnloadEvent'); event.initEvent('beforeunload', false, true); dispatchEvent(event); return event.defaultPrevented || event.returnValue !== ''; })()";
const STATE: &str = "document.readyState + (document.body ? document.body.innerText.length : 0)";

/// A page as a person sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    /// Where the browser is in the end.
    pub(crate) url: String,
    pub(crate) title: String,
    pub(crate) text: String,
    /// What the web server said.
    pub(crate) status: Option<u16>,
    /// Whether it came to its end in time.
    pub(crate) loaded: bool,
    /// What it asked, and was not given.
    pub(crate) dialogs: Vec<String>,
}

/// Why there is no page.
#[derive(Debug)]
pub(super) enum Fault {
    /// The browser did not get there; the tab is as good as before.
    Refused(String),
    /// What was in the tab is not to be left.
    Kept,
    /// The tab did not answer before anything was done.
    Dumb(anyhow::Error),
    /// The tab is of no use any more.
    Broken(anyhow::Error),
}

/// A connection to one tab.
struct Tab {
    socket: WebSocketStream<TcpStream>,
    last: u64,
    seen: Seen,
}

/// What the tab has told of itself.
#[derive(Debug, Default)]
struct Seen {
    /// Documents that were answered: by frame and loader, the latest last.
    documents: Vec<(String, String, u16)>,
    dialogs: Vec<String>,
    /// It asked whether it may be left, and was told to stay.
    is_kept: bool,
}

/// What an event asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Nothing,
    /// A page that asks shows nothing until it is answered: no.
    Dismiss,
}

impl Seen {
    /// # Errors
    /// When the page can't come back.
    fn note(&mut self, event: &Value) -> Result<Wish> {
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
                self.is_kept |= kind == "beforeunload";
                if self.dialogs.len() < DIALOGS {
                    let words: String = text(&params["message"]).chars().take(WORDS).collect();
                    self.dialogs.push(format!("{kind}: {words}"));
                }
                return Ok(Wish::Dismiss);
            }
            Some("Inspector.targetCrashed") => bail!("the page has crashed"),
            _ => {}
        }
        Ok(Wish::Nothing)
    }

    /// What was said of the main frame's document: of that load or, where it led elsewhere, a later one.
    fn status(&self, frame: &str, loader: &str) -> Option<u16> {
        let begin = { self.documents.iter() }.position(|(_, of, _)| of == loader)?;
        let of_frame = self.documents[begin..]
            .iter()
            .rfind(|(of, _, _)| of == frame);
        of_frame.map(|(_, _, status)| *status)
    }
}

/// Whether it is a page that anybody may read: files and scripts are not reached this way.
pub(super) fn is_of_the_web(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        ["http", "https"]
            .iter()
            .any(|web| scheme.eq_ignore_ascii_case(web))
    })
}

/// Sends a tab elsewhere, and reads what it shows then.
///
/// # Errors
/// When the browser does not get there.
pub(super) async fn read(
    port: u16,
    tab: &str,
    url: &str,
    patience: Duration,
) -> Result<Page, Fault> {
    let mut tab = Tab::ready(port, tab).await.map_err(Fault::Dumb)?;
    if tab.is_used().await.map_err(Fault::Dumb)? {
        return Err(Fault::Kept);
    }
    let deadline = Instant::now() + patience;
    // It answers when the web server has.
    let sent = tab.navigate(url, deadline).await.map_err(Fault::Broken)?;
    let Some(sent) = sent else {
        let seconds = patience.as_secs_f64();
        let why = format!("`{url}` has not answered within {seconds} seconds");
        return Err(Fault::Refused(why));
    };
    match sent["errorText"].as_str() {
        Some(_) if tab.seen.is_kept => return Err(Fault::Kept),
        Some(why) if !why.is_empty() => {
            return Err(Fault::Refused(format!("`{url}` can't be opened: {why}")));
        }
        _ => {}
    }
    let seen = tab.look(deadline).await;
    let seen = seen.with_context(|| format!("`{url}` is open, and can't be read"));
    let seen = seen.map_err(Fault::Broken)?;
    let field = |name: &str| seen[name].as_str().unwrap_or_default().to_owned();
    let text = |name: &str| sent[name].as_str().unwrap_or_default();
    Ok(Page {
        url: field("url"),
        title: field("title"),
        text: field("text"),
        // Within the same page nothing is loaded, and nobody says anything.
        status: tab.seen.status(text("frameId"), text("loaderId")),
        loaded: field("state") == "complete",
        dialogs: tab.seen.dialogs,
    })
}

impl Tab {
    /// Connected, and told to say what happens.
    async fn ready(port: u16, id: &str) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let url = format!("ws://127.0.0.1:{port}/devtools/page/{id}");
        let shaken = timeout(PATIENCE, tokio_tungstenite::client_async(url, stream));
        let (socket, _) = shaken.await.context("it does not answer")??;
        let mut tab = Self {
            socket,
            last: 0,
            seen: Seen::default(),
        };
        tab.call("Page.enable", json!({})).await?;
        tab.call("Network.enable", json!({})).await?;
        Ok(tab)
    }

    /// Whether the page holds what a person did in it.
    async fn is_used(&mut self) -> Result<bool> {
        let params = json!({"expression": IS_USED, "returnByValue": true});
        let said = self.call("Runtime.evaluate", params).await?;
        Ok(said["result"]["value"] == true)
    }

    /// What the browser says of going there; nothing where no server has answered in time.
    async fn navigate(&mut self, url: &str, deadline: Instant) -> Result<Option<Value>> {
        let id = self.send("Page.navigate", json!({"url": url})).await?;
        match timeout_at(deadline, self.answer(id)).await {
            Ok(sent) => Ok(Some(sent?.map_err(Error::msg)?)),
            Err(_) => {
                // What comes later is nobody's.
                self.call("Page.stopLoading", json!({})).await?;
                Ok(None)
            }
        }
    }

    /// What is visible once all is there, or the time is over.
    async fn look(&mut self, deadline: Instant) -> Result<Value> {
        self.call("Page.bringToFront", json!({})).await?;
        self.settle(deadline).await?;
        let params = json!({"expression": VISIBLE, "returnByValue": true});
        let mut seen = self.call("Runtime.evaluate", params).await?;
        Ok(seen["result"]["value"].take())
    }

    /// Waits until it is loaded, no longer than to the deadline, and until a page that goes on making itself
    /// stays the same for a while.
    async fn settle(&mut self, deadline: Instant) -> Result<()> {
        let (mut before, mut same) = (Value::Null, 0);
        let (mut end, mut is_loaded) = (deadline, false);
        while Instant::now() < end {
            let params = json!({"expression": STATE, "returnByValue": true});
            let id = self.send("Runtime.evaluate", params).await?;
            // A page that leads elsewhere by itself, or computes, can't be asked for a moment.
            let mut now = match timeout_at(end, self.answer(id)).await {
                Ok(answer) => answer?.unwrap_or_default(),
                Err(_) => return Ok(()),
            };
            let now = now["result"]["value"].take();
            let is_complete = now.as_str().is_some_and(|now| now.starts_with("complete"));
            if is_complete && !is_loaded {
                is_loaded = true;
                end = Instant::now() + SETTLING;
            }
            same = match is_complete && now == before {
                true => same + 1,
                false => 0,
            };
            if same == STEADY {
                return Ok(());
            }
            before = now;
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// The next message, of which events are noted.
    async fn hear(&mut self) -> Result<Value> {
        loop {
            let message = self.socket.next().await.context("the tab was closed")??;
            let Message::Text(text) = message else {
                continue;
            };
            let message: Value = serde_json::from_str(&text)?;
            if self.seen.note(&message)? == Wish::Dismiss {
                let no = json!({"accept": false});
                self.send("Page.handleJavaScriptDialog", no).await?;
            }
            return Ok(message);
        }
    }

    async fn send(&mut self, method: &str, params: Value) -> Result<u64> {
        self.last += 1;
        let request = json!({"id": self.last, "method": method, "params": params});
        self.socket.send(Message::text(request.to_string())).await?;
        Ok(self.last)
    }

    /// Waits for what that request brings, or why it was refused.
    ///
    /// # Errors
    /// When there is nobody to answer.
    async fn answer(&mut self, id: u64) -> Result<Result<Value, String>> {
        loop {
            let mut message = self.hear().await?;
            if message["id"] == id {
                return Ok(match message["error"]["message"].as_str() {
                    Some(why) => Err(why.to_owned()),
                    None => Ok(message["result"].take()),
                });
            }
        }
    }

    async fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        let id = self.send(method, params).await?;
        let answered = timeout(PATIENCE, self.answer(id)).await;
        let answered = answered.context("it does not answer")??;
        answered.map_err(|why| anyhow!("{method}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{DIALOGS, Seen, Wish, is_of_the_web};
    use serde_json::json;

    #[test]
    fn only_pages_of_the_web_are_read() {
        assert!(is_of_the_web("http://a/b") && is_of_the_web("HTTPS://a"));
        for other in [
            "file:///etc/passwd",
            "chrome://version",
            "javascript:alert(1)",
            "a.example",
            "data:text/plain,http://a",
        ] {
            assert!(!is_of_the_web(other), "{other}");
        }
    }

    #[test]
    fn the_status_is_that_of_the_page_and_not_of_one_before_or_of_a_frame() {
        let mut seen = Seen::default();
        let mut answered = |frame: &str, loader: &str, status: u16| {
            let response = json!({"status": status});
            let params = json!({"type": "Document", "frameId": frame, "loaderId": loader, "response": response});
            let event = json!({"method": "Network.responseReceived", "params": params});
            assert_eq!(seen.note(&event).unwrap(), Wish::Nothing);
        };
        answered("main", "before", 500);
        answered("main", "ours", 200);
        answered("inner", "frame", 404);
        assert_eq!(seen.status("main", "ours"), Some(200));
        // A page that leads elsewhere by itself is the page it leads to.
        let response = json!({"status": 403});
        let params = json!({"type": "Document", "frameId": "main", "loaderId": "later", "response": response});
        let event = json!({"method": "Network.responseReceived", "params": params});
        seen.note(&event).unwrap();
        assert_eq!(seen.status("main", "ours"), Some(403));
        assert_eq!(seen.status("main", "never"), None);
    }

    #[test]
    fn dialogs_are_dismissed_and_told() {
        let mut seen = Seen::default();
        let asks = |kind: &str| {
            let params = json!({"type": kind, "message": "Delete all?"});
            json!({"method": "Page.javascriptDialogOpening", "params": params})
        };
        assert_eq!(seen.note(&asks("confirm")).unwrap(), Wish::Dismiss);
        assert_eq!(seen.dialogs, ["confirm: Delete all?"]);
        assert!(!seen.is_kept);
        for _ in 0..100 {
            seen.note(&asks("alert")).unwrap();
        }
        assert_eq!(seen.dialogs.len(), DIALOGS);
        seen.note(&asks("beforeunload")).unwrap();
        assert!(seen.is_kept);
        let crashed = json!({"method": "Inspector.targetCrashed", "params": {}});
        assert!(seen.note(&crashed).is_err());
    }
}
