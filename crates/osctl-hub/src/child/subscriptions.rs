//! The subscriptions and log level of a server's clients. The owner task sends them again after a restart of the
//! server.

use crate::message::find_raw;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct ServerSubscriptions {
    subscribers: BTreeMap<String, BTreeSet<u64>>,
    level_params: Option<String>,
    /// The log level of each client.
    client_levels: BTreeMap<u64, String>,
}

impl ServerSubscriptions {
    /// Adds a subscription. Returns whether the server must receive the request: the client is the first subscriber.
    pub(super) fn subscribe(&mut self, uri: &str, client_number: u64) -> bool {
        let subscribers = self.subscribers.entry(uri.into()).or_default();
        let is_first = subscribers.is_empty();
        subscribers.insert(client_number);
        is_first
    }

    /// Removes a subscription. Returns whether the server must receive the request: no subscriber is left.
    pub(super) fn unsubscribe(&mut self, uri: &str, client_number: u64) -> bool {
        let Some(subscribers) = self.subscribers.get_mut(uri) else {
            return true;
        };
        subscribers.remove(&client_number);
        if subscribers.is_empty() {
            self.subscribers.remove(uri);
            return true;
        }
        false
    }

    pub(super) fn subscribers(&self, uri: &str) -> impl Iterator<Item = u64> {
        self.subscribers.get(uri).into_iter().flatten().copied()
    }

    /// Removes clients that are gone, and returns the resources without a subscriber.
    pub(super) fn retain_clients(&mut self, is_here: impl Fn(u64) -> bool) -> Vec<String> {
        let mut silent = Vec::new();
        self.client_levels
            .retain(|client_number, _| is_here(*client_number));
        self.subscribers.retain(|uri, subscribers| {
            subscribers.retain(|client_number| is_here(*client_number));
            if subscribers.is_empty() {
                silent.push(uri.clone());
            }
            !subscribers.is_empty()
        });
        silent
    }

    /// Removes all subscribers of a resource whose subscription the server refused.
    pub(super) fn remove_resource(&mut self, uri: &str) {
        self.subscribers.remove(uri);
    }

    pub(super) fn uris(&self) -> impl Iterator<Item = &str> {
        self.subscribers.keys().map(String::as_str)
    }

    /// Records the parameters of a client's `logging/setLevel`.
    pub(super) fn set_level(&mut self, params: &str, client_number: u64) {
        self.level_params = Some(params.into());
        if let Some(level) = find_raw(params, &["level"]) {
            self.client_levels.insert(client_number, level.into());
        }
    }

    /// The raw log level of a client.
    pub(super) fn log_level(&self, client_number: u64) -> Option<&str> {
        self.client_levels.get(&client_number).map(String::as_str)
    }

    /// The requests that restore this state in a restarted server.
    pub(super) fn replay_requests(&self) -> Vec<(&'static str, String)> {
        let uris = self.subscribers.keys();
        let subscribe = uris.map(|uri| {
            let params = serde_json::json!({"uri": uri}).to_string();
            ("resources/subscribe", params)
        });
        let level = self
            .level_params
            .clone()
            .map(|level| ("logging/setLevel", level));
        subscribe.chain(level).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::ServerSubscriptions;

    #[test]
    fn the_server_receives_the_first_and_the_last_subscription() {
        let mut subscriptions = ServerSubscriptions::default();
        assert!(subscriptions.subscribe("a", 1));
        assert!(!subscriptions.subscribe("a", 2));
        assert!(!subscriptions.unsubscribe("a", 1));
        assert_eq!(subscriptions.subscribers("a").collect::<Vec<_>>(), [2]);
        subscriptions.set_level(r#"{"level":"info"}"#, 2);
        assert_eq!(subscriptions.log_level(2), Some("\"info\""));
        assert_eq!(subscriptions.log_level(1), None);
        assert!(subscriptions.subscribe("refused", 1));
        subscriptions.remove_resource("refused");
        let again = subscriptions.replay_requests();
        assert_eq!(again[0].1, r#"{"uri":"a"}"#);
        assert_eq!(again[1].0, "logging/setLevel");
        assert_eq!(subscriptions.retain_clients(|_| false), ["a"]);
        assert!(subscriptions.is_empty() && subscriptions.unsubscribe("a", 2));
    }
}
