//! The task that owns one server. It turns commands, messages of the server and timers into events of the
//! [`policy`](super::restart_policy), and moves messages.

mod inbound;
mod lifecycle;
mod pending_origin;
mod stateless;

use super::pending_requests::{PendingRequest, PendingRequests};
use super::pipe::{ServerPipe, ServerPipeEvent, next_pipe_event};
use super::protocol_revision::{self, ProtocolRevision};
use super::restart_policy::{ServerEvent, ServerLifecycle, ServerPhase};
use super::server_requests::ServerRequests;
use super::subscriptions::ServerSubscriptions;
use super::{HandshakeError, ServerSpec, ServerTaskCommand, ServerTaskState};
use crate::companion::mcp::client::{McpClient, ReplySender};
use crate::companion::mcp::message::{self, RpcMessage, RpcMessageKind};
use bytes::Bytes;
use pending_origin::{OnReply, PendingOrigin};
use stateless::{InputRequiredCall, ListenRequest};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// The handshake's time limit, unless the server's `timeout` is shorter. It allows for the first start of a large
/// server on a slow machine.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(90);
/// Limits of calls that wait for a server, and of bytes that it has not read.
const MAX_PENDING_CALLS: usize = 4096;
const MAX_SERVER_BACKLOG_BYTES: usize = 256 << 20;
/// The first request to a server without a handshake.
const DISCOVER_METHOD: &str = "server/discover";
/// A call waits for a restart delay up to this long; before a longer delay it is refused.
const RESTART_WAIT_TIMEOUT: Duration = Duration::from_secs(3);

const CLIENT_GONE_MESSAGE: &str = "the client of this request has disconnected";
/// The error for calls to a server that the configuration does not offer any more.
pub(super) const SERVER_GONE_MESSAGE: &str =
    "the server was removed or changed in the configuration";

#[derive(Debug)]
pub(super) struct ServerTask {
    known: Arc<ServerSpec>,
    /// The parameters of the `initialize` request to the server.
    hello: Bytes,
    shared: bool,
    seen: Arc<ServerTaskState>,
    begun: Instant,
    used: Instant,
    life: ServerLifecycle,
    pipe: Option<ServerPipe>,
    /// The server's protocol revision; detected at its first start.
    era: ProtocolRevision,
    /// The error with which the server refused the handshake.
    refusal: Option<String>,
    /// The server's `initialize` result.
    greeting: Option<Bytes>,
    calls: PendingRequests<PendingOrigin>,
    members: BTreeMap<u64, Arc<McpClient>>,
    /// Open requests of the server to its clients.
    questions: ServerRequests,
    standing: ServerSubscriptions,
    /// Calls that wait for input that the server requested from their clients.
    asking: Vec<InputRequiredCall>,
    listening: Option<ListenRequest>,
    listen_at: Option<Instant>,
    /// Calls that wait for the handshake.
    queue: VecDeque<(RpcMessage, Arc<McpClient>, ReplySender)>,
    greeted: Vec<oneshot::Sender<Result<Bytes, HandshakeError>>>,
    why: String,
    is_retired: bool,
    /// Servers that are shutting down.
    leaving: JoinSet<()>,
}

impl ServerTask {
    pub(super) fn new(
        known: Arc<ServerSpec>,
        hello: Bytes,
        shared: bool,
        seen: Arc<ServerTaskState>,
    ) -> Self {
        Self {
            known,
            hello,
            shared,
            seen,
            begun: Instant::now(),
            used: Instant::now(),
            life: ServerLifecycle::INITIAL_LIFECYCLE,
            pipe: None,
            era: ProtocolRevision::Handshake,
            refusal: None,
            greeting: None,
            calls: PendingRequests::new(shared),
            members: BTreeMap::new(),
            questions: ServerRequests::default(),
            standing: ServerSubscriptions::default(),
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

    pub(super) async fn run(mut self, mut mailbox: mpsc::UnboundedReceiver<ServerTaskCommand>) {
        let (mut done, mut is_known) = (None, true);
        loop {
            let wake = self.next_wake();
            tokio::select! {
                ask = mailbox.recv(), if is_known => match ask {
                    Some(ServerTaskCommand::End(word)) => {
                        done = Some(word);
                        break;
                    }
                    Some(ask) => self.handle_command(ask).await,
                    // The handle was dropped; open calls still bring their answers.
                    None => (is_known, self.is_retired) = (false, true),
                },
                happened = next_pipe_event(&mut self.pipe) => self.handle_pipe_event(happened),
                () = sleep_until_wake(wake) => self.handle_timers().await,
                Some(_) = self.leaving.join_next() => {}
            }
            self.publish_state();
            // Commands that arrived before the retirement are still processed.
            if self.is_retired && self.is_quiet() && mailbox.is_empty() {
                break;
            }
        }
        match done {
            Some(_) => self.stop_all(),
            None => self.fail_all(SERVER_GONE_MESSAGE),
        }
        lifecycle::reject_commands(mailbox, done.is_some()).await;
        if let Some(pipe) = self.pipe.take() {
            self.leaving.spawn(pipe.shutdown());
        }
        while self.leaving.join_next().await.is_some() {}
        self.life.phase = ServerPhase::Down;
        self.publish_state();
        if let Some(done) = done {
            // The requester may be gone.
            let _ = done.send(());
        }
    }

    fn is_quiet(&self) -> bool {
        self.calls.len() == 0 && self.queue.is_empty() && self.asking.is_empty()
    }

    fn publish_state(&self) {
        let pid = self.pipe.as_ref().and_then(ServerPipe::pid);
        *self
            .seen
            .phase
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = (self.life.phase, pid);
        let calls = self.calls.len() + self.queue.len() + self.asking.len();
        self.seen.calls.store(calls, Ordering::Relaxed);
    }

    /// The next time at which a timer fires.
    fn next_wake(&self) -> Option<Instant> {
        let resting = match self.life.phase {
            ServerPhase::Resting { until } => Some(self.begun + until),
            // A server with subscriptions is restarted without a request.
            ServerPhase::Down if !self.standing.is_empty() && !self.is_retired => Some(self.begun),
            _ => None,
        };
        let idle = self.known.server.idle.filter(|_| self.is_idle());
        let idle = idle.map(|idle| self.used + idle);
        [
            self.calls.earliest_deadline(),
            resting,
            idle,
            self.listen_at,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether the server runs without open calls and subscriptions.
    fn is_idle(&self) -> bool {
        self.life.phase == ServerPhase::Up && self.is_quiet() && self.standing.is_empty()
    }

    fn apply_event(&mut self, event: ServerEvent) {
        self.life = self.life.after_event(event, self.begun.elapsed());
    }

    async fn handle_timers(&mut self) {
        let now = Instant::now();
        while let Some((wire, call)) = self.calls.take_matching(|call| call.deadline <= now) {
            self.time_out(&wire, call);
        }
        if let ServerPhase::Resting { until } = self.life.phase
            && self.begun.elapsed() >= until
        {
            self.apply_event(ServerEvent::Rested);
        }
        // A retired task still answers the calls that wait.
        let is_waited_for = !self.queue.is_empty() || !self.greeted.is_empty();
        let is_listened_to = !self.standing.is_empty() && !self.is_retired;
        if self.life.phase == ServerPhase::Down && (is_waited_for || is_listened_to) {
            self.ensure_started().await;
        }
        if self.listen_at.is_some_and(|at| at <= now) {
            self.renew_listen_request();
        }
        let idle = self.known.server.idle;
        if self.is_idle() && idle.is_some_and(|idle| self.used + idle <= now) {
            self.known.log.append_note("the hub ends the idle server");
            self.apply_event(ServerEvent::Idle);
            self.drop_pipe();
        }
    }

    fn time_out(&mut self, wire: &str, call: PendingRequest<PendingOrigin>) {
        let seconds = call.timeout.as_secs_f64();
        let why = format!("the server did not answer within {seconds} s");
        match call.to {
            PendingOrigin::Client { reply, .. } => {
                reply.send_error(&call.id, -32603, &why);
                let params = format!(r#"{{"requestId":{wire},"reason":"timeout"}}"#);
                self.send_to_server(message::notification_message(
                    "notifications/cancelled",
                    &params,
                ));
            }
            PendingOrigin::Hello | PendingOrigin::Discovery => self.handle_server_loss(&why),
            PendingOrigin::List { .. } | PendingOrigin::Ignored => {}
        }
    }

    async fn handle_command(&mut self, ask: ServerTaskCommand) {
        match ask {
            ServerTaskCommand::Join(member) => drop(self.members.insert(member.number, member)),
            ServerTaskCommand::Leave(member) => self.remove_client(member),
            ServerTaskCommand::Hello(to) => match &self.greeting {
                Some(greeting) => drop(to.send(Ok(greeting.clone()))),
                None => {
                    self.greeted.push(to);
                    self.ensure_started().await;
                }
            },
            ServerTaskCommand::Request(message, member, reply) => {
                self.handle_request(message, member, reply).await
            }
            ServerTaskCommand::Tell(message, member) => {
                self.handle_client_message(&message, member)
            }
            ServerTaskCommand::Level(level, member) => {
                self.standing.set_level(&level, member);
                if self.life.phase == ServerPhase::Up && self.era == ProtocolRevision::Handshake {
                    self.send_unawaited_request("logging/setLevel", &level);
                }
            }
            ServerTaskCommand::GiveUp(stream) => {
                self.drop_input_required(|asking| asking.stream_number() == stream);
                self.queue
                    .retain(|(_, _, reply)| reply.stream.number != stream);
                let is_meant = |call: &PendingRequest<PendingOrigin>| {
                    let reply = call.to.reply();
                    reply.is_some_and(|reply| reply.stream.number == stream)
                };
                while let Some((wire, _)) = self.calls.take_matching(is_meant) {
                    let params = format!(r#"{{"requestId":{wire},"reason":"disconnected"}}"#);
                    self.send_to_server(message::notification_message(
                        "notifications/cancelled",
                        &params,
                    ));
                }
            }
            ServerTaskCommand::Retire => self.is_retired = true,
            // The main loop handles `End`.
            ServerTaskCommand::End(_) => {}
        }
    }

    fn remove_client(&mut self, member: u64) {
        self.members.remove(&member);
        // The client's calls continue; the server need not wait for the client's answers any more.
        for id in self.questions.take_unanswered(member) {
            self.send_to_server(message::error_response(&id, -32603, CLIENT_GONE_MESSAGE));
        }
        for (reply, id) in self.drop_input_required(|asking| asking.client_number() == member) {
            reply.send_error(&id, -32603, CLIENT_GONE_MESSAGE);
        }
        let members = &self.members;
        let silent = self
            .standing
            .retain_clients(|member| members.contains_key(&member));
        if self.era == ProtocolRevision::Stateless {
            if !silent.is_empty() {
                self.renew_listen_request();
            }
            return;
        }
        for uri in silent {
            let params = serde_json::json!({"uri": uri}).to_string();
            self.send_unawaited_request("resources/unsubscribe", &params);
        }
    }

    async fn handle_request(
        &mut self,
        message: RpcMessage,
        member: Arc<McpClient>,
        reply: ReplySender,
    ) {
        self.used = Instant::now();
        let id = message.id().unwrap_or("null").to_owned();
        let backlog = self.pipe.as_ref().map_or(0, ServerPipe::backlog);
        if self.calls.len() + self.queue.len() >= MAX_PENDING_CALLS
            || backlog > MAX_SERVER_BACKLOG_BYTES
        {
            return reply.send_error(&id, -32603, "the server has too many open calls");
        }
        if let Some(result) = self.record_subscription(&message, member.number) {
            return reply.send_result(&id, result);
        }
        if self.life.phase == ServerPhase::Up {
            return self.start_call(message, member, reply);
        }
        self.queue.push_back((message, member, reply));
        self.ensure_started().await;
    }

    /// Records a subscription or log level for a restart. Returns a result for the client where the server need not
    /// receive the request.
    fn record_subscription(&mut self, message: &RpcMessage, member: u64) -> Option<&'static str> {
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

    fn start_call(&mut self, message: RpcMessage, member: Arc<McpClient>, reply: ReplySender) {
        if self.era == ProtocolRevision::Stateless {
            return self.begin_stateless(message, member, reply);
        }
        let message = match member.hello {
            Some(_) => message,
            None => protocol_revision::without_envelope(message),
        };
        let uri = (message.method == "resources/subscribe").then(|| message.text_param(&["uri"]));
        let then = match uri.flatten() {
            Some(uri) => OnReply::Subscribed(uri),
            None => OnReply::Done,
        };
        self.send_call(&message, member.number, reply, then);
    }

    fn send_call(&mut self, message: &RpcMessage, member: u64, reply: ReplySender, then: OnReply) {
        let timeout = self.known.server.timeout;
        let to = PendingOrigin::Client { reply, then };
        let text = self.calls.register_request(message, member, timeout, to);
        self.send_to_server(text);
    }

    fn send_to_server(&mut self, text: Bytes) {
        if let Some(pipe) = &mut self.pipe {
            pipe.send(text);
        }
    }

    /// Sends a request of the hub and ignores its answer.
    fn send_unawaited_request(&mut self, method: &str, params: &str) {
        self.send_own_request(
            method,
            params,
            PendingOrigin::Ignored,
            self.known.server.timeout,
        );
    }

    fn handshake_timeout(&self) -> Duration {
        HANDSHAKE_TIMEOUT.min(self.known.server.timeout)
    }

    fn send_own_request(
        &mut self,
        method: &str,
        params: &str,
        to: PendingOrigin,
        timeout: Duration,
    ) {
        let id = self.calls.own_id();
        let text = message::request_message(&id, method, params);
        self.calls.register_own(id, timeout, to);
        match self.era == ProtocolRevision::Stateless || method == DISCOVER_METHOD {
            true => self.send_enveloped(text),
            false => self.send_to_server(text),
        }
    }

    /// Sends a request of the hub to a server without a handshake.
    fn send_enveloped(&mut self, text: Bytes) {
        if let Ok(message) = RpcMessage::parse(text) {
            let message =
                protocol_revision::with_envelope(message, &protocol_revision::own_envelope());
            self.send_to_server(message.text().clone());
        }
    }

    /// Forwards notifications and answers of a client.
    fn handle_client_message(&mut self, message: &RpcMessage, member: u64) {
        self.used = Instant::now();
        match (message.kind, message.method.as_str()) {
            (RpcMessageKind::Answer, _) => {
                if self.take_client_answer(message, member) {
                    return;
                }
                if let Some(text) = self.questions.take_answered(message, member) {
                    self.send_to_server(text);
                }
            }
            (_, "notifications/cancelled") => self.cancel_call(message, member),
            // The task sends this notification itself when the server is ready.
            (_, "notifications/initialized") => {}
            // A server that clients share has no roots of a single client.
            (_, "notifications/roots/list_changed")
                if self.shared || self.era == ProtocolRevision::Stateless => {}
            _ if self.life.phase == ServerPhase::Up => self.send_to_server(message.text().clone()),
            _ => {}
        }
    }

    fn cancel_call(&mut self, message: &RpcMessage, member: u64) {
        if let Some((call, text)) = self.calls.take_cancelled(member, message) {
            self.send_to_server(text);
            if let Some(reply) = call.to.reply() {
                reply.stream.give_up();
            }
            return;
        }
        let Some(id) = message.raw_param(&["requestId"]) else {
            return;
        };
        let given_up = self.drop_input_required(|asking| {
            asking.client_number() == member && message::is_same_id(asking.request_id(), id)
        });
        for (reply, _) in given_up {
            reply.stream.give_up();
        }
        let is_meant = |(m, from, _): &(RpcMessage, Arc<McpClient>, ReplySender)| {
            from.number == member && m.id() == Some(id)
        };
        if let Some(at) = self.queue.iter().position(is_meant)
            && let Some((_, _, reply)) = self.queue.remove(at)
        {
            reply.stream.give_up();
        }
    }

    fn handle_pipe_event(&mut self, happened: ServerPipeEvent) {
        match happened {
            ServerPipeEvent::Line(line) => match RpcMessage::parse_all(line.clone()) {
                Ok((messages, _)) => messages
                    .iter()
                    .for_each(|message| self.route_message(message)),
                Err(_) => {
                    let line = String::from_utf8_lossy(&line[..line.len().min(500)]).into_owned();
                    self.known
                        .log
                        .append_note(&format!("not a message: {line}"));
                }
            },
            ServerPipeEvent::Ended(why) => self.handle_server_loss(&why),
        }
    }
}

async fn sleep_until_wake(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
