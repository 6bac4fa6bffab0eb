//! A keeper that reports a status.

use crate::protocol::evolve::{EvolveStage, EvolveStatus, KeeperReply};
use parking_lot::Mutex;
use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

#[derive(Debug, Clone, Default)]
pub(in crate::companion::evolve) struct FakeStatusKeeper(Arc<Mutex<FakeStatusKeeperState>>);

#[derive(Debug, Default)]
struct FakeStatusKeeperState {
    status: EvolveStatus,
    /// Whether the keeper accepts connections and never replies.
    is_silent: bool,
    /// Requests for the status that were answered.
    request_count: usize,
}

impl FakeStatusKeeper {
    pub(super) fn start(socket: &Path) -> Self {
        Self::start_with_task(socket).0
    }

    /// The end of the task leaves the socket without a listener.
    pub(in crate::companion::evolve) fn start_with_task(socket: &Path) -> (Self, JoinHandle<()>) {
        let (keeper, listener) = (Self::default(), UnixListener::bind(socket).unwrap());
        let task = tokio::spawn(keeper.clone().run(listener));
        (keeper, task)
    }

    async fn run(self, listener: UnixListener) {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(self.clone().answer(stream));
        }
    }

    /// Answers a request for the status. A client that follows the run reads the end of the stream.
    async fn answer(self, mut stream: UnixStream) {
        if self.0.lock().is_silent {
            pending::<()>().await;
        }
        let mut line = String::new();
        let read = BufReader::new(&mut stream).read_line(&mut line).await;
        if read.is_err() || !line.contains("status") {
            return;
        }
        let reply = {
            let mut state = self.0.lock();
            state.request_count += 1;
            KeeperReply::Status(state.status.clone())
        };
        let reply = serde_json::to_string(&reply).unwrap();
        // The client may no longer wait.
        let _ = stream.write_all(format!("{reply}\n").as_bytes()).await;
    }

    /// A run is in progress.
    pub(super) fn begin_run(&self) {
        self.0.lock().status = EvolveStatus {
            evolve_in_progress: true,
            latest_run: "20261120-193600".parse().ok(),
            ..EvolveStatus::default()
        };
    }

    /// A run places a container.
    pub(in crate::companion::evolve) fn begin_deploy(&self) {
        self.begin_run();
        self.0.lock().status.restart_pending = true;
    }

    /// The run has ended in this stage.
    pub(in crate::companion::evolve) fn end_run(&self, stage: EvolveStage) {
        let status = &mut self.0.lock().status;
        (status.evolve_in_progress, status.restart_pending) = (false, false);
        status.latest_status = Some(stage);
    }

    /// Accepts further connections without a reply.
    pub(in crate::companion::evolve) fn stop_replying(&self) {
        self.0.lock().is_silent = true;
    }

    pub(in crate::companion::evolve) fn request_count(&self) -> usize {
        self.0.lock().request_count
    }
}
