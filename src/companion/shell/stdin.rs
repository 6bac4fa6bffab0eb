//! The stdin of a running command.

use super::CommandRun;
use super::command::CommandStopReason;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The writer of a command's stdin. If it is dropped before [`CommandStdin::close_input`], the input is incomplete, and
/// the command is stopped so that it does not take the input for complete.
#[derive(Debug)]
pub(crate) struct CommandStdin {
    pub(super) sender: Option<mpsc::Sender<Bytes>>,
    pub(super) stop: mpsc::Sender<CommandStopReason>,
    pub(super) run: Arc<CommandRun>,
}

impl CommandStdin {
    /// Returns `false` when the command needs no more bytes.
    pub(crate) async fn send_bytes(&self, bytes: Bytes) -> bool {
        match &self.sender {
            Some(sender) => sender.send(bytes).await.is_ok(),
            None => false,
        }
    }

    /// Waits until the command needs no more bytes.
    pub(crate) async fn wait_closed(&self) {
        if let Some(sender) = &self.sender {
            sender.closed().await;
        }
    }

    /// Marks the input as complete.
    pub(crate) fn close_input(mut self) {
        self.sender = None;
    }
}

impl Drop for CommandStdin {
    fn drop(&mut self) {
        let Some(bytes) = self.sender.take().filter(|sender| !sender.is_closed()) else {
            return;
        };
        let (stop, run) = (self.stop.clone(), self.run.clone());
        tokio::spawn(async move {
            // A command that has just ended does not receive this.
            let _ = stop.send(CommandStopReason::StdinCut).await;
            run.wait_finished().await;
            // Dropped only now: an earlier drop would signal the end of the input to the command.
            drop(bytes);
        });
    }
}
