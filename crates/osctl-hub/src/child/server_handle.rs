//! The handle of a server's task.

use super::restart_policy::ServerPhase;
use super::server_spec::{HandshakeError, ServerSpec};
use super::server_task::{SERVER_GONE_MESSAGE, ServerTask, ServerTaskCommand, ServerTaskState};
use crate::client::{McpClient, ReplySender};
use crate::message::RpcMessage;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

#[derive(Debug, Clone)]
pub(crate) struct ServerHandle {
    commands: mpsc::UnboundedSender<ServerTaskCommand>,
    state: Arc<ServerTaskState>,
}

impl ServerHandle {
    /// Creates the task without starting the server. `renumbers_ids`: several clients share the child, so request ids
    /// are replaced by numbers.
    pub(crate) fn new(
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

    pub(crate) fn add_client(&self, client: Arc<McpClient>) {
        self.send_command(ServerTaskCommand::AddClient(client));
    }

    pub(crate) fn remove_client(&self, client_number: u64) {
        self.send_command(ServerTaskCommand::RemoveClient(client_number));
    }

    /// The result of the handshake; starts the server if necessary.
    pub(crate) async fn initialize_result(&self) -> Result<Bytes, HandshakeError> {
        let (answer, receiver) = oneshot::channel();
        self.send_command(ServerTaskCommand::Initialize(answer));
        let ended = || HandshakeError::Failed(SERVER_GONE_MESSAGE.into());
        receiver.await.map_err(|_| ended())?
    }

    pub(crate) fn send_request(
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
            reply.send_error(id, -32603, SERVER_GONE_MESSAGE);
        }
    }

    pub(crate) fn send_message(&self, message: RpcMessage, client_number: u64) {
        self.send_command(ServerTaskCommand::SendMessage(message, client_number));
    }

    pub(crate) fn set_level(&self, level: &str, client_number: u64) {
        self.send_command(ServerTaskCommand::SetLevel(level.into(), client_number));
    }

    pub(crate) fn cancel_stream(&self, stream: u64) {
        self.send_command(ServerTaskCommand::CancelStream(stream));
    }

    pub(crate) fn drain(&self) {
        self.send_command(ServerTaskCommand::Drain);
    }

    /// Ends the server and every process that it started, and waits until all have ended.
    pub(crate) async fn shutdown(&self) {
        let (done, receiver) = oneshot::channel();
        self.send_command(ServerTaskCommand::Shutdown(done));
        // If the task has ended already, no process is left.
        let _ = receiver.await;
    }

    /// Whether the task has ended: the server was ended, or is drained and has no open call.
    pub(crate) fn has_ended(&self) -> bool {
        self.commands.is_closed()
    }

    pub(crate) fn phase(&self) -> (ServerPhase, Option<i32>) {
        *self.state.phase.lock()
    }

    pub(crate) fn pending_count(&self) -> usize {
        self.state.pending_count.load(Ordering::Relaxed)
    }

    fn send_command(&self, command: ServerTaskCommand) {
        // A task that has ended needs no command.
        let _ = self.commands.send(command);
    }
}
