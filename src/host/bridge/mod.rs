//! The bridge from stdio to the hub of MCP servers, for clients that start a command.
//!
//! ```text
//! stdin ── line ──┬─ request ──── exchange ──┐
//!                 └─ the rest ─── in order ──┼── connection ── hub
//! stdout ◀─ lines, in the server's bytes ────┤
//!                         server_stream ─────┘
//! ```
//!
//! Messages pass unchanged. When the container restarts, the [`connection`] finds the hub again, and opens a new
//! session if the old one is gone. Requests that were in flight are sent again where this is safe ([`resend_policy`]).
//! The client notices a reconnect only when the result of a call is unknown: that call fails with an error.
//!
//! The bridge queues only messages in flight. Of their contents, it reads only the method, IDs, the name or URI, and
//! the protocol revision in `_meta`.

mod connection;
mod error;
mod exchange;
mod message;
mod resend_policy;
mod server_stream;
mod target;

pub(crate) use connection::{FindInstance, StartInstance};
pub(crate) use target::BridgeTarget;

use crate::error::Result;
use bytes::Bytes;
use connection::BridgeConnection;
use error::BridgeError;
use message::{BridgeMessage, BridgeMessageKind};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Limit of queued messages to the hub whose order matters.
const MAX_BRIDGE_QUEUED_MESSAGES: usize = 64;
/// Limit of bytes not yet read by the client; at the limit the bridge stops reading from the hub.
const MAX_BRIDGE_UNREAD_BYTES: u32 = 64 << 20;
/// Time limit at exit for a handshake in progress: clients kill a process that does not end soon.
const BRIDGE_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);

/// One client, from its first line to its last.
#[derive(Debug)]
struct StdioBridge {
    connection: BridgeConnection,
    output: mpsc::Sender<BridgeOutputLine>,
    /// The unused part of [`MAX_BRIDGE_UNREAD_BYTES`].
    unread_permits: Arc<Semaphore>,
    /// Requests in flight, by their raw ids.
    pending_requests: Mutex<HashMap<Box<str>, BridgePendingRequest>>,
}

/// A line for the client, which counts as unread until it is dropped.
#[derive(Debug)]
pub(crate) struct BridgeOutputLine {
    pub(crate) text: Bytes,
    _unread_permit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct BridgePendingRequest {
    task: Option<AbortHandle>,
    /// Whether the client has cancelled the request.
    is_cancelled: bool,
}

/// The instance and server to which a client is bridged.
pub(crate) struct BridgeOptions {
    /// Finds the instance, for each connection.
    pub(crate) find_instance: FindInstance,
    /// Starts the instance, if the user asked for it.
    pub(crate) start_instance: Option<StartInstance>,
    pub(crate) target: BridgeTarget,
}

impl std::fmt::Debug for BridgeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BridgeOptions")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// Tasks in flight; dropping this ends them.
#[derive(Debug, Default)]
struct BridgeTasks {
    requests: JoinSet<()>,
    background: JoinSet<()>,
    /// The handshake, the only task that the bridge waits for at exit.
    handshake: JoinSet<()>,
}

/// Bridges until `lines` end and all requests are answered, `output` has no reader, or `ended` resolves. In each case
/// the bridge closes the session, so that the hub stops the servers that it started for this client.
///
/// # Errors
/// When the server's name is not valid.
pub(crate) async fn run_bridge(
    options: BridgeOptions,
    lines: mpsc::Receiver<Bytes>,
    output: mpsc::Sender<BridgeOutputLine>,
    ended: impl Future<Output = ()>,
) -> Result<()> {
    let bridge = Arc::new(StdioBridge {
        connection: BridgeConnection::new(options)?,
        output: output.clone(),
        unread_permits: Arc::new(Semaphore::new(MAX_BRIDGE_UNREAD_BYTES as usize)),
        pending_requests: Mutex::default(),
    });
    let mut tasks = BridgeTasks::default();
    tokio::select! {
        () = bridge.serve_lines(lines, &mut tasks) => {}
        () = output.closed() => {}
        () = ended => {}
    }
    // A session that is being opened can only be closed once its id is known.
    let handshakes = async { while tasks.handshake.join_next().await.is_some() {} };
    let _ = timeout(BRIDGE_HANDSHAKE_TIMEOUT, handshakes).await;
    drop(tasks);
    bridge.connection.close_session().await;
    Ok(())
}

impl StdioBridge {
    /// Reads lines until they end and all requests are answered.
    async fn serve_lines(
        self: &Arc<Self>,
        mut lines: mpsc::Receiver<Bytes>,
        tasks: &mut BridgeTasks,
    ) {
        let (sender, notifications) = mpsc::channel(MAX_BRIDGE_QUEUED_MESSAGES);
        let BridgeTasks {
            requests,
            background,
            handshake: shaking,
        } = tasks;
        requests.spawn(self.clone().send_notifications(notifications));
        loop {
            let text = tokio::select! {
                text = lines.recv() => text,
                Some(_) = requests.join_next() => continue,
            };
            let Some(text) = text else {
                break;
            };
            let messages = match BridgeMessage::parse_all(&text) {
                Ok(messages) => messages,
                Err(why) => {
                    self.send_error("null", &BridgeError::parse(&why)).await;
                    continue;
                }
            };
            for message in messages {
                match message.kind {
                    // No message passes before the handshake.
                    BridgeMessageKind::Request if message.method == "initialize" => {
                        shaking.spawn(self.clone().handle_request(message));
                        shaking.join_next().await;
                    }
                    BridgeMessageKind::Request => {
                        let id = message.id.clone();
                        self.add_pending(&id);
                        let tasks = match message.method == "subscriptions/listen" {
                            true => &mut *background,
                            false => &mut *requests,
                        };
                        let task = tasks.spawn(self.clone().handle_request(message));
                        if let Some(pending) = self.pending_requests.lock().get_mut(&id) {
                            pending.task = Some(task);
                        }
                    }
                    BridgeMessageKind::Other => {
                        if self.cancel_pending(&message) {
                            continue;
                        }
                        let is_initialized = message.method == "notifications/initialized";
                        // The receiving task lives as long as this one.
                        let _ = sender.send(message).await;
                        if is_initialized {
                            background.spawn(self.clone().forward_notifications());
                        }
                    }
                }
            }
        }
        // Its task ends when all messages are sent.
        drop(sender);
        while requests.join_next().await.is_some() {}
    }

    /// Sends notifications, and responses to the server's requests, in order.
    async fn send_notifications(self: Arc<Self>, mut notifications: mpsc::Receiver<BridgeMessage>) {
        while let Some(message) = notifications.recv().await {
            self.send_notification(&message).await;
        }
    }

    fn add_pending(&self, id: &str) {
        let pending = BridgePendingRequest {
            task: None,
            is_cancelled: false,
        };
        self.pending_requests.lock().insert(id.into(), pending);
    }

    /// Records a request that the client cancels. Without a session, closing its connection is the only way to cancel
    /// it.
    fn cancel_pending(&self, message: &BridgeMessage) -> bool {
        let Some(id) = message.cancelled.as_deref() else {
            return false;
        };
        let mut pending = self.pending_requests.lock();
        let Some(call) = pending.get_mut(id) else {
            return false;
        };
        call.is_cancelled = true;
        if self.connection.has_session() {
            return false;
        }
        if let Some(task) = &call.task {
            task.abort();
        }
        pending.remove(id);
        true
    }

    /// Sends a message to the client.
    async fn send_to_client(&self, text: &[u8]) {
        // A client that is gone ends the bridge.
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.unread_permits)
            .acquire_many_owned(length.min(MAX_BRIDGE_UNREAD_BYTES));
        let unread = BridgeOutputLine {
            // The semaphore is never closed.
            _unread_permit: permit.await.ok(),
            text: message::to_single_line(text),
        };
        let _ = self.output.send(unread).await;
    }

    async fn send_error(&self, id: &str, fault: &BridgeError) {
        self.send_to_client(fault.to_response(id).as_bytes()).await;
    }
}
