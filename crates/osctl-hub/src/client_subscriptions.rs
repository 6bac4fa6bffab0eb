//! The effects of a client's requests that last until the client revokes them.

use super::message::RpcMessage;
use serde_json::value::RawValue;
use std::collections::BTreeSet;

/// Requests with an effect that lasts until the client revokes it.
const PERSISTED_METHODS: [&str; 3] = [
    "resources/subscribe",
    "resources/unsubscribe",
    "logging/setLevel",
];

/// The subscriptions and log level of a session in memory.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientSubscriptions {
    pub(super) subscribed: BTreeSet<String>,
    pub(super) level: Option<Box<RawValue>>,
}

impl ClientSubscriptions {
    /// The parameters of the last `logging/setLevel`.
    pub(super) fn log_level(&self) -> Option<String> {
        self.level.as_ref().map(|level| level.get().to_owned())
    }

    /// Records a request with a permanent effect. Returns whether it changed anything.
    pub(super) fn record_request(&mut self, message: &RpcMessage) -> bool {
        if !PERSISTED_METHODS.contains(&message.method.as_str()) {
            return false;
        }
        let uri = || message.text_param(&["uri"]);
        match message.method.as_str() {
            "resources/subscribe" => uri().is_some_and(|uri| self.subscribed.insert(uri)),
            "resources/unsubscribe" => uri().is_some_and(|uri| self.subscribed.remove(&uri)),
            _ => {
                let level = message.params().map(str::to_owned);
                self.level = level.and_then(|level| RawValue::from_string(level).ok());
                true
            }
        }
    }
}
