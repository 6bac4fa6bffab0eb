//! Connections that end with their server: connections of the older transport, which carry all messages and have a
//! session after the handshake, and listeners without a session.

use super::sessions::{new_session_id, protocol_version};
use super::{Hub, HubRefusal, HubTarget};
use crate::call_record::{initialized_client_name, record_sign_in};
use crate::client::NotificationSink;
use crate::client_subscriptions::ClientSubscriptions;
use crate::message::RpcMessage;
use crate::message_stream::MessageStream;
use crate::session::{ClientStreams, HubSession, notify_lists_changed};
use bytes::Bytes;
use osctl_protocol::mcp::HubClientStatus;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

#[derive(Debug)]
pub(crate) struct SseConnection {
    id: String,
    target: HubTarget,
    pub(crate) stream: Arc<MessageStream>,
    /// A listener without a session; it receives `list_changed` before the connection ends.
    listener: Option<Arc<dyn NotificationSink>>,
    session: OnceLock<Arc<HubSession>>,
}

impl SseConnection {
    pub(crate) fn session(&self) -> Option<&Arc<HubSession>> {
        self.session.get()
    }

    /// Ends the connection after its pending answers: its servers may have changed.
    pub(crate) fn drain(&self) {
        if let Some(listener) = &self.listener {
            notify_lists_changed(&**listener);
        }
        self.stream.drain();
    }
}

#[derive(Debug, Default)]
pub(crate) struct SseConnections(Mutex<HashMap<String, Arc<SseConnection>>>);

impl SseConnections {
    /// Ends the connections for which `goes_on` returns `false`, after their pending answers. `goes_on` receives the
    /// session, if there is one, and the server's name (`None` for all servers).
    pub(crate) fn retain_connections(
        &self,
        goes_on: impl Fn(Option<&HubSession>, Option<&str>) -> bool,
    ) {
        self.0.lock().retain(|_, connection| {
            let session = connection.session().map(|session| &**session);
            let stays = goes_on(session, connection.target.server.as_deref());
            if !stays {
                connection.drain();
            }
            stays
        });
    }

    pub(crate) fn client_statuses(&self) -> Vec<HubClientStatus> {
        let connections = self.0.lock();
        let sessions = connections
            .values()
            .filter_map(|connection| connection.session());
        sessions.map(|session| session.client_status()).collect()
    }

    /// The number of connections with a completed handshake.
    pub(crate) fn initialized_count(&self) -> usize {
        let connections = self.0.lock();
        connections
            .values()
            .filter(|v| v.session().is_some())
            .count()
    }

    pub(crate) fn close_all(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_values()
            .for_each(|connection| connection.stream.close());
    }
}

impl Hub {
    /// Registers a connection. Returns its id and its stream.
    pub(crate) fn open_connection(
        &self,
        target: HubTarget,
    ) -> Result<(String, Arc<MessageStream>), HubRefusal> {
        let stream = Arc::new(MessageStream::endless(self.next_number()));
        let connection = self.register_connection(target, stream.clone(), None)?;
        Ok((connection.id.clone(), stream))
    }

    /// Registers a listener, which ends when its servers change. `before` is the change count when the listener was
    /// created.
    pub(crate) fn register_listener(
        &self,
        target: HubTarget,
        stream: Arc<MessageStream>,
        listener: Arc<dyn NotificationSink>,
        before: u64,
    ) -> Result<String, HubRefusal> {
        let connection = self.register_connection(target, stream, Some(listener))?;
        // That change was not delivered to this listener.
        if self.change_count() != before {
            connection.drain();
        }
        Ok(connection.id.clone())
    }

    /// Registers a connection that ends with its server.
    fn register_connection(
        &self,
        target: HubTarget,
        stream: Arc<MessageStream>,
        listener: Option<Arc<dyn NotificationSink>>,
    ) -> Result<Arc<SseConnection>, HubRefusal> {
        let connection = Arc::new(SseConnection {
            id: new_session_id()?,
            target,
            stream,
            listener,
            session: OnceLock::new(),
        });
        let mut connections = self.0.sse_connections.0.lock();
        connections.insert(connection.id.clone(), connection.clone());
        drop(connections);
        Ok(connection)
    }

    pub(crate) fn find_connection(&self, id: &str) -> Option<Arc<SseConnection>> {
        self.0.sse_connections.0.lock().get(id).cloned()
    }

    /// Performs the handshake; returns the result of `initialize`.
    pub(crate) async fn initialize_connection(
        &self,
        connection: &SseConnection,
        message: &RpcMessage,
    ) -> Result<Bytes, HubRefusal> {
        let initialize_params = Bytes::copy_from_slice(message.params().unwrap_or("{}").as_bytes());
        let streams = ClientStreams::new(connection.stream.clone());
        let client = initialized_client_name(&initialize_params);
        let before = self.change_count();
        let backend =
            self.open_backend(&connection.target, Some(initialize_params), streams.clone())?;
        let result = backend
            .initialize_result()
            .await
            .map_err(HubRefusal::Handshake)?;
        let (id, server) = (connection.id.clone(), connection.target.server.clone());
        let subscriptions = ClientSubscriptions::default();
        let session = HubSession::new(
            id,
            protocol_version(&result),
            server,
            client.clone(),
            backend,
            subscriptions,
            streams,
        );
        // A repeated handshake keeps the first session.
        if connection.session.set(Arc::new(session)).is_ok() {
            record_sign_in(&**self.context(), client);
        }
        if let Some(session) = connection.session()
            && self.change_count() != before
            && !session.update_servers(&self.0.servers.lock().clone(), || self.next_number())
        {
            connection.stream.drain();
        }
        Ok(result)
    }

    /// Removes a closed connection.
    pub(crate) fn remove_connection(&self, id: &str) {
        self.0.sse_connections.0.lock().remove(id);
    }
}
