//! Cancellations of calls, and servers that do not survive one.
//!
//! Some servers end when they receive a cancellation, which fails the calls of all their clients. The key
//! `cancel: false` keeps cancellations from a server. The task also detects such a server without the key: if the server
//! ends shortly after a cancellation, none of the server's children receives another one.

use super::ServerTask;
use crate::config::ServerTransport;
use crate::message::{self, RpcMessage};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// A server that ends within this time after a cancellation has ended because of the cancellation.
const MAX_CANCEL_EXIT_DELAY: Duration = Duration::from_secs(2);

const CANCEL_EXIT_WARNING: &str = "the server ended after a cancellation, so the hub sends no more cancellations to the server; set `cancel: false` in the configuration of the server to prevent such an end";

impl ServerTask {
    /// Tells the server that its answer to a call has no recipient.
    pub(super) fn send_cancellation(&mut self, server_id: &str, reason: &str) {
        let params = format!(r#"{{"requestId":{server_id},"reason":"{reason}"}}"#);
        let message = message::notification_message(message::CANCELLED_METHOD, &params);
        self.forward_cancellation(message);
    }

    /// Sends the cancellation of a call, unless the server does not survive cancellations.
    pub(super) fn forward_cancellation(&mut self, message: RpcMessage) {
        if !self.spec.config.forwards_cancel || self.spec.ends_at_cancel.load(Ordering::Relaxed) {
            return;
        }
        self.connection.last_cancel = Some(Instant::now());
        self.send_to_server(message);
    }

    /// Handles the loss of a server: records whether a cancellation caused it.
    pub(super) fn detect_end_at_cancel(&mut self) {
        let last_cancel = self.connection.last_cancel.take();
        let is_late = last_cancel.is_none_or(|cancel| cancel.elapsed() > MAX_CANCEL_EXIT_DELAY);
        // The loss of a remote server is noticed at the next message, which may be the cancellation.
        let is_remote = matches!(self.spec.config.transport, ServerTransport::Remote { .. });
        if is_late || is_remote || self.spec.ends_at_cancel.swap(true, Ordering::Relaxed) {
            return;
        }
        self.spec.log.append_note(CANCEL_EXIT_WARNING);
        tracing::warn!(
            "the server ended after a cancellation, so the hub sends no more cancellations to the server; set `cancel: false` in the configuration of the server to prevent such an end"
        );
    }
}
