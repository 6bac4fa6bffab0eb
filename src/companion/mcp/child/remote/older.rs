//! The transport of 2024-11-05: one stream down, on which everything is told, and a place to send up, which is the
//! first thing that it tells.

use super::answer::whole;
use super::{EVENTS, Line, SEND, cause, kind};
use crate::companion::mcp::child::pipe::Happened;
use crate::companion::mcp::message::{self, Message, find};
use crate::protocol::sse::Events;
use reqwest::header::ACCEPT;
use reqwest::{Response, StatusCode, Url};
use std::sync::PoisonError;
use tokio::time::timeout;

/// Bytes of one message; a server that says more is broken.
const LONGEST: usize = 256 << 20;

/// Whether a server that answers so to its first message may speak the older transport alone.
pub(super) fn is_possible(status: StatusCode) -> bool {
    [
        StatusCode::BAD_REQUEST,
        StatusCode::NOT_FOUND,
        StatusCode::METHOD_NOT_ALLOWED,
    ]
    .contains(&status)
}

/// Whether a refusal is one of JSON-RPC, as those give it who speak the newer transport; many others have errors
/// in JSON, too.
pub(super) fn is_rpc(body: &[u8]) -> bool {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let code = find(text, &["error", "code"]).map(|span| &text[span]);
    code.is_some_and(|code| code.parse::<i64>().is_ok())
}

/// Where messages go: it must be on the same server, because what is in `headers` goes there, too.
fn place(url: &Url, told: &[u8]) -> Result<Url, String> {
    let told = String::from_utf8_lossy(told);
    let place = url.join(told.trim());
    let place = place.map_err(|_| format!("it takes messages at `{told}`, which is no URL"))?;
    match place.origin() == url.origin() {
        true => Ok(place),
        false => Err(format!("it wants messages sent elsewhere, to `{place}`")),
    }
}

impl Line {
    pub(super) fn is_older(&self) -> bool {
        self.older_url().is_some()
    }

    pub(super) fn older_url(&self) -> Option<Url> {
        let older = self.older.lock();
        older.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the stream, sends the first message where it says, and hears it to its end.
    ///
    /// # Errors
    /// When it does not speak that transport either; `refused` is how it answered to the newer one.
    pub(super) async fn speak_older(
        &self,
        hello: &Message,
        refused: StatusCode,
    ) -> Result<(), String> {
        let request = self.client.get(self.url.clone()).headers(self.agreed());
        let response = timeout(SEND, request.header(ACCEPT, EVENTS).send()).await;
        let mut stream = match response {
            Ok(Ok(response)) if is_stream(&response) => response,
            Ok(Ok(_)) | Err(_) => return Err(format!("it answered {refused}")),
            Ok(Err(e)) => return Err(cause(&e)),
        };
        let mut events = Events::default();
        let mut told = Vec::new();
        let endpoint = async {
            loop {
                let piece = stream.chunk().await.map_err(|e| cause(&e))?;
                let piece = piece.ok_or("its stream ended before it said anything")?;
                told.extend(events.take(&piece));
                if !told.is_empty() {
                    break Ok::<_, String>(told.remove(0));
                }
            }
        };
        let endpoint = timeout(SEND, endpoint).await;
        let endpoint = endpoint.map_err(|_| format!("it answered {refused}"))??;
        let place = place(&self.url, &endpoint.data)?;
        *self.older.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        let hear = async {
            let mut unread = 0;
            loop {
                for event in told.drain(..) {
                    self.pass(event.data.into(), "");
                }
                match stream.chunk().await {
                    Ok(Some(piece)) => {
                        unread += piece.len();
                        told = events.take(&piece);
                        if !told.is_empty() {
                            unread = 0;
                        }
                    }
                    Ok(None) => break "it ended the connection".to_owned(),
                    Err(e) => break cause(&e),
                }
                if unread > LONGEST {
                    break "a message of it is longer than 256 MiB".to_owned();
                }
            }
        };
        let send = async {
            let sent = match self.post(hello).await {
                Ok(response) => whole(response).await.map(drop),
                Err(why) => Err(why),
            };
            if let Err(why) = sent {
                let id = hello.id().unwrap_or("null");
                self.tell(Happened::Line(message::error(id, -32603, &why)));
            }
        };
        let (why, ()) = tokio::join!(hear, send);
        self.tell(Happened::Ended(why));
        Ok(())
    }
}

fn is_stream(response: &Response) -> bool {
    response.status().is_success() && kind(response).starts_with(EVENTS)
}

#[cfg(test)]
mod tests {
    use super::{Url, is_rpc, place};

    #[test]
    fn an_error_in_json_is_not_yet_one_of_json_rpc() {
        assert!(is_rpc(
            br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}"#
        ));
        let ours = br#"{"status":"failed","error":{"type":"wrong_method","message":"x"}}"#;
        for other in [&ours[..], b"", b"<html>", b"{\"error\":\"x\"}"] {
            assert!(!is_rpc(other));
        }
    }

    #[test]
    fn messages_go_to_the_same_server_alone() {
        let url = Url::parse("http://a.example:8/x/sse?k=1").unwrap();
        let to = |told: &[u8]| place(&url, told).map(|place| place.to_string());
        let messages = "http://a.example:8/messages?session_id=1";
        assert_eq!(to(b"/messages?session_id=1").unwrap(), messages);
        assert_eq!(to(messages.as_bytes()).unwrap(), messages);
        assert_eq!(to(b"messages").unwrap(), "http://a.example:8/x/messages");
        for elsewhere in [
            "http://b.example:8/m",
            "http://a.example/m",
            "https://a.example:8/m",
        ] {
            assert!(to(elsewhere.as_bytes()).is_err(), "{elsewhere}");
        }
    }
}
