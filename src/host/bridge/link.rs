//! The way to the hub: found again when it was lost, with the session that the client has there.

use super::Way;
use super::fault::Fault;
use super::line::Line;
use crate::error::Result;
use crate::host::answer::{MAX_JSON_BYTES, read_body};
use crate::host::client::Client;
use crate::protocol::header::encoded;
use crate::protocol::mcp::STREAM_HEADER;
use futures_util::future::BoxFuture;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
const EVENTS: &str = "text/event-stream";
const BOTH: &str = "application/json, text/event-stream";
/// How long an instance is looked for that was never seen, and one that was there before: it may be building.
const FIRST: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_secs(180);
/// Between two looks, at first and at last.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// For one look.
const LOOK: Duration = Duration::from_secs(5);
/// For the last word: a client that has asked for the end does not wait for long.
const LAST: Duration = Duration::from_millis(1500);

/// Finds the instance as it is now: its ports and its token may be others than before.
pub(crate) type Find = Box<dyn Fn() -> Result<Client> + Send + Sync>;
/// Starts the instance.
pub(crate) type Start = Box<dyn Fn() -> BoxFuture<'static, Result<()>> + Send + Sync>;

pub(super) struct Link {
    find: Find,
    start: Option<Start>,
    /// The one server; none for all as one.
    server: Option<String>,
    path: String,
    state: Mutex<State>,
    /// One looks for all.
    mending: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    client: Option<Client>,
    /// Rises whenever the hub was found.
    round: u64,
    session: Option<Session>,
    /// What the client has shaken hands with, and that it is ready.
    hello: Option<Line>,
    ready: Option<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    id: String,
    version: String,
}

/// Why there is no answer yet.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nobody has seen the request.
    Unsent,
    /// The server may have it.
    Cut,
}

impl Session {
    /// The same, in a version.
    pub(super) fn of(self, version: String) -> Self {
        Self { version, ..self }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// # Errors
    /// When the server's name can't be one.
    pub(super) fn new(way: Way) -> Result<Self> {
        Ok(Self {
            find: way.find,
            start: way.start,
            path: way.wish.path()?,
            server: way.wish.server,
            state: Mutex::default(),
            mending: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    pub(super) fn round(&self) -> u64 {
        self.state().round
    }

    pub(super) fn has_session(&self) -> bool {
        self.state().session.is_some()
    }

    pub(super) fn session(&self) -> Option<Session> {
        self.state().session.clone()
    }

    /// Hands were shaken: by that line, with that answer.
    pub(super) fn agree(&self, hello: &Line, session: Option<Session>) {
        let mut state = self.state();
        state.hello = Some(hello.clone());
        state.session = session;
    }

    pub(super) fn is_ready(&self, line: &Line) {
        self.state().ready = Some(line.clone());
    }

    /// Sends a message; the head of the answer.
    pub(super) async fn post(&self, line: &Line) -> Result<Response, Failure> {
        let request = self.request(
            Method::POST,
            line.method != "initialize",
            line.version.as_deref(),
        );
        let mut request = request.ok_or(Failure::Unsent)?;
        request = request
            .header(ACCEPT, BOTH)
            .header(CONTENT_TYPE, "application/json")
            .body(line.text.clone());
        if line.version.is_some() {
            request = request.header("mcp-method", encoded(&line.method));
            if let Some(name) = &line.name {
                request = request.header("mcp-name", encoded(name));
            }
        }
        sent(request).await
    }

    /// Listens, from behind an event where one is named.
    pub(super) async fn listen(&self, behind: Option<&str>) -> Result<Response, Failure> {
        let request = self
            .request(Method::GET, true, None)
            .ok_or(Failure::Unsent)?;
        let mut request = request.header(ACCEPT, EVENTS);
        if let Some(event) = behind {
            request = request.header("last-event-id", event);
        }
        sent(request).await
    }

    /// Ends the session, if there is one.
    pub(super) async fn leave(&self) {
        if !self.has_session() {
            return;
        }
        if let Some(request) = self.request(Method::DELETE, true, None) {
            // Whether it hears that or not, we are gone.
            let _ = timeout(LAST, request.send()).await;
        }
    }

    fn request(
        &self,
        method: Method,
        in_session: bool,
        version: Option<&str>,
    ) -> Option<RequestBuilder> {
        let state = self.state();
        let mut request = state.client.as_ref()?.hub_request(method, &self.path);
        match (version, &state.session) {
            (Some(version), _) => request = request.header(VERSION, encoded(version)),
            (None, Some(session)) if in_session => {
                request = request.header(SESSION, &session.id);
                if !session.version.is_empty() {
                    request = request.header(VERSION, &session.version);
                }
            }
            _ => {}
        }
        Some(request)
    }

    /// Waits until the hub is there, unless somebody has found it since `round`.
    pub(super) async fn mend(&self, round: u64) -> Result<(), Fault> {
        let _turn = self.mending.lock().await;
        if self.round() > round {
            return Ok(());
        }
        let was_there = self.round() > 0;
        let mut deadline = Instant::now() + if was_there { AGAIN } else { FIRST };
        let mut start = self.start.as_ref().filter(|_| !was_there);
        let mut pause = PAUSE;
        loop {
            let why = match self.look().await {
                Ok(client) => {
                    let mut state = self.state();
                    state.client = Some(client);
                    state.round += 1;
                    return Ok(());
                }
                Err(why) => why,
            };
            if let Some(start) = start.take() {
                start().await.map_err(|error| Fault::unreachable(&error))?;
                deadline = Instant::now() + AGAIN;
                continue;
            }
            if Instant::now() >= deadline {
                return Err(Fault::unreachable(&why));
            }
            sleep(pause).await;
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
    }

    async fn look(&self) -> Result<Client> {
        let client = (self.find)()?;
        timeout(LOOK, client.servers())
            .await
            .map_err(|_| client.silent())??;
        Ok(client)
    }

    /// Shakes hands again in the client's words, unless somebody has since `lost`. Returns whether this did.
    pub(super) async fn renew(&self, lost: Option<&Session>) -> Result<bool, Failure> {
        let _turn = self.mending.lock().await;
        let (hello, ready) = {
            let state = self.state();
            if state.session.as_ref() != lost {
                return Ok(false);
            }
            (state.hello.clone(), state.ready.clone())
        };
        let hello = hello.ok_or(Failure::Cut)?;
        let response = self.post(&hello).await?;
        let session = agreed(&response).ok_or(Failure::Cut)?;
        let text = read_body(response, MAX_JSON_BYTES).await;
        let text = text.map_err(|_| Failure::Cut)?;
        let session = Some(session.of(version(&text)));
        self.agree(&hello, session);
        if let Some(ready) = ready {
            self.post(&ready).await?;
        }
        Ok(true)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The session that an answer to `initialize` opens.
pub(super) fn agreed(response: &Response) -> Option<Session> {
    let id = response.headers().get(SESSION)?.to_str().ok()?;
    Some(Session {
        id: id.into(),
        version: String::new(),
    })
}

/// What the hub has agreed on.
pub(super) fn version(answer: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Agreed {
        protocol_version: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Answer {
        result: Agreed,
    }
    let answer: Answer = serde_json::from_slice(answer).unwrap_or_default();
    answer.result.protocol_version
}

/// The number of the stream that an answer is.
pub(super) fn stream(response: &Response) -> Option<String> {
    let number = response.headers().get(STREAM_HEADER)?.to_str().ok()?;
    Some(number.into())
}

pub(super) fn is_events(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok());
    response.status() == StatusCode::OK && kind.is_some_and(|kind| kind.starts_with(EVENTS))
}

async fn sent(request: RequestBuilder) -> Result<Response, Failure> {
    match request.send().await {
        // A token that was rotated is read again by who mends, and a hub that stops is waited for.
        Ok(response)
            if [StatusCode::UNAUTHORIZED, StatusCode::SERVICE_UNAVAILABLE]
                .contains(&response.status()) =>
        {
            Err(Failure::Unsent)
        }
        Ok(response) => Ok(response),
        Err(error) if error.is_connect() => Err(Failure::Unsent),
        Err(_) => Err(Failure::Cut),
    }
}
