//! The sessions of the hub: how they are opened, found and closed.

use super::persisted_sessions::PersistedHubSession;
use super::{Hub, HubRefusal, HubTarget, MAX_HUB_SESSIONS};
use crate::call_record::{initialized_client_name, record_sign_in};
use crate::client_subscriptions::ClientSubscriptions;
use crate::message_stream::MessageStream;
use crate::session::{ClientStreams, HubSession};
use crate::{message, server_cache};
use anyhow::Result;
use bytes::Bytes;
use osctl_protocol::hex::hex;
use serde_json::value::RawValue;
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

impl Hub {
    /// Opens a session for a client's `initialize` parameters. Returns the session and the `initialize`
    /// result.
    pub(crate) async fn open_session(
        &self,
        target: HubTarget,
        initialize_params: Bytes,
    ) -> Result<(Arc<HubSession>, Bytes), HubRefusal> {
        let id = new_session_id()?;
        let (before, streams, backend, result) = loop {
            let before = self.change_count();
            let streams = ClientStreams::new(Arc::new(MessageStream::general(self.next_number())));
            let backend =
                self.open_backend(&target, Some(initialize_params.clone()), streams.clone())?;
            let result = backend.initialize_result().await;
            // The servers changed during the handshake: repeat it, because the result may come from a replaced
            // server.
            if self.change_count() == before {
                break (
                    before,
                    streams,
                    backend,
                    result.map_err(HubRefusal::Handshake)?,
                );
            }
        };
        let version = protocol_version(&result);
        let client = initialized_client_name(&initialize_params);
        let server = target.server.clone();
        let subscriptions = ClientSubscriptions::default();
        let session = HubSession::new(
            id.clone(),
            version.clone(),
            server,
            client.clone(),
            backend,
            subscriptions,
            streams,
        );
        let raw = String::from_utf8(initialize_params.into()).ok();
        if let Some(initialize_params) = raw.and_then(|raw| RawValue::from_string(raw).ok()) {
            let persisted = PersistedHubSession {
                target,
                version,
                initialize_params,
                subscribed: BTreeSet::new(),
                level: None,
            };
            if let Err(error) = server_cache::write_json(&self.session_file(&id), &persisted) {
                tracing::warn!(session = %id, error = %format_args!("{error:#}"), "the hub can't store a session");
            }
        }
        let session = self.register_session(session, before)?;
        record_sign_in(&**self.context(), client);
        Ok((session, result))
    }

    /// Registers a session, or returns the registered one with the same id. `before` is the change count when the
    /// session was created; the session is then updated to the servers if they changed since.
    pub(crate) fn register_session(
        &self,
        session: HubSession,
        before: u64,
    ) -> Result<Arc<HubSession>, HubRefusal> {
        let registered = self.insert_or_find_session(session);
        if self.change_count() != before
            && !registered.update_servers(&self.0.servers.lock().clone(), || self.next_number())
        {
            self.0.sessions.lock().remove(&registered.id);
            return Err(HubRefusal::NoSession);
        }
        Ok(registered)
    }

    fn insert_or_find_session(&self, session: HubSession) -> Arc<HubSession> {
        let mut sessions = self.0.sessions.lock();
        if sessions.len() >= MAX_HUB_SESSIONS {
            let oldest = sessions.values().max_by_key(|session| session.idle_time());
            if let Some(id) = oldest.map(|session| session.id.clone()) {
                sessions.remove(&id);
            }
        }
        let id = session.id.clone();
        let registered = sessions.entry(id).or_insert_with(|| Arc::new(session));
        registered.clone()
    }

    /// Finds a session in memory, or restores it from disk.
    pub(crate) fn find_session(
        &self,
        id: &str,
        server: Option<&str>,
    ) -> Result<Arc<HubSession>, HubRefusal> {
        if self.is_stopping() {
            return Err(HubRefusal::Stopping);
        }
        let found = self.0.sessions.lock().get(id).cloned();
        let session = match found {
            Some(session) => session,
            None => self.restore_session(id)?,
        };
        if session.server_name.as_deref() != server {
            return Err(HubRefusal::NoSession);
        }
        session.record_use();
        Ok(session)
    }

    /// Ends a session permanently.
    pub(crate) fn close_session(&self, session: &HubSession) {
        self.0.sessions.lock().remove(&session.id);
        // The lock keeps a concurrent subscription from writing the session's file again.
        let guard = session.lock_subscriptions();
        // It does not matter whether the file still exists.
        let _ = fs::remove_file(self.session_file(&session.id));
        drop(guard);
        session.close();
    }
}

pub(crate) fn new_session_id() -> Result<String, HubRefusal> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| HubRefusal::NoSession)?;
    Ok(hex(random))
}

/// The protocol version in an `initialize` result.
pub(crate) fn protocol_version(result: &[u8]) -> String {
    let text = std::str::from_utf8(result).unwrap_or_default();
    let version = message::find_raw(text, &["protocolVersion"]);
    version.unwrap_or_default().trim_matches('"').to_owned()
}
