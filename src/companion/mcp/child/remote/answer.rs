//! What a server elsewhere answers: one message, or a stream of them, which is gone on with where it was cut.

use super::{EVENTS, Line, cause, kind};
use crate::companion::mcp::child::pipe::Happened;
use crate::companion::mcp::message::{self, Kind, Message};
use crate::protocol::sse::Events;
use bytes::{Bytes, BytesMut};
use reqwest::header::{ACCEPT, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode};
use std::time::Duration;
use tokio::time::sleep;

const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// Bytes of one message; a server that says more is broken.
const LONGEST: usize = 256 << 20;
/// Before a stream that ended is opened again.
const PAUSE: Duration = Duration::from_secs(3);
/// The first pause before an answer is gone on with, which each try without a word doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const TRIES: u32 = 5;

/// How a stream ended.
enum End {
    Answered,
    /// Before the answer, and whether anything had come.
    Cut(String, bool),
}

/// Whether there is a stream to go on with.
enum Resumed {
    Open(Response),
    /// There is none, and there will be none.
    Never,
    NotYet,
}

impl Line {
    /// Takes all messages of an answer.
    ///
    /// # Errors
    /// Why it did not bring what was asked for.
    pub(super) async fn take(&self, response: Response, id: &str) -> Result<(), String> {
        if !kind(&response).starts_with(EVENTS) {
            let text = whole(response).await?;
            return match self.pass(text, id) {
                true => Ok(()),
                false => Err("what it answered is no message".into()),
            };
        }
        let mut response = Some(response);
        let (mut last, mut tries) = (None, 0);
        let mut why = String::new();
        loop {
            if let Some(stream) = response.take() {
                match self.follow(stream, id, &mut last).await {
                    End::Answered => return Ok(()),
                    End::Cut(cut, is_told) => {
                        why = cut;
                        if is_told {
                            tries = 0;
                        }
                    }
                }
            }
            let Some(event) = last.as_deref().filter(|_| tries < TRIES) else {
                return Err(why);
            };
            sleep(FIRST_PAUSE * 2_u32.pow(tries)).await;
            tries += 1;
            match self.resume(event).await {
                Resumed::Open(stream) => response = Some(stream),
                Resumed::Never => return Err(why),
                Resumed::NotYet => {}
            }
        }
    }

    async fn resume(&self, event: &str) -> Resumed {
        let Ok(event) = HeaderValue::from_str(event) else {
            return Resumed::Never;
        };
        let request = self.client.get(self.url.clone()).headers(self.agreed());
        let request = request.header(ACCEPT, EVENTS).header(LAST_EVENT, event);
        match request.send().await {
            Ok(response) if response.status() == StatusCode::OK => match kind(&response) {
                kind if kind.starts_with(EVENTS) => Resumed::Open(response),
                _ => Resumed::Never,
            },
            Ok(response) if response.status().is_server_error() => Resumed::NotYet,
            Ok(_) => Resumed::Never,
            Err(_) => Resumed::NotYet,
        }
    }

    /// Takes a stream's messages, up to the answer to `id`; `last` is the event to go on behind.
    async fn follow(&self, mut stream: Response, id: &str, last: &mut Option<String>) -> End {
        let mut events = Events::default();
        let (mut unread, mut is_told) = (0, false);
        loop {
            let piece = match stream.chunk().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return End::Cut("the stream ended before the answer".into(), is_told),
                Err(e) => return End::Cut(cause(&e), is_told),
            };
            unread += piece.len();
            for event in events.take(&piece) {
                unread = 0;
                if event.id.is_some() {
                    *last = event.id;
                }
                if event.data.is_empty() {
                    continue;
                }
                is_told = true;
                if self.pass(event.data.into(), id) {
                    return End::Answered;
                }
            }
            if unread > LONGEST {
                *last = None;
                return End::Cut(TOO_LONG.into(), is_told);
            }
        }
    }

    /// Hands a message, or a batch, on; `true` when the answer to `id` was in it.
    pub(super) fn pass(&self, text: Bytes, id: &str) -> bool {
        let Ok((messages, _)) = Message::parse_all(text) else {
            return false;
        };
        let mut is_answered = false;
        for message in messages {
            let is_same = |given: &str| message::same(given, id);
            let is_answer = message.kind == Kind::Answer && message.id().is_some_and(is_same);
            let mut text = message.text().clone();
            if is_answer {
                self.agree_on_version(&message);
                text = self.without_unfit_tools(&message);
            }
            is_answered |= is_answer;
            self.tell(Happened::Line(text));
        }
        is_answered
    }

    /// An answer as it is to be read, which is as it came unless it is a list of tools and some can't be called.
    fn without_unfit_tools(&self, answer: &Message) -> Bytes {
        let result = answer.result().filter(|_| self.lists_tools);
        let result = result.unwrap_or_default();
        match self.tools.learn(result, |why| self.log.note(why)) {
            Some(rest) => message::result(answer.id().unwrap_or("null"), &rest),
            None => answer.text().clone(),
        }
    }

    /// Hears what belongs to no request, if the server tells such.
    pub(super) async fn listen(self) {
        let mut last = None;
        loop {
            let mut request = self.client.get(self.url.clone()).headers(self.agreed());
            request = request.header(ACCEPT, EVENTS);
            if let Some(event) = last.as_deref() {
                request = request.header(LAST_EVENT, event);
            }
            match request.send().await {
                Ok(response) if response.status() == StatusCode::OK => {
                    // Answers come elsewhere, so that no id is one of them.
                    self.follow(response, "", &mut last).await;
                }
                // It may have forgotten what it told last.
                Ok(response) if response.status().is_client_error() => match last.take() {
                    Some(_) => {}
                    None => return,
                },
                Ok(_) | Err(_) => {}
            }
            sleep(PAUSE).await;
        }
    }

    fn agree_on_version(&self, answer: &Message) {
        let is_hello = !self.agreed().contains_key(super::VERSION);
        let result = answer.result().filter(|_| is_hello).unwrap_or_default();
        if let Some(span) = message::find(result, &["protocolVersion"])
            && let Ok(version) = HeaderValue::from_str(result[span].trim_matches('"'))
        {
            self.agree(super::VERSION, version);
        }
    }
}

const TOO_LONG: &str = "a message of it is longer than 256 MiB";

/// The whole body, if it is of a sane size.
pub(super) async fn whole(mut response: Response) -> Result<Bytes, String> {
    let mut text = BytesMut::new();
    while let Some(piece) = response.chunk().await.map_err(|e| cause(&e))? {
        if text.is_empty() && response.content_length() == Some(piece.len() as u64) {
            return Ok(piece);
        }
        text.extend_from_slice(&piece);
        if text.len() > LONGEST {
            return Err(TOO_LONG.into());
        }
    }
    Ok(text.freeze())
}
