//! One configured server: what is known of it, its children, and a client's way to it.

use super::cache::{Cache, LISTS};
use super::child::{Child, Known, NoHello, Phase, Within};
use super::config::{Server, Way};
use super::filter::Filter;
use super::log::Log;
use super::member::{Member, Reply};
use super::message::{Kind, Message, find, splice};
use super::params::{Given, MARK, disagreement};
use crate::protocol::mcp::{ServerState, ServerStatus, Start};
use bytes::Bytes;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The newest revision with a handshake: what we say to a server that clients share, and what is
/// shaken hands with at all.
pub(super) const NEWEST_WITH_HELLO: &str = "2025-11-25";
pub(super) const WITH_HELLO: [&str; 4] =
    ["2024-11-05", "2025-03-26", "2025-06-18", NEWEST_WITH_HELLO];

#[derive(Debug)]
pub(super) struct Served {
    pub(super) known: Arc<Known>,
    /// For all who share it, and for those who come without a session.
    common: OnceLock<Child>,
    /// Of single clients, also of those that have gone, as long as calls are open.
    own: Mutex<Vec<Child>>,
}

impl Served {
    pub(super) fn new(server: Server, data: &Path, os: &Arc<dyn Within>) -> Arc<Self> {
        let name = &server.name;
        let cache = Cache::open(data.join(format!("cache/{name}.json")), server.digest());
        let log = Arc::new(Log::new(data.join(format!("logs/{name}.log"))));
        let is_eager = server.start == Start::Eager && server.shared;
        let known = Known {
            server,
            cache,
            log,
            links: Arc::default(),
            list_delay: Arc::default(),
            os: os.clone(),
            crashes: AtomicUsize::new(0),
        };
        let served = Arc::new(Self {
            known: Arc::new(known),
            common: OnceLock::new(),
            own: Mutex::default(),
        });
        if is_eager {
            start(served.common());
        }
        served
    }

    pub(super) fn name(&self) -> &str {
        &self.known.server.name
    }

    /// The child without a client of its own. It is told that nobody can be asked anything: a server
    /// can't say which of several clients it means.
    fn common(&self) -> &Child {
        self.common.get_or_init(|| {
            let hello = serde_json::json!({
                "protocolVersion": NEWEST_WITH_HELLO,
                "capabilities": {},
                "clientInfo": {"name": "osctl", "version": env!("CARGO_PKG_VERSION")},
            });
            Child::new(self.known.clone(), hello.to_string().into(), true)
        })
    }

    /// A client's way to it.
    pub(super) fn access(self: &Arc<Self>, member: Arc<Member>, tools: &Filter) -> Access {
        let child = match &member.hello {
            Some(hello) if !self.known.server.shared => {
                let child = Child::new(self.known.clone(), hello.clone(), false);
                if self.known.server.start == Start::Eager {
                    start(&child);
                }
                let mut own = self.own();
                own.retain(|child| !child.is_over());
                own.push(child.clone());
                child
            }
            _ => self.common().clone(),
        };
        let access = Access {
            served: self.clone(),
            tools: tools.clone(),
            member,
            child,
        };
        // Those who come without a session hear nothing beside their answers.
        if access.member.hello.is_some() {
            access.listen();
        }
        access
    }

    /// Starts the child without a client of its own unless it runs, and waits for its hello.
    pub(super) async fn wake(&self) -> Result<(), NoHello> {
        self.common().hello().await.map(drop)
    }

    /// Whether it is a program of this container.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.known.server.way, Way::Child { .. })
    }

    /// Whether one of its children stands like that.
    pub(super) fn has(&self, wanted: impl Fn(&Phase) -> bool) -> bool {
        self.children().iter().any(|child| wanted(&child.phase().0))
    }

    fn own(&self) -> std::sync::MutexGuard<'_, Vec<Child>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn children(&self) -> Vec<Child> {
        let mut own = self.own();
        own.retain(|child| !child.is_over());
        let common = self.common.get().cloned().into_iter();
        common.chain(own.iter().cloned()).collect()
    }

    /// Lets open calls end, and takes no more.
    pub(super) fn retire(&self) {
        self.children().iter().for_each(Child::retire);
    }

    /// Whether it has retired and answered all that was open.
    pub(super) fn is_over(&self) -> bool {
        self.children().iter().all(Child::is_over)
    }

    pub(super) async fn end(&self) {
        let children = self.children();
        let ends = children.iter().map(Child::end);
        futures_util::future::join_all(ends).await;
    }

    pub(super) fn status(&self) -> ServerStatus {
        let server = &self.known.server;
        let children = self.children();
        let phases: Vec<_> = children.iter().map(Child::phase).collect();
        let is = |wanted: fn(&Phase) -> bool| phases.iter().any(|(phase, _)| wanted(phase));
        let state = if is(|p| matches!(p, Phase::Up)) {
            ServerState::Running
        } else if is(|p| matches!(p, Phase::Starting)) {
            ServerState::Starting
        } else if is(|p| matches!(p, Phase::Resting { .. })) {
            ServerState::Resting
        } else {
            ServerState::Unstarted
        };
        let cache = &self.known.cache;
        let tools = cache.pages("tools/list").map(|pages| {
            let count = |page: &String| {
                let span = find(page, &["tools"]);
                span.map_or(0, |span| super::message::elements(&page[span]).len())
            };
            pages.iter().map(count).sum()
        });
        let crashes = self.known.crashes.load(Ordering::Relaxed) as u64;
        let detail = match (state, self.known.log.last()) {
            (ServerState::Resting, Some(last)) => last,
            _ => state.word().into(),
        };
        ServerStatus {
            name: server.name.clone(),
            kind: match &server.way {
                Way::Child { .. } => "child".into(),
                Way::Remote { .. } => "remote".into(),
                Way::Inside => "built in".into(),
            },
            state,
            detail,
            start: server.start,
            shared: server.shared,
            pids: phases.iter().filter_map(|(_, pid)| *pid).collect(),
            calls: children.iter().map(Child::calls).sum(),
            crashes,
            title: cache.text(&["serverInfo", "name"]),
            tools,
            path: format!("/servers/{}/mcp", server.name),
        }
    }
}

/// Starts it, and waits for nothing: what is wrong with it is told to who calls it.
fn start(child: &Child) {
    let child = child.clone();
    tokio::spawn(async move { child.hello().await });
}

/// The status of a server that the configuration names and that makes no sense.
pub(super) fn refused(name: &str, why: &str) -> ServerStatus {
    ServerStatus {
        name: name.into(),
        kind: "unknown".into(),
        state: ServerState::Refused,
        detail: why.into(),
        start: Start::default(),
        shared: false,
        pids: Vec::new(),
        calls: 0,
        crashes: 0,
        title: None,
        tools: None,
        path: format!("/servers/{name}/mcp"),
    }
}

/// One client's way to one server.
#[derive(Debug)]
pub(super) struct Access {
    served: Arc<Served>,
    /// What the client asked for; the configuration may offer less.
    tools: Filter,
    pub(super) member: Arc<Member>,
    child: Child,
}

impl Drop for Access {
    fn drop(&mut self) {
        self.child.leave(self.member.number);
        self.retire();
    }
}

impl Access {
    pub(super) fn name(&self) -> &str {
        self.served.name()
    }

    pub(super) fn known(&self) -> &Known {
        &self.served.known
    }

    /// Whether it leads to that server, and not to one that had its name before.
    pub(super) fn is_of(&self, served: &Arc<Served>) -> bool {
        Arc::ptr_eq(&self.served, served)
    }

    /// The same client's way to another server.
    pub(super) fn to(&self, served: &Arc<Served>, number: u64) -> Self {
        let Member { hello, ears, .. } = &*self.member;
        let member = Member {
            number,
            hello: hello.clone(),
            ears: ears.clone(),
        };
        served.access(Arc::new(member), &self.tools)
    }

    /// Lets open calls end where the server runs for this client alone.
    pub(super) fn retire(&self) {
        if self.is_own() {
            self.child.retire();
        }
    }

    /// Whether its server has retired and answered all that was open.
    pub(super) fn is_over(&self) -> bool {
        self.child.is_over()
    }

    fn is_own(&self) -> bool {
        !self.served.known.server.shared && self.member.hello.is_some()
    }

    /// Hears from now on what belongs to no call.
    pub(super) fn listen(&self) {
        self.child.join(self.member.clone());
    }

    /// What the server says of itself; starts it only when it never ran.
    pub(super) async fn hello(&self) -> Result<Bytes, NoHello> {
        let hello = match self.known().cache.hello() {
            Some(hello) => hello,
            None => self.child.hello().await?,
        };
        Ok(self.in_common(hello))
    }

    /// The handshake's result in a version that the client knows.
    fn in_common(&self, result: Bytes) -> Bytes {
        let text = std::str::from_utf8(&result).unwrap_or_default();
        let version_of = |text: &str| -> Option<String> {
            serde_json::from_str(&text[find(text, &["protocolVersion"])?]).ok()
        };
        let asked = self.member.hello.as_deref();
        let asked = asked.and_then(|hello| version_of(std::str::from_utf8(hello).ok()?));
        let Some(asked) = asked.filter(|asked| WITH_HELLO.contains(&asked.as_str())) else {
            return result;
        };
        match (find(text, &["protocolVersion"]), version_of(text)) {
            // Versions are dates.
            (Some(span), Some(spoken)) if asked < spoken => {
                splice(&result, &[(span, &format!("\"{asked}\""))])
            }
            _ => result,
        }
    }

    /// Whether a tool is offered to this client.
    pub(super) fn offers(&self, tool: &str) -> bool {
        self.tools.admits(tool) && self.configured().admits(tool)
    }

    fn configured(&self) -> Filter {
        Filter::new(self.known().server.tools.iter().cloned())
    }

    /// What a client's headers do not say as its call of that tool does.
    pub(super) fn disagreement(&self, tool: &str, call: &Message, given: Given) -> Option<String> {
        if !self.offers(tool) {
            return None;
        }
        let known = self.known();
        let tool = known.cache.tool(tool, MARK)?;
        // A server elsewhere may want others by now: what it misses, it says itself.
        let is_elsewhere = matches!(known.server.way, Way::Remote { .. });
        let is_partial = given.is_partial || is_elsewhere;
        let given = Given {
            is_partial,
            ..given
        };
        disagreement(&tool, call, &given)
    }

    pub(super) fn request(&self, message: Message, mut reply: Reply) {
        let id = message.id().unwrap_or("null").to_owned();
        let method = message.method.as_str();
        if method == "ping" {
            return reply.result(&id, "{}");
        }
        if method == "tools/call"
            && let Some(tool) = message.text_param(&["name"])
            && !self.offers(&tool)
        {
            return reply.fail(
                &id,
                -32602,
                &format!("the tool `{tool}` is not offered here"),
            );
        }
        let is_list = LISTS.iter().any(|(list, _, _)| *list == method);
        reply.shape.is_list = is_list || method == "resources/read";
        if method == "resources/read" {
            reply.shape.uri = message.text_param(&["uri"]);
        }
        if method == "tools/list" {
            reply.shape.tools = self.configured().and(&self.tools);
        }
        // A server that runs answers itself; for one that does not, its lists of the last time do.
        if is_list && self.child.phase().0 != Phase::Up {
            let cursor = message.text_param(&["cursor"]);
            if let Some(page) = self.known().cache.page(method, cursor.as_deref()) {
                return reply.result(&id, &page);
            }
        }
        self.child.request(message, &self.member, reply);
    }

    /// A notification, or an answer to the server's own request.
    pub(super) fn tell(&self, message: Message) {
        debug_assert_ne!(message.kind, Kind::Request);
        self.child.tell(message, self.member.number);
    }

    pub(super) fn set_level(&self, level: &str) {
        self.child.set_level(level, self.member.number);
    }

    /// The call behind that stream is not waited for any more.
    pub(super) fn give_up(&self, stream: u64) {
        self.child.give_up(stream);
    }
}
