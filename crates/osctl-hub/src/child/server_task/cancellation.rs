//! Cancellations of calls for the server.

use super::ServerTask;
use crate::message;
use bytes::Bytes;

impl ServerTask {
    /// Tells the server that its answer to a call has no recipient.
    pub(super) fn send_cancellation(&mut self, server_id: &str, reason: &str) {
        let params = format!(r#"{{"requestId":{server_id},"reason":"{reason}"}}"#);
        let text = message::notification_message("notifications/cancelled", &params);
        self.forward_cancellation(text);
    }

    /// Sends the cancellation of a call, unless the server does not survive cancellations.
    pub(super) fn forward_cancellation(&mut self, text: Bytes) {
        if self.spec.config.forwards_cancel {
            self.send_to_server(text);
        }
    }
}
