//! A server elsewhere, by Streamable HTTP: each message is a request, and so is listening.
//!
//! Requests go side by side; notifications and answers go one after the other, before whatever was
//! said after them. A server that refuses the first message may speak the older transport alone ([`older`]).
//! What its own words say is the way in ([`unwelcome`]) is left to its person.

mod answer;
mod older;
mod unwelcome;

use super::pipe::Happened;
use super::{Known, era};
use crate::companion::mcp::log::Log;
use crate::companion::mcp::message::{self, Kind, Message};
use crate::companion::mcp::params::{self, Tools};
use crate::error::Result;
use crate::protocol::header::encoded;
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

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const BOTH: &str = "application/json, text/event-stream";
const EVENTS: &str = "text/event-stream";
/// For what needs no answer: whatever comes after it waits.
const SEND: Duration = Duration::from_secs(10);
/// Pages of one list, and the id by which we ask for it ourselves.
const PAGES: usize = 100;
const LIST_ID: &str = "\"osctl-tools\"";
/// For the last word.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Remote {
    line: Line,
    unsent: mpsc::UnboundedSender<Bytes>,
    heard: mpsc::UnboundedReceiver<Happened>,
    /// The tasks end with it.
    _tasks: JoinSet<()>,
}

/// What all requests have in common.
#[derive(Debug, Clone)]
struct Line {
    client: Client,
    url: Url,
    /// Where messages go to one that speaks the older transport.
    older: Arc<Mutex<Option<Url>>>,
    /// A token is shown with every request.
    is_known: bool,
    agreed: Arc<Mutex<HeaderMap>>,
    /// What has to be told of their arguments in headers.
    tools: Arc<Tools>,
    /// Whether what is asked now is the list of them.
    lists_tools: bool,
    log: Arc<Log>,
    heard: mpsc::UnboundedSender<Happened>,
}

impl Remote {
    /// # Errors
    /// When the URL or a header makes no sense.
    pub(super) fn open(
        url: &str,
        headers: &BTreeMap<String, String>,
        known: &Known,
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
            .redirect(Policy::custom(redirected))
            .build()
            .context("making an HTTP client")?;
        let url = Url::parse(url).with_context(|| format!("`{url}` is no URL"))?;
        let (heard, receiver) = mpsc::unbounded_channel();
        let (unsent, queue) = mpsc::unbounded_channel();
        let line = Line {
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
        for page in known.cache.pages("tools/list").unwrap_or_default() {
            // What can't be called is not in there any more.
            line.tools.learn(&page, |_| {});
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(line.clone().send_all(queue));
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

    pub(super) async fn next(&mut self) -> Happened {
        let gone = || Happened::Ended("its connection is gone".into());
        self.heard.recv().await.unwrap_or_else(gone)
    }

    /// Says goodbye, where there is a session to end.
    pub(super) async fn end(self) {
        let agreed = self.line.agreed();
        if agreed.contains_key(SESSION) {
            let request = self
                .line
                .client
                .delete(self.line.url.clone())
                .headers(agreed);
            // Whether it hears that or not, we are gone.
            let _ = timeout(FAREWELL, request.send()).await;
        }
    }
}

impl Line {
    fn agreed(&self) -> HeaderMap {
        let agreed = self.agreed.lock();
        agreed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn agree(&self, name: HeaderName, value: HeaderValue) {
        let agreed = self.agreed.lock();
        agreed
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name, value);
    }

    fn tell(&self, happened: Happened) {
        // Nobody listens to what comes after the end.
        let _ = self.heard.send(happened);
    }

    async fn send_all(self, mut queue: mpsc::UnboundedReceiver<Bytes>) {
        let mut requests = JoinSet::new();
        let mut open: HashMap<Box<str>, AbortHandle> = HashMap::new();
        while let Some(text) = queue.recv().await {
            while requests.try_join_next().is_some() {}
            open.retain(|_, request| !request.is_finished());
            let Ok(message) = Message::parse(text) else {
                continue;
            };
            if message.kind == Kind::Request {
                let id = message.id().unwrap_or("null").into();
                open.insert(id, requests.spawn(self.clone().ask(message)));
                continue;
            }
            let given_up = match message.method.as_str() {
                "notifications/cancelled" => message.raw_param(&["requestId"]),
                _ => None,
            };
            let given_up = given_up.and_then(|id| open.remove(id));
            // Where there is no session, the end of its connection takes a request back.
            if given_up.is_none() || self.agreed().contains_key(VERSION) || self.is_older() {
                self.say(&message).await;
            }
            if let Some(request) = given_up {
                request.abort();
            }
            if message.method == "notifications/initialized" && !self.is_older() {
                requests.spawn(self.clone().listen());
            }
        }
    }

    /// Sends what is not answered.
    async fn say(&self, message: &Message) {
        let why = match timeout(SEND, self.post(message)).await {
            Ok(Ok(_)) => return,
            Ok(Err(why)) => why,
            Err(_) => format!("it did not take a message within {} s", SEND.as_secs()),
        };
        tracing::debug!("{}: {why}", self.url);
    }

    async fn post(&self, message: &Message) -> Result<Response, String> {
        self.admit(self.send(message).await?)
    }

    async fn send(&self, message: &Message) -> Result<Response, String> {
        let url = self.older_url().unwrap_or_else(|| self.url.clone());
        let request = self
            .client
            .post(url)
            .headers(self.agreed())
            .header(ACCEPT, BOTH)
            .header(CONTENT_TYPE, "application/json")
            .body(message.text().clone());
        let request = described(request, message, &self.tools);
        request.send().await.map_err(|e| cause(&e))
    }

    /// An answer, unless it says that there is none.
    fn admit(&self, response: Response) -> Result<Response, String> {
        let status = response.status();
        if status == StatusCode::NOT_FOUND && self.agreed().contains_key(SESSION) {
            self.tell(Happened::Ended("it has forgotten the session".into()));
        }
        let header = |name| {
            let value = response.headers().get(name);
            value.and_then(|value: &HeaderValue| value.to_str().ok())
        };
        let challenge = header(WWW_AUTHENTICATE).unwrap_or_default();
        if let Some(why) = unwelcome::why(status, challenge, self.is_known) {
            return Err(why);
        }
        if let (true, Some(place)) = (status.is_redirection(), header(LOCATION)) {
            return Err(format!(
                "it sends us to `{place}`, where what is in `headers` is not taken along; make that its `url` if you trust it"
            ));
        }
        let is_json = kind(&response).starts_with("application/json");
        // An error may well be told in a message.
        if status.is_success() || (is_json && status.is_client_error()) {
            return Ok(response);
        }
        Err(format!("it answered {status}"))
    }

    /// Sends a request, and takes what comes until it is answered.
    async fn ask(mut self, message: Message) {
        let id = message.id().unwrap_or("null").to_owned();
        let is_modern = era::is_enveloped(&message);
        self.lists_tools = is_modern && message.method == "tools/list";
        let answered = match message.method == "initialize" {
            true => self.greet(&message, &id).await,
            false if self.is_older() => self.post(&message).await.map(drop),
            false if is_modern && message.method == "tools/call" => self.call(&message, &id).await,
            false => match self.post(&message).await {
                Ok(response) => self.take(response, &id).await,
                Err(why) => Err(why),
            },
        };
        if let Err(why) = answered {
            let why = format!("the server at its URL does not serve: {why}");
            self.tell(Happened::Line(message::error(&id, -32603, &why)));
        }
    }

    /// A call of a tool, made once more where the tool wants other headers than it did when its list came.
    async fn call(&self, message: &Message, id: &str) -> Result<(), String> {
        let response = self.send(message).await?;
        if response.status() != StatusCode::BAD_REQUEST {
            return self.take(self.admit(response)?, id).await;
        }
        let status = response.status();
        let body = answer::whole(response).await?;
        if params::is_mismatch(&body) && self.list_tools().await.is_ok() {
            return self.take(self.post(message).await?, id).await;
        }
        match self.pass(body, id) {
            true => Ok(()),
            false => Err(format!("it answered {status}")),
        }
    }

    /// Asks for the list of tools, for ourselves alone.
    async fn list_tools(&self) -> Result<(), String> {
        let mut params = "{}".to_owned();
        for _ in 0..PAGES {
            let (heard, mut told) = mpsc::unbounded_channel();
            let line = Self {
                lists_tools: true,
                heard,
                ..self.clone()
            };
            let request = message::request(LIST_ID, "tools/list", &params);
            let request = Message::parse(request).map_err(|_| "no message")?;
            let request = era::enveloped(request, &era::own_envelope());
            line.take(line.post(&request).await?, LIST_ID).await?;
            let mut next = None;
            while let Ok(happened) = told.try_recv() {
                if let Happened::Line(line) = happened
                    && let Ok(answer) = Message::parse(line)
                    && let Some(result) = answer.result()
                {
                    next = message::find(result, &["nextCursor"]).map(|at| result[at].to_owned());
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
    async fn greet(&self, message: &Message, id: &str) -> Result<(), String> {
        let response = self.send(message).await?;
        if let Some(session) = response.headers().get(SESSION) {
            self.agree(SESSION, session.clone());
        }
        if !older::is_possible(response.status()) {
            return self.take(self.admit(response)?, id).await;
        }
        let status = response.status();
        let body = answer::whole(response).await?;
        if older::is_rpc(&body) {
            return match self.pass(body, id) {
                true => Ok(()),
                false => Err(format!("it answered {status}")),
            };
        }
        self.speak_older(message, status).await
    }
}

/// Within the same server alone, and only where the request stays what it is: `headers` may hold tokens under any
/// name.
fn redirected(attempt: Attempt<'_>) -> reqwest::redirect::Action {
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
fn described(request: RequestBuilder, message: &Message, tools: &Tools) -> RequestBuilder {
    let Some(version) = message.text_param(&["_meta", era::VERSION]) else {
        return request;
    };
    let request = request
        .header(VERSION, version)
        .header("mcp-method", encoded(&message.method));
    let request = match message.method.as_str() {
        "tools/call" => {
            let headers = tools.headers(message).into_iter();
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
        Some(name) => request.header("mcp-name", encoded(&name)),
        None => request,
    }
}

fn kind(response: &Response) -> &str {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

fn cause(error: &reqwest::Error) -> String {
    let mut why: &dyn std::error::Error = error;
    while let Some(source) = why.source() {
        why = source;
    }
    why.to_string()
}
