//! Where the answer of a server goes, and what happens with it there.

use super::stateless::RetryableCall;
use crate::companion::mcp::cache::McpListPage;
use crate::companion::mcp::client::ReplySender;

/// Who waits for an answer.
#[derive(Debug)]
pub(super) enum PendingOrigin {
    Client {
        reply: ReplySender,
        then: OnReply,
    },
    Hello,
    Discovery,
    List {
        method: usize,
        pages: Vec<McpListPage>,
        is_first: bool,
    },
    Nobody,
}

/// What an answer brings beside itself.
#[derive(Debug)]
pub(super) enum OnReply {
    Done,
    /// Should it be refused, nobody listens to that.
    Subscribed(String),
    /// It may be a question instead.
    Asks(Box<RetryableCall>),
}

impl PendingOrigin {
    pub(super) fn reply(&self) -> Option<&ReplySender> {
        match self {
            Self::Client { reply, .. } => Some(reply),
            _ => None,
        }
    }
}
