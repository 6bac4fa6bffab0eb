//! The pipe to the built-in server, which is part of this process: channels instead of OS pipes.

use super::event::ServerPipeEvent;
use bytes::Bytes;
use std::fmt::Debug;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// The built-in server, which is part of this process.
pub trait InProcessServer: Debug + Send + Sync {
    /// Opens a connection to the built-in server `name`: a channel to send messages, a channel to receive them.
    /// Dropping the sender ends the connection.
    fn open_connection(&self, name: &str) -> (UnboundedSender<Bytes>, UnboundedReceiver<Bytes>);
}

#[derive(Debug)]
pub(super) struct InProcessPipe {
    outgoing: UnboundedSender<Bytes>,
    incoming: UnboundedReceiver<Bytes>,
}

impl InProcessPipe {
    pub(super) fn open(within: &dyn InProcessServer, name: &str) -> Self {
        let (outgoing, incoming) = within.open_connection(name);
        Self { outgoing, incoming }
    }

    pub(super) fn send(&self, text: Bytes) {
        // If the server has ended, the next event says so.
        let _ = self.outgoing.send(text);
    }

    pub(super) async fn next_event(&mut self) -> ServerPipeEvent {
        match self.incoming.recv().await {
            Some(text) => ServerPipeEvent::Line(text),
            None => ServerPipeEvent::Ended("the built-in server ended".into()),
        }
    }
}
