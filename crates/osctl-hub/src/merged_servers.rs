//! All servers as one. Tools and prompts have the name `<server>__<name>`. Resources keep their URIs;
//! [`route_by_uri`](super::resource_route) finds the server of a URI.

use super::child::protocol_revision::{HANDSHAKE_REVISIONS, NEWEST_HANDSHAKE_REVISION};
use super::client::{McpClient, NotificationSink, ReplySender};
use super::message::{self, RpcMessage, RpcMessageKind, find_string, find_value, splice};
use super::message_stream::MessageStream;
use super::name_filter::NameFilter;
use super::notification_relay::{RelayedRequests, ServerNotificationSink};
use super::param_headers::ClientParamHeaders;
use super::server_entry::{ServerAccess, ServerEntry};
use bytes::Bytes;
use osctl_protocol::mcp::ToolProfile;
use osctl_protocol::nearest_name::nearest_name;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinSet;

/// Separates a server's name from the name of its tool or prompt.
const SERVER_NAME_SEPARATOR: &str = "__";
/// Characters of a name for each mistake that a suggestion may correct.
const CHARS_PER_TOOL_EDIT: usize = 4;
const LEAN_PROFILE_NOTE: &str = "Only the most useful tools are listed. The user can list all of them with `osctl mcp connect CLIENT --profile full`.";

/// The missing lists that tasks wait for, by server connection and kind, and these tasks. The tasks end with the
/// merge.
#[derive(Debug, Default)]
pub(super) struct AwaitedLists {
    pub(super) awaited_keys: HashSet<(u64, &'static str)>,
    pub(super) tasks: JoinSet<()>,
}

/// What a client selects of all servers.
#[derive(Debug)]
pub(super) struct MergedSelection {
    pub(super) server_filter: NameFilter,
    pub(super) tool_filter: NameFilter,
    pub(super) profile: ToolProfile,
}

#[derive(Debug)]
pub(super) struct MergedServers {
    /// The server connections by name. Each has a unique number, so that a replaced server is not mistaken for its
    /// successor.
    servers: Mutex<BTreeMap<String, Arc<ServerAccess>>>,
    /// Connections to replaced servers; kept while their calls are open.
    replaced: Mutex<Vec<Arc<ServerAccess>>>,
    selection: MergedSelection,
    initialize_params: Option<Bytes>,
    pub(super) notification_sink: Arc<dyn NotificationSink>,
    /// The current connections that reported a resource or template. Changed only while `servers` is locked.
    origins: Mutex<HashMap<String, Arc<ServerAccess>>>,
    relayed_requests: Arc<RelayedRequests>,
    awaited_lists: Mutex<AwaitedLists>,
    /// Whether the client receives messages that belong to no call.
    is_listening: AtomicBool,
}

impl MergedServers {
    /// Opens connections to the selected servers. `next` returns the number of each connection's
    /// client.
    pub(super) fn new(
        servers: BTreeMap<String, Arc<ServerEntry>>,
        selection: MergedSelection,
        initialize_params: Option<Bytes>,
        notification_sink: Arc<dyn NotificationSink>,
        next: impl FnMut() -> u64,
    ) -> Arc<Self> {
        let merged = Self {
            servers: Mutex::default(),
            replaced: Mutex::default(),
            selection,
            initialize_params,
            notification_sink,
            origins: Mutex::default(),
            relayed_requests: Arc::default(),
            awaited_lists: Mutex::default(),
            is_listening: AtomicBool::new(false),
        };
        merged.update_servers(&servers, None, next);
        Arc::new(merged)
    }

    /// Switches to the current servers; connections to unchanged servers stay. Returns whether there was a change.
    pub(super) fn update_servers(
        &self,
        servers: &BTreeMap<String, Arc<ServerEntry>>,
        level: Option<&str>,
        mut next: impl FnMut() -> u64,
    ) -> bool {
        let mut ways = self.servers.lock();
        let count = ways.len();
        let mut replaced = self.lock_replaced();
        ways.retain(|name, access| {
            let stays = servers
                .get(name)
                .is_some_and(|entry| access.is_connected_to(entry));
            if !stays {
                access.drain();
                replaced.push(access.clone());
            }
            stays
        });
        let mut is_other = ways.len() < count;
        let number = |access: &Arc<ServerAccess>| access.client.number;
        let here: Vec<u64> = ways.values().map(number).collect();
        self.origins
            .lock()
            .retain(|_, origin| here.contains(&origin.client.number));
        let before: Vec<u64> = replaced.iter().map(number).collect();
        drop(replaced);
        let mut relayed_requests = self.relayed_requests.lock_open();
        relayed_requests.retain(|_, (number, _)| here.contains(number) || before.contains(number));
        drop(relayed_requests);
        for (name, entry) in servers {
            if ways.contains_key(name) || !self.selection.server_filter.is_match(name) {
                continue;
            }
            is_other = true;
            let access = self.open_access(entry, next());
            if self.is_listening.load(Ordering::Relaxed) {
                access.start_listening();
            }
            if let Some(level) = level
                && access.spec().cache.has_capability("logging") == Some(true)
            {
                access.set_level(level);
            }
            ways.insert(name.clone(), Arc::new(access));
        }
        is_other
    }

    fn open_access(&self, entry: &Arc<ServerEntry>, number: u64) -> ServerAccess {
        let client = McpClient {
            number,
            initialize_params: self.initialize_params.clone(),
            notification_sink: Arc::new(ServerNotificationSink {
                server_number: number,
                resource_index: entry.spec.resource_index.clone(),
                notification_sink: self.notification_sink.clone(),
                relayed_requests: self.relayed_requests.clone(),
            }),
        };
        entry.open_access(Arc::new(client), &NameFilter::default())
    }

    fn lock_replaced(&self) -> MutexGuard<'_, Vec<Arc<ServerAccess>>> {
        let mut replaced = self.replaced.lock();
        replaced.retain(|access| !access.has_ended());
        replaced
    }

    /// All server connections, in the order of their names.
    pub(super) fn servers(&self) -> Vec<Arc<ServerAccess>> {
        self.servers.lock().values().cloned().collect()
    }

    /// The connection with this number, which may be to a replaced server.
    fn server_by_number(&self, number: u64) -> Option<Arc<ServerAccess>> {
        let is_meant = |access: &&Arc<ServerAccess>| access.client.number == number;
        let current = self.servers.lock().values().find(is_meant).cloned();
        current.or_else(|| self.lock_replaced().iter().find(is_meant).cloned())
    }

    pub(super) fn initialize_params(&self) -> Option<&Bytes> {
        self.initialize_params.as_ref()
    }

    pub(super) fn initialize_result(&self) -> Bytes {
        let requested = self.initialize_params.as_deref().and_then(|result| {
            find_string(std::str::from_utf8(result).ok()?, &["protocolVersion"])
        });
        let version =
            requested.filter(|requested| HANDSHAKE_REVISIONS.contains(&requested.as_str()));
        let servers = self.servers();
        let instruction_lines = servers.iter().filter_map(|server| {
            let cache = &server.spec().cache;
            let mut text = cache.handshake_text(&["instructions"])?;
            for tool in cache.tool_names() {
                let full = full_name(server, &tool);
                text = text.replace(&format!("`{tool}`"), &format!("`{full}`"));
            }
            Some(format!("{}: {text}", server.name()))
        });
        let mut instructions: Vec<String> = instruction_lines.collect();
        let unknown = servers
            .iter()
            .filter(|server| server.spec().cache.initialize_result().is_none());
        let unknown: Vec<String> = unknown.map(|s| format!("`{}`", s.name())).collect();
        if !unknown.is_empty() {
            instructions.push(format!(
                "These servers have not answered yet: {}. List the tools again after `list_changed` to see their tools.",
                unknown.join(", ")
            ));
        }
        instructions.push(format!(
            "Each tool is listed as `SERVER{SERVER_NAME_SEPARATOR}TOOL`; texts of a server name its tools without the prefix."
        ));
        if self.selection.profile == ToolProfile::Lean {
            instructions.push(LEAN_PROFILE_NOTE.into());
        }
        let result = serde_json::json!({
            "protocolVersion": version.as_deref().unwrap_or(NEWEST_HANDSHAKE_REVISION),
            "capabilities": {
                "tools": {"listChanged": true},
                "resources": {"subscribe": true, "listChanged": true},
                "prompts": {"listChanged": true},
                "completions": {},
                "logging": {},
            },
            "serverInfo": {"name": "osctl", "version": env!("CARGO_PKG_VERSION")},
            "instructions": instructions.join("\n\n"),
        });
        result.to_string().into()
    }

    pub(super) fn send_request(self: &Arc<Self>, message: RpcMessage, mut reply: ReplySender) {
        let id = message.id().unwrap_or("null").to_owned();
        match message.method.as_str() {
            "ping" => reply.send_result(&id, "{}"),
            "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => {
                reply.shape.is_list = true;
                tokio::spawn(self.clone().answer_list(message, reply));
            }
            "tools/call" => self.route_by_name(&message, &["name"], &reply),
            "prompts/get" => self.route_by_name(&message, &["name"], &reply),
            "completion/complete" if message.param_span(&["ref", "name"]).is_some() => {
                self.route_by_name(&message, &["ref", "name"], &reply);
            }
            "completion/complete" => self.route_by_uri(message, &["ref", "uri"], reply),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
                self.route_by_uri(message, &["uri"], reply);
            }
            "logging/setLevel" => {
                for server in self.servers() {
                    if server.spec().cache.has_capability("logging") == Some(true) {
                        let stream = Arc::new(MessageStream::of_answers(0, 1));
                        server.send_request(message.clone(), ReplySender::unshaped(stream));
                    }
                }
                reply.send_result(&id, "{}");
            }
            other => reply.send_error(&id, -32601, &format!("there is no method `{other}`")),
        }
    }

    /// Routes a call whose name starts with the server's name.
    fn route_by_name(&self, message: &RpcMessage, path: &[&str], reply: &ReplySender) {
        let id = message.id().unwrap_or("null");
        let Some(name) = message.text_param(path) else {
            let why = match message.raw_param(path) {
                None => format!("`{}` is missing", path.join(".")),
                Some(_) => format!("`{}` must be a string", path.join(".")),
            };
            return reply.send_error(id, -32602, &why);
        };
        let found = self.split_server_name(&name);
        let is_tool = message.method == "tools/call";
        let Some((server, rest)) = found else {
            return reply.send_error(id, -32602, &self.unknown_name_text(&name));
        };
        if is_tool && !self.selection.tool_filter.is_match(&name) {
            return reply.send_error(
                id,
                -32602,
                &format!("the tool `{name}` is not offered here"),
            );
        }
        let rest = serde_json::Value::from(rest).to_string();
        let message = message.with_param(path, &rest);
        server.send_request(message, with_resource_index(&server, reply.clone()));
    }

    fn lists_tool(&self, server: &ServerAccess, name: &str, full: &str) -> bool {
        self.selection.tool_filter.is_match(full)
            && server.offers_tool(name)
            && (self.selection.profile == ToolProfile::Full
                || server.spec().config.is_lean_tool(name))
    }

    /// The error for a name without a known server, with the tool that the client probably means.
    fn unknown_name_text(&self, name: &str) -> String {
        let tools: Vec<(String, String)> = self
            .servers()
            .iter()
            .flat_map(|server| {
                let names = server.spec().cache.tool_names().into_iter();
                names.map(|tool| (full_name(server, &tool), tool))
            })
            .filter(|(full, _)| self.selection.tool_filter.is_match(full))
            .collect();
        let same: Vec<String> = tools
            .iter()
            .filter(|(_, tool)| tool == name)
            .map(|(full, _)| format!("`{full}`"))
            .collect();
        let near = || {
            let full = tools.iter().map(|(full, _)| full.as_str());
            nearest_name(name, full, CHARS_PER_TOOL_EDIT).map(|near| format!("`{near}`"))
        };
        let meant = (!same.is_empty()).then(|| same.join(" or ")).or_else(near);
        match meant {
            Some(meant) => format!("there is no `{name}`; did you mean {meant}?"),
            None => format!(
                "there is no `{name}`: names have the form `SERVER{SERVER_NAME_SEPARATOR}NAME`"
            ),
        }
    }

    /// Splits a name into its server and the name at that server.
    fn split_server_name<'a>(&self, name: &'a str) -> Option<(Arc<ServerAccess>, &'a str)> {
        self.servers().into_iter().find_map(|server| {
            let rest = name
                .strip_prefix(server.name())?
                .strip_prefix(SERVER_NAME_SEPARATOR)?;
            Some((server, rest))
        })
    }

    pub(super) fn header_mismatch(
        &self,
        tool: &str,
        call: &RpcMessage,
        headers: ClientParamHeaders,
    ) -> Option<String> {
        let (server, rest) = self
            .split_server_name(tool)
            .filter(|_| self.selection.tool_filter.is_match(tool))?;
        server.header_mismatch(rest, call, headers)
    }

    /// Adds the server's name to the name of a tool, prompt or resource. Returns `None` for a tool that is not
    /// offered.
    pub(super) fn with_prefixed_name(
        &self,
        server: &ServerAccess,
        item: &str,
        kind: &str,
    ) -> Option<String> {
        let span = find_value(item, &["name"])?;
        let name: String = serde_json::from_str(&item[span.clone()]).ok()?;
        let full = full_name(server, &name);
        if kind == "tools" && !self.lists_tool(server, &name, &full) {
            return None;
        }
        let full = serde_json::Value::from(full).to_string();
        String::from_utf8(splice(item.as_bytes(), &[(span, &full)]).into()).ok()
    }

    /// Forwards notifications and answers of the client.
    pub(super) fn send_message(&self, message: &RpcMessage) {
        if message.kind == RpcMessageKind::Answer {
            let relayed_requests = message
                .id()
                .and_then(|id| self.relayed_requests.lock_open().remove(id));
            let Some((server, id)) = relayed_requests else {
                return;
            };
            if let Some(server) = self.server_by_number(server) {
                server.send_message(message.with_id(&id));
            }
            return;
        }
        if message.method == message::CANCELLED_METHOD {
            for server in &*self.lock_replaced() {
                server.send_message(message.clone());
            }
        }
        for server in self.servers() {
            server.send_message(message.clone());
        }
    }

    pub(super) fn set_level(&self, level: &str) {
        for server in self.servers() {
            if server.spec().cache.has_capability("logging") == Some(true) {
                server.set_level(level);
            }
        }
    }

    pub(super) fn start_listening(&self) {
        self.is_listening.store(true, Ordering::Relaxed);
        self.servers()
            .iter()
            .for_each(|server| server.start_listening());
    }

    pub(super) fn cancel_stream(&self, stream: u64) {
        for server in self.servers() {
            server.cancel_stream(stream);
        }
    }

    /// The server that reported this resource or template to this client.
    pub(super) fn origin_server(&self, uri: &str) -> Option<Arc<ServerAccess>> {
        self.origins.lock().get(uri).cloned()
    }

    pub(super) fn has_origin(&self, uri: &str) -> bool {
        self.origins.lock().contains_key(uri)
    }

    /// Records the server of a resource or template, unless another server reported it before or the server was
    /// removed.
    pub(super) fn record_origin(&self, uri: String, server: &Arc<ServerAccess>) {
        let ways = self.servers.lock();
        let current = ways.get(server.name());
        if current.is_some_and(|current| Arc::ptr_eq(current, server)) {
            let mut origins = self.origins.lock();
            origins.entry(uri).or_insert_with(|| server.clone());
        }
    }

    pub(super) fn lock_awaited(&self) -> MutexGuard<'_, AwaitedLists> {
        self.awaited_lists.lock()
    }
}

/// The name of a server's tool or prompt in the merged lists.
fn full_name(server: &ServerAccess, name: &str) -> String {
    format!("{}{SERVER_NAME_SEPARATOR}{name}", server.name())
}

/// Makes the reply record the resources that its answer links to.
pub(super) fn with_resource_index(server: &ServerAccess, mut reply: ReplySender) -> ReplySender {
    reply.shape.resource_index = Some(server.spec().resource_index.clone());
    reply
}
