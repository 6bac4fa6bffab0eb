//! The connection to the hub: reconnects when it is lost, with the client's session.

use super::BridgeOptions;
use super::error::BridgeError;
use super::message::BridgeMessage;
use crate::backoff::Backoff;
use crate::error::Result;
use crate::host::bounded_response::{MAX_JSON_BYTES, read_body};
use crate::host::client::CompanionClient;
use crate::protocol::mcp::STREAM_ID_HEADER;
use crate::protocol::mcp_header::encode_header;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const BRIDGE_SESSION_HEADER: &str = "mcp-session-id";
const BRIDGE_VERSION_HEADER: &str = "mcp-protocol-version";
const BRIDGE_STREAM_TYPE: &str = "text/event-stream";
const BRIDGE_ACCEPT_TYPES: &str = "application/json, text/event-stream";
/// Time limit for finding an instance never reached before, and one reached before, which may be building its image.
const BRIDGE_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const BRIDGE_RECONNECT_TIMEOUT: Duration = Duration::from_secs(180);
/// The delays between two attempts.
const BRIDGE_RECONNECT_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_secs(1),
};
/// Time limit of one attempt.
const BRIDGE_HUB_PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for closing the session: a client that has ended its input does not wait long.
const BRIDGE_CLOSE_TIMEOUT: Duration = Duration::from_millis(1500);

/// Finds the instance, whose ports and token may have changed.
pub(crate) type FindInstance = Box<dyn Fn() -> Result<CompanionClient> + Send + Sync>;
/// Starts the instance.
pub(crate) type StartInstance = Box<dyn Fn() -> BoxFuture<'static, Result<()>> + Send + Sync>;

pub(super) struct BridgeConnection {
    find_instance: FindInstance,
    start_instance: Option<StartInstance>,
    /// The one server; `None` for all servers combined.
    server: Option<String>,
    path: String,
    state: Mutex<BridgeConnectionState>,
    /// Lets one task reconnect on behalf of all.
    reconnect_lock: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct BridgeConnectionState {
    client: Option<CompanionClient>,
    /// Number of times that the hub was found.
    connection_count: u64,
    session: Option<BridgeSession>,
    /// The client's `initialize` request, and its `initialized` notification.
    initialize: Option<BridgeMessage>,
    initialized: Option<BridgeMessage>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BridgeSession {
    id: String,
    version: String,
}

/// Why there is no response yet.
#[derive(Debug)]
pub(super) enum BridgeSendError {
    /// The request was not delivered.
    Unsent,
    /// The server may have received the request.
    Interrupted,
}

impl BridgeSession {
    /// The same session, with a protocol version.
    pub(super) fn with_version(self, version: String) -> Self {
        Self { version, ..self }
    }
}

impl std::fmt::Debug for BridgeConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BridgeConnection")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl BridgeConnection {
    /// # Errors
    /// When the server's name is not valid.
    pub(super) fn new(way: BridgeOptions) -> Result<Self> {
        Ok(Self {
            find_instance: way.find_instance,
            start_instance: way.start_instance,
            path: way.target.endpoint_path()?,
            server: way.target.server,
            state: Mutex::default(),
            reconnect_lock: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn server_name(&self) -> Option<&str> {
        self.server.as_deref()
    }

    pub(super) fn connection_number(&self) -> u64 {
        self.state.lock().connection_count
    }

    pub(super) fn has_session(&self) -> bool {
        self.state.lock().session.is_some()
    }

    pub(super) fn session(&self) -> Option<BridgeSession> {
        self.state.lock().session.clone()
    }

    /// Stores the session: the client's `initialize` message, and the session that the response opened.
    pub(super) fn set_session(&self, hello: &BridgeMessage, session: Option<BridgeSession>) {
        let mut state = self.state.lock();
        state.initialize = Some(hello.clone());
        state.session = session;
    }

    pub(super) fn record_initialized(&self, line: &BridgeMessage) {
        self.state.lock().initialized = Some(line.clone());
    }

    /// Sends a message; returns the head of the response.
    pub(super) async fn post(&self, line: &BridgeMessage) -> Result<Response, BridgeSendError> {
        let request = self.build_request(
            Method::POST,
            line.method != "initialize",
            line.version.as_deref(),
        );
        let mut request = request.ok_or(BridgeSendError::Unsent)?;
        request = request
            .header(ACCEPT, BRIDGE_ACCEPT_TYPES)
            .header(CONTENT_TYPE, "application/json")
            .body(line.text.clone());
        if line.version.is_some() {
            request = request.header("mcp-method", encode_header(&line.method));
            if let Some(name) = &line.name {
                request = request.header("mcp-name", encode_header(name));
            }
        }
        send_to_hub(request).await
    }

    /// Opens an event stream, after an event if one is given.
    pub(super) async fn open_stream(
        &self,
        behind: Option<&str>,
    ) -> Result<Response, BridgeSendError> {
        let request = self
            .build_request(Method::GET, true, None)
            .ok_or(BridgeSendError::Unsent)?;
        let mut request = request.header(ACCEPT, BRIDGE_STREAM_TYPE);
        if let Some(event) = behind {
            request = request.header("last-event-id", event);
        }
        send_to_hub(request).await
    }

    /// Ends the session, if any.
    pub(super) async fn close_session(&self) {
        if !self.has_session() {
            return;
        }
        if let Some(request) = self.build_request(Method::DELETE, true, None) {
            // The bridge exits in either case.
            let _ = timeout(BRIDGE_CLOSE_TIMEOUT, request.send()).await;
        }
    }

    fn build_request(
        &self,
        method: Method,
        in_session: bool,
        version: Option<&str>,
    ) -> Option<RequestBuilder> {
        let state = self.state.lock();
        let mut request = state.client.as_ref()?.hub_request(method, &self.path);
        match (version, &state.session) {
            (Some(version), _) => {
                request = request.header(BRIDGE_VERSION_HEADER, encode_header(version))
            }
            (None, Some(session)) if in_session => {
                request = request.header(BRIDGE_SESSION_HEADER, &session.id);
                if !session.version.is_empty() {
                    request = request.header(BRIDGE_VERSION_HEADER, &session.version);
                }
            }
            _ => {}
        }
        Some(request)
    }

    /// Waits until the hub is found, unless another task has found it since `seen_number`.
    pub(super) async fn reconnect(&self, seen_number: u64) -> Result<(), BridgeError> {
        let _lock = self.reconnect_lock.lock().await;
        if self.connection_number() > seen_number {
            return Ok(());
        }
        let was_there = self.connection_number() > 0;
        let mut deadline = Instant::now()
            + if was_there {
                BRIDGE_RECONNECT_TIMEOUT
            } else {
                BRIDGE_CONNECT_TIMEOUT
            };
        let mut start = self.start_instance.as_ref().filter(|_| !was_there);
        let mut failures = 0;
        loop {
            let why = match self.find_hub().await {
                Ok(client) => {
                    let mut state = self.state.lock();
                    state.client = Some(client);
                    state.connection_count += 1;
                    return Ok(());
                }
                Err(why) => why,
            };
            if let Some(start) = start.take() {
                start()
                    .await
                    .map_err(|error| BridgeError::unreachable(&error))?;
                deadline = Instant::now() + BRIDGE_RECONNECT_TIMEOUT;
                continue;
            }
            if Instant::now() >= deadline {
                return Err(BridgeError::unreachable(&why));
            }
            failures += 1;
            sleep(BRIDGE_RECONNECT_BACKOFF.delay_after(failures)).await;
        }
    }

    async fn find_hub(&self) -> Result<CompanionClient> {
        let client = (self.find_instance)()?;
        timeout(BRIDGE_HUB_PROBE_TIMEOUT, client.fetch_hub_status())
            .await
            .map_err(|_| client.ended_early_error())??;
        Ok(client)
    }

    /// Repeats the client's `initialize` handshake, unless another task has done so since `lost`. Returns whether this
    /// call did.
    pub(super) async fn renew_session(
        &self,
        lost: Option<&BridgeSession>,
    ) -> Result<bool, BridgeSendError> {
        let _lock = self.reconnect_lock.lock().await;
        let (hello, ready) = {
            let state = self.state.lock();
            if state.session.as_ref() != lost {
                return Ok(false);
            }
            (state.initialize.clone(), state.initialized.clone())
        };
        let hello = hello.ok_or(BridgeSendError::Interrupted)?;
        let response = self.post(&hello).await?;
        let session = session_from_response(&response).ok_or(BridgeSendError::Interrupted)?;
        let text = read_body(response, MAX_JSON_BYTES).await;
        let text = text.map_err(|_| BridgeSendError::Interrupted)?;
        let session = Some(session.with_version(negotiated_version(&text)));
        self.set_session(&hello, session);
        if let Some(ready) = ready {
            self.post(&ready).await?;
        }
        Ok(true)
    }
}

/// The session that a response to `initialize` opens.
pub(super) fn session_from_response(response: &Response) -> Option<BridgeSession> {
    let id = response
        .headers()
        .get(BRIDGE_SESSION_HEADER)?
        .to_str()
        .ok()?;
    Some(BridgeSession {
        id: id.into(),
        version: String::new(),
    })
}

/// The protocol version that the hub has negotiated.
pub(super) fn negotiated_version(reply: &[u8]) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct BridgeInitializeResult {
        protocol_version: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct BridgeInitializeReply {
        result: BridgeInitializeResult,
    }
    let reply: BridgeInitializeReply = serde_json::from_slice(reply).unwrap_or_default();
    reply.result.protocol_version
}

/// The number of the stream in a response.
pub(super) fn bridge_stream_number(response: &Response) -> Option<String> {
    let number = response.headers().get(STREAM_ID_HEADER)?.to_str().ok()?;
    Some(number.into())
}

pub(super) fn is_events(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok());
    response.status() == StatusCode::OK
        && kind.is_some_and(|kind| kind.starts_with(BRIDGE_STREAM_TYPE))
}

async fn send_to_hub(request: RequestBuilder) -> Result<Response, BridgeSendError> {
    match request.send().await {
        // The reconnect reads a rotated token again, and waits for a hub that stops.
        Ok(response)
            if [StatusCode::UNAUTHORIZED, StatusCode::SERVICE_UNAVAILABLE]
                .contains(&response.status()) =>
        {
            Err(BridgeSendError::Unsent)
        }
        Ok(response) => Ok(response),
        Err(error) if error.is_connect() => Err(BridgeSendError::Unsent),
        Err(_) => Err(BridgeSendError::Interrupted),
    }
}
