//! Tests of the hub over HTTP in this process: test servers that follow a script, and clients that use them.

mod calls;
mod changes;
mod harness;
mod lists;
mod messages;
mod params;
mod resources;
mod shutdown;

use super::hub_routes;
use crate::config::{McpConfig, McpServerConfig, ServerTransport};
use crate::test_context::TestContext;
use crate::{Hub, HubSettings};
use axum::Router;
use axum::body::{Body, BodyDataStream, to_bytes};
use axum::http::{Request, Response};
use futures_util::StreamExt;
use harness::TestServers;
use osctl_protocol::mcp::ServerStart;
use osctl_protocol::sse::SseParser;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::timeout;
use tower::ServiceExt;

/// A time that no step exceeds, not even on a slow machine.
const HUB_TEST_TIMEOUT: Duration = Duration::from_secs(120);
const TEST_ACCEPT_BOTH: &str = "application/json, text/event-stream";
/// Makes the hub answer with events immediately.
const EVENTS_FIRST: &str = "text/event-stream, application/json";

/// A hub with test servers.
struct HubFixture {
    hub: Hub,
    servers: TestServers,
    data: TempDir,
}

/// A test server. Another `timeout` makes it a different configuration, so the hub replaces the server.
fn test_server_config(name: &str, is_shared: bool, timeout: u64) -> McpServerConfig {
    McpServerConfig {
        name: name.into(),
        transport: ServerTransport::Inside,
        start: ServerStart::Lazy,
        is_shared,
        call_timeout: Duration::from_secs(timeout),
        idle_timeout: None,
        tool_patterns: Vec::new(),
        lean_patterns: None,
        forwards_cancel: true,
    }
}

fn test_config(servers: impl IntoIterator<Item = McpServerConfig>) -> McpConfig {
    let servers = servers.into_iter();
    McpConfig {
        servers: servers
            .map(|server| (server.name.clone(), server))
            .collect(),
        ..McpConfig::default()
    }
}

fn test_hub(data: &Path, servers: &TestServers) -> Hub {
    let settings = HubSettings {
        config_files: Vec::new(),
        data_folder: data.into(),
        packaged_lists_folder: data.join("lists"),
        inherited_environment: Vec::new(),
        context: Arc::new(TestContext::default()),
    };
    Hub::new(settings, Arc::new(servers.clone()))
}

impl HubFixture {
    /// A hub with server `a`, which all clients share, and server `b`, with a child for each client.
    fn new() -> Self {
        let fixture = Self::empty();
        let servers = [
            test_server_config("a", true, 600),
            test_server_config("b", false, 600),
        ];
        fixture.hub.apply_config(test_config(servers));
        fixture
    }

    fn empty() -> Self {
        let data = tempfile::tempdir().unwrap();
        let servers = TestServers::default();
        Self {
            hub: test_hub(data.path(), &servers),
            servers,
            data,
        }
    }

    /// The same hub after a restart of the companion.
    fn restart_companion(self, servers: impl IntoIterator<Item = McpServerConfig>) -> Self {
        let hub = test_hub(self.data.path(), &self.servers);
        hub.apply_config(test_config(servers));
        Self { hub, ..self }
    }

    /// A client without a session.
    fn sessionless_client(&self, path: &str) -> TestMcpClient {
        TestMcpClient {
            routes: hub_routes(self.hub.clone()),
            path: path.into(),
            session: String::new(),
        }
    }

    /// A client with a session that accepts requests of servers.
    async fn session_client(&self, path: &str) -> TestMcpClient {
        let mut client = self.sessionless_client(path);
        let initialize = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"sampling": {}},
            "clientInfo": {"name": "proof", "version": "1"},
        });
        let initialize =
            json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": initialize});
        let response = client.post(&initialize.to_string()).await;
        assert_eq!(response.status(), 200);
        client.session = response.headers()["mcp-session-id"]
            .to_str()
            .unwrap()
            .into();
        client
    }

    /// The same client after a restart of the companion.
    fn reconnect(&self, client: &TestMcpClient) -> TestMcpClient {
        TestMcpClient {
            routes: hub_routes(self.hub.clone()),
            ..client.clone()
        }
    }
}

#[derive(Clone)]
struct TestMcpClient {
    routes: Router,
    path: String,
    session: String,
}

async fn response_text(response: Response<Body>) -> String {
    let body = timeout(HUB_TEST_TIMEOUT, to_bytes(response.into_body(), usize::MAX)).await;
    String::from_utf8(body.unwrap().unwrap().into()).unwrap()
}

async fn send_test_request(
    routes: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Response<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body.into()).unwrap();
    let response = timeout(HUB_TEST_TIMEOUT, routes.clone().oneshot(request)).await;
    response.unwrap().unwrap()
}

impl TestMcpClient {
    async fn send_request(
        &self,
        method: &str,
        accept: &str,
        last: &str,
        body: &str,
    ) -> Response<Body> {
        let mut headers = vec![("accept", accept), ("content-type", "application/json")];
        if !self.session.is_empty() {
            headers.push(("mcp-session-id", &self.session));
        }
        if !last.is_empty() {
            headers.push(("last-event-id", last));
        }
        send_test_request(&self.routes, method, &self.path, &headers, body.to_owned()).await
    }

    async fn post(&self, body: &str) -> Response<Body> {
        self.send_request("POST", TEST_ACCEPT_BOTH, "", body).await
    }

    /// The text of the response to a message.
    async fn post_for_text(&self, body: &str) -> String {
        response_text(self.post(body).await).await
    }

    /// Calls a tool and receives the answer as events.
    async fn call_for_events(&self, id: &str, tool: &str, params: &str) -> TestEventStream {
        let body = tool_call_body(id, tool, params);
        TestEventStream::new(self.send_request("POST", EVENTS_FIRST, "", &body).await)
    }

    /// Resumes after an event.
    async fn resume_after(&self, last: &str) -> Response<Body> {
        self.send_request("GET", "text/event-stream", last, "")
            .await
    }
}

/// A tool call; `params` follow the name of the tool.
fn tool_call_body(id: &str, tool: &str, params: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}"{params}}}}}"#
    )
}

/// The events of a response.
struct TestEventStream {
    body: BodyDataStream,
    events: SseParser,
    ready: VecDeque<(String, String)>,
}

impl TestEventStream {
    fn new(response: Response<Body>) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            body: response.into_body().into_data_stream(),
            events: SseParser::default(),
            ready: VecDeque::new(),
        }
    }

    /// The id and data of the next event, which may be empty.
    async fn next_event(&mut self) -> Option<(String, String)> {
        while self.ready.is_empty() {
            let piece = timeout(HUB_TEST_TIMEOUT, self.body.next())
                .await
                .unwrap()?
                .unwrap();
            for event in self.events.parse_chunk(&piece) {
                let data = String::from_utf8(event.data).unwrap();
                self.ready.push_back((event.id.unwrap_or_default(), data));
            }
        }
        self.ready.pop_front()
    }

    /// The data of the next event that is not empty.
    async fn next_data(&mut self) -> Option<String> {
        loop {
            let (_, data) = self.next_event().await?;
            if !data.is_empty() {
                return Some(data);
            }
        }
    }
}

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A test server's answers to `initialize` and list requests.
fn test_server_answers(name: &str) -> BTreeMap<&'static str, Value> {
    let resource = json!({"uri": format!("{name}:listed"), "name": "listed"});
    let template = json!({"uriTemplate": format!("{name}:t/{{x}}"), "name": "t"});
    let region = json!({"type": "string", "x-mcp-header": "Region"});
    let marked = json!({"type": "object", "properties": {"region": region}});
    let initialize = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "resources": {"subscribe": true}, "logging": {}},
        "serverInfo": {"name": name, "version": "1"},
    });
    BTreeMap::from([
        ("initialize", initialize),
        (
            "tools/list",
            json!({"tools": [
                {"name": "echo", "inputSchema": {"type": "object"}},
                {"name": "marked", "inputSchema": marked, "annotations": {"readOnlyHint": true}},
            ]}),
        ),
        ("resources/list", json!({"resources": [resource]})),
        (
            "resources/templates/list",
            json!({"resourceTemplates": [template]}),
        ),
    ])
}
