//! What a server sends to its task, over a pipe of any kind.

use crate::message::RpcMessage;
use bytes::Bytes;

/// An event of the server.
#[derive(Debug)]
pub(super) enum ServerPipeEvent {
    /// Bytes that the server wrote: a message or a batch, if the server is correct.
    Line(Bytes),
    Message(RpcMessage),
    /// The server has ended, with the reason.
    Ended(String),
}
