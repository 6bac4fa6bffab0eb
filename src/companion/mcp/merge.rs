//! All servers as one: tools and prompts are called `<server>__<name>`, resources keep their URIs.

use super::filter::Filter;
use super::member::{Ears, Member, Reply};
use super::message::{self, Kind, Message, elements, find, splice};
use super::server::{Access, NEWEST_WITH_HELLO, Served, WITH_HELLO};
use super::stream::Stream;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Between a server's name and that of its tool.
const BETWEEN: &str = "__";
/// A server whose list takes longer is left out, and told of when it is there.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pages of one list.
const PAGES: usize = 100;

#[derive(Debug)]
pub(super) struct Merge {
    servers: Vec<Arc<Access>>,
    tools: Filter,
    hello: Option<Bytes>,
    outlet: Arc<dyn Ears>,
    /// Which server has told of which resource.
    uris: Mutex<HashMap<String, usize>>,
    asked: Arc<Asked>,
}

/// Requests of servers to the client, which may have the same ids.
#[derive(Debug, Default)]
struct Asked {
    last: AtomicU64,
    open: Mutex<HashMap<String, (usize, String)>>,
}

/// One server's way to the client.
#[derive(Debug)]
struct Voice {
    server: usize,
    outlet: Arc<dyn Ears>,
    asked: Arc<Asked>,
}

impl Asked {
    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<String, (usize, String)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ears for Voice {
    fn hear(&self, text: Bytes, is_related: bool) {
        let Ok(message) = Message::parse(text.clone()) else {
            return;
        };
        let text = match (message.kind, message.id()) {
            (Kind::Request, Some(id)) => {
                let number = self.asked.last.fetch_add(1, Ordering::Relaxed);
                let own = format!("\"osctl-{number}\"");
                let text = message.with(message.new_id(&own).into_iter().collect());
                self.asked.open().insert(own, (self.server, id.into()));
                text
            }
            _ if message.method == "notifications/cancelled" => {
                let id = message.raw_param(&["requestId"]).unwrap_or_default();
                let mut open = self.asked.open();
                let is_meant = |(_, (server, theirs)): &(&String, &(usize, String))| {
                    *server == self.server && theirs == id
                };
                let Some(own) = open.iter().find(is_meant).map(|(own, _)| own.clone()) else {
                    return;
                };
                open.remove(&own);
                let span = message.param(&["requestId"]);
                message.with(span.map(|span| (span, own.as_str())).into_iter().collect())
            }
            _ => text,
        };
        self.outlet.hear(text, is_related);
    }
}

impl Merge {
    /// `next` counts the members, of which each server gets one.
    pub(super) fn new(
        servers: &[Arc<Served>],
        tools: Filter,
        hello: Option<Bytes>,
        outlet: Arc<dyn Ears>,
        mut next: impl FnMut() -> u64,
    ) -> Arc<Self> {
        let asked = Arc::new(Asked::default());
        let access = |(number, served): (usize, &Arc<Served>)| {
            let member = Member {
                number: next(),
                hello: hello.clone(),
                ears: Arc::new(Voice {
                    server: number,
                    outlet: outlet.clone(),
                    asked: asked.clone(),
                }),
            };
            Arc::new(served.access(Arc::new(member), &Filter::default()))
        };
        Arc::new(Self {
            servers: servers.iter().enumerate().map(access).collect(),
            tools,
            hello,
            outlet,
            uris: Mutex::default(),
            asked,
        })
    }

    pub(super) fn hello(&self) -> Bytes {
        let asked = self.hello.as_deref().and_then(|hello| {
            let text = std::str::from_utf8(hello).ok()?;
            serde_json::from_str::<String>(&text[find(text, &["protocolVersion"])?]).ok()
        });
        let version = asked.filter(|asked| WITH_HELLO.contains(&asked.as_str()));
        let instructions = self.servers.iter().filter_map(|server| {
            let text = server.known().cache.text(&["instructions"])?;
            Some(format!("{}: {text}", server.name()))
        });
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
            "instructions": instructions.collect::<Vec<_>>().join("\n\n"),
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
                for server in &self.servers {
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
        let found = self.servers.iter().find_map(|server| {
            let rest = name.strip_prefix(server.name())?.strip_prefix(BETWEEN)?;
            Some((server, rest))
        });
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
            Ok(message) => server.request(message, reply.clone()),
            Err(why) => reply.fail(id, -32603, &format!("{why:?}")),
        }
    }

    /// A call about a resource: its server is asked, or one after the other until one knows it.
    fn located(self: &Arc<Self>, message: Message, path: &[&str], mut reply: Reply) {
        let uri = message.text_param(path).unwrap_or_default();
        reply.shape.uri = Some(uri.clone());
        let known = self.uris().get(&uri).copied();
        if let Some(server) = known.and_then(|number| self.servers.get(number)) {
            return server.request(message, reply);
        }
        let merge = self.clone();
        tokio::spawn(async move {
            let id = message.id().unwrap_or("null").to_owned();
            for (number, server) in merge.servers.iter().enumerate() {
                if server.known().cache.can("resources") == Some(false) {
                    continue;
                }
                let stream = Arc::new(Stream::of_answers(0, 1));
                server.request(message.clone(), Reply::plain(stream.clone()));
                let answer = stream
                    .only()
                    .await
                    .and_then(|text| Message::parse(text).ok());
                if let Some(answer) = answer.filter(|answer| answer.result().is_some()) {
                    merge.uris().insert(uri, number);
                    return reply.answer(answer.text().clone());
                }
            }
            reply.no_resource(&id, &uri);
        });
    }

    /// The lists of all, as one.
    async fn list(self: Arc<Self>, message: Message, reply: Reply) {
        let id = message.id().unwrap_or("null").to_owned();
        let method = message.method.clone();
        let (key, capability) = match method.as_str() {
            "tools/list" => ("tools", "tools"),
            "prompts/list" => ("prompts", "prompts"),
            "resources/list" => ("resources", "resources"),
            _ => ("resourceTemplates", "resources"),
        };
        let mut asked = JoinSet::new();
        for (number, server) in self.servers.iter().enumerate() {
            let (server, method) = (server.clone(), method.clone());
            asked.spawn(async move {
                if server.known().cache.hello().is_none() && server.hello().await.is_err() {
                    return None;
                }
                if server.known().cache.can(capability) != Some(true) {
                    return Some((number, Vec::new()));
                }
                Some((number, all_pages(&server, &method).await?))
            });
        }
        let deadline = Instant::now() + PATIENCE;
        let mut found: Vec<Vec<String>> = vec![Vec::new(); self.servers.len()];
        while let Ok(Some(one)) = timeout_at(deadline, asked.join_next()).await {
            if let Ok(Some((number, pages))) = one {
                found[number] = pages;
            }
        }
        if !asked.is_empty() {
            tokio::spawn(self.clone().tell_later(asked, capability));
        }
        let mut items = Vec::new();
        for (number, pages) in found.iter().enumerate() {
            for page in pages {
                let Some(span) = find(page, &[key]) else {
                    continue;
                };
                for item in elements(&page[span]) {
                    items.extend(self.renamed(number, item, capability));
                }
            }
        }
        reply.result(&id, &format!("{{\"{key}\":[{}]}}", items.join(",")));
    }

    /// A tool, prompt or resource under the name that it has here.
    fn renamed(&self, server: usize, item: &str, kind: &str) -> Option<String> {
        if kind == "resources"
            && let Some(span) = find(item, &["uri"])
            && let Ok(uri) = serde_json::from_str::<String>(&item[span])
        {
            self.uris().entry(uri).or_insert(server);
        }
        let span = find(item, &["name"])?;
        let name: String = serde_json::from_str(&item[span.clone()]).ok()?;
        let access = &self.servers[server];
        let full = format!("{}{BETWEEN}{name}", access.name());
        if kind == "tools" && !(self.tools.admits(&full) && access.offers(&name)) {
            return None;
        }
        let full = serde_json::Value::from(full).to_string();
        String::from_utf8(splice(item.as_bytes(), &[(span, &full)]).into()).ok()
    }

    async fn tell_later<T: 'static>(self: Arc<Self>, mut asked: JoinSet<Option<T>>, kind: &str) {
        while let Some(one) = asked.join_next().await {
            if matches!(one, Ok(Some(_))) {
                let method = format!("notifications/{kind}/list_changed");
                self.outlet.hear(message::notification(&method, ""), false);
            }
        }
    }

    /// Notifications and answers of the client.
    pub(super) fn tell(&self, message: &Message) {
        if message.kind == Kind::Answer {
            let asked = message.id().and_then(|id| self.asked.open().remove(id));
            let Some((server, id)) = asked else {
                return;
            };
            let text = message.with(message.new_id(&id).into_iter().collect());
            if let (Some(server), Ok(message)) = (self.servers.get(server), Message::parse(text)) {
                server.tell(message);
            }
            return;
        }
        self.servers
            .iter()
            .for_each(|server| server.tell(message.clone()));
    }

    pub(super) fn set_level(&self, level: &str) {
        let servers = self.servers.iter();
        servers
            .filter(|server| server.known().cache.can("logging") == Some(true))
            .for_each(|server| server.set_level(level));
    }

    pub(super) fn listen(&self) {
        self.servers.iter().for_each(|server| server.listen());
    }

    pub(super) fn give_up(&self, stream: u64) {
        self.servers
            .iter()
            .for_each(|server| server.give_up(stream));
    }

    fn uris(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        self.uris.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every page of a server's list.
pub(super) async fn all_pages(server: &Access, method: &str) -> Option<Vec<String>> {
    let mut pages = Vec::new();
    let mut params = "{}".to_owned();
    while pages.len() < PAGES {
        let stream = Arc::new(Stream::of_answers(0, 1));
        let request = message::request("0", method, &params);
        server.request(Message::parse(request).ok()?, Reply::plain(stream.clone()));
        let answer = Message::parse(stream.only().await?).ok()?;
        let result = answer.result()?.to_owned();
        let next = find(&result, &["nextCursor"]).map(|span| result[span].to_owned());
        pages.push(result);
        match next.filter(|next| next != "null") {
            Some(next) => params = format!("{{\"cursor\":{next}}}"),
            None => break,
        }
    }
    Some(pages)
}
