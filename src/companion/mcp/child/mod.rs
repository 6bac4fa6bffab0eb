//! One running server and the task that owns it.
//!
//! [`ServerHandle`] is the handle. The owner ([`server_task`]) starts the server when it is needed ([`restart_policy`]), shakes
//! hands with it, knows which client waits for which answer ([`pending_requests`]), speaks the revision that it knows ([`protocol_revision`]), and ends it when nobody asks for
//! long. What the server does wrong stays here: whoever waits is told, and others never notice.
//!
//! A server is reached by a [`pipe`]: a process of ours ([`process`]), a URL ([`remote`]), or channels to the
//! one that is built in ([`in_process`]).

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

/// What is known of a server beside its process, by all of its children.
#[derive(Debug)]
pub(super) struct ServerSpec {
    pub(super) server: McpServerConfig,
    pub(super) cache: ServerCache,
    pub(super) log: Arc<McpServerLog>,
    pub(super) links: Arc<ResourceIndex>,
    pub(super) list_delay: Arc<ListDelay>,
    /// The server that is built in, should this be it.
    pub(super) os: Arc<dyn InProcessServer>,
    /// How often one of its children ended that nobody had ended.
    pub(super) crashes: AtomicUsize,
}

#[derive(Debug, Clone)]
pub(super) struct ServerHandle {
    asks: mpsc::UnboundedSender<ServerTaskCommand>,
    seen: Arc<ServerTaskState>,
}

/// How it stands, for everyone to see.
#[derive(Debug)]
struct ServerTaskState {
    phase: Mutex<(ServerPhase, Option<i32>)>,
    calls: AtomicUsize,
}

/// A handshake that did not come about: the server's own error, or why there was none.
#[derive(Debug, Clone)]
pub(super) enum HandshakeError {
    /// The raw JSON of `error`.
    Refused(String),
    Failed(String),
}

#[derive(Debug)]
enum ServerTaskCommand {
    /// Hears from now on what belongs to no call.
    Join(Arc<McpClient>),
    Leave(u64),
    Hello(oneshot::Sender<Result<Bytes, HandshakeError>>),
    Request(RpcMessage, Arc<McpClient>, ReplySender),
    /// A notification, or an answer to the server's own request.
    Tell(RpcMessage, u64),
    /// From which level on a client wants to be told of logs.
    Level(String, u64),
    /// The call behind that stream is not waited for any more.
    GiveUp(u64),
    /// Ends when nothing is open any more.
    Retire,
    End(oneshot::Sender<()>),
}

impl ServerHandle {
    /// Nothing is started yet. `numbered`: clients share it.
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

    /// The result of the handshake; starts the server if need be.
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

    /// Ends it with all that it has started; returns when all are gone.
    pub(super) async fn shutdown(&self) {
        let (done, receiver) = oneshot::channel();
        self.send_command(ServerTaskCommand::End(done));
        // An owner that has ended already has left nobody behind.
        let _ = receiver.await;
    }

    /// Whether it has retired and has nothing open any more, or was ended.
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
        // An owner that has ended has nobody to tell.
        let _ = self.asks.send(ask);
    }
}
