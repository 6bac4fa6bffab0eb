//! Messages of the merged servers to their client, which sees one server.

use super::client::NotificationSink;
use super::message::{CANCELLED_METHOD, RpcMessage, RpcMessageKind};
use super::resource_index::ResourceIndex;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Open requests of servers to the client; different servers may use the same ids.
#[derive(Debug, Default)]
pub(super) struct RelayedRequests {
    next_id: AtomicU64,
    /// By the id that the client knows: the number of the server connection, and the server's own id.
    requests: Mutex<HashMap<String, (u64, String)>>,
}

/// The sink of one server's messages to the client.
#[derive(Debug)]
pub(super) struct ServerNotificationSink {
    /// The number of the server connection.
    pub(super) server_number: u64,
    pub(super) resource_index: Arc<ResourceIndex>,
    pub(super) notification_sink: Arc<dyn NotificationSink>,
    pub(super) relayed_requests: Arc<RelayedRequests>,
}

impl RelayedRequests {
    pub(super) fn lock_open(&self) -> MutexGuard<'_, HashMap<String, (u64, String)>> {
        self.requests.lock()
    }
}

impl NotificationSink for ServerNotificationSink {
    fn deliver(&self, message: RpcMessage, is_related: bool) {
        let message = match (message.kind, message.id()) {
            (RpcMessageKind::Request, Some(id)) => {
                let number = self
                    .relayed_requests
                    .next_id
                    .fetch_add(1, Ordering::Relaxed);
                let own = format!("\"osctl-{number}\"");
                let relayed = message.with_id(&own);
                self.relayed_requests
                    .lock_open()
                    .insert(own, (self.server_number, id.into()));
                relayed
            }
            _ if message.method == CANCELLED_METHOD => {
                let id = message.raw_param(&["requestId"]).unwrap_or_default();
                let mut open = self.relayed_requests.lock_open();
                let is_meant = |(_, (server, theirs)): &(&String, &(u64, String))| {
                    *server == self.server_number && theirs == id
                };
                let Some(own) = open.iter().find(is_meant).map(|(own, _)| own.clone()) else {
                    return;
                };
                open.remove(&own);
                message.with_param(&["requestId"], &own)
            }
            // The URI may be below the subscribed one and in no list, so its server is recorded.
            _ if message.method == "notifications/resources/updated" => {
                if let Some(uri) = message.text_param(&["uri"]) {
                    self.resource_index.add_uri(uri);
                }
                message
            }
            _ => message,
        };
        self.notification_sink.deliver(message, is_related);
    }
}
