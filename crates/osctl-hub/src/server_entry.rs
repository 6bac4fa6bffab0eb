//! One configured server: its specification, its children, and a client's access to it.

use super::child::protocol_revision::{HANDSHAKE_REVISIONS, NEWEST_HANDSHAKE_REVISION};
use super::child::{HandshakeError, InProcessServer, ServerHandle, ServerPhase, ServerSpec};
use super::client::{McpClient, ReplySender};
use super::config::{McpServerConfig, ServerTransport};
use super::message::{RpcMessage, RpcMessageKind, find_string, find_value, splice};
use super::name_filter::NameFilter;
use super::param_headers::{ClientParamHeaders, HEADER_SCHEMA_KEY, find_header_mismatch};
use super::server_cache::{CACHED_LIST_METHODS, ServerCache};
use super::server_log::McpServerLog;
use super::settings::HubSettings;
use bytes::Bytes;
use osctl_protocol::mcp::{ServerStart, ServerState, ServerStatus};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

#[derive(Debug)]
pub(super) struct ServerEntry {
    pub(super) spec: Arc<ServerSpec>,
    /// The child for all clients that share it, and for clients without a session.
    shared_child: OnceLock<ServerHandle>,
    /// The children of single clients, including clients that are gone, while calls are open.
    own_children: Mutex<Vec<ServerHandle>>,
}

impl ServerEntry {
    pub(super) fn new(
        config: McpServerConfig,
        settings: &HubSettings,
        os: &Arc<dyn InProcessServer>,
    ) -> Arc<Self> {
        let (name, data) = (&config.name, &settings.data_folder);
        let packaged = match &config.transport {
            ServerTransport::Child { command, .. } => {
                let lists = settings.packaged_lists_folder.join(format!("{name}.json"));
                Some((lists, command.as_str()))
            }
            ServerTransport::Remote { .. } | ServerTransport::Inside => None,
        };
        let cache = ServerCache::open(
            data.join(format!("cache/{name}.json")),
            config.cache_digest(),
            packaged,
        );
        let log = Arc::new(McpServerLog::new(data.join(format!("logs/{name}.log"))));
        let is_shared = config.is_shared || config.transport == ServerTransport::Inside;
        let is_eager = config.start == ServerStart::Eager && is_shared;
        let spec = ServerSpec {
            config,
            cache,
            log,
            resource_index: Arc::default(),
            list_delay: Arc::default(),
            built_in_server: os.clone(),
            call_count: AtomicUsize::new(0),
            crash_count: AtomicUsize::new(0),
            last_failure: Mutex::default(),
            ends_at_cancel: AtomicBool::new(false),
            inherited_environment: settings.inherited_environment.clone(),
            context: settings.context.clone(),
        };
        let entry = Arc::new(Self {
            spec: Arc::new(spec),
            shared_child: OnceLock::new(),
            own_children: Mutex::default(),
        });
        if is_eager {
            start_in_background(entry.shared_child());
        }
        entry
    }

    pub(super) fn name(&self) -> &str {
        &self.spec.config.name
    }

    /// The shared child. Its handshake declares no client capabilities: the server can't say which of several clients
    /// a request concerns.
    fn shared_child(&self) -> &ServerHandle {
        self.shared_child.get_or_init(|| {
            let initialize_params = serde_json::json!({
                "protocolVersion": NEWEST_HANDSHAKE_REVISION,
                "capabilities": {},
                "clientInfo": {"name": "osctl", "version": env!("CARGO_PKG_VERSION")},
            });
            ServerHandle::new(
                self.spec.clone(),
                initialize_params.to_string().into(),
                true,
            )
        })
    }

    /// Opens a client's access to the server.
    pub(super) fn open_access(
        self: &Arc<Self>,
        client: Arc<McpClient>,
        tools: &NameFilter,
    ) -> ServerAccess {
        let child = match &client.initialize_params {
            Some(initialize_params) if !self.spec.config.is_shared => {
                let child = ServerHandle::new(self.spec.clone(), initialize_params.clone(), false);
                if self.spec.config.start == ServerStart::Eager {
                    start_in_background(&child);
                }
                let mut own = self.own_children.lock();
                own.retain(|child| !child.has_ended());
                own.push(child.clone());
                child
            }
            _ => self.shared_child().clone(),
        };
        let access = ServerAccess {
            entry: self.clone(),
            tool_filter: tools.clone(),
            client,
            child,
        };
        // A client without a session receives only its answers.
        if access.client.initialize_params.is_some() {
            access.start_listening();
        }
        access
    }

    /// Starts the shared child unless it runs, and waits for its handshake.
    pub(super) async fn start_shared_child(&self) -> Result<(), HandshakeError> {
        self.shared_child().initialize_result().await.map(drop)
    }

    /// Whether the server runs in this container.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.spec.config.transport, ServerTransport::Child { .. })
    }

    /// Whether one of its children is in a wanted phase.
    pub(super) fn has_phase(&self, wanted: impl Fn(&ServerPhase) -> bool) -> bool {
        self.children().iter().any(|child| wanted(&child.phase().0))
    }

    fn children(&self) -> Vec<ServerHandle> {
        let mut own = self.own_children.lock();
        own.retain(|child| !child.has_ended());
        let common = self.shared_child.get().cloned().into_iter();
        common.chain(own.iter().cloned()).collect()
    }

    /// Accepts no more calls, and ends after the open ones.
    pub(super) fn drain(&self) {
        self.children().iter().for_each(ServerHandle::drain);
    }

    /// Whether it is drained: removed, with all open calls answered.
    pub(super) fn has_ended(&self) -> bool {
        self.children().iter().all(ServerHandle::has_ended)
    }

    pub(super) async fn shutdown(&self) {
        let children = self.children();
        let ends = children.iter().map(ServerHandle::shutdown);
        futures_util::future::join_all(ends).await;
    }

    pub(super) fn status(&self) -> ServerStatus {
        let server = &self.spec.config;
        let children = self.children();
        let phases: Vec<_> = children.iter().map(ServerHandle::phase).collect();
        let is = |wanted: fn(&ServerPhase) -> bool| phases.iter().any(|(phase, _)| wanted(phase));
        let failure = self.spec.last_failure.lock().clone();
        let state = if is(|p| matches!(p, ServerPhase::Up)) {
            ServerState::Running
        } else if is(|p| matches!(p, ServerPhase::Starting)) {
            ServerState::Starting
        } else if is(|p| matches!(p, ServerPhase::Backoff { .. })) {
            ServerState::BackingOff
        } else if failure.is_some() {
            ServerState::Failed
        } else if matches!(server.transport, ServerTransport::Inside) {
            // The companion needs no start for its own server.
            ServerState::Running
        } else {
            ServerState::Unstarted
        };
        let cache = &self.spec.cache;
        let tools = cache.list_pages("tools/list").map(|_| {
            let (names, offered) = (cache.tool_names(), self.spec.tool_filter());
            names.iter().filter(|name| offered.is_match(name)).count()
        });
        let crashes = self.spec.crash_count.load(Ordering::Relaxed) as u64;
        let detail = match (state, failure) {
            (ServerState::BackingOff | ServerState::Failed, Some(why)) => why,
            _ => state.as_str().into(),
        };
        ServerStatus {
            name: server.name.clone(),
            kind: match &server.transport {
                ServerTransport::Child { .. } => "child".into(),
                ServerTransport::Remote { .. } => "remote".into(),
                ServerTransport::Inside => "built_in".into(),
            },
            state,
            detail,
            start: server.start,
            shared: server.is_shared,
            pids: phases.iter().filter_map(|(_, pid)| *pid).collect(),
            calls: children.iter().map(ServerHandle::pending_count).sum(),
            total_calls: self.spec.call_count.load(Ordering::Relaxed) as u64,
            crashes,
            title: cache.handshake_text(&["serverInfo", "name"]),
            tools,
            path: format!("/servers/{}/mcp", server.name),
        }
    }
}

/// Starts the server without waiting; the next call reports an error.
fn start_in_background(child: &ServerHandle) {
    let child = child.clone();
    tokio::spawn(async move { child.initialize_result().await });
}

/// The status of a server whose configuration is invalid.
pub(super) fn refused_status(name: &str, why: &str) -> ServerStatus {
    ServerStatus {
        name: name.into(),
        kind: "unknown".into(),
        state: ServerState::Refused,
        detail: why.into(),
        start: ServerStart::default(),
        shared: false,
        pids: Vec::new(),
        calls: 0,
        total_calls: 0,
        crashes: 0,
        title: None,
        tools: None,
        path: format!("/servers/{name}/mcp"),
    }
}

/// One client's access to one server.
#[derive(Debug)]
pub(super) struct ServerAccess {
    entry: Arc<ServerEntry>,
    /// The tools that the client selected; the configuration may offer less.
    tool_filter: NameFilter,
    pub(super) client: Arc<McpClient>,
    child: ServerHandle,
}

impl Drop for ServerAccess {
    fn drop(&mut self) {
        self.child.remove_client(self.client.number);
        self.drain();
    }
}

impl ServerAccess {
    pub(super) fn name(&self) -> &str {
        self.entry.name()
    }

    pub(super) fn spec(&self) -> &ServerSpec {
        &self.entry.spec
    }

    /// Whether it leads to this server, and not to a previous one of that name.
    pub(super) fn is_connected_to(&self, entry: &Arc<ServerEntry>) -> bool {
        Arc::ptr_eq(&self.entry, entry)
    }

    /// The same client's access to another server.
    pub(super) fn reopen_to(&self, entry: &Arc<ServerEntry>, number: u64) -> Self {
        let McpClient {
            initialize_params,
            notification_sink,
            ..
        } = &*self.client;
        let client = McpClient {
            number,
            initialize_params: initialize_params.clone(),
            notification_sink: notification_sink.clone(),
        };
        entry.open_access(Arc::new(client), &self.tool_filter)
    }

    /// Ends the child after its open calls, if it belongs to this client alone.
    pub(super) fn drain(&self) {
        if self.has_own_child() {
            self.child.drain();
        }
    }

    /// Whether its child is drained: removed, with all open calls answered.
    pub(super) fn has_ended(&self) -> bool {
        self.child.has_ended()
    }

    fn has_own_child(&self) -> bool {
        !self.entry.spec.config.is_shared && self.client.initialize_params.is_some()
    }

    /// From now on delivers messages that belong to no call.
    pub(super) fn start_listening(&self) {
        self.child.add_client(self.client.clone());
    }

    /// The `initialize` result of the server. Starts the server only if the cache has none.
    pub(super) async fn initialize_result(&self) -> Result<Bytes, HandshakeError> {
        let result = match self.spec().cache.initialize_result() {
            Some(result) => result,
            None => self.child.initialize_result().await?,
        };
        Ok(self.with_common_revision(result))
    }

    /// Adapts the handshake's result to a version that the client knows.
    fn with_common_revision(&self, result: Bytes) -> Bytes {
        let text = std::str::from_utf8(&result).unwrap_or_default();
        let version_of = |text: &str| find_string(text, &["protocolVersion"]);
        let requested = self.client.initialize_params.as_deref();
        let requested = requested
            .and_then(|initialize_params| version_of(std::str::from_utf8(initialize_params).ok()?));
        let Some(requested) =
            requested.filter(|requested| HANDSHAKE_REVISIONS.contains(&requested.as_str()))
        else {
            return result;
        };
        match (find_value(text, &["protocolVersion"]), version_of(text)) {
            // Versions are dates, so they compare as text.
            (Some(span), Some(server_version)) if requested < server_version => {
                splice(&result, &[(span, &format!("\"{requested}\""))])
            }
            _ => result,
        }
    }

    /// Whether a tool is offered to this client.
    pub(super) fn offers_tool(&self, tool: &str) -> bool {
        self.tool_filter.is_match(tool) && self.spec().tool_filter().is_match(tool)
    }

    /// Describes a mismatch between a client's headers and its call of that tool.
    pub(super) fn header_mismatch(
        &self,
        tool: &str,
        call: &RpcMessage,
        headers: ClientParamHeaders,
    ) -> Option<String> {
        if !self.offers_tool(tool) {
            return None;
        }
        let spec = self.spec();
        let tool = spec.cache.tool_description(tool, HEADER_SCHEMA_KEY)?;
        // A remote server may have changed its headers; the remote server reports a missing header itself.
        let is_elsewhere = matches!(spec.config.transport, ServerTransport::Remote { .. });
        let is_partial = headers.is_partial || is_elsewhere;
        let headers = ClientParamHeaders {
            is_partial,
            ..headers
        };
        find_header_mismatch(&tool, call, &headers)
    }

    pub(super) fn send_request(&self, message: RpcMessage, mut reply: ReplySender) {
        let id = message.id().unwrap_or("null").to_owned();
        let method = message.method.as_str();
        if method == "ping" {
            return reply.send_result(&id, "{}");
        }
        if method == "tools/call"
            && let Some(tool) = message.text_param(&["name"])
            && !self.offers_tool(&tool)
        {
            return reply.send_error(
                &id,
                -32602,
                &format!("the tool `{tool}` is not offered here"),
            );
        }
        let is_list = CACHED_LIST_METHODS
            .iter()
            .any(|(list, _, _)| *list == method);
        reply.shape.is_list = is_list || method == "resources/read";
        if method == "resources/read" {
            reply.shape.requested_uri = message.text_param(&["uri"]);
        }
        if method == "tools/list" {
            let offered = self.spec().tool_filter();
            reply.shape.tool_filter = offered.intersect(&self.tool_filter);
        }
        // A running server answers itself; for a server that does not run, the cached list is returned.
        if is_list && self.child.phase().0 != ServerPhase::Up {
            let cursor = message.text_param(&["cursor"]);
            if let Some(page) = self.spec().cache.list_page(method, cursor.as_deref()) {
                return reply.send_result(&id, &page);
            }
        }
        self.child.send_request(message, &self.client, reply);
    }

    /// Forwards a notification, or an answer to a request of the server.
    pub(super) fn send_message(&self, message: RpcMessage) {
        debug_assert_ne!(message.kind, RpcMessageKind::Request);
        self.child.send_message(message, self.client.number);
    }

    pub(super) fn set_level(&self, level: &str) {
        self.child.set_level(level, self.client.number);
    }

    /// Stops waiting for the call of this stream.
    pub(super) fn cancel_stream(&self, stream: u64) {
        self.child.cancel_stream(stream);
    }
}
