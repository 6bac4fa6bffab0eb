//! All servers as one: tools and prompts are called `<server>__<name>`, resources keep their URIs, by which
//! [`route_by_uri`](super::resource_route) finds whose they are.

use super::client::{McpClient, NotificationSink, ReplySender};
use super::filter::NameFilter;
use super::message::{self, RpcMessage, RpcMessageKind, find_value, splice};
use super::notification_source::{NotificationSource, RelayedRequests};
use super::param_headers::ClientParamHeaders;
use super::server::{HANDSHAKE_REVISIONS, NEWEST_HANDSHAKE_REVISION, ServerAccess, ServerEntry};
use super::stream::MessageStream;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinSet;

/// Between a server's name and that of its tool.
const SERVER_NAME_SEPARATOR: &str = "__";

/// Lists that were missing, by way and kind, and the tasks that wait for them: these end with the merge.
#[derive(Debug, Default)]
pub(super) struct AwaitedLists {
    pub(super) keys: HashSet<(u64, &'static str)>,
    pub(super) tasks: JoinSet<()>,
}

#[derive(Debug)]
pub(super) struct MergedServers {
    /// By their names. Each way has a number of its own, so that a server is not taken for the one before it.
    servers: Mutex<BTreeMap<String, Arc<ServerAccess>>>,
    /// Ways to servers before them, as long as their calls are open.
    former: Mutex<Vec<Arc<ServerAccess>>>,
    wanted: NameFilter,
    tools: NameFilter,
    hello: Option<Bytes>,
    pub(super) outlet: Arc<dyn NotificationSink>,
    /// Which way has told of which resource, or of which template.
    uris: Mutex<HashMap<String, u64>>,
    asked: Arc<RelayedRequests>,
    awaited: Mutex<AwaitedLists>,
    /// Whether it hears what belongs to no call.
    listens: AtomicBool,
}

impl MergedServers {
    /// Of the servers those whose names are wanted. `next` counts the members, of which each server gets one.
    pub(super) fn new(
        servers: BTreeMap<String, Arc<ServerEntry>>,
        wanted: NameFilter,
        tools: NameFilter,
        hello: Option<Bytes>,
        outlet: Arc<dyn NotificationSink>,
        next: impl FnMut() -> u64,
    ) -> Arc<Self> {
        let merge = Self {
            servers: Mutex::default(),
            former: Mutex::default(),
            wanted,
            tools,
            hello,
            outlet,
            uris: Mutex::default(),
            asked: Arc::default(),
            awaited: Mutex::default(),
            listens: AtomicBool::new(false),
        };
        merge.update_servers(&servers, None, next);
        Arc::new(merge)
    }

    /// Goes on with the servers as they are now, and leaves those alone that are the same. Whether there was a change.
    pub(super) fn update_servers(
        &self,
        servers: &BTreeMap<String, Arc<ServerEntry>>,
        level: Option<&str>,
        mut next: impl FnMut() -> u64,
    ) -> bool {
        let mut ways = self.lock_servers();
        let count = ways.len();
        let mut former = self.lock_former();
        ways.retain(|name, access| {
            let stays = servers.get(name).is_some_and(|served| access.is_of(served));
            if !stays {
                access.drain();
                former.push(access.clone());
            }
            stays
        });
        let mut is_other = ways.len() < count;
        let number = |access: &Arc<ServerAccess>| access.member.number;
        let here: Vec<u64> = ways.values().map(number).collect();
        self.lock_origins()
            .retain(|_, number| here.contains(number));
        let before: Vec<u64> = former.iter().map(number).collect();
        drop(former);
        let mut asked = self.asked.lock_open();
        asked.retain(|_, (number, _)| here.contains(number) || before.contains(number));
        drop(asked);
        for (name, served) in servers {
            if ways.contains_key(name) || !self.wanted.admits(name) {
                continue;
            }
            is_other = true;
            let access = self.open_access(served, next());
            if self.listens.load(Ordering::Relaxed) {
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

    fn open_access(&self, served: &Arc<ServerEntry>, number: u64) -> ServerAccess {
        let member = McpClient {
            number,
            hello: self.hello.clone(),
            ears: Arc::new(NotificationSource {
                server: number,
                links: served.known.links.clone(),
                outlet: self.outlet.clone(),
                asked: self.asked.clone(),
            }),
        };
        served.open_access(Arc::new(member), &NameFilter::default())
    }

    fn lock_servers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ServerAccess>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_former(&self) -> MutexGuard<'_, Vec<Arc<ServerAccess>>> {
        let former = self.former.lock();
        let mut former = former.unwrap_or_else(PoisonError::into_inner);
        former.retain(|access| !access.is_over());
        former
    }

    /// All servers, in the order of their names.
    pub(super) fn servers(&self) -> Vec<Arc<ServerAccess>> {
        self.lock_servers().values().cloned().collect()
    }

    fn server_by_number(&self, number: u64) -> Option<Arc<ServerAccess>> {
        let ways = self.lock_servers();
        let found = ways.values().find(|access| access.member.number == number);
        found.cloned()
    }

    pub(super) fn initialize_result(&self) -> Bytes {
        let asked = self.hello.as_deref().and_then(|hello| {
            let text = std::str::from_utf8(hello).ok()?;
            serde_json::from_str::<String>(&text[find_value(text, &["protocolVersion"])?]).ok()
        });
        let version = asked.filter(|asked| HANDSHAKE_REVISIONS.contains(&asked.as_str()));
        let servers = self.servers();
        let said = servers.iter().filter_map(|server| {
            let text = server.spec().cache.handshake_text(&["instructions"])?;
            Some(format!("{}: {text}", server.name()))
        });
        let mut instructions: Vec<String> = said.collect();
        let unknown = servers
            .iter()
            .filter(|server| server.spec().cache.initialize_result().is_none());
        let unknown: Vec<String> = unknown.map(|s| format!("`{}`", s.name())).collect();
        if !unknown.is_empty() {
            instructions.push(format!(
                "These servers have not answered yet: {}. Their tools are listed as soon as they have; list the tools again after `list_changed`.",
                unknown.join(", ")
            ));
        }
        let hello = serde_json::json!({
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
        hello.to_string().into()
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
                        server.send_request(message.clone(), ReplySender::plain(stream));
                    }
                }
                reply.send_result(&id, "{}");
            }
            other => reply.send_error(&id, -32601, &format!("there is no method `{other}`")),
        }
    }

    /// A call of what has the server's name in its own.
    fn route_by_name(&self, message: &RpcMessage, path: &[&str], reply: &ReplySender) {
        let id = message.id().unwrap_or("null");
        let name = message.text_param(path).unwrap_or_default();
        let found = self.split_server_name(&name);
        let is_tool = message.method == "tools/call";
        let (Some((server, rest)), Some(span)) = (found, message.param_span(path)) else {
            let why =
                format!("there is no `{name}`: names are `SERVER{SERVER_NAME_SEPARATOR}NAME`");
            return reply.send_error(id, -32602, &why);
        };
        if is_tool && !self.tools.admits(&name) {
            return reply.send_error(
                id,
                -32602,
                &format!("the tool `{name}` is not offered here"),
            );
        }
        let rest = serde_json::Value::from(rest).to_string();
        match RpcMessage::parse(message.with_edits(vec![(span, &rest)])) {
            Ok(message) => {
                server.send_request(message, with_resource_index(&server, reply.clone()))
            }
            Err(why) => reply.send_error(id, -32603, &format!("{why:?}")),
        }
    }

    /// The server that a name begins with, and what is left for it.
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
        given: ClientParamHeaders,
    ) -> Option<String> {
        let (server, rest) = self
            .split_server_name(tool)
            .filter(|_| self.tools.admits(tool))?;
        server.header_mismatch(rest, call, given)
    }

    /// A tool, prompt or resource under the name that it has here.
    pub(super) fn with_prefixed_name(
        &self,
        server: &ServerAccess,
        item: &str,
        kind: &str,
    ) -> Option<String> {
        let span = find_value(item, &["name"])?;
        let name: String = serde_json::from_str(&item[span.clone()]).ok()?;
        let full = format!("{}{SERVER_NAME_SEPARATOR}{name}", server.name());
        if kind == "tools" && !(self.tools.admits(&full) && server.offers_tool(&name)) {
            return None;
        }
        let full = serde_json::Value::from(full).to_string();
        String::from_utf8(splice(item.as_bytes(), &[(span, &full)]).into()).ok()
    }

    /// Notifications and answers of the client.
    pub(super) fn send_message(&self, message: &RpcMessage) {
        if message.kind == RpcMessageKind::Answer {
            let asked = message
                .id()
                .and_then(|id| self.asked.lock_open().remove(id));
            let Some((server, id)) = asked else {
                return;
            };
            let text = message.with_edits(message.new_id(&id).into_iter().collect());
            let former = || {
                let former = self.lock_former();
                let found = former.iter().find(|access| access.member.number == server);
                found.cloned()
            };
            let server = self.server_by_number(server).or_else(former);
            if let (Some(server), Ok(message)) = (server, RpcMessage::parse(text)) {
                server.send_message(message);
            }
            return;
        }
        if message.method == message::CANCELLED_METHOD {
            for server in &*self.lock_former() {
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
        self.listens.store(true, Ordering::Relaxed);
        self.servers()
            .iter()
            .for_each(|server| server.start_listening());
    }

    pub(super) fn give_up(&self, stream: u64) {
        for server in self.servers() {
            server.give_up(stream);
        }
    }

    /// The server that has told of that resource or template here.
    pub(super) fn origin_of(&self, uri: &str) -> Option<Arc<ServerAccess>> {
        let number = self.lock_origins().get(uri).copied()?;
        let found = self.server_by_number(number);
        if found.is_none() {
            // It was noted when its server was just let go of.
            self.lock_origins().remove(uri);
        }
        found
    }

    pub(super) fn has_origin(&self, uri: &str) -> bool {
        self.lock_origins().contains_key(uri)
    }

    /// Notes whose a resource or template is, unless another has told of it before.
    pub(super) fn record_origin(&self, uri: String, server: &ServerAccess) {
        self.lock_origins()
            .entry(uri)
            .or_insert(server.member.number);
    }

    pub(super) fn lock_awaited(&self) -> MutexGuard<'_, AwaitedLists> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_origins(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.uris.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// With a note of what the answer points to.
pub(super) fn with_resource_index(server: &ServerAccess, mut reply: ReplySender) -> ReplySender {
    reply.shape.links = Some(server.spec().links.clone());
    reply
}
