//! The built-in server, reached through channels in the place of pipes: it is a part of this process.

use super::pipe::ServerPipeEvent;
use bytes::Bytes;
use std::fmt::Debug;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// A server that is a part of this process.
pub(in crate::companion::mcp) trait InProcessServer:
    Debug + Send + Sync
{
    /// Opens a pipe to what has that name: messages in, messages out. Dropping the way in is its end.
    fn open(&self, name: &str) -> (UnboundedSender<Bytes>, UnboundedReceiver<Bytes>);
}

#[derive(Debug)]
pub(super) struct InProcessPipe {
    unsent: UnboundedSender<Bytes>,
    heard: UnboundedReceiver<Bytes>,
}

impl InProcessPipe {
    pub(super) fn open(within: &dyn InProcessServer, name: &str) -> Self {
        let (unsent, heard) = within.open(name);
        Self { unsent, heard }
    }

    pub(super) fn send(&self, text: Bytes) {
        // One that has ended is heard of.
        let _ = self.unsent.send(text);
    }

    pub(super) async fn next_event(&mut self) -> ServerPipeEvent {
        match self.heard.recv().await {
            Some(text) => ServerPipeEvent::Line(text),
            None => ServerPipeEvent::Ended("it ended".into()),
        }
    }
}
