//! The response of a remote server: one message, or an event stream, which is resumed where it was cut.

use super::{REMOTE_SSE_TYPE, RemoteHttpClient, content_type, root_cause};
use crate::child::event::ServerPipeEvent;
use crate::message::{self, RpcMessage, RpcMessageKind};
use bytes::{Bytes, BytesMut};
use osctl_protocol::sse::SseParser;
use osctl_support::backoff::Backoff;
use reqwest::header::{ACCEPT, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode};
use std::time::Duration;
use tokio::time::sleep;

const REMOTE_LAST_EVENT_HEADER: HeaderName = HeaderName::from_static("last-event-id");
/// The most bytes of one message; a longer one is an error of the server.
const MAX_REMOTE_MESSAGE_BYTES: usize = 256 << 20;
/// The pause before a listen stream that ended is opened again.
const REMOTE_REOPEN_DELAY: Duration = Duration::from_secs(3);
/// The pauses before the attempts to resume an answer, counted from the last message.
const REMOTE_RESUME_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    max: Duration::from_secs(8),
};
const MAX_REMOTE_RESUME_ATTEMPTS: u32 = 5;

/// How a stream ended.
enum RemoteResponseEnd {
    Answered,
    /// The stream ended before the answer: the reason, and whether a message had arrived.
    Interrupted(String, bool),
}

/// The result of an attempt to resume a stream.
enum RemoteResumeOutcome {
    Resumed(Response),
    /// The server can't resume the stream; another attempt is useless.
    NotResumable,
    RetryLater,
}

impl RemoteHttpClient {
    /// Forwards all messages of a response, up to the answer to `id`.
    ///
    /// # Errors
    /// Fails with the reason why the response did not contain the answer.
    pub(super) async fn read_response(&self, response: Response, id: &str) -> Result<(), String> {
        if !content_type(&response).starts_with(REMOTE_SSE_TYPE) {
            let text = read_body(response).await?;
            return match self.forward_messages(text, id) {
                true => Ok(()),
                false => Err("the answer is not a message".into()),
            };
        }
        let mut response = Some(response);
        let (mut last, mut tries) = (None, 0);
        let mut why = String::new();
        loop {
            if let Some(stream) = response.take() {
                match self.read_stream(stream, id, &mut last).await {
                    RemoteResponseEnd::Answered => return Ok(()),
                    RemoteResponseEnd::Interrupted(cut, is_told) => {
                        why = cut;
                        if is_told {
                            tries = 0;
                        }
                    }
                }
            }
            let Some(event) = last
                .as_deref()
                .filter(|_| tries < MAX_REMOTE_RESUME_ATTEMPTS)
            else {
                return Err(why);
            };
            tries += 1;
            sleep(REMOTE_RESUME_BACKOFF.delay_after(tries)).await;
            match self.resume_stream(event).await {
                RemoteResumeOutcome::Resumed(stream) => response = Some(stream),
                RemoteResumeOutcome::NotResumable => return Err(why),
                RemoteResumeOutcome::RetryLater => {}
            }
        }
    }

    async fn resume_stream(&self, event: &str) -> RemoteResumeOutcome {
        let Ok(event) = HeaderValue::from_str(event) else {
            return RemoteResumeOutcome::NotResumable;
        };
        let request = self
            .client
            .get(self.url.clone())
            .headers(self.session_headers());
        let request = request
            .header(ACCEPT, REMOTE_SSE_TYPE)
            .header(REMOTE_LAST_EVENT_HEADER, event);
        match request.send().await {
            Ok(response) if response.status() == StatusCode::OK => match content_type(&response) {
                kind if kind.starts_with(REMOTE_SSE_TYPE) => RemoteResumeOutcome::Resumed(response),
                _ => RemoteResumeOutcome::NotResumable,
            },
            Ok(response) if response.status().is_server_error() => RemoteResumeOutcome::RetryLater,
            Ok(_) => RemoteResumeOutcome::NotResumable,
            Err(_) => RemoteResumeOutcome::RetryLater,
        }
    }

    /// Forwards the messages of a stream, up to the answer to `id`. Sets `last` to the id of the last event.
    async fn read_stream(
        &self,
        mut stream: Response,
        id: &str,
        last: &mut Option<String>,
    ) -> RemoteResponseEnd {
        let mut events = SseParser::default();
        let (mut unread, mut is_told) = (0, false);
        loop {
            let piece = match stream.chunk().await {
                Ok(Some(piece)) => piece,
                Ok(None) => {
                    return RemoteResponseEnd::Interrupted(
                        "the stream ended before the answer".into(),
                        is_told,
                    );
                }
                Err(e) => return RemoteResponseEnd::Interrupted(root_cause(&e), is_told),
            };
            unread += piece.len();
            for event in events.parse_chunk(&piece) {
                unread = 0;
                if event.id.is_some() {
                    *last = event.id;
                }
                if event.data.is_empty() {
                    continue;
                }
                is_told = true;
                if self.forward_messages(event.data.into(), id) {
                    return RemoteResponseEnd::Answered;
                }
            }
            if unread > MAX_REMOTE_MESSAGE_BYTES {
                *last = None;
                return RemoteResponseEnd::Interrupted(REMOTE_MESSAGE_TOO_LONG.into(), is_told);
            }
        }
    }

    /// Forwards a message or a batch. Returns `true` when it contains the answer to `id`.
    pub(super) fn forward_messages(&self, text: Bytes, id: &str) -> bool {
        let Ok((messages, _)) = RpcMessage::parse_all(text) else {
            return false;
        };
        let mut is_answered = false;
        for mut message in messages {
            let is_same = |candidate: &str| message::is_same_id(candidate, id);
            let is_answer =
                message.kind == RpcMessageKind::Answer && message.id().is_some_and(is_same);
            if is_answer {
                self.record_protocol_version(&message);
                message = self.without_uncallable_tools(message);
            }
            is_answered |= is_answer;
            self.emit_event(ServerPipeEvent::Message(message));
        }
        is_answered
    }

    /// Removes tools that can't be called from a tool list; returns every other answer unchanged.
    fn without_uncallable_tools(&self, answer: RpcMessage) -> RpcMessage {
        let result = answer.result().filter(|_| self.is_tools_list);
        let result = result.unwrap_or_default();
        match self
            .param_headers
            .record_tools(result, |why| self.log.append_note(why))
        {
            Some(rest) => message::result_response(answer.id().unwrap_or("null"), &rest),
            None => answer,
        }
    }

    /// Listens for messages that belong to no request, if the server supports that.
    pub(super) async fn read_listen_stream(self) {
        let mut last = None;
        loop {
            let mut request = self
                .client
                .get(self.url.clone())
                .headers(self.session_headers());
            request = request.header(ACCEPT, REMOTE_SSE_TYPE);
            if let Some(event) = last.as_deref() {
                request = request.header(REMOTE_LAST_EVENT_HEADER, event);
            }
            match request.send().await {
                Ok(response) if response.status() == StatusCode::OK => {
                    // The empty id matches no answer: answers arrive in the responses to their requests.
                    self.read_stream(response, "", &mut last).await;
                }
                // The server may have dropped the last event; listen from now on.
                Ok(response) if response.status().is_client_error() => match last.take() {
                    Some(_) => {}
                    None => return,
                },
                Ok(_) | Err(_) => {}
            }
            sleep(REMOTE_REOPEN_DELAY).await;
        }
    }

    fn record_protocol_version(&self, answer: &RpcMessage) {
        let is_hello = !self
            .session_headers()
            .contains_key(super::REMOTE_VERSION_HEADER);
        let result = answer.result().filter(|_| is_hello).unwrap_or_default();
        if let Some(version) = message::find_raw(result, &["protocolVersion"])
            && let Ok(version) = HeaderValue::from_str(version.trim_matches('"'))
        {
            self.set_session_header(super::REMOTE_VERSION_HEADER, version);
        }
    }
}

const REMOTE_MESSAGE_TOO_LONG: &str = "it sent a message of more than 256 MiB";

/// Reads the whole body, up to the size limit.
pub(super) async fn read_body(mut response: Response) -> Result<Bytes, String> {
    let mut text = BytesMut::new();
    while let Some(piece) = response.chunk().await.map_err(|e| root_cause(&e))? {
        if text.is_empty() && response.content_length() == Some(piece.len() as u64) {
            return Ok(piece);
        }
        text.extend_from_slice(&piece);
        if text.len() > MAX_REMOTE_MESSAGE_BYTES {
            return Err(REMOTE_MESSAGE_TOO_LONG.into());
        }
    }
    Ok(text.freeze())
}
