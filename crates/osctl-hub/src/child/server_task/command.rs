//! What the handle and the task exchange: commands to the task, and the state that the task publishes.

use crate::child::{HandshakeError, ServerPhase};
use crate::client::{McpClient, ReplySender};
use crate::message::RpcMessage;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tokio::sync::oneshot;

/// The state of the task, readable through the handle.
#[derive(Debug)]
pub(in crate::child) struct ServerTaskState {
    pub(in crate::child) phase: Mutex<(ServerPhase, Option<i32>)>,
    pub(in crate::child) pending_count: AtomicUsize,
}

#[derive(Debug)]
pub(in crate::child) enum ServerTaskCommand {
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
