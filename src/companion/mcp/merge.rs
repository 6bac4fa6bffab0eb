//! All servers as one: tools and prompts are called `<server>__<name>`, resources keep their URIs, by which
//! [`located`](super::located) finds whose they are.

use super::filter::Filter;
use super::member::{Ears, Member, Reply};
use super::message::{self, Kind, Message, find, splice};
use super::params::Given;
use super::server::{Access, NEWEST_WITH_HELLO, Served, WITH_HELLO};
use super::stream::Stream;
use super::voice::{Asked, Voice};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinSet;

/// Between a server's name and that of its tool.
const BETWEEN: &str = "__";

/// Lists that were missing, by way and kind, and the tasks that wait for them: these end with the merge.
#[derive(Debug, Default)]
pub(super) struct AwaitedLists {
    pub(super) keys: HashSet<(u64, &'static str)>,
    pub(super) tasks: JoinSet<()>,
}

#[derive(Debug)]
pub(super) struct Merge {
    /// By their names. Each way has a number of its own, so that a server is not taken for the one before it.
    servers: Mutex<BTreeMap<String, Arc<Access>>>,
    /// Ways to servers before them, as long as their calls are open.
    former: Mutex<Vec<Arc<Access>>>,
    wanted: Filter,
    tools: Filter,
    hello: Option<Bytes>,
    pub(super) outlet: Arc<dyn Ears>,
    /// Which way has told of which resource, or of which template.
    uris: Mutex<HashMap<String, u64>>,
    asked: Arc<Asked>,
    awaited: Mutex<AwaitedLists>,
    /// Whether it hears what belongs to no call.
    listens: AtomicBool,
}

impl Merge {
    /// Of the servers those whose names are wanted. `next` counts the members, of which each server gets one.
    pub(super) fn new(
        servers: BTreeMap<String, Arc<Served>>,
        wanted: Filter,
        tools: Filter,
        hello: Option<Bytes>,
        outlet: Arc<dyn Ears>,
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
        merge.follow(&servers, None, next);
        Arc::new(merge)
    }

    /// Goes on with the servers as they are now, and leaves those alone that are the same. Whether there was a change.
    pub(super) fn follow(
        &self,
        servers: &BTreeMap<String, Arc<Served>>,
        level: Option<&str>,
        mut next: impl FnMut() -> u64,
    ) -> bool {
        let mut ways = self.ways();
        let count = ways.len();
        let mut former = self.former();
        ways.retain(|name, access| {
            let stays = servers.get(name).is_some_and(|served| access.is_of(served));
            if !stays {
                access.retire();
                former.push(access.clone());
            }
            stays
        });
        let mut is_other = ways.len() < count;
        let number = |access: &Arc<Access>| access.member.number;
        let here: Vec<u64> = ways.values().map(number).collect();
        self.uris().retain(|_, number| here.contains(number));
        let before: Vec<u64> = former.iter().map(number).collect();
        drop(former);
        let mut asked = self.asked.open();
        asked.retain(|_, (number, _)| here.contains(number) || before.contains(number));
        drop(asked);
        for (name, served) in servers {
            if ways.contains_key(name) || !self.wanted.admits(name) {
                continue;
            }
            is_other = true;
            let access = self.way_to(served, next());
            if self.listens.load(Ordering::Relaxed) {
                access.listen();
            }
            if let Some(level) = level
                && access.known().cache.can("logging") == Some(true)
            {
                access.set_level(level);
            }
            ways.insert(name.clone(), Arc::new(access));
        }
        is_other
    }

    fn way_to(&self, served: &Arc<Served>, number: u64) -> Access {
        let member = Member {
            number,
            hello: self.hello.clone(),
            ears: Arc::new(Voice {
                server: number,
                links: served.known.links.clone(),
                outlet: self.outlet.clone(),
                asked: self.asked.clone(),
            }),
        };
        served.access(Arc::new(member), &Filter::default())
    }

    fn ways(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Access>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn former(&self) -> MutexGuard<'_, Vec<Arc<Access>>> {
        let former = self.former.lock();
        let mut former = former.unwrap_or_else(PoisonError::into_inner);
        former.retain(|access| !access.is_over());
        former
    }

    /// All servers, in the order of their names.
    pub(super) fn servers(&self) -> Vec<Arc<Access>> {
        self.ways().values().cloned().collect()
    }

    fn numbered(&self, number: u64) -> Option<Arc<Access>> {
        let ways = self.ways();
        let found = ways.values().find(|access| access.member.number == number);
        found.cloned()
    }

    pub(super) fn hello(&self) -> Bytes {
        let asked = self.hello.as_deref().and_then(|hello| {
            let text = std::str::from_utf8(hello).ok()?;
            serde_json::from_str::<String>(&text[find(text, &["protocolVersion"])?]).ok()
        });
        let version = asked.filter(|asked| WITH_HELLO.contains(&asked.as_str()));
        let servers = self.servers();
        let said = servers.iter().filter_map(|server| {
            let text = server.known().cache.text(&["instructions"])?;
            Some(format!("{}: {text}", server.name()))
        });
        let mut instructions: Vec<String> = said.collect();
        let unknown = servers
            .iter()
            .filter(|server| server.known().cache.hello().is_none());
        let unknown: Vec<String> = unknown.map(|s| format!("`{}`", s.name())).collect();
        if !unknown.is_empty() {
            instructions.push(format!(
                "These servers have not answered yet: {}. Their tools are listed as soon as they have; list the tools again after `list_changed`.",
                unknown.join(", ")
            ));
        }
        let hello = serde_json::json!({
            "protocolVersion": version.as_deref().unwrap_or(NEWEST_WITH_HELLO),
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

    pub(super) fn request(self: &Arc<Self>, message: Message, mut reply: Reply) {
        let id = message.id().unwrap_or("null").to_owned();
        match message.method.as_str() {
            "ping" => reply.result(&id, "{}"),
            "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => {
                reply.shape.is_list = true;
                tokio::spawn(self.clone().list(message, reply));
            }
            "tools/call" => self.named(&message, &["name"], &reply),
            "prompts/get" => self.named(&message, &["name"], &reply),
            "completion/complete" if message.param(&["ref", "name"]).is_some() => {
                self.named(&message, &["ref", "name"], &reply);
            }
            "completion/complete" => self.located(message, &["ref", "uri"], reply),
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
                self.located(message, &["uri"], reply);
            }
            "logging/setLevel" => {
                for server in self.servers() {
                    if server.known().cache.can("logging") == Some(true) {
                        let stream = Arc::new(Stream::of_answers(0, 1));
                        server.request(message.clone(), Reply::plain(stream));
                    }
                }
                reply.result(&id, "{}");
            }
            other => reply.fail(&id, -32601, &format!("there is no method `{other}`")),
        }
    }

    /// A call of what has the server's name in its own.
    fn named(&self, message: &Message, path: &[&str], reply: &Reply) {
        let id = message.id().unwrap_or("null");
        let name = message.text_param(path).unwrap_or_default();
        let found = self.named_by(&name);
        let is_tool = message.method == "tools/call";
        let (Some((server, rest)), Some(span)) = (found, message.param(path)) else {
            let why = format!("there is no `{name}`: names are `SERVER{BETWEEN}NAME`");
            return reply.fail(id, -32602, &why);
        };
        if is_tool && !self.tools.admits(&name) {
            return reply.fail(
                id,
                -32602,
                &format!("the tool `{name}` is not offered here"),
            );
        }
        let rest = serde_json::Value::from(rest).to_string();
        match Message::parse(message.with(vec![(span, &rest)])) {
            Ok(message) => server.request(message, pointing(&server, reply.clone())),
            Err(why) => reply.fail(id, -32603, &format!("{why:?}")),
        }
    }

    /// The server that a name begins with, and what is left for it.
    fn named_by<'a>(&self, name: &'a str) -> Option<(Arc<Access>, &'a str)> {
        self.servers().into_iter().find_map(|server| {
            let rest = name.strip_prefix(server.name())?.strip_prefix(BETWEEN)?;
            Some((server, rest))
        })
    }

    pub(super) fn disagreement(&self, tool: &str, call: &Message, given: Given) -> Option<String> {
        let (server, rest) = self.named_by(tool).filter(|_| self.tools.admits(tool))?;
        server.disagreement(rest, call, given)
    }

    /// A tool, prompt or resource under the name that it has here.
    pub(super) fn renamed(&self, server: &Access, item: &str, kind: &str) -> Option<String> {
        let span = find(item, &["name"])?;
        let name: String = serde_json::from_str(&item[span.clone()]).ok()?;
        let full = format!("{}{BETWEEN}{name}", server.name());
        if kind == "tools" && !(self.tools.admits(&full) && server.offers(&name)) {
            return None;
        }
        let full = serde_json::Value::from(full).to_string();
        String::from_utf8(splice(item.as_bytes(), &[(span, &full)]).into()).ok()
    }

    /// Notifications and answers of the client.
    pub(super) fn tell(&self, message: &Message) {
        if message.kind == Kind::Answer {
            let asked = message.id().and_then(|id| self.asked.open().remove(id));
            let Some((server, id)) = asked else {
                return;
            };
            let text = message.with(message.new_id(&id).into_iter().collect());
            let former = || {
                let former = self.former();
                let found = former.iter().find(|access| access.member.number == server);
                found.cloned()
            };
            let server = self.numbered(server).or_else(former);
            if let (Some(server), Ok(message)) = (server, Message::parse(text)) {
                server.tell(message);
            }
            return;
        }
        if message.method == message::CANCELLED {
            for server in &*self.former() {
                server.tell(message.clone());
            }
        }
        for server in self.servers() {
            server.tell(message.clone());
        }
    }

    pub(super) fn set_level(&self, level: &str) {
        for server in self.servers() {
            if server.known().cache.can("logging") == Some(true) {
                server.set_level(level);
            }
        }
    }

    pub(super) fn listen(&self) {
        self.listens.store(true, Ordering::Relaxed);
        self.servers().iter().for_each(|server| server.listen());
    }

    pub(super) fn give_up(&self, stream: u64) {
        for server in self.servers() {
            server.give_up(stream);
        }
    }

    /// The server that has told of that resource or template here.
    pub(super) fn teller(&self, uri: &str) -> Option<Arc<Access>> {
        let number = self.uris().get(uri).copied()?;
        let found = self.numbered(number);
        if found.is_none() {
            // It was noted when its server was just let go of.
            self.uris().remove(uri);
        }
        found
    }

    pub(super) fn has_told_of(&self, uri: &str) -> bool {
        self.uris().contains_key(uri)
    }

    /// Notes whose a resource or template is, unless another has told of it before.
    pub(super) fn note(&self, uri: String, server: &Access) {
        self.uris().entry(uri).or_insert(server.member.number);
    }

    pub(super) fn awaited(&self) -> MutexGuard<'_, AwaitedLists> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uris(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.uris.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// With a note of what the answer points to.
pub(super) fn pointing(server: &Access, mut reply: Reply) -> Reply {
    reply.shape.links = Some(server.known().links.clone());
    reply
}
