//! One running server (a child) and the task that owns it.
//!
//! [`ServerHandle`] is the handle. The owner task ([`server_task`]) starts the server when a client needs it
//! ([`restart_policy`]), performs the handshake in the revision that the server supports ([`protocol_revision`]),
//! routes each answer to the client that waits for it ([`pending_requests`]), and ends the server after its idle
//! time. Failures of the server stay in this module: waiting clients receive an error, other servers are not
//! affected.
//!
//! The task reaches a server through a [`pipe`]: a child process ([`process`]), a URL ([`remote`]), or channels to
//! the built-in server ([`in_process`]).

mod in_process;
mod pending_requests;
mod pipe;
mod process;
pub(super) mod protocol_revision;
mod remote;
mod restart_policy;
mod server_requests;
mod server_task;
mod subscriptions;

pub(super) use in_process::InProcessServer;
pub(super) use restart_policy::ServerPhase;

use super::cache::ServerCache;
use super::client::{McpClient, ReplySender};
use super::config::McpServerConfig;
use super::list_delay::ListDelay;
use super::log::McpServerLog;
use super::message::RpcMessage;
use super::resource_index::ResourceIndex;
use bytes::Bytes;
use server_task::ServerTask;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// The state shared by all children of one configured server.
#[derive(Debug)]
pub(super) struct ServerSpec {
    pub(super) server: McpServerConfig,
    pub(super) cache: ServerCache,
    pub(super) log: Arc<McpServerLog>,
    pub(super) links: Arc<ResourceIndex>,
    pub(super) list_delay: Arc<ListDelay>,
    /// The built-in server, used if the configuration selects it.
    pub(super) os: Arc<dyn InProcessServer>,
    /// How often a child ended unexpectedly.
    pub(super) crashes: AtomicUsize,
}

#[derive(Debug, Clone)]
pub(super) struct ServerHandle {
    asks: mpsc::UnboundedSender<ServerTaskCommand>,
    seen: Arc<ServerTaskState>,
}

/// The state of the task, readable through the handle.
#[derive(Debug)]
struct ServerTaskState {
    phase: Mutex<(ServerPhase, Option<i32>)>,
    calls: AtomicUsize,
}

/// A failed handshake: the server's own error, or the reason for the missing answer.
#[derive(Debug, Clone)]
pub(super) enum HandshakeError {
    /// The raw JSON of `error`.
    Refused(String),
    Failed(String),
}

#[derive(Debug)]
enum ServerTaskCommand {
    /// Delivers messages that belong to no call to this client from now on.
    Join(Arc<McpClient>),
    Leave(u64),
    Hello(oneshot::Sender<Result<Bytes, HandshakeError>>),
    Request(RpcMessage, Arc<McpClient>, ReplySender),
    /// A notification, or an answer to a request of the server.
    Tell(RpcMessage, u64),
    /// The lowest level of log messages that a client wants.
    Level(String, u64),
    /// Stops waiting for the call of this stream.
    GiveUp(u64),
    /// Ends the task when no call is open any more.
    Retire,
    End(oneshot::Sender<()>),
}

impl ServerHandle {
    /// Creates the task without starting the server. `numbered`: several clients share the child, so request ids are
    /// replaced by numbers.
    pub(super) fn new(known: Arc<ServerSpec>, hello: Bytes, numbered: bool) -> Self {
        let (asks, mailbox) = mpsc::unbounded_channel();
        let seen = Arc::new(ServerTaskState {
            phase: Mutex::new((ServerPhase::Down, None)),
            calls: AtomicUsize::new(0),
        });
        let owner = ServerTask::new(known, hello, numbered, seen.clone());
        tokio::spawn(owner.run(mailbox));
        Self { asks, seen }
    }

    pub(super) fn add_client(&self, member: Arc<McpClient>) {
        self.send_command(ServerTaskCommand::Join(member));
    }

    pub(super) fn remove_client(&self, member: u64) {
        self.send_command(ServerTaskCommand::Leave(member));
    }

    /// The result of the handshake; starts the server if necessary.
    pub(super) async fn initialize_result(&self) -> Result<Bytes, HandshakeError> {
        let (answer, receiver) = oneshot::channel();
        self.send_command(ServerTaskCommand::Hello(answer));
        let gone = || HandshakeError::Failed(server_task::SERVER_GONE_MESSAGE.into());
        receiver.await.map_err(|_| gone())?
    }

    pub(super) fn send_request(
        &self,
        message: RpcMessage,
        member: &Arc<McpClient>,
        reply: ReplySender,
    ) {
        if let Err(unsent) =
            self.asks
                .send(ServerTaskCommand::Request(message, member.clone(), reply))
            && let ServerTaskCommand::Request(message, _, reply) = unsent.0
        {
            let id = message.id().unwrap_or("null");
            reply.send_error(id, -32603, server_task::SERVER_GONE_MESSAGE);
        }
    }

    pub(super) fn send_message(&self, message: RpcMessage, member: u64) {
        self.send_command(ServerTaskCommand::Tell(message, member));
    }

    pub(super) fn set_level(&self, level: &str, member: u64) {
        self.send_command(ServerTaskCommand::Level(level.into(), member));
    }

    pub(super) fn give_up(&self, stream: u64) {
        self.send_command(ServerTaskCommand::GiveUp(stream));
    }

    pub(super) fn drain(&self) {
        self.send_command(ServerTaskCommand::Retire);
    }

    /// Ends the server and every process that it started, and waits until all have ended.
    pub(super) async fn shutdown(&self) {
        let (done, receiver) = oneshot::channel();
        self.send_command(ServerTaskCommand::End(done));
        // If the task has ended already, no process is left.
        let _ = receiver.await;
    }

    /// Whether the task has ended: the server was ended, or retired and has no open call.
    pub(super) fn is_over(&self) -> bool {
        self.asks.is_closed()
    }

    pub(super) fn phase(&self) -> (ServerPhase, Option<i32>) {
        *self
            .seen
            .phase
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pending_count(&self) -> usize {
        self.seen.calls.load(Ordering::Relaxed)
    }

    fn send_command(&self, ask: ServerTaskCommand) {
        // A task that has ended needs no command.
        let _ = self.asks.send(ask);
    }
}
