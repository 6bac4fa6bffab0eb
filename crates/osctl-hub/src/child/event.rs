//! What a server sends to its task, over a pipe of any kind.

use bytes::Bytes;

/// An event of the server.
#[derive(Debug)]
pub(super) enum ServerPipeEvent {
    Message(Bytes),
    /// The server has ended, with the reason.
    Ended(String),
}
