//! The task that owns one server. It turns commands, messages of the server and timers into events of the
//! [`policy`](super::restart_policy), and moves messages.

mod cancellation;
mod command;
mod inbound;
mod lifecycle;
mod pending_origin;
mod stateless;
mod timers;

pub(super) use command::{ServerTaskCommand, ServerTaskState};

use super::event::ServerPipeEvent;
use super::pending_requests::{PendingRequest, PendingRequests};
use super::pipe::{ServerPipe, next_pipe_event};
use super::protocol_revision::{self, ProtocolRevision};
use super::restart_policy::{ServerEvent, ServerLifecycle, ServerPhase};
use super::server_requests::ServerRequests;
use super::subscriptions::ServerSubscriptions;
use super::{HandshakeError, ServerSpec};
use crate::client::{McpClient, ReplySender};
use crate::message::{self, RpcMessage, RpcMessageKind};
use bytes::Bytes;
use pending_origin::{OnReply, PendingOrigin};
use stateless::{InputRequiredCall, ListenRequest};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The handshake's time limit, unless the server's `timeout` is shorter. It allows for the first start of a large
/// server on a slow machine.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(90);
/// Limits of calls that wait for a server, and of bytes that it has not read.
const MAX_PENDING_CALLS: usize = 4096;
const MAX_SERVER_BACKLOG_BYTES: usize = 256 << 20;
/// The first request to a server without a handshake.
const DISCOVER_METHOD: &str = "server/discover";

const CLIENT_GONE_MESSAGE: &str = "the client of this request has disconnected";
/// The error for calls to a server that the configuration does not offer any more.
pub(super) const SERVER_GONE_MESSAGE: &str =
    "the server was removed or changed in the configuration";

#[derive(Debug)]
pub(super) struct ServerTask {
    spec: Arc<ServerSpec>,
    is_shared: bool,
    published_state: Arc<ServerTaskState>,
    started_at: Instant,
    last_used: Instant,
    lifecycle: ServerLifecycle,
    is_draining: bool,
    handshake: ServerHandshake,
    connection: ServerConnection,
    calls: OpenCalls,
    clients: BTreeMap<u64, Arc<McpClient>>,
    /// Open requests of the server to its clients.
    server_requests: ServerRequests,
    subscriptions: ServerSubscriptions,
    /// Servers that are shutting down.
    shutting_down: JoinSet<()>,
}

#[derive(Debug)]
struct ServerHandshake {
    /// The parameters of the `initialize` request to the server.
    initialize_params: Bytes,
    /// The server's protocol revision; detected at its first start.
    revision: ProtocolRevision,
    /// The error with which the server refused the handshake.
    refusal: Option<String>,
    waiters: Vec<oneshot::Sender<Result<Bytes, HandshakeError>>>,
}

/// What ends with the running server.
#[derive(Debug, Default)]
struct ServerConnection {
    pipe: Option<ServerPipe>,
    /// The server's `initialize` result.
    initialize_result: Option<Bytes>,
    listen_request: Option<ListenRequest>,
    relisten_at: Option<Instant>,
    /// When the server last received the cancellation of a call.
    last_cancel: Option<Instant>,
}

/// The calls without an answer.
#[derive(Debug)]
struct OpenCalls {
    pending: PendingRequests<PendingOrigin>,
    /// Calls that wait for the handshake.
    queued: VecDeque<(RpcMessage, Arc<McpClient>, ReplySender)>,
    /// Calls that wait for input that the server requested from their clients.
    input_required: Vec<InputRequiredCall>,
}

impl OpenCalls {
    fn count(&self) -> usize {
        self.pending.len() + self.queued.len() + self.input_required.len()
    }
}

impl ServerTask {
    pub(super) fn new(
        spec: Arc<ServerSpec>,
        initialize_params: Bytes,
        is_shared: bool,
        published_state: Arc<ServerTaskState>,
    ) -> Self {
        Self {
            spec,
            is_shared,
            published_state,
            started_at: Instant::now(),
            last_used: Instant::now(),
            lifecycle: ServerLifecycle::INITIAL_LIFECYCLE,
            is_draining: false,
            handshake: ServerHandshake {
                initialize_params,
                revision: ProtocolRevision::Handshake,
                refusal: None,
                waiters: Vec::new(),
            },
            connection: ServerConnection::default(),
            calls: OpenCalls {
                pending: PendingRequests::new(is_shared),
                queued: VecDeque::new(),
                input_required: Vec::new(),
            },
            clients: BTreeMap::new(),
            server_requests: ServerRequests::default(),
            subscriptions: ServerSubscriptions::default(),
            shutting_down: JoinSet::new(),
        }
    }

    #[tracing::instrument(name = "server", skip_all, fields(server = %self.spec.config.name))]
    pub(super) async fn run(mut self, mut mailbox: mpsc::UnboundedReceiver<ServerTaskCommand>) {
        let (mut done, mut is_known) = (None, true);
        loop {
            let wake = self.next_timer();
            tokio::select! {
                command = mailbox.recv(), if is_known => match command {
                    Some(ServerTaskCommand::Shutdown(word)) => {
                        done = Some(word);
                        break;
                    }
                    Some(command) => self.handle_command(command).await,
                    // The handle was dropped; open calls still bring their answers.
                    None => (is_known, self.is_draining) = (false, true),
                },
                happened = next_pipe_event(&mut self.connection.pipe) => self.handle_pipe_event(happened).await,
                () = timers::sleep_until_wake(wake) => self.handle_timers().await,
                Some(_) = self.shutting_down.join_next() => {}
            }
            self.publish_state();
            // Commands that arrived before `Drain` are still processed.
            if self.demand().is_drained() && mailbox.is_empty() {
                break;
            }
        }
        match done {
            Some(_) => self.fail_all_on_shutdown(),
            None => self.fail_all(SERVER_GONE_MESSAGE),
        }
        lifecycle::reject_commands(mailbox, done.is_some()).await;
        if let Some(pipe) = self.connection.pipe.take() {
            self.shutting_down.spawn(pipe.shutdown());
        }
        while self.shutting_down.join_next().await.is_some() {}
        self.lifecycle.phase = ServerPhase::Down;
        self.publish_state();
        if let Some(done) = done {
            // The requester may be gone.
            let _ = done.send(());
        }
    }

    fn publish_state(&self) {
        let pid = self.connection.pipe.as_ref().and_then(ServerPipe::pid);
        *self.published_state.phase.lock() = (self.lifecycle.phase, pid);
        let pending_count = &self.published_state.pending_count;
        pending_count.store(self.calls.count(), Ordering::Relaxed);
    }

    fn apply_event(&mut self, event: ServerEvent) {
        self.lifecycle = self.lifecycle.after_event(event, self.started_at.elapsed());
    }

    async fn handle_command(&mut self, command: ServerTaskCommand) {
        match command {
            ServerTaskCommand::AddClient(client) => {
                drop(self.clients.insert(client.number, client))
            }
            ServerTaskCommand::RemoveClient(client) => self.remove_client(client),
            ServerTaskCommand::Initialize(to) => match &self.connection.initialize_result {
                Some(result) => drop(to.send(Ok(result.clone()))),
                None => {
                    self.handshake.waiters.push(to);
                    self.ensure_started().await;
                }
            },
            ServerTaskCommand::SendRequest(message, client, reply) => {
                self.handle_request(message, client, reply).await
            }
            ServerTaskCommand::SendMessage(message, client) => {
                self.handle_client_message(&message, client)
            }
            ServerTaskCommand::SetLevel(level, client) => {
                self.subscriptions.set_level(&level, client);
                if self.lifecycle.phase == ServerPhase::Up
                    && self.handshake.revision == ProtocolRevision::Handshake
                {
                    self.send_unawaited_request("logging/setLevel", &level);
                }
            }
            ServerTaskCommand::CancelStream(stream) => {
                self.drop_input_required(|input_call| input_call.stream_number() == stream);
                self.calls
                    .queued
                    .retain(|(_, _, reply)| reply.stream.number != stream);
                let is_meant = |call: &PendingRequest<PendingOrigin>| {
                    let reply = call.origin.reply();
                    reply.is_some_and(|reply| reply.stream.number == stream)
                };
                while let Some((server_id, _)) = self.calls.pending.take_matching(is_meant) {
                    self.send_cancellation(&server_id, "disconnected");
                }
            }
            ServerTaskCommand::Drain => self.is_draining = true,
            // The main loop handles `Shutdown`.
            ServerTaskCommand::Shutdown(_) => {}
        }
    }

    fn remove_client(&mut self, client: u64) {
        self.clients.remove(&client);
        // The client's calls continue; the server need not wait for the client's answers any more.
        for id in self.server_requests.take_unanswered(client) {
            self.send_to_server(message::error_response(&id, -32603, CLIENT_GONE_MESSAGE));
        }
        for (reply, id) in self.drop_input_required(|call| call.client_number() == client) {
            reply.send_error(&id, -32603, CLIENT_GONE_MESSAGE);
        }
        let clients = &self.clients;
        let silent = self
            .subscriptions
            .retain_clients(|client| clients.contains_key(&client));
        if self.handshake.revision == ProtocolRevision::Stateless {
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
        client: Arc<McpClient>,
        reply: ReplySender,
    ) {
        self.last_used = Instant::now();
        if message.method == "tools/call" {
            self.spec.call_count.fetch_add(1, Ordering::Relaxed);
        }
        let id = message.id().unwrap_or("null").to_owned();
        let backlog = self.connection.pipe.as_ref().map_or(0, ServerPipe::backlog);
        if self.calls.pending.len() + self.calls.queued.len() >= MAX_PENDING_CALLS
            || backlog > MAX_SERVER_BACKLOG_BYTES
        {
            return reply.send_error(&id, -32603, "the server has too many open calls");
        }
        if let Some(result) = self.record_subscription(&message, client.number) {
            return reply.send_result(&id, result);
        }
        if self.lifecycle.phase == ServerPhase::Up {
            return self.start_call(message, client, reply);
        }
        self.calls.queued.push_back((message, client, reply));
        self.ensure_started().await;
    }

    /// Records a subscription or log level for a restart. Returns a result for the client where the server need not
    /// receive the request.
    fn record_subscription(&mut self, message: &RpcMessage, client: u64) -> Option<&'static str> {
        let uri = || message.text_param(&["uri"]);
        match message.method.as_str() {
            "resources/subscribe" => {
                let is_new = self.subscriptions.subscribe(&uri()?, client);
                (self.is_shared && !is_new).then_some("{}")
            }
            "resources/unsubscribe" => {
                let is_last = self.subscriptions.unsubscribe(&uri()?, client);
                (self.is_shared && !is_last).then_some("{}")
            }
            "logging/setLevel" => {
                self.subscriptions.set_level(message.params()?, client);
                None
            }
            _ => None,
        }
    }

    fn start_call(&mut self, message: RpcMessage, client: Arc<McpClient>, reply: ReplySender) {
        if self.handshake.revision == ProtocolRevision::Stateless {
            return self.start_stateless_call(message, client, reply);
        }
        let message = match client.initialize_params {
            Some(_) => message,
            None => protocol_revision::without_envelope(message),
        };
        let uri = (message.method == "resources/subscribe").then(|| message.text_param(&["uri"]));
        let tool = (message.method == "tools/call").then(|| message.text_param(&["name"]));
        let is_repeatable =
            |tool: &String| !reply.is_repeated && self.spec.cache.is_read_only_tool(tool);
        let then = match (uri.flatten(), tool.flatten()) {
            (Some(uri), _) => OnReply::UndoSubscription(uri),
            (_, Some(tool)) if is_repeatable(&tool) => {
                OnReply::RepeatOnLoss(Box::new((message.clone(), client.clone())))
            }
            _ => OnReply::Forward,
        };
        self.send_call(&message, client.number, reply, then);
    }

    fn send_call(
        &mut self,
        message: &RpcMessage,
        client: u64,
        reply: ReplySender,
        on_reply: OnReply,
    ) {
        let timeout = self.spec.config.call_timeout;
        let to = PendingOrigin::Client { reply, on_reply };
        let message = self
            .calls
            .pending
            .register_request(message, client, timeout, to);
        self.send_to_server(message);
    }

    fn send_to_server(&mut self, message: RpcMessage) {
        if let Some(pipe) = &mut self.connection.pipe {
            pipe.send(message);
        }
    }

    /// Sends a request of the hub and ignores its answer.
    fn send_unawaited_request(&mut self, method: &str, params: &str) {
        self.send_hub_request(
            method,
            params,
            PendingOrigin::Ignored,
            self.spec.config.call_timeout,
        );
    }

    fn handshake_timeout(&self) -> Duration {
        HANDSHAKE_TIMEOUT.min(self.spec.config.call_timeout)
    }

    fn send_hub_request(
        &mut self,
        method: &str,
        params: &str,
        to: PendingOrigin,
        timeout: Duration,
    ) {
        let id = self.calls.pending.next_hub_id();
        let request = message::request_message(&id, method, params);
        self.calls.pending.register_hub_request(id, timeout, to);
        match self.handshake.revision == ProtocolRevision::Stateless || method == DISCOVER_METHOD {
            true => self.send_enveloped(request),
            false => self.send_to_server(request),
        }
    }

    /// Sends a request of the hub to a server without a handshake.
    fn send_enveloped(&mut self, request: RpcMessage) {
        let envelope = protocol_revision::hub_envelope();
        self.send_to_server(protocol_revision::with_envelope(request, &envelope));
    }

    /// Forwards notifications and answers of a client.
    fn handle_client_message(&mut self, message: &RpcMessage, client: u64) {
        self.last_used = Instant::now();
        match (message.kind, message.method.as_str()) {
            (RpcMessageKind::Answer, _) => {
                if self.handle_client_answer(message, client) {
                    return;
                }
                if let Some(answer) = self.server_requests.take_answered(message, client) {
                    self.send_to_server(answer);
                }
            }
            (_, "notifications/cancelled") => self.cancel_call(message, client),
            // The task sends this notification itself when the server is ready.
            (_, "notifications/initialized") => {}
            // A server that clients share has no roots of a single client.
            (_, "notifications/roots/list_changed")
                if self.is_shared || self.handshake.revision == ProtocolRevision::Stateless => {}
            _ if self.lifecycle.phase == ServerPhase::Up => self.send_to_server(message.clone()),
            _ => {}
        }
    }

    fn cancel_call(&mut self, message: &RpcMessage, client: u64) {
        if let Some((call, message)) = self.calls.pending.take_cancelled(client, message) {
            self.forward_cancellation(message);
            if let Some(reply) = call.origin.reply() {
                reply.stream.skip_answer();
            }
            return;
        }
        let Some(id) = message.raw_param(&["requestId"]) else {
            return;
        };
        let cancelled = self.drop_input_required(|input_call| {
            input_call.client_number() == client && message::is_same_id(input_call.request_id(), id)
        });
        for (reply, _) in cancelled {
            reply.stream.skip_answer();
        }
        let is_meant = |(m, from, _): &(RpcMessage, Arc<McpClient>, ReplySender)| {
            from.number == client && m.id() == Some(id)
        };
        if let Some(at) = self.calls.queued.iter().position(is_meant)
            && let Some((_, _, reply)) = self.calls.queued.remove(at)
        {
            reply.stream.skip_answer();
        }
    }

    async fn handle_pipe_event(&mut self, happened: ServerPipeEvent) {
        match happened {
            ServerPipeEvent::Message(message) => self.route_message(&message),
            ServerPipeEvent::Line(line) => match RpcMessage::parse_all(line.clone()) {
                Ok((messages, _)) => messages
                    .iter()
                    .for_each(|message| self.route_message(message)),
                Err(_) => {
                    let line = String::from_utf8_lossy(&line[..line.len().min(500)]).into_owned();
                    self.spec.log.append_note(&format!("not a message: {line}"));
                }
            },
            ServerPipeEvent::Ended(why) => {
                let repeatable = self.take_repeatable_calls();
                self.handle_server_loss(&why);
                if !repeatable.is_empty() {
                    self.calls.queued.extend(repeatable);
                    self.ensure_started().await;
                }
            }
        }
    }
}
