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

mod event;
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

pub(in crate::companion) use in_process::InProcessServer;
pub(super) use restart_policy::ServerPhase;

use super::client::{McpClient, ReplySender};
use super::config::McpServerConfig;
use super::list_delay::ListDelay;
use super::message::RpcMessage;
use super::resource_index::ResourceIndex;
use super::server_cache::ServerCache;
use super::server_log::McpServerLog;
use bytes::Bytes;
use parking_lot::Mutex;
use server_task::ServerTask;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

/// The state shared by all children of one configured server.
#[derive(Debug)]
pub(super) struct ServerSpec {
    pub(super) config: McpServerConfig,
    pub(super) cache: ServerCache,
    pub(super) log: Arc<McpServerLog>,
    pub(super) resource_index: Arc<ResourceIndex>,
    pub(super) list_delay: Arc<ListDelay>,
    /// The built-in server, used if the configuration selects it.
    pub(super) built_in_server: Arc<dyn InProcessServer>,
    /// How often a child ended unexpectedly.
    pub(super) crash_count: AtomicUsize,
}

#[derive(Debug, Clone)]
pub(super) struct ServerHandle {
    commands: mpsc::UnboundedSender<ServerTaskCommand>,
    state: Arc<ServerTaskState>,
}

/// The state of the task, readable through the handle.
#[derive(Debug)]
struct ServerTaskState {
    phase: Mutex<(ServerPhase, Option<i32>)>,
    pending_count: AtomicUsize,
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
    AddClient(Arc<McpClient>),
    RemoveClient(u64),
    Initialize(oneshot::Sender<Result<Bytes, HandshakeError>>),
    SendRequest(RpcMessage, Arc<McpClient>, ReplySender),
    /// A notification, or an answer to a request of the server.
    SendMessage(RpcMessage, u64),
    /// The lowest level of log messages that a client wants.
    SetLevel(String, u64),
    /// Stops waiting for the call of this stream.
    CancelStream(u64),
    /// Ends the task when no call is open any more.
    Drain,
    Shutdown(oneshot::Sender<()>),
}

impl ServerHandle {
    /// Creates the task without starting the server. `renumbers_ids`: several clients share the child, so request ids
    /// are replaced by numbers.
    pub(super) fn new(
        spec: Arc<ServerSpec>,
        initialize_params: Bytes,
        renumbers_ids: bool,
    ) -> Self {
        let (commands, mailbox) = mpsc::unbounded_channel();
        let state = Arc::new(ServerTaskState {
            phase: Mutex::new((ServerPhase::Down, None)),
            pending_count: AtomicUsize::new(0),
        });
        let owner = ServerTask::new(spec, initialize_params, renumbers_ids, state.clone());
        tokio::spawn(owner.run(mailbox));
        Self { commands, state }
    }

    pub(super) fn add_client(&self, client: Arc<McpClient>) {
        self.send_command(ServerTaskCommand::AddClient(client));
    }

    pub(super) fn remove_client(&self, client_number: u64) {
        self.send_command(ServerTaskCommand::RemoveClient(client_number));
    }

    /// The result of the handshake; starts the server if necessary.
    pub(super) async fn initialize_result(&self) -> Result<Bytes, HandshakeError> {
        let (answer, receiver) = oneshot::channel();
        self.send_command(ServerTaskCommand::Initialize(answer));
        let ended = || HandshakeError::Failed(server_task::SERVER_GONE_MESSAGE.into());
        receiver.await.map_err(|_| ended())?
    }

    pub(super) fn send_request(
        &self,
        message: RpcMessage,
        client: &Arc<McpClient>,
        reply: ReplySender,
    ) {
        if let Err(unsent) = self.commands.send(ServerTaskCommand::SendRequest(
            message,
            client.clone(),
            reply,
        )) && let ServerTaskCommand::SendRequest(message, _, reply) = unsent.0
        {
            let id = message.id().unwrap_or("null");
            reply.send_error(id, -32603, server_task::SERVER_GONE_MESSAGE);
        }
    }

    pub(super) fn send_message(&self, message: RpcMessage, client_number: u64) {
        self.send_command(ServerTaskCommand::SendMessage(message, client_number));
    }

    pub(super) fn set_level(&self, level: &str, client_number: u64) {
        self.send_command(ServerTaskCommand::SetLevel(level.into(), client_number));
    }

    pub(super) fn cancel_stream(&self, stream: u64) {
        self.send_command(ServerTaskCommand::CancelStream(stream));
    }

    pub(super) fn drain(&self) {
        self.send_command(ServerTaskCommand::Drain);
    }

    /// Ends the server and every process that it started, and waits until all have ended.
    pub(super) async fn shutdown(&self) {
        let (done, receiver) = oneshot::channel();
        self.send_command(ServerTaskCommand::Shutdown(done));
        // If the task has ended already, no process is left.
        let _ = receiver.await;
    }

    /// Whether the task has ended: the server was ended, or is drained and has no open call.
    pub(super) fn has_ended(&self) -> bool {
        self.commands.is_closed()
    }

    pub(super) fn phase(&self) -> (ServerPhase, Option<i32>) {
        *self.state.phase.lock()
    }

    pub(super) fn pending_count(&self) -> usize {
        self.state.pending_count.load(Ordering::Relaxed)
    }

    fn send_command(&self, command: ServerTaskCommand) {
        // A task that has ended needs no command.
        let _ = self.commands.send(command);
    }
}
