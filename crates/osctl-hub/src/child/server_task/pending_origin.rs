//! The origin of a pending request: where the server's answer is sent, and what it changes on arrival.

use super::stateless::RetryableCall;
use crate::client::{McpClient, ReplySender};
use crate::message::RpcMessage;
use crate::server_cache::McpListPage;
use std::sync::Arc;

/// The recipient of an answer.
#[derive(Debug)]
pub(super) enum PendingOrigin {
    Client {
        reply: ReplySender,
        on_reply: OnReply,
    },
    Initialize,
    Discovery,
    List {
        method: usize,
        pages: Vec<McpListPage>,
        is_first: bool,
    },
    Ignored,
}

/// The additional effect of an answer.
#[derive(Debug)]
pub(super) enum OnReply {
    Forward,
    /// If the server ends before its answer, the call of a read-only tool is sent again.
    RepeatOnLoss(Box<(RpcMessage, Arc<McpClient>)>),
    /// If the server refuses, the subscription to this resource is removed.
    UndoSubscription(String),
    /// The result may be a request for input instead of an answer.
    HandleInputRequired(Box<RetryableCall>),
}

impl PendingOrigin {
    pub(super) fn reply(&self) -> Option<&ReplySender> {
        match self {
            Self::Client { reply, .. } => Some(reply),
            _ => None,
        }
    }
}
