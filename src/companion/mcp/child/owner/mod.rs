//! The task that owns one server: it turns what is asked, what the server does and what time it is
//! into events of the [`policy`](super::policy), and moves messages.

mod hearing;
mod life;
mod stateless;

use super::calls::{Call, Calls};
use super::era::{self, Era};
use super::pipe::{Happened, Pipe};
use super::policy::{Event, Life, Phase};
use super::questions::Questions;
use super::standing::Standing;
use super::{Ask, Known, NoHello, Seen};
use crate::companion::mcp::cache::Page;
use crate::companion::mcp::member::{Member, Reply};
use crate::companion::mcp::message::{self, Kind, Message};
use bytes::Bytes;
use stateless::{Asking, Listening, Round};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Of the handshake, unless the server's `timeout` is shorter: the first start of a large server on a slow machine.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(90);
/// Calls that wait for a server, and bytes that it has not read.
const MOST_CALLS: usize = 4096;
const MOST_BYTES: usize = 256 << 20;
/// What a server without a handshake is asked first.
const DISCOVER: &str = "server/discover";
/// A rest that a call waits for; before a longer one it is refused.
const PATIENCE: Duration = Duration::from_secs(3);

const CLIENT_GONE: &str = "the client that was asked is gone";
/// What those are told who are too late.
pub(super) const GONE: &str = "the server is not offered any more";

/// Who waits for an answer.
#[derive(Debug)]
enum To {
    Client {
        reply: Reply,
        then: Then,
    },
    Hello,
    Discovery,
    List {
        method: usize,
        pages: Vec<Page>,
        is_first: bool,
    },
    Nobody,
}

/// What an answer brings beside itself.
#[derive(Debug)]
enum Then {
    Done,
    /// Should it be refused, nobody listens to that.
    Subscribed(String),
    /// It may be a question instead.
    Asks(Box<Round>),
}

impl To {
    fn reply(&self) -> Option<&Reply> {
        match self {
            Self::Client { reply, .. } => Some(reply),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Owner {
    known: Arc<Known>,
    /// The parameters that it says `initialize` with.
    hello: Bytes,
    shared: bool,
    seen: Arc<Seen>,
    begun: Instant,
    used: Instant,
    life: Life,
    pipe: Option<Pipe>,
    /// How it is spoken with; found out when it is started first.
    era: Era,
    /// The error by which it refused the handshake.
    refusal: Option<String>,
    /// What the server answered to the handshake.
    greeting: Option<Bytes>,
    calls: Calls<To>,
    members: BTreeMap<u64, Arc<Member>>,
    /// Requests of the server to its clients.
    questions: Questions,
    standing: Standing,
    /// Calls that wait for what the server wants to know of their clients.
    asking: Vec<Asking>,
    listening: Option<Listening>,
    listen_at: Option<Instant>,
    /// Before the handshake.
    queue: VecDeque<(Message, Arc<Member>, Reply)>,
    greeted: Vec<oneshot::Sender<Result<Bytes, NoHello>>>,
    why: String,
    is_retired: bool,
    /// Servers on their way out.
    leaving: JoinSet<()>,
}

impl Owner {
    pub(super) fn new(known: Arc<Known>, hello: Bytes, shared: bool, seen: Arc<Seen>) -> Self {
        Self {
            known,
            hello,
            shared,
            seen,
            begun: Instant::now(),
            used: Instant::now(),
            life: Life::NEW,
            pipe: None,
            era: Era::Handshake,
            refusal: None,
            greeting: None,
            calls: Calls::new(shared),
            members: BTreeMap::new(),
            questions: Questions::default(),
            standing: Standing::default(),
            asking: Vec::new(),
            listening: None,
            listen_at: None,
            queue: VecDeque::new(),
            greeted: Vec::new(),
            why: String::new(),
            is_retired: false,
            leaving: JoinSet::new(),
        }
    }

    pub(super) async fn run(mut self, mut mailbox: mpsc::UnboundedReceiver<Ask>) {
        let (mut done, mut is_known) = (None, true);
        loop {
            let wake = self.wake();
            tokio::select! {
                ask = mailbox.recv(), if is_known => match ask {
                    Some(Ask::End(word)) => {
                        done = Some(word);
                        break;
                    }
                    Some(ask) => self.take(ask).await,
                    // Who asked is gone, and still gets the answers that are open.
                    None => (is_known, self.is_retired) = (false, true),
                },
                happened = next(&mut self.pipe) => self.hear(happened),
                () = sleep(wake) => self.tick().await,
                Some(_) = self.leaving.join_next() => {}
            }
            self.show();
            // What was asked before it retired is still answered.
            if self.is_retired && self.is_quiet() && mailbox.is_empty() {
                break;
            }
        }
        match done {
            Some(_) => self.stop_all(),
            None => self.fail_all(GONE),
        }
        life::turn_away(mailbox, done.is_some()).await;
        if let Some(pipe) = self.pipe.take() {
            self.leaving.spawn(pipe.end());
        }
        while self.leaving.join_next().await.is_some() {}
        self.life.phase = Phase::Down;
        self.show();
        if let Some(done) = done {
            // Who asked for the end may have gone.
            let _ = done.send(());
        }
    }

    fn is_quiet(&self) -> bool {
        self.calls.len() == 0 && self.queue.is_empty() && self.asking.is_empty()
    }

    fn show(&self) {
        let pid = self.pipe.as_ref().and_then(Pipe::pid);
        *self
            .seen
            .phase
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = (self.life.phase, pid);
        let calls = self.calls.len() + self.queue.len() + self.asking.len();
        self.seen.calls.store(calls, Ordering::Relaxed);
    }

    /// When there is something to do though nothing happens.
    fn wake(&self) -> Option<Instant> {
        let resting = match self.life.phase {
            Phase::Resting { until } => Some(self.begun + until),
            // Whoever listens to a resource is not left without its server.
            Phase::Down if !self.standing.is_empty() && !self.is_retired => Some(self.begun),
            _ => None,
        };
        let idle = self.known.server.idle.filter(|_| self.is_idle());
        let idle = idle.map(|idle| self.used + idle);
        [self.calls.earliest(), resting, idle, self.listen_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether it runs for nobody.
    fn is_idle(&self) -> bool {
        self.life.phase == Phase::Up && self.is_quiet() && self.standing.is_empty()
    }

    fn step(&mut self, event: Event) {
        self.life = self.life.after(event, self.begun.elapsed());
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        while let Some((wire, call)) = self.calls.take(|call| call.deadline <= now) {
            self.time_out(&wire, call);
        }
        if let Phase::Resting { until } = self.life.phase
            && self.begun.elapsed() >= until
        {
            self.step(Event::Rested);
        }
        // Who retires still answers what waits for it.
        let is_waited_for = !self.queue.is_empty() || !self.greeted.is_empty();
        let is_listened_to = !self.standing.is_empty() && !self.is_retired;
        if self.life.phase == Phase::Down && (is_waited_for || is_listened_to) {
            self.need().await;
        }
        if self.listen_at.is_some_and(|at| at <= now) {
            self.listen();
        }
        let idle = self.known.server.idle;
        if self.is_idle() && idle.is_some_and(|idle| self.used + idle <= now) {
            self.known
                .log
                .note("nobody has asked for long; it is ended");
            self.step(Event::Idle);
            self.drop_pipe();
        }
    }

    fn time_out(&mut self, wire: &str, call: Call<To>) {
        let seconds = call.timeout.as_secs_f64();
        let why = format!("the server did not answer within {seconds} s");
        match call.to {
            To::Client { reply, .. } => {
                reply.fail(&call.id, -32603, &why);
                let params = format!(r#"{{"requestId":{wire},"reason":"timeout"}}"#);
                self.send(message::notification("notifications/cancelled", &params));
            }
            To::Hello | To::Discovery => self.lost(&why),
            To::List { .. } | To::Nobody => {}
        }
    }

    async fn take(&mut self, ask: Ask) {
        match ask {
            Ask::Join(member) => drop(self.members.insert(member.number, member)),
            Ask::Leave(member) => self.leave(member),
            Ask::Hello(to) => match &self.greeting {
                Some(greeting) => drop(to.send(Ok(greeting.clone()))),
                None => {
                    self.greeted.push(to);
                    self.need().await;
                }
            },
            Ask::Request(message, member, reply) => self.request(message, member, reply).await,
            Ask::Tell(message, member) => self.told(&message, member),
            Ask::Level(level, member) => {
                self.standing.set_level(&level, member);
                if self.life.phase == Phase::Up && self.era == Era::Handshake {
                    self.ask_quietly("logging/setLevel", &level);
                }
            }
            Ask::GiveUp(stream) => {
                self.drop_asking(|asking| asking.stream() == stream);
                self.queue
                    .retain(|(_, _, reply)| reply.stream.number != stream);
                let is_meant = |call: &Call<To>| {
                    let reply = call.to.reply();
                    reply.is_some_and(|reply| reply.stream.number == stream)
                };
                while let Some((wire, _)) = self.calls.take(is_meant) {
                    let params = format!(r#"{{"requestId":{wire},"reason":"disconnected"}}"#);
                    self.send(message::notification("notifications/cancelled", &params));
                }
            }
            Ask::Retire => self.is_retired = true,
            // Taken by the loop.
            Ask::End(_) => {}
        }
    }

    fn leave(&mut self, member: u64) {
        self.members.remove(&member);
        // Its calls go on, and need no longer wait for what it would say.
        for id in self.questions.unanswered(member) {
            self.send(message::error(&id, -32603, CLIENT_GONE));
        }
        for (reply, id) in self.drop_asking(|asking| asking.member() == member) {
            reply.fail(&id, -32603, CLIENT_GONE);
        }
        let members = &self.members;
        let silent = self.standing.keep(|member| members.contains_key(&member));
        if self.era == Era::Stateless {
            if !silent.is_empty() {
                self.listen();
            }
            return;
        }
        for uri in silent {
            let params = serde_json::json!({"uri": uri}).to_string();
            self.ask_quietly("resources/unsubscribe", &params);
        }
    }

    async fn request(&mut self, message: Message, member: Arc<Member>, reply: Reply) {
        self.used = Instant::now();
        let id = message.id().unwrap_or("null").to_owned();
        let backlog = self.pipe.as_ref().map_or(0, Pipe::backlog);
        if self.calls.len() + self.queue.len() >= MOST_CALLS || backlog > MOST_BYTES {
            return reply.fail(&id, -32603, "the server has too many calls to answer");
        }
        if let Some(result) = self.stands(&message, member.number) {
            return reply.result(&id, result);
        }
        if self.life.phase == Phase::Up {
            return self.begin(message, member, reply);
        }
        self.queue.push_back((message, member, reply));
        self.need().await;
    }

    /// What has to be said again to a new server; a result, where nobody else need be told.
    fn stands(&mut self, message: &Message, member: u64) -> Option<&'static str> {
        let uri = || message.text_param(&["uri"]);
        match message.method.as_str() {
            "resources/subscribe" => {
                let is_new = self.standing.subscribe(&uri()?, member);
                (self.shared && !is_new).then_some("{}")
            }
            "resources/unsubscribe" => {
                let is_last = self.standing.unsubscribe(&uri()?, member);
                (self.shared && !is_last).then_some("{}")
            }
            "logging/setLevel" => {
                self.standing.set_level(message.params()?, member);
                None
            }
            _ => None,
        }
    }

    fn begin(&mut self, message: Message, member: Arc<Member>, reply: Reply) {
        if self.era == Era::Stateless {
            return self.begin_stateless(message, member, reply);
        }
        let message = match member.hello {
            Some(_) => message,
            None => era::without_envelope(message),
        };
        let uri = (message.method == "resources/subscribe").then(|| message.text_param(&["uri"]));
        let then = match uri.flatten() {
            Some(uri) => Then::Subscribed(uri),
            None => Then::Done,
        };
        self.call(&message, member.number, reply, then);
    }

    fn call(&mut self, message: &Message, member: u64, reply: Reply, then: Then) {
        let timeout = self.known.server.timeout;
        let to = To::Client { reply, then };
        let text = self.calls.begin(message, member, timeout, to);
        self.send(text);
    }

    fn send(&mut self, text: Bytes) {
        if let Some(pipe) = &mut self.pipe {
            pipe.send(text);
        }
    }

    /// A request of our own; whatever the answer is, it is not waited for.
    fn ask_quietly(&mut self, method: &str, params: &str) {
        self.ask(method, params, To::Nobody, self.known.server.timeout);
    }

    fn handshake_timeout(&self) -> Duration {
        HANDSHAKE_TIMEOUT.min(self.known.server.timeout)
    }

    fn ask(&mut self, method: &str, params: &str, to: To, timeout: Duration) {
        let id = self.calls.own_id();
        let text = message::request(&id, method, params);
        self.calls.begin_own(id, timeout, to);
        match self.era == Era::Stateless || method == DISCOVER {
            true => self.send_dressed(text),
            false => self.send(text),
        }
    }

    /// Sends a request of our own to a server without a handshake.
    fn send_dressed(&mut self, text: Bytes) {
        if let Ok(message) = Message::parse(text) {
            let message = era::enveloped(message, &era::own_envelope());
            self.send(message.text().clone());
        }
    }

    /// Notifications and answers of a client.
    fn told(&mut self, message: &Message, member: u64) {
        self.used = Instant::now();
        match (message.kind, message.method.as_str()) {
            (Kind::Answer, _) => {
                if self.is_told(message, member) {
                    return;
                }
                if let Some(text) = self.questions.answered(message, member) {
                    self.send(text);
                }
            }
            (_, "notifications/cancelled") => self.cancel(message, member),
            // The owner says it itself, when the server is ready.
            (_, "notifications/initialized") => {}
            // A server that clients share knows none of them.
            (_, "notifications/roots/list_changed")
                if self.shared || self.era == Era::Stateless => {}
            _ if self.life.phase == Phase::Up => self.send(message.text().clone()),
            _ => {}
        }
    }

    fn cancel(&mut self, message: &Message, member: u64) {
        if let Some((call, text)) = self.calls.cancelled(member, message) {
            self.send(text);
            if let Some(reply) = call.to.reply() {
                reply.stream.give_up();
            }
            return;
        }
        let Some(id) = message.raw_param(&["requestId"]) else {
            return;
        };
        let given_up =
            self.drop_asking(|asking| asking.member() == member && message::same(asking.id(), id));
        for (reply, _) in given_up {
            reply.stream.give_up();
        }
        let is_meant = |(m, from, _): &(Message, Arc<Member>, Reply)| {
            from.number == member && m.id() == Some(id)
        };
        if let Some(at) = self.queue.iter().position(is_meant)
            && let Some((_, _, reply)) = self.queue.remove(at)
        {
            reply.stream.give_up();
        }
    }

    fn hear(&mut self, happened: Happened) {
        match happened {
            Happened::Line(line) => match Message::parse_all(line.clone()) {
                Ok((messages, _)) => messages.iter().for_each(|message| self.route(message)),
                Err(_) => {
                    let line = String::from_utf8_lossy(&line[..line.len().min(500)]).into_owned();
                    self.known.log.note(&format!("no message: {line}"));
                }
            },
            Happened::Ended(why) => self.lost(&why),
        }
    }
}

async fn next(pipe: &mut Option<Pipe>) -> Happened {
    match pipe {
        Some(pipe) => pipe.next().await,
        None => std::future::pending().await,
    }
}

async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
