//! A remote server, reached by Streamable HTTP: each message is one HTTP request, and another request listens.
//!
//! Requests are sent concurrently. Notifications and answers are sent one at a time, before the messages that follow
//! them. A server that refuses the first message may support only the older transport ([`legacy_sse`]). When a server
//! denies access, the error names the remedy ([`auth_required`]).

mod auth_required;
mod legacy_sse;
mod response;

use super::event::ServerPipeEvent;
use super::{ServerSpec, protocol_revision};
use crate::message::{self, RpcMessage, RpcMessageKind};
use crate::param_headers::{self, ToolParamHeaders};
use crate::server_log::McpServerLog;
use anyhow::{Context, Result};
use osctl_protocol::mcp_header::encode_header;
use parking_lot::Mutex;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION,
    WWW_AUTHENTICATE,
};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

const REMOTE_SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const REMOTE_VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const REMOTE_ACCEPT_TYPES: &str = "application/json, text/event-stream";
const REMOTE_SSE_TYPE: &str = "text/event-stream";
/// The time limit of a message without an answer; later messages wait for it.
const REMOTE_SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The most pages of one tool list, and the id of the hub's own requests for it.
const MAX_REMOTE_LIST_PAGES: usize = 100;
const TOOLS_LIST_REQUEST_ID: &str = "\"osctl-tools\"";
/// The time limit of the request that ends the session.
const REMOTE_DELETE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct RemoteServer {
    http: RemoteHttpClient,
    outgoing: mpsc::UnboundedSender<RpcMessage>,
    events: mpsc::UnboundedReceiver<ServerPipeEvent>,
    /// Dropping the set ends the tasks.
    _tasks: JoinSet<()>,
}

/// The state shared by all requests to one server.
#[derive(Debug, Clone)]
struct RemoteHttpClient {
    client: Client,
    url: Url,
    /// The endpoint for messages, if the server uses the older transport.
    legacy_endpoint: Arc<Mutex<Option<Url>>>,
    /// Whether the configured headers contain a token.
    has_credentials: bool,
    session_headers: Arc<Mutex<HeaderMap>>,
    /// The tool arguments that must also be sent in headers.
    param_headers: Arc<ToolParamHeaders>,
    /// Whether this request lists the tools.
    is_tools_list: bool,
    log: Arc<McpServerLog>,
    events: mpsc::UnboundedSender<ServerPipeEvent>,
}

impl RemoteServer {
    /// # Errors
    /// Fails when the URL or a header is invalid.
    pub(super) fn open(
        url: &str,
        headers: &BTreeMap<String, String>,
        spec: &ServerSpec,
    ) -> Result<Self> {
        let mut own = HeaderMap::new();
        for (name, value) in headers {
            let mut value = HeaderValue::from_str(value)
                .with_context(|| format!("the value of the header `{name}` is invalid"))?;
            value.set_sensitive(true);
            own.insert(HeaderName::try_from(name.as_str())?, value);
        }
        let has_credentials = own.contains_key(AUTHORIZATION);
        let client = Client::builder()
            .default_headers(own)
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(10))
            .redirect(Policy::custom(follow_same_origin))
            .build()
            .context("can't create an HTTP client")?;
        let url = Url::parse(url).with_context(|| format!("`{url}` is not a URL"))?;
        let (events, receiver) = mpsc::unbounded_channel();
        let (outgoing, queue) = mpsc::unbounded_channel();
        let http = RemoteHttpClient {
            client,
            url,
            legacy_endpoint: Arc::default(),
            has_credentials,
            session_headers: Arc::default(),
            param_headers: Arc::default(),
            is_tools_list: false,
            log: spec.log.clone(),
            events,
        };
        for page in spec.cache.list_pages("tools/list").unwrap_or_default() {
            // The cached pages do not contain tools that can't be called.
            http.param_headers.record_tools(&page, |_| {});
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(http.clone().run_send_queue(queue));
        Ok(Self {
            http,
            outgoing,
            events: receiver,
            _tasks: tasks,
        })
    }

    pub(super) fn send(&self, message: RpcMessage) {
        // The receiving task is owned by `self`, so it exists.
        let _ = self.outgoing.send(message);
    }

    pub(super) async fn next_event(&mut self) -> ServerPipeEvent {
        let closed = || ServerPipeEvent::Ended("its connection was closed".into());
        self.events.recv().await.unwrap_or_else(closed)
    }

    /// Ends the session of the server, if there is one.
    pub(super) async fn shutdown(self) {
        let agreed = self.http.session_headers();
        if agreed.contains_key(REMOTE_SESSION_HEADER) {
            let request = self
                .http
                .client
                .delete(self.http.url.clone())
                .headers(agreed);
            // The result does not matter: the connection ends either way.
            let _ = timeout(REMOTE_DELETE_TIMEOUT, request.send()).await;
        }
    }
}

impl RemoteHttpClient {
    fn session_headers(&self) -> HeaderMap {
        self.session_headers.lock().clone()
    }

    fn set_session_header(&self, name: HeaderName, value: HeaderValue) {
        self.session_headers.lock().insert(name, value);
    }

    fn emit_event(&self, happened: ServerPipeEvent) {
        // Events after the end have no receiver.
        let _ = self.events.send(happened);
    }

    async fn run_send_queue(self, mut queue: mpsc::UnboundedReceiver<RpcMessage>) {
        let mut requests = JoinSet::new();
        let mut open: HashMap<Box<str>, AbortHandle> = HashMap::new();
        while let Some(message) = queue.recv().await {
            while requests.try_join_next().is_some() {}
            open.retain(|_, request| !request.is_finished());
            if message.kind == RpcMessageKind::Request {
                let id = message.id().unwrap_or("null").into();
                open.insert(id, requests.spawn(self.clone().send_request(message)));
                continue;
            }
            let cancelled = match message.method.as_str() {
                "notifications/cancelled" => message.raw_param(&["requestId"]),
                _ => None,
            };
            let cancelled = cancelled.and_then(|id| open.remove(id));
            // Without a session, closing the connection cancels the request.
            if cancelled.is_none()
                || self.session_headers().contains_key(REMOTE_VERSION_HEADER)
                || self.is_legacy_sse()
            {
                self.send_unawaited(&message).await;
            }
            if let Some(request) = cancelled {
                request.abort();
            }
            if message.method == "notifications/initialized" && !self.is_legacy_sse() {
                requests.spawn(self.clone().read_listen_stream());
            }
        }
    }

    /// Sends a notification or an answer.
    async fn send_unawaited(&self, message: &RpcMessage) {
        let why = match timeout(REMOTE_SEND_TIMEOUT, self.post_message(message)).await {
            Ok(Ok(_)) => return,
            Ok(Err(why)) => why,
            Err(_) => format!(
                "the server did not accept a message within {} s",
                REMOTE_SEND_TIMEOUT.as_secs()
            ),
        };
        tracing::debug!(url = %self.url, why, "the hub can't send a message to the server");
    }

    async fn post_message(&self, message: &RpcMessage) -> Result<Response, String> {
        self.check_response(self.post_unchecked(message).await?)
    }

    async fn post_unchecked(&self, message: &RpcMessage) -> Result<Response, String> {
        let url = self.legacy_endpoint().unwrap_or_else(|| self.url.clone());
        let request = self
            .client
            .post(url)
            .headers(self.session_headers())
            .header(ACCEPT, REMOTE_ACCEPT_TYPES)
            .header(CONTENT_TYPE, "application/json")
            .body(message.text().clone());
        let request = with_mcp_headers(request, message, &self.param_headers);
        request.send().await.map_err(|e| root_cause(&e))
    }

    /// Returns the response, or an error that describes why the server did not serve the request.
    fn check_response(&self, response: Response) -> Result<Response, String> {
        let status = response.status();
        if status == StatusCode::NOT_FOUND
            && self.session_headers().contains_key(REMOTE_SESSION_HEADER)
        {
            self.emit_event(ServerPipeEvent::Ended(
                "it no longer knows the session".into(),
            ));
        }
        let header = |name| {
            let value = response.headers().get(name);
            value.and_then(|value: &HeaderValue| value.to_str().ok())
        };
        let challenge = header(WWW_AUTHENTICATE).unwrap_or_default();
        if let Some(why) =
            auth_required::auth_error_message(status, challenge, self.has_credentials)
        {
            return Err(why);
        }
        if let (true, Some(place)) = (status.is_redirection(), header(LOCATION)) {
            return Err(format!(
                "it redirects to `{place}`, and osctl does not send `headers` there; set `url` to that address if you trust it"
            ));
        }
        let is_json = content_type(&response).starts_with("application/json");
        // A client error may contain a JSON-RPC error message.
        if status.is_success() || (is_json && status.is_client_error()) {
            return Ok(response);
        }
        Err(format!("it answered {status}"))
    }

    /// Sends a request and forwards all messages up to its answer.
    async fn send_request(mut self, message: RpcMessage) {
        let id = message.id().unwrap_or("null").to_owned();
        let is_modern = protocol_revision::is_enveloped(&message);
        self.is_tools_list = is_modern && message.method == "tools/list";
        let answered = match message.method == "initialize" {
            true => self.initialize_session(&message, &id).await,
            false if self.is_legacy_sse() => self.post_message(&message).await.map(drop),
            false if is_modern && message.method == "tools/call" => {
                self.call_tool(&message, &id).await
            }
            false => match self.post_message(&message).await {
                Ok(response) => self.read_response(response, &id).await,
                Err(why) => Err(why),
            },
        };
        if let Err(why) = answered {
            let why = format!("the request to the remote server failed: {why}");
            self.emit_event(ServerPipeEvent::Message(message::error_response(
                &id, -32603, &why,
            )));
        }
    }

    /// Calls a tool. If the tool requires other headers than its last list said, reads the list and repeats the call.
    async fn call_tool(&self, message: &RpcMessage, id: &str) -> Result<(), String> {
        let response = self.post_unchecked(message).await?;
        if response.status() != StatusCode::BAD_REQUEST {
            return self.read_response(self.check_response(response)?, id).await;
        }
        let status = response.status();
        let body = response::read_body(response).await?;
        if param_headers::is_header_mismatch_error(&body) && self.list_tools().await.is_ok() {
            return self
                .read_response(self.post_message(message).await?, id)
                .await;
        }
        match self.forward_messages(body, id) {
            true => Ok(()),
            false => Err(format!("it answered {status}")),
        }
    }

    /// Reads the tool list for the hub itself.
    async fn list_tools(&self) -> Result<(), String> {
        let mut params = "{}".to_owned();
        for _ in 0..MAX_REMOTE_LIST_PAGES {
            let (events, mut received) = mpsc::unbounded_channel();
            let line = Self {
                is_tools_list: true,
                events,
                ..self.clone()
            };
            let request = message::request_message(TOOLS_LIST_REQUEST_ID, "tools/list", &params);
            let request =
                protocol_revision::with_envelope(request, &protocol_revision::hub_envelope());
            line.read_response(line.post_message(&request).await?, TOOLS_LIST_REQUEST_ID)
                .await?;
            let mut next = None;
            while let Ok(happened) = received.try_recv() {
                if let ServerPipeEvent::Message(answer) = happened
                    && let Some(result) = answer.result()
                {
                    next = message::find_raw(result, &["nextCursor"]).map(str::to_owned);
                }
            }
            match next.filter(|next| next != "null") {
                Some(next) => params = format!("{{\"cursor\":{next}}}"),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sends the first message and detects the transport of the server from the answer.
    async fn initialize_session(&self, message: &RpcMessage, id: &str) -> Result<(), String> {
        let response = self.post_unchecked(message).await?;
        if let Some(session) = response.headers().get(REMOTE_SESSION_HEADER) {
            self.set_session_header(REMOTE_SESSION_HEADER, session.clone());
        }
        if !legacy_sse::can_be_legacy_sse(response.status()) {
            return self.read_response(self.check_response(response)?, id).await;
        }
        let status = response.status();
        let body = response::read_body(response).await?;
        if legacy_sse::is_rpc_error(&body) {
            return match self.forward_messages(body, id) {
                true => Ok(()),
                false => Err(format!("it answered {status}")),
            };
        }
        self.run_legacy_sse(message, status).await
    }
}

/// Follows redirects within the same origin only, and only if they keep the method: the configured `headers` may
/// contain tokens under any name.
fn follow_same_origin(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let keeps = [
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ];
    let before = attempt.previous();
    let is_same = before.len() < 4
        && before
            .last()
            .is_some_and(|before| before.origin() == attempt.url().origin());
    match is_same && keeps.contains(&attempt.status()) {
        true => attempt.follow(),
        false => attempt.stop(),
    }
}

/// Adds the headers that the newest revision requires.
fn with_mcp_headers(
    request: RequestBuilder,
    message: &RpcMessage,
    tools: &ToolParamHeaders,
) -> RequestBuilder {
    let Some(version) = message.text_param(&["_meta", protocol_revision::META_PROTOCOL_VERSION])
    else {
        return request;
    };
    let request = request
        .header(REMOTE_VERSION_HEADER, version)
        .header("mcp-method", encode_header(&message.method));
    let request = match message.method.as_str() {
        "tools/call" => {
            let headers = tools.call_headers(message).into_iter();
            headers.fold(request, |request, (name, value)| {
                request.header(name, value)
            })
        }
        _ => request,
    };
    let name = match message.method.as_str() {
        "tools/call" | "prompts/get" => message.text_param(&["name"]),
        "resources/read" => message.text_param(&["uri"]),
        _ => None,
    };
    match name {
        Some(name) => request.header("mcp-name", encode_header(&name)),
        None => request,
    }
}

fn content_type(response: &Response) -> &str {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

/// The cause of the error, after the scheme, host and port of the request; the rest of the address may hold a secret.
fn root_cause(error: &reqwest::Error) -> String {
    let mut why: &dyn std::error::Error = error;
    while let Some(source) = why.source() {
        why = source;
    }
    match error.url() {
        Some(url) => format!("{}: {why}", url.origin().ascii_serialization()),
        None => why.to_string(),
    }
}
