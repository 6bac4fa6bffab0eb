//! What of a session lasts longer than the companion: who the client is, and what it has asked for once
//! and for all.

use super::message::RpcMessage;
use super::session::{ClientStreams, HubSession};
use super::stream::MessageStream;
use super::{Hub, HubRefusal, HubTarget, cache};
use crate::protocol::hex::hex;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What of a session is on disk.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PersistedHubSession {
    pub(super) wish: HubTarget,
    pub(super) version: String,
    pub(super) hello: Box<RawValue>,
    /// The resources that it wants to hear of.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) subscribed: BTreeSet<String>,
    /// The parameters of its last `logging/setLevel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) level: Option<Box<RawValue>>,
}

/// What is asked once and holds until it is taken back.
const PERSISTED_METHODS: [&str; 3] = [
    "resources/subscribe",
    "resources/unsubscribe",
    "logging/setLevel",
];

/// The same, of a session in memory.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientSubscriptions {
    pub(super) subscribed: BTreeSet<String>,
    level: Option<Box<RawValue>>,
}

impl ClientSubscriptions {
    /// The parameters of the last `logging/setLevel`.
    pub(super) fn log_level(&self) -> Option<String> {
        self.level.as_ref().map(|level| level.get().to_owned())
    }

    /// Whether there is something new in what the client asks for that must last.
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

impl PersistedHubSession {
    fn client_subscriptions(&self) -> ClientSubscriptions {
        ClientSubscriptions {
            subscribed: self.subscribed.clone(),
            level: self.level.clone(),
        }
    }
}

impl Hub {
    /// Remembers what a client has asked for that must last as long as its session.
    pub(super) fn persist_subscription(&self, session: &HubSession, message: &RpcMessage) {
        // Until it is written, so that what is asked at once is not written over, nor a closed session brought back.
        let mut lasting = session.lock_subscriptions();
        if !lasting.record_request(message) {
            return;
        }
        let path = self.session_file(&session.id);
        let kept = fs::read(&path).ok();
        let kept = kept.and_then(|text| serde_json::from_slice::<PersistedHubSession>(&text).ok());
        // One of the older transport ends with its connection, and is not on disk.
        let Some(mut kept) = kept else {
            return;
        };
        kept.subscribed = lasting.subscribed.clone();
        kept.level = lasting.level.clone();
        if let Err(error) = cache::write_json(&path, &kept) {
            tracing::warn!("a session can't be kept: {error:#}");
        }
    }

    /// A session that was kept, with all that it had asked for.
    pub(super) fn restore_session(&self, id: &str) -> Result<Arc<HubSession>, HubRefusal> {
        let text = fs::read(self.session_file(id)).map_err(|_| HubRefusal::NoSession)?;
        let kept: PersistedHubSession =
            serde_json::from_slice(&text).map_err(|_| HubRefusal::NoSession)?;
        let before = self.change_count();
        let outlet = ClientStreams::new(Arc::new(MessageStream::general(self.next_number())));
        let hello = Bytes::copy_from_slice(kept.hello.get().as_bytes());
        let backend = self.open_backend(&kept.wish, Some(hello), outlet.clone());
        let backend = backend.map_err(|refusal| match refusal {
            HubRefusal::Stopping => refusal,
            _ => HubRefusal::NoSession,
        })?;
        let lasting = kept.client_subscriptions();
        if let Some(level) = lasting.log_level() {
            backend.set_level(&level);
        }
        let PersistedHubSession { wish, version, .. } = kept;
        let session = HubSession::new(id.into(), version, wish.server, backend, lasting, outlet);
        session.outlet.notify_lists_changed();
        session.resubscribe();
        self.register_session(session, before)
    }

    /// How many sessions in use come back in a later container, and how many connections end with this one.
    pub(in crate::companion) fn client_counts(&self) -> (usize, usize) {
        let sessions = self.lock_sessions();
        let kept = sessions.keys().filter(|id| self.session_file(id).exists());
        (kept.count(), self.0.visits.initialized_count())
    }

    /// How many sessions could come back.
    pub(in crate::companion) fn persisted_session_count(&self) -> usize {
        let folder = self.0.settings.data.join("sessions");
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        let read = files.filter_map(|file| fs::read(file.path()).ok());
        read.filter(|text| serde_json::from_slice::<PersistedHubSession>(text).is_ok())
            .count()
    }

    /// The id itself, which lets its holder in, is not on disk.
    pub(super) fn session_file(&self, id: &str) -> PathBuf {
        let name = hex(&Sha256::digest(id)[..16]);
        self.0.settings.data.join(Path::new("sessions")).join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::{PersistedHubSession, RpcMessage};

    #[test]
    fn what_a_client_has_asked_for_lasts_as_long_as_its_session() {
        let before = r#"{"wish":{"server":"a","servers":null,"tools":null},"version":"2025-11-25","hello":{"x":1.0}}"#;
        let mut kept: PersistedHubSession = serde_json::from_str(before).unwrap();
        let mut lasting = kept.client_subscriptions();
        let mut note = |method: &str, params: &str| {
            let text = format!(r#"{{"id":1,"method":"{method}","params":{params}}}"#);
            lasting.record_request(&RpcMessage::parse(text.into()).unwrap())
        };
        assert!(!note("tools/call", r#"{"uri":"a:b"}"#));
        assert!(note("resources/subscribe", r#"{"uri":"a:b"}"#));
        assert!(!note("resources/subscribe", r#"{"uri":"a:b"}"#));
        assert!(note("resources/subscribe", r#"{"uri":"a:c"}"#));
        assert!(note("resources/unsubscribe", r#"{"uri":"a:c"}"#));
        assert!(note("logging/setLevel", r#"{"level":"info"}"#));
        (kept.subscribed, kept.level) = (lasting.subscribed, lasting.level);
        let text = serde_json::to_string(&kept).unwrap();
        let again: PersistedHubSession = serde_json::from_str(&text).unwrap();
        assert_eq!(
            again.client_subscriptions().log_level().unwrap(),
            r#"{"level":"info"}"#
        );
        assert_eq!(again.subscribed.into_iter().collect::<Vec<_>>(), ["a:b"]);
        assert_eq!(again.hello.get(), r#"{"x":1.0}"#);
    }
}
