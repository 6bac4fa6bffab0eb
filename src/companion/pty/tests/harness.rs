//! Terminals with scripted shells, and clients that read everything.

use super::fake_shell::{FakeShell, forget_shells, next_shell, start_fake_terminal};
use crate::companion::pty::{
    PtyAttachRequest, PtyChunk, PtyConnection, PtyConnectionStatus, PtyExit, PtyLimits, PtyRefusal,
    PtyStart, PtyTerminal, PtyTerminals, PtyUpdate, TerminalSize,
};
use crate::companion::tests::clock::{StoppedClock, settle, wait_event};
use crate::protocol::pty::TerminalRole;
use bytes::Bytes;
use std::time::Duration;

pub(super) const TERMINAL_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
pub(super) const TEST_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

pub(super) struct TerminalHarness {
    pub(super) terminals: PtyTerminals,
    _clock: StoppedClock,
}

/// A client of a terminal.
pub(super) struct TestClient {
    pub(super) connection: PtyConnection,
    /// The output that the client has read.
    pub(super) output: String,
    pub(super) lost_bytes: u64,
}

impl TerminalHarness {
    pub(super) fn start() -> Self {
        forget_shells();
        let limits = PtyLimits {
            max_terminals: 3,
            idle_timeout: TEST_IDLE_TIMEOUT,
        };
        Self {
            terminals: PtyTerminals::with_start(limits, start_fake_terminal),
            _clock: StoppedClock::start(),
        }
    }

    /// A terminal with its writer `a`.
    pub(super) async fn start_with_writer() -> (Self, FakeShell, TestClient) {
        let harness = Self::start();
        let writer = harness.open(attach_request("a")).await.unwrap();
        (harness, next_shell(), writer)
    }

    /// Opens a terminal.
    pub(super) async fn open(&self, request: PtyAttachRequest) -> Result<TestClient, PtyRefusal> {
        self.attach_to(None, request).await
    }

    /// Attaches to the oldest terminal.
    pub(super) async fn attach(&self, request: PtyAttachRequest) -> TestClient {
        let id = self.terminal().id().to_owned();
        self.attach_to(Some(&id), request).await.unwrap()
    }

    pub(super) async fn attach_to(
        &self,
        id: Option<&str>,
        request: PtyAttachRequest,
    ) -> Result<TestClient, PtyRefusal> {
        let start = PtyStart {
            size: TERMINAL_SIZE,
            term: None,
            cwd: None,
            environment: None,
            session: "default".into(),
        };
        let connection = self.terminals.attach_client(id, &start, request).await?;
        settle().await;
        Ok(TestClient {
            connection,
            output: String::new(),
            lost_bytes: 0,
        })
    }

    /// The oldest terminal.
    pub(super) fn terminal(&self) -> PtyTerminal {
        self.terminals.list_terminals().remove(0)
    }
}

/// A request of the client of this name to write.
pub(super) fn attach_request(client: &str) -> PtyAttachRequest {
    PtyAttachRequest {
        client: Some(client.into()),
        role: TerminalRole::Write,
        take_writer: false,
        from_offset: None,
        size: TERMINAL_SIZE,
    }
}

pub(super) fn view_request(client: &str) -> PtyAttachRequest {
    PtyAttachRequest {
        role: TerminalRole::View,
        ..attach_request(client)
    }
}

impl TestClient {
    pub(super) fn status(&self) -> PtyConnectionStatus {
        self.connection.view.status()
    }

    pub(super) fn is_writer(&self) -> bool {
        self.status().is_writer
    }

    pub(super) async fn type_keys(&self, keys: &str) {
        let keys = Bytes::copy_from_slice(keys.as_bytes());
        self.connection.client.send_keys(keys).await.unwrap();
        settle().await;
    }

    pub(super) async fn resize(&self, cols: u16, rows: u16) {
        let size = TerminalSize { cols, rows };
        self.connection.client.resize(size).await.unwrap();
        settle().await;
    }

    pub(super) async fn take_writer(&self) {
        self.connection.client.take_writer().await.unwrap();
        settle().await;
    }

    /// The connection is lost; the client does not say that it leaves.
    pub(super) async fn lose_connection(self) {
        drop(self);
        settle().await;
    }

    pub(super) async fn leave(self) {
        self.connection.client.detach();
        settle().await;
    }

    /// Reads until the output ends with this text.
    pub(super) async fn read_until(&mut self, end: &str) {
        while !self.output.ends_with(end) {
            let exit = self.read_update().await;
            assert_eq!(exit, None, "{}", self.output);
        }
    }

    /// Reads this many bytes.
    pub(super) async fn read_length(&mut self, length: usize) {
        while self.output.len() < length {
            assert_eq!(self.read_update().await, None);
        }
    }

    /// Reads until the terminal has ended.
    pub(super) async fn read_exit(&mut self) -> PtyExit {
        loop {
            if let Some(exit) = self.read_update().await {
                return exit;
            }
        }
    }

    async fn read_update(&mut self) -> Option<PtyExit> {
        let update = wait_event(self.connection.view.next_update()).await;
        match update.expect("the terminal is gone") {
            PtyUpdate::Output(PtyChunk::Bytes(bytes)) => {
                self.output += std::str::from_utf8(&bytes).unwrap();
                let offset = self.connection.view.offset();
                // A terminal that has ended takes no report.
                let _ = self.connection.client.report_sent(offset).await;
                None
            }
            PtyUpdate::Output(PtyChunk::Lost(bytes)) => {
                self.lost_bytes += bytes;
                None
            }
            PtyUpdate::Output(PtyChunk::Exit(exit)) => Some(exit),
            PtyUpdate::Status(_) => None,
        }
    }
}
