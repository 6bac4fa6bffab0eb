//! The stdin of a command that runs.

use super::CommandRun;
use super::command::CommandStopReason;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The way to a command's stdin. Dropped before [`CommandStdin::close_input`], what came was not whole: the command
/// must not take that for all there is, and is stopped.
#[derive(Debug)]
pub(crate) struct CommandStdin {
    pub(super) bytes: Option<mpsc::Sender<Bytes>>,
    pub(super) stop: mpsc::Sender<CommandStopReason>,
    pub(super) run: Arc<CommandRun>,
}

impl CommandStdin {
    /// `false` when the command needs no more.
    pub(crate) async fn send_bytes(&self, bytes: Bytes) -> bool {
        match &self.bytes {
            Some(way) => way.send(bytes).await.is_ok(),
            None => false,
        }
    }

    /// Waits until the command needs no more.
    pub(crate) async fn wait_closed(&self) {
        if let Some(way) = &self.bytes {
            way.closed().await;
        }
    }

    /// That was all.
    pub(crate) fn close_input(mut self) {
        self.bytes = None;
    }
}

impl Drop for CommandStdin {
    fn drop(&mut self) {
        let Some(bytes) = self.bytes.take().filter(|way| !way.is_closed()) else {
            return;
        };
        let (stop, run) = (self.stop.clone(), self.run.clone());
        tokio::spawn(async move {
            // One that has just ended no longer hears.
            let _ = stop.send(CommandStopReason::Cut).await;
            run.wait_finished().await;
            // Only now, or it would see the end.
            drop(bytes);
        });
    }
}
