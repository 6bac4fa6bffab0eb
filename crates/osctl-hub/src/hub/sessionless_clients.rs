//! Clients of the revision without sessions, by their latest requests.

use crate::HubTarget;
use crate::child::protocol_revision::{META_CLIENT_INFO, STATELESS_REVISION};
use crate::message::RpcMessage;
use crate::session::MAX_SHOWN_CLIENT_CHARS;
use osctl_protocol::activity::CLI_AGENT;
use osctl_protocol::activity_text::client_name;
use osctl_protocol::mcp::HubClientStatus;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

const MAX_SESSIONLESS_CLIENTS: usize = 16;
const SESSIONLESS_CLIENT_TIMEOUT: Duration = Duration::from_secs(300);

/// The latest used client is the first.
#[derive(Debug, Default)]
pub(super) struct SessionlessClients(Mutex<Vec<SessionlessClient>>);

#[derive(Debug)]
struct SessionlessClient {
    name: String,
    version: String,
    server: Option<String>,
    last_used: Instant,
}

impl SessionlessClients {
    /// Records a request. The commands of osctl do not stay connected, so they are no clients.
    pub(super) fn record_request(&self, message: &RpcMessage, target: &HubTarget) {
        let text = |key| message.text_param(&["_meta", META_CLIENT_INFO, key]);
        let name = client_name(&text("name").unwrap_or_default());
        if name == CLI_AGENT {
            return;
        }
        let version = text("version").unwrap_or_default();
        let client = SessionlessClient {
            name,
            version: version.chars().take(MAX_SHOWN_CLIENT_CHARS).collect(),
            server: target.server.clone(),
            last_used: Instant::now(),
        };
        let key = |client: &SessionlessClient| {
            let SessionlessClient {
                name,
                version,
                server,
                ..
            } = client;
            (name.clone(), version.clone(), server.clone())
        };
        let mut clients = self.0.lock();
        clients.retain(|known| key(known) != key(&client));
        clients.insert(0, client);
        clients.truncate(MAX_SESSIONLESS_CLIENTS);
    }

    pub(super) fn client_statuses(&self) -> Vec<HubClientStatus> {
        let mut clients = self.0.lock();
        clients.retain(|client| client.last_used.elapsed() < SESSIONLESS_CLIENT_TIMEOUT);
        let status = |client: &SessionlessClient| HubClientStatus {
            name: client.name.clone(),
            version: client.version.clone(),
            server: client.server.clone(),
            revision: STATELESS_REVISION.into(),
            idle_seconds: client.last_used.elapsed().as_secs(),
        };
        clients.iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_SESSIONLESS_CLIENTS, SESSIONLESS_CLIENT_TIMEOUT, SessionlessClients};
    use crate::HubTarget;
    use crate::message::RpcMessage;
    use serde_json::json;
    use std::time::Duration;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn recent_clients_are_listed_in_a_bounded_number_and_then_forgotten() {
        let clients = SessionlessClients::default();
        let request = |name: &str| {
            let info = json!({"name": name, "version": "x".repeat(1000)});
            let params = json!({"_meta": {"io.modelcontextprotocol/clientInfo": info}});
            let text = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params});
            let message = RpcMessage::parse(text.to_string().into()).unwrap();
            clients.record_request(&message, &HubTarget::default());
        };
        let names = || {
            let listed = clients.client_statuses();
            assert!(listed.iter().all(|client| client.version.len() == 100));
            let names = listed
                .into_iter()
                .map(|client| (client.name, client.idle_seconds));
            names.collect::<Vec<_>>()
        };
        request("a\u{1b}");
        request("osctl");
        advance(Duration::from_secs(200)).await;
        request("b");
        assert_eq!(names(), [("b".into(), 0), ("a\\u{1b}".into(), 200)]);
        request("a\u{1b}");
        assert_eq!(names(), [("a\\u{1b}".into(), 0), ("b".into(), 0)]);
        (0..99).for_each(|number| request(&number.to_string()));
        assert_eq!(names().len(), MAX_SESSIONLESS_CLIENTS);
        advance(SESSIONLESS_CLIENT_TIMEOUT).await;
        assert!(names().is_empty());
    }
}
