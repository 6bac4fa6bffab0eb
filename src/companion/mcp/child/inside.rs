//! The built-in server, reached through channels in the place of pipes: it is a part of this process.

use super::pipe::Happened;
use crate::companion::mcp::os::Os;
use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

#[derive(Debug)]
pub(super) struct Inside {
    unsent: UnboundedSender<Bytes>,
    heard: UnboundedReceiver<Bytes>,
}

impl Inside {
    pub(super) fn open(os: &Os) -> Self {
        let (unsent, heard) = os.open();
        Self { unsent, heard }
    }

    pub(super) fn send(&self, text: Bytes) {
        // One that has ended is heard of.
        let _ = self.unsent.send(text);
    }

    pub(super) async fn next(&mut self) -> Happened {
        match self.heard.recv().await {
            Some(text) => Happened::Line(text),
            None => Happened::Ended("it ended".into()),
        }
    }
}
