//! The companion's API as methods.
//!
//! Every response states its protocol version, so a call takes one round trip on an open connection and never misreads
//! a companion of another version.

mod error;

pub(crate) use error::not_running_error;

use super::bounded_response::{MAX_JSON_BYTES, check_values, read_body};
use super::instance::{Instance, InstanceRecord};
use super::ports::connect_address;
use super::token_proof::ProofLayer;
use super::tunnel::Tunnel;
use crate::error::Result;
use crate::protocol::activity::{CLI_AGENT, NOTEBOOK_AGENT};
use crate::protocol::files::percent_encode;
use crate::protocol::kernel::{ExecReply, Execute, KernelReply, RunList, SessionRequest};
use crate::protocol::proof::sha256_fingerprint;
use crate::protocol::pty::{TerminalEnded, TerminalList};
use crate::protocol::service::Health;
use crate::protocol::session::{
    CodeCursor, Completeness, CompletenessQuery, Completions, CreateSession, History, Inspection,
    SessionDeleted, SessionInfo, SessionList,
};
use crate::protocol::shell::{ShellLocation, ShellReply, ShellRequest};
use crate::protocol::{self, PROTOCOL_VERSION_HEADER};
use anyhow::Context;
use bytes::Bytes;
use error::read_refusal;
use reqwest::header::{
    ACCEPT, CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
    USER_AGENT,
};
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Upgraded};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The ports inside the container: the companion's own, and the hub's.
const COMPANION_PORTS: [u16; 2] = [8080, 8765];

/// Content type with one event per line.
pub(super) const CLIENT_NDJSON_TYPE: &str = "application/x-ndjson";

/// How often an interrupt is tried, and the delay between attempts.
const MAX_CLIENT_INTERRUPT_ATTEMPTS: u32 = 5;
const CLIENT_INTERRUPT_DELAY: Duration = Duration::from_millis(500);

/// The client reuses no connection that was idle for this time: the companion closes such connections after 30 s.
const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub(crate) struct CompanionClient {
    http: reqwest::Client,
    container: String,
    address: String,
    /// The address of the hub of MCP servers.
    hub_url: String,
    /// The address of web pages by name; `published` is the address for browsers that cannot resolve the name.
    pages_url: String,
    published_url: String,
    token: String,
    /// The product in `User-Agent`, by which the activity log names this client.
    agent: &'static str,
    up_command: String,
    /// The tunnel, if the engine is on another machine.
    tunnel: Option<Arc<Tunnel>>,
}

impl CompanionClient {
    /// A client of the instance; sends nothing yet.
    ///
    /// # Errors
    /// When `up` never ran for the instance.
    pub(crate) fn new(instance: &Instance, record: &InstanceRecord, bind: IpAddr) -> Result<Self> {
        let token = instance
            .read_token()?
            .ok_or_else(|| not_running_error(instance))?;
        let ports = record.ports;
        let at = |port| SocketAddr::new(connect_address(bind), port);
        let (tunnel, kernel, hub) = match &record.remote {
            None => (None, at(ports.kernel), at(ports.mcp)),
            Some(remote) => {
                let tunnel =
                    Tunnel::open(&remote.address, instance.container_name(), &COMPANION_PORTS)?;
                let [kernel, hub] = tunnel.addresses;
                (Some(Arc::new(tunnel)), kernel, hub)
            }
        };
        // The address is on this machine: no proxy, no TLS, no certificates to load. No route of the protocol
        // redirects; a companion that was replaced could redirect this client to services of the host.
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .tls_certs_only(std::iter::empty())
            .pool_idle_timeout(CLIENT_IDLE_TIMEOUT)
            .tcp_nodelay(true);
        let http = match &tunnel {
            // The listener belongs to this process, and the engine relays each connection into the container.
            Some(_) => http.connect_timeout(Duration::from_secs(5)),
            None => http.connector_layer(ProofLayer::new(&sha256_fingerprint(&token))),
        };
        let http = http.build().context("creating the HTTP client")?;
        Ok(Self {
            http,
            container: instance.container_name(),
            address: format!("http://{kernel}"),
            hub_url: format!("http://{hub}"),
            pages_url: match connect_address(bind).is_loopback() {
                true => format!("http://{}:{}", instance.web_page_host(), ports.kernel),
                false => format!("http://{}", at(ports.kernel)),
            },
            published_url: format!("http://{}", at(ports.kernel)),
            token,
            agent: CLI_AGENT,
            up_command: instance.osctl_command("up"),
            tunnel,
        })
    }

    /// The same client, as the notebooks that it serves.
    pub(crate) fn for_notebooks(self) -> Self {
        Self {
            agent: NOTEBOOK_AGENT,
            ..self
        }
    }

    fn user_agent(&self) -> String {
        format!("{}/{}", self.agent, env!("CARGO_PKG_VERSION"))
    }

    /// The folder in which the session's next command starts.
    pub(crate) async fn shell_location(&self, session: &str) -> Result<ShellLocation> {
        let session = percent_encode(session.as_bytes());
        self.get(&format!("/shell?session={session}")).await
    }

    /// Starts a shell command and does not wait for it.
    pub(crate) async fn start_shell_command(&self, command: &ShellRequest) -> Result<ShellReply> {
        self.call(Method::POST, "/shell", Some(command)).await
    }

    /// Interrupts a shell command.
    pub(crate) async fn interrupt_shell(&self, id: &str) -> Result<ShellReply> {
        self.call(Method::DELETE, &format!("/shell/{id}"), None::<&()>)
            .await
    }

    pub(crate) async fn list_shell_runs(&self) -> Result<RunList> {
        self.get("/shell/runs").await
    }

    /// Sends the standard input of a command, until the command needs no more.
    pub(crate) async fn send_stdin<S>(&self, id: &str, bytes: S) -> Result<()>
    where
        S: futures_util::Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    {
        let path = format!("/shell/{id}/stdin");
        let request = self.build_request(Method::POST, &path, None::<&()>);
        let request = request.body(reqwest::Body::wrap_stream(bytes));
        self.send_request(request).await.map(drop)
    }

    /// Starts a run and does not wait for it.
    pub(crate) async fn start_run(&self, request: &Execute) -> Result<ExecReply> {
        self.call(Method::POST, "/exec", Some(request)).await
    }

    /// A run's events from number `from`, as they arrive.
    pub(super) async fn open_events(&self, path: &str, from: u64) -> Result<Response> {
        let path = format!("{path}?offset={from}");
        let request = self.build_request(Method::GET, &path, None::<&()>);
        self.send_request(request.header(ACCEPT, CLIENT_NDJSON_TYPE))
            .await
    }

    /// Interrupts a run; the reply holds the result.
    pub(crate) async fn interrupt_run(&self, id: &str) -> Result<ExecReply> {
        self.call(Method::DELETE, &format!("/exec/{id}"), None::<&()>)
            .await
    }

    /// Interrupts a run that the companion may not know yet, with a few attempts.
    pub(crate) async fn interrupt_started_run(&self, id: &str) -> Result<ExecReply> {
        for _ in 1..MAX_CLIENT_INTERRUPT_ATTEMPTS {
            if let Ok(reply) = self.interrupt_run(id).await {
                return Ok(reply);
            }
            tokio::time::sleep(CLIENT_INTERRUPT_DELAY).await;
        }
        self.interrupt_run(id).await
    }

    pub(crate) async fn list_runs(&self) -> Result<RunList> {
        self.get("/exec").await
    }

    /// The evolve runs.
    pub(crate) async fn evolve_runs(&self) -> Result<protocol::evolve::EvolveRuns> {
        self.get("/evolve/runs").await
    }

    pub(crate) async fn reset_session(&self, session: &str) -> Result<KernelReply> {
        self.post_session_request("/reset", session).await
    }

    /// Interrupts the code that a session runs.
    pub(crate) async fn interrupt_session(&self, session: &str) -> Result<KernelReply> {
        self.post_session_request("/interrupt", session).await
    }

    /// Ends a session's kernel and starts another.
    pub(crate) async fn restart_session(&self, session: &str) -> Result<KernelReply> {
        self.post_session_request("/restart", session).await
    }

    async fn post_session_request(&self, path: &str, session: &str) -> Result<KernelReply> {
        let session = session.into();
        self.call(Method::POST, path, Some(&SessionRequest { session }))
            .await
    }

    pub(crate) async fn list_sessions(&self) -> Result<SessionList> {
        self.get("/sessions").await
    }

    /// A session with this name, created if missing.
    pub(crate) async fn create_session(&self, name: Option<&str>) -> Result<SessionInfo> {
        let name = name.map(str::to_owned);
        self.call(Method::POST, "/sessions", Some(&CreateSession { name }))
            .await
    }

    pub(crate) async fn delete_session(&self, name: &str) -> Result<SessionDeleted> {
        self.call(Method::DELETE, &format!("/sessions/{name}"), None::<&()>)
            .await
    }

    pub(crate) async fn complete(&self, at: &CodeCursor) -> Result<Completions> {
        self.call(Method::POST, "/complete", Some(at)).await
    }

    pub(crate) async fn inspect(&self, at: &CodeCursor) -> Result<Inspection> {
        self.call(Method::POST, "/inspect", Some(at)).await
    }

    pub(crate) async fn is_complete(&self, code: &CompletenessQuery) -> Result<Completeness> {
        self.call(Method::POST, "/is_complete", Some(code)).await
    }

    pub(crate) async fn fetch_history(&self, session: &str, n: u64) -> Result<History> {
        self.get(&format!("/history?session={session}&n={n}")).await
    }

    /// The terminals, the oldest first.
    pub(crate) async fn list_terminals(&self) -> Result<TerminalList> {
        self.get("/pty").await
    }

    pub(crate) async fn end_terminal(&self, id: &str) -> Result<TerminalEnded> {
        self.call(Method::DELETE, &format!("/pty/{id}"), None::<&()>)
            .await
    }

    /// Upgrades a connection to WebSocket frames; returns it with the companion's answer to `key`.
    pub(super) async fn upgrade_connection(
        &self,
        path: &str,
        query: &impl Serialize,
        key: &str,
    ) -> Result<(Upgraded, String)> {
        let request = self
            .build_request(Method::GET, path, None::<&()>)
            .query(query);
        let request = request
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, key);
        let response = request
            .send()
            .await
            .map_err(|e| self.unreachable_error(&e))?;
        self.check_protocol(&response)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(read_refusal(response).await);
        }
        let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT);
        let accepted = accepted.and_then(|v| v.to_str().ok()).unwrap_or_default();
        let accepted = accepted.to_owned();
        let upgraded = response
            .upgrade()
            .await
            .map_err(|e| self.unreachable_error(&e))?;
        Ok((upgraded, accepted))
    }

    /// The readiness of the services, also when some are not ready.
    pub(crate) async fn fetch_health(&self) -> Result<Health> {
        let request = self
            .build_request(Method::GET, "/health", None::<&()>)
            .timeout(Duration::from_secs(5));
        let response = request
            .send()
            .await
            .map_err(|e| self.unreachable_error(&e))?;
        self.check_protocol(&response)?;
        match response.status() {
            StatusCode::OK | StatusCode::SERVICE_UNAVAILABLE => self.read_json(response).await,
            _ => Err(read_refusal(response).await),
        }
    }

    /// The URL of web pages, for a browser on the engine's machine.
    pub(crate) fn pages_url(&self) -> &str {
        &self.pages_url
    }

    /// The same URL with an address, to which browsers also send cookies of other local applications.
    pub(crate) fn published_url(&self) -> &str {
        &self.published_url
    }

    /// The engine's machine, if it is not this one.
    pub(crate) fn engine_machine(&self) -> Option<&str> {
        self.tunnel
            .as_ref()
            .and_then(|tunnel| tunnel.engine().remote_host())
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::GET, path, None::<&()>).await
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        self.call(Method::POST, path, Some(body)).await
    }

    pub(super) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::DELETE, path, None::<&()>).await
    }

    /// Sends a request whose response is a progress stream.
    pub(super) async fn post_streaming(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Response> {
        let request = self.build_request(Method::POST, path, Some(body));
        self.send_request(request.header(ACCEPT, CLIENT_NDJSON_TYPE))
            .await
    }

    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T> {
        let response = self
            .send_request(self.build_request(method, path, body))
            .await?;
        self.read_json(response).await
    }

    /// The JSON document of a response.
    pub(super) async fn read_json<T: DeserializeOwned>(&self, response: Response) -> Result<T> {
        let body = self.read_bounded(response, MAX_JSON_BYTES).await?;
        self.parse_json(&body)
    }

    /// Parses a document, a line or an event.
    pub(super) fn parse_json<T: DeserializeOwned>(&self, text: &[u8]) -> Result<T> {
        check_values(text).map_err(|failure| self.read_error(&failure))?;
        serde_json::from_slice(text).map_err(|error| self.connection_lost_error(error.to_string()))
    }

    /// A response body of at most `limit` bytes.
    pub(super) async fn read_bounded(&self, response: Response, limit: usize) -> Result<Bytes> {
        let body = read_body(response, limit).await;
        body.map_err(|failure| self.read_error(&failure))
    }

    /// The head of a successful response; a refusal is an error.
    pub(super) async fn send_request(&self, request: RequestBuilder) -> Result<Response> {
        let response = request
            .send()
            .await
            .map_err(|e| self.unreachable_error(&e))?;
        self.check_protocol(&response)?;
        if !response.status().is_success() {
            return Err(read_refusal(response).await);
        }
        Ok(response)
    }

    pub(super) fn build_request(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}{path}", self.address))
            .bearer_auth(&self.token)
            .header(USER_AGENT, self.user_agent());
        match body {
            Some(body) => request.json(body),
            None => request,
        }
    }

    /// A request to the hub of MCP servers.
    pub(super) fn hub_request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.hub_url);
        let request = self.http.request(method, url).bearer_auth(&self.token);
        let request = request.header(USER_AGENT, self.user_agent());
        request.header(PROTOCOL_VERSION_HEADER, protocol::PROTOCOL_VERSION)
    }
}
