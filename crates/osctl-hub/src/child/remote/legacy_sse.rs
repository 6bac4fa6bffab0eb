//! The client side of the HTTP+SSE transport of 2024-11-05: one event stream carries all messages of the server, and
//! its first event names the endpoint to which the hub posts messages.

use super::response::read_body;
use super::{REMOTE_SEND_TIMEOUT, REMOTE_SSE_TYPE, RemoteHttpClient, content_type, root_cause};
use crate::child::event::ServerPipeEvent;
use crate::message::{self, RpcMessage, find_raw};
use osctl_protocol::sse::SseParser;
use reqwest::header::ACCEPT;
use reqwest::{Response, StatusCode, Url};
use tokio::time::timeout;

/// The most bytes of one message; a server that exceeds them is ended as faulty.
const MAX_LEGACY_SSE_MESSAGE_BYTES: usize = 256 << 20;

/// Whether a server that answers the first message with this status may support only the older transport.
pub(super) fn can_be_legacy_sse(status: StatusCode) -> bool {
    [
        StatusCode::BAD_REQUEST,
        StatusCode::NOT_FOUND,
        StatusCode::METHOD_NOT_ALLOWED,
    ]
    .contains(&status)
}

/// Whether a refusal is a JSON-RPC error, which servers of the newer transport send. Other servers may also send
/// errors as JSON.
pub(super) fn is_rpc_error(body: &[u8]) -> bool {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let code = find_raw(text, &["error", "code"]);
    code.is_some_and(|code| code.parse::<i64>().is_ok())
}

/// Resolves the endpoint for messages. It must have the same origin as `url`, because the requests carry the
/// configured `headers`.
fn resolve_endpoint(url: &Url, endpoint: &[u8]) -> Result<Url, String> {
    let endpoint = String::from_utf8_lossy(endpoint);
    let endpoint_url = url.join(endpoint.trim());
    let endpoint_url = endpoint_url
        .map_err(|_| format!("it names the endpoint `{endpoint}`, which is not a URL"))?;
    match endpoint_url.origin() == url.origin() {
        true => Ok(endpoint_url),
        false => Err(format!(
            "it names the endpoint `{endpoint_url}`, which has another origin"
        )),
    }
}

impl RemoteHttpClient {
    pub(super) fn is_legacy_sse(&self) -> bool {
        self.legacy_endpoint().is_some()
    }

    pub(super) fn legacy_endpoint(&self) -> Option<Url> {
        self.legacy_endpoint.lock().clone()
    }

    /// Opens the stream, posts the first message to its endpoint, and reads the stream to its end.
    ///
    /// # Errors
    /// Fails when the server does not support this transport either. `refused` is its answer to the newer transport.
    pub(super) async fn run_legacy_sse(
        &self,
        initialize: &RpcMessage,
        refused: StatusCode,
    ) -> Result<(), String> {
        let request = self
            .client
            .get(self.url.clone())
            .headers(self.session_headers());
        let response = timeout(
            REMOTE_SEND_TIMEOUT,
            request.header(ACCEPT, REMOTE_SSE_TYPE).send(),
        )
        .await;
        let mut stream = match response {
            Ok(Ok(response)) if is_event_stream(&response) => response,
            Ok(Ok(_)) | Err(_) => return Err(format!("it answered {refused}")),
            Ok(Err(e)) => return Err(root_cause(&e)),
        };
        let mut events = SseParser::default();
        let mut received = Vec::new();
        let endpoint = async {
            loop {
                let piece = stream.chunk().await.map_err(|e| root_cause(&e))?;
                let piece = piece.ok_or("its stream ended before the first event")?;
                received.extend(events.parse_chunk(&piece));
                if !received.is_empty() {
                    break Ok::<_, String>(received.remove(0));
                }
            }
        };
        let endpoint = timeout(REMOTE_SEND_TIMEOUT, endpoint).await;
        let endpoint = endpoint.map_err(|_| format!("it answered {refused}"))??;
        let endpoint_url = resolve_endpoint(&self.url, &endpoint.data)?;
        *self.legacy_endpoint.lock() = Some(endpoint_url);
        let read_events = async {
            let mut unread = 0;
            loop {
                for event in received.drain(..) {
                    self.forward_messages(event.data.into(), "");
                }
                match stream.chunk().await {
                    Ok(Some(piece)) => {
                        unread += piece.len();
                        received = events.parse_chunk(&piece);
                        if !received.is_empty() {
                            unread = 0;
                        }
                    }
                    Ok(None) => break "it closed the connection".to_owned(),
                    Err(e) => break root_cause(&e),
                }
                if unread > MAX_LEGACY_SSE_MESSAGE_BYTES {
                    break "it sent a message of more than 256 MiB".to_owned();
                }
            }
        };
        let send = async {
            let sent = match self.post_message(initialize).await {
                Ok(response) => read_body(response).await.map(drop),
                Err(why) => Err(why),
            };
            if let Err(why) = sent {
                let id = initialize.id().unwrap_or("null");
                self.emit_event(ServerPipeEvent::Message(message::error_response(
                    id, -32603, &why,
                )));
            }
        };
        let (why, ()) = tokio::join!(read_events, send);
        self.emit_event(ServerPipeEvent::Ended(why));
        Ok(())
    }
}

fn is_event_stream(response: &Response) -> bool {
    response.status().is_success() && content_type(response).starts_with(REMOTE_SSE_TYPE)
}

#[cfg(test)]
mod tests {
    use super::{Url, is_rpc_error, resolve_endpoint};

    #[test]
    fn an_error_in_json_need_not_be_a_json_rpc_error() {
        assert!(is_rpc_error(
            br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}"#
        ));
        let ours = br#"{"status":"failed","error":{"type":"wrong_method","message":"x"}}"#;
        for other in [&ours[..], b"", b"<html>", b"{\"error\":\"x\"}"] {
            assert!(!is_rpc_error(other));
        }
    }

    #[test]
    fn messages_are_sent_only_to_the_same_origin() {
        let url = Url::parse("http://a.example:8/x/sse?k=1").unwrap();
        let to = |endpoint: &[u8]| {
            resolve_endpoint(&url, endpoint).map(|endpoint_url| endpoint_url.to_string())
        };
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
