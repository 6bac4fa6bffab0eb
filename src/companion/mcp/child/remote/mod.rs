//! A server elsewhere, by Streamable HTTP: each message is a request, and so is listening.
//!
//! Requests go side by side; notifications and answers go one after the other, before whatever was
//! said after them. A server that refuses the first message may speak the older transport alone ([`legacy_sse`]).
//! What its own words say is the way in ([`auth_required`]) is left to its person.

mod auth_required;
mod legacy_sse;
mod response;

use super::pipe::ServerPipeEvent;
use super::{ServerSpec, protocol_revision};
use crate::companion::mcp::log::McpServerLog;
use crate::companion::mcp::message::{self, RpcMessage, RpcMessageKind};
use crate::companion::mcp::param_headers::{self, ToolParamHeaders};
use crate::error::Result;
use crate::protocol::mcp_header::encode_header;
use anyhow::Context;
use bytes::Bytes;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION,
    WWW_AUTHENTICATE,
};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

const REMOTE_SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const REMOTE_VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const REMOTE_ACCEPT_TYPES: &str = "application/json, text/event-stream";
const REMOTE_SSE_TYPE: &str = "text/event-stream";
/// For what needs no answer: whatever comes after it waits.
const REMOTE_SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Pages of one list, and the id by which we ask for it ourselves.
const MAX_REMOTE_LIST_PAGES: usize = 100;
const TOOLS_LIST_REQUEST_ID: &str = "\"osctl-tools\"";
/// For the last word.
const REMOTE_DELETE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct RemoteServer {
    line: RemoteHttpClient,
    unsent: mpsc::UnboundedSender<Bytes>,
    heard: mpsc::UnboundedReceiver<ServerPipeEvent>,
    /// The tasks end with it.
    _tasks: JoinSet<()>,
}

/// What all requests have in common.
#[derive(Debug, Clone)]
struct RemoteHttpClient {
    client: Client,
    url: Url,
    /// Where messages go to one that speaks the older transport.
    older: Arc<Mutex<Option<Url>>>,
    /// A token is shown with every request.
    is_known: bool,
    agreed: Arc<Mutex<HeaderMap>>,
    /// What has to be told of their arguments in headers.
    tools: Arc<ToolParamHeaders>,
    /// Whether what is asked now is the list of them.
    lists_tools: bool,
    log: Arc<McpServerLog>,
    heard: mpsc::UnboundedSender<ServerPipeEvent>,
}

impl RemoteServer {
    /// # Errors
    /// When the URL or a header makes no sense.
    pub(super) fn open(
        url: &str,
        headers: &BTreeMap<String, String>,
        known: &ServerSpec,
    ) -> Result<Self> {
        let mut own = HeaderMap::new();
        for (name, value) in headers {
            let mut value = HeaderValue::from_str(value)
                .with_context(|| format!("the value of the header `{name}`"))?;
            value.set_sensitive(true);
            own.insert(HeaderName::try_from(name.as_str())?, value);
        }
        let is_known = own.contains_key(AUTHORIZATION);
        let client = Client::builder()
            .default_headers(own)
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(10))
            .redirect(Policy::custom(follow_same_origin))
            .build()
            .context("making an HTTP client")?;
        let url = Url::parse(url).with_context(|| format!("`{url}` is no URL"))?;
        let (heard, receiver) = mpsc::unbounded_channel();
        let (unsent, queue) = mpsc::unbounded_channel();
        let line = RemoteHttpClient {
            client,
            url,
            older: Arc::default(),
            is_known,
            agreed: Arc::default(),
            tools: Arc::default(),
            lists_tools: false,
            log: known.log.clone(),
            heard,
        };
        for page in known.cache.list_pages("tools/list").unwrap_or_default() {
            // What can't be called is not in there any more.
            line.tools.learn_tools(&page, |_| {});
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(line.clone().run_send_queue(queue));
        Ok(Self {
            line,
            unsent,
            heard: receiver,
            _tasks: tasks,
        })
    }

    pub(super) fn send(&self, text: Bytes) {
        // The task that takes it lives as long as we do.
        let _ = self.unsent.send(text);
    }

    pub(super) async fn next_event(&mut self) -> ServerPipeEvent {
        let gone = || ServerPipeEvent::Ended("its connection is gone".into());
        self.heard.recv().await.unwrap_or_else(gone)
    }

    /// Says goodbye, where there is a session to end.
    pub(super) async fn shutdown(self) {
        let agreed = self.line.session_headers();
        if agreed.contains_key(REMOTE_SESSION_HEADER) {
            let request = self
                .line
                .client
                .delete(self.line.url.clone())
                .headers(agreed);
            // Whether it hears that or not, we are gone.
            let _ = timeout(REMOTE_DELETE_TIMEOUT, request.send()).await;
        }
    }
}

impl RemoteHttpClient {
    fn session_headers(&self) -> HeaderMap {
        let agreed = self.agreed.lock();
        agreed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_session_header(&self, name: HeaderName, value: HeaderValue) {
        let agreed = self.agreed.lock();
        agreed
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name, value);
    }

    fn emit_event(&self, happened: ServerPipeEvent) {
        // Nobody listens to what comes after the end.
        let _ = self.heard.send(happened);
    }

    async fn run_send_queue(self, mut queue: mpsc::UnboundedReceiver<Bytes>) {
        let mut requests = JoinSet::new();
        let mut open: HashMap<Box<str>, AbortHandle> = HashMap::new();
        while let Some(text) = queue.recv().await {
            while requests.try_join_next().is_some() {}
            open.retain(|_, request| !request.is_finished());
            let Ok(message) = RpcMessage::parse(text) else {
                continue;
            };
            if message.kind == RpcMessageKind::Request {
                let id = message.id().unwrap_or("null").into();
                open.insert(id, requests.spawn(self.clone().send_request(message)));
                continue;
            }
            let given_up = match message.method.as_str() {
                "notifications/cancelled" => message.raw_param(&["requestId"]),
                _ => None,
            };
            let given_up = given_up.and_then(|id| open.remove(id));
            // Where there is no session, the end of its connection takes a request back.
            if given_up.is_none()
                || self.session_headers().contains_key(REMOTE_VERSION_HEADER)
                || self.is_legacy_sse()
            {
                self.send_unanswered(&message).await;
            }
            if let Some(request) = given_up {
                request.abort();
            }
            if message.method == "notifications/initialized" && !self.is_legacy_sse() {
                requests.spawn(self.clone().read_listen_stream());
            }
        }
    }

    /// Sends what is not answered.
    async fn send_unanswered(&self, message: &RpcMessage) {
        let why = match timeout(REMOTE_SEND_TIMEOUT, self.post_message(message)).await {
            Ok(Ok(_)) => return,
            Ok(Err(why)) => why,
            Err(_) => format!(
                "it did not take a message within {} s",
                REMOTE_SEND_TIMEOUT.as_secs()
            ),
        };
        tracing::debug!("{}: {why}", self.url);
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
        let request = with_mcp_headers(request, message, &self.tools);
        request.send().await.map_err(|e| root_cause(&e))
    }

    /// An answer, unless it says that there is none.
    fn check_response(&self, response: Response) -> Result<Response, String> {
        let status = response.status();
        if status == StatusCode::NOT_FOUND
            && self.session_headers().contains_key(REMOTE_SESSION_HEADER)
        {
            self.emit_event(ServerPipeEvent::Ended(
                "it has forgotten the session".into(),
            ));
        }
        let header = |name| {
            let value = response.headers().get(name);
            value.and_then(|value: &HeaderValue| value.to_str().ok())
        };
        let challenge = header(WWW_AUTHENTICATE).unwrap_or_default();
        if let Some(why) = auth_required::auth_problem(status, challenge, self.is_known) {
            return Err(why);
        }
        if let (true, Some(place)) = (status.is_redirection(), header(LOCATION)) {
            return Err(format!(
                "it sends us to `{place}`, where what is in `headers` is not taken along; make that its `url` if you trust it"
            ));
        }
        let is_json = content_type(&response).starts_with("application/json");
        // An error may well be told in a message.
        if status.is_success() || (is_json && status.is_client_error()) {
            return Ok(response);
        }
        Err(format!("it answered {status}"))
    }

    /// Sends a request, and takes what comes until it is answered.
    async fn send_request(mut self, message: RpcMessage) {
        let id = message.id().unwrap_or("null").to_owned();
        let is_modern = protocol_revision::is_enveloped(&message);
        self.lists_tools = is_modern && message.method == "tools/list";
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
            let why = format!("the server at its URL does not serve: {why}");
            self.emit_event(ServerPipeEvent::Line(message::error_response(
                &id, -32603, &why,
            )));
        }
    }

    /// A call of a tool, made once more where the tool wants other headers than it did when its list came.
    async fn call_tool(&self, message: &RpcMessage, id: &str) -> Result<(), String> {
        let response = self.post_unchecked(message).await?;
        if response.status() != StatusCode::BAD_REQUEST {
            return self.read_response(self.check_response(response)?, id).await;
        }
        let status = response.status();
        let body = response::read_body(response).await?;
        if param_headers::is_mismatch(&body) && self.list_tools().await.is_ok() {
            return self
                .read_response(self.post_message(message).await?, id)
                .await;
        }
        match self.forward_messages(body, id) {
            true => Ok(()),
            false => Err(format!("it answered {status}")),
        }
    }

    /// Asks for the list of tools, for ourselves alone.
    async fn list_tools(&self) -> Result<(), String> {
        let mut params = "{}".to_owned();
        for _ in 0..MAX_REMOTE_LIST_PAGES {
            let (heard, mut told) = mpsc::unbounded_channel();
            let line = Self {
                lists_tools: true,
                heard,
                ..self.clone()
            };
            let request = message::request_message(TOOLS_LIST_REQUEST_ID, "tools/list", &params);
            let request = RpcMessage::parse(request).map_err(|_| "no message")?;
            let request =
                protocol_revision::with_envelope(request, &protocol_revision::own_envelope());
            line.read_response(line.post_message(&request).await?, TOOLS_LIST_REQUEST_ID)
                .await?;
            let mut next = None;
            while let Ok(happened) = told.try_recv() {
                if let ServerPipeEvent::Line(line) = happened
                    && let Ok(answer) = RpcMessage::parse(line)
                    && let Some(result) = answer.result()
                {
                    next = message::find_value(result, &["nextCursor"])
                        .map(|at| result[at].to_owned());
                }
            }
            match next.filter(|next| next != "null") {
                Some(next) => params = format!("{{\"cursor\":{next}}}"),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// The first message, by which it turns out which transport is spoken.
    async fn initialize_session(&self, message: &RpcMessage, id: &str) -> Result<(), String> {
        let response = self.post_unchecked(message).await?;
        if let Some(session) = response.headers().get(REMOTE_SESSION_HEADER) {
            self.set_session_header(REMOTE_SESSION_HEADER, session.clone());
        }
        if !legacy_sse::is_possible(response.status()) {
            return self.read_response(self.check_response(response)?, id).await;
        }
        let status = response.status();
        let body = response::read_body(response).await?;
        if legacy_sse::is_rpc(&body) {
            return match self.forward_messages(body, id) {
                true => Ok(()),
                false => Err(format!("it answered {status}")),
            };
        }
        self.run_legacy_sse(message, status).await
    }
}

/// Within the same server alone, and only where the request stays what it is: `headers` may hold tokens under any
/// name.
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

/// The headers that the newest revision wants beside what the body says.
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

fn root_cause(error: &reqwest::Error) -> String {
    let mut why: &dyn std::error::Error = error;
    while let Some(source) = why.source() {
        why = source;
    }
    why.to_string()
}
