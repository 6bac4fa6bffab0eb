//! One WebSocket to a terminal. Two tasks carry its frames, so that waiting for one direction never blocks the other.
//! The connection is lost when either direction fails or no frame arrives within [`TERMINAL_READ_TIMEOUT`].

use crate::error::{Error, Result};
use crate::host::client::CompanionClient;
use crate::protocol::pty::{AttachQuery, FromTerminal, ToTerminal};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};

/// The companion pings every five seconds.
const TERMINAL_READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Limit of a message of the companion, which sends the screen and missed output in pieces.
const MAX_TERMINAL_MESSAGE_BYTES: usize = 4 << 20;

/// Time limit for sending the close frame.
const TERMINAL_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct TerminalSocket {
    frames: mpsc::Receiver<TerminalFrame>,
    outgoing: mpsc::Sender<Message>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
pub(super) enum TerminalFrame {
    Output(Bytes),
    Message(FromTerminal),
}

impl TerminalSocket {
    /// # Errors
    /// When the companion cannot be reached, or refuses.
    pub(super) async fn open(client: &CompanionClient, attach: &AttachQuery) -> Result<Self> {
        let key = generate_key();
        let (stream, accepted) = client.upgrade_connection("/pty", attach, &key).await?;
        if accepted != derive_accept_key(key.as_bytes()) {
            let message = "the server at the companion's address does not support WebSocket";
            let hint = "a proxy may intercept the connection; `osctl doctor` checks the connection";
            return Err(Error::precondition(message, hint).into());
        }
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MAX_TERMINAL_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_TERMINAL_MESSAGE_BYTES));
        let socket = WebSocketStream::from_raw_socket(stream, Role::Client, Some(limits)).await;
        let (mut sink, mut stream) = socket.split();
        let (frame, frames) = mpsc::channel(16);
        let (sender, mut receiver) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Some(message) = receiver.recv().await {
                if sink.send(message).await.is_err() {
                    return;
                }
            }
            // The receiver may be gone.
            let _ = sink.close().await;
        });
        tasks.spawn(async move {
            while let Ok(Some(Ok(message))) = timeout(TERMINAL_READ_TIMEOUT, stream.next()).await {
                let next = match message {
                    Message::Binary(bytes) => TerminalFrame::Output(bytes),
                    Message::Text(text) => match serde_json::from_str(&text) {
                        Ok(message) => TerminalFrame::Message(message),
                        // A message type of a later companion.
                        Err(_) => continue,
                    },
                    Message::Close(_) => return,
                    Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
                };
                if frame.send(next).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            frames,
            outgoing: sender,
            tasks,
        })
    }

    /// The next frame; `None` when the connection is lost. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<TerminalFrame> {
        self.frames.recv().await
    }

    /// Whether keys can be sent without waiting.
    pub(super) fn has_capacity(&self) -> bool {
        self.outgoing.capacity() > 8
    }

    /// Sends keys, which the caller sends again after a lost connection.
    pub(super) fn send_keys(&self, keys: Bytes) {
        self.try_send(Message::Binary(keys));
    }

    pub(super) fn send_message(&self, message: &ToTerminal) {
        // Serializing numbers and names cannot fail.
        let text = serde_json::to_string(message).unwrap_or_default();
        self.try_send(Message::Text(text.into()));
    }

    fn try_send(&self, message: Message) {
        // The receiving side reports a lost connection. A connection that accepts no data will be lost; one of the
        // repeated messages may be missing.
        let _ = self.outgoing.try_send(message);
    }

    /// Closes the connection, and waits briefly for the close frame to be sent.
    pub(super) async fn close(mut self) {
        self.frames.close();
        drop(self.outgoing);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // Without the close frame, the companion notices the lost connection later.
        let _ = timeout(TERMINAL_CLOSE_TIMEOUT, all).await;
    }
}
