//! A keeper that reports a status.

use crate::protocol::evolve::{EvolveStage, EvolveStatus, KeeperReply};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

#[derive(Debug, Clone, Default)]
pub(super) struct FakeStatusKeeper(Arc<Mutex<EvolveStatus>>);

impl FakeStatusKeeper {
    pub(super) fn start(socket: &Path) -> Self {
        let (keeper, listener) = (Self::default(), UnixListener::bind(socket).unwrap());
        tokio::spawn(keeper.clone().run(listener));
        keeper
    }

    async fn run(self, listener: UnixListener) {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(self.clone().answer(stream));
        }
    }

    /// Answers a request for the status. A client that follows the run reads the end of the stream.
    async fn answer(self, mut stream: UnixStream) {
        let mut line = String::new();
        let read = BufReader::new(&mut stream).read_line(&mut line).await;
        if read.is_err() || !line.contains("status") {
            return;
        }
        let reply = KeeperReply::Status(self.0.lock().clone());
        let reply = serde_json::to_string(&reply).unwrap();
        // The client may no longer wait.
        let _ = stream.write_all(format!("{reply}\n").as_bytes()).await;
    }

    /// A run is in progress.
    pub(super) fn begin_run(&self) {
        *self.0.lock() = EvolveStatus {
            evolve_in_progress: true,
            latest_run: "20261120-193600".parse().ok(),
            ..EvolveStatus::default()
        };
    }

    /// The run has ended in this stage.
    pub(super) fn end_run(&self, stage: EvolveStage) {
        let mut status = self.0.lock();
        (status.evolve_in_progress, status.latest_status) = (false, Some(stage));
    }
}
