//! The part of a session that survives the companion: the client's handshake, its subscriptions and its log level.

use super::{Hub, HubRefusal, HubTarget};
use crate::call_record::initialized_client_name;
use crate::client_subscriptions::ClientSubscriptions;
use crate::message::RpcMessage;
use crate::message_stream::MessageStream;
use crate::server_cache;
use crate::session::{ClientStreams, HubSession};
use bytes::Bytes;
use osctl_protocol::hex::hex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The file of a session is removed after this time without a use.
const PERSISTED_HUB_SESSION_TIMEOUT: Duration = Duration::from_secs(14 * 24 * 3600);
/// The most files of sessions that are not in memory: clients that open a session for each call leave many.
const MAX_PERSISTED_HUB_SESSIONS: usize = 2048;

/// The part of a session that is stored on disk.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PersistedHubSession {
    #[serde(alias = "wish")]
    pub(crate) target: HubTarget,
    pub(crate) version: String,
    #[serde(alias = "hello")]
    pub(crate) initialize_params: Box<RawValue>,
    /// The subscribed resources.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) subscribed: BTreeSet<String>,
    /// The parameters of its last `logging/setLevel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) level: Option<Box<RawValue>>,
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
    /// Stores the effect of a request that lasts as long as its session.
    pub(crate) fn persist_subscription(&self, session: &HubSession, message: &RpcMessage) {
        // The lock is held until the file is written, so that concurrent requests do not overwrite each other and a
        // closed session's file is not written again.
        let mut subscriptions = session.lock_subscriptions();
        if !subscriptions.record_request(message) {
            return;
        }
        let path = self.session_file(&session.id);
        let persisted = fs::read(&path).ok();
        let persisted =
            persisted.and_then(|text| serde_json::from_slice::<PersistedHubSession>(&text).ok());
        // A session of the older transport ends with its connection and has no file.
        let Some(mut persisted) = persisted else {
            return;
        };
        persisted.subscribed = subscriptions.subscribed.clone();
        persisted.level = subscriptions.level.clone();
        if let Err(error) = server_cache::write_json(&path, &persisted) {
            tracing::warn!(session = %session.id, error = %format_args!("{error:#}"), "the hub can't store a session");
        }
    }

    /// Restores a session from disk with its subscriptions and log level.
    pub(crate) fn restore_session(&self, id: &str) -> Result<Arc<HubSession>, HubRefusal> {
        let text = fs::read(self.session_file(id)).map_err(|_| HubRefusal::NoSession)?;
        let persisted: PersistedHubSession =
            serde_json::from_slice(&text).map_err(|_| HubRefusal::NoSession)?;
        let before = self.change_count();
        let streams = ClientStreams::new(Arc::new(MessageStream::general(self.next_number())));
        let initialize_params =
            Bytes::copy_from_slice(persisted.initialize_params.get().as_bytes());
        let client = initialized_client_name(&initialize_params);
        let backend =
            self.open_backend(&persisted.target, Some(initialize_params), streams.clone());
        let backend = backend.map_err(|refusal| match refusal {
            HubRefusal::Stopping => refusal,
            _ => HubRefusal::NoSession,
        })?;
        let subscriptions = persisted.client_subscriptions();
        if let Some(level) = subscriptions.log_level() {
            backend.set_level(&level);
        }
        let PersistedHubSession {
            target, version, ..
        } = persisted;
        let session = HubSession::new(
            id.into(),
            version,
            target.server,
            client,
            backend,
            subscriptions,
            streams,
        );
        session.streams.notify_lists_changed();
        session.resubscribe();
        self.register_session(session, before)
    }

    /// The number of sessions in memory that survive a restart, and of connections that end with this companion.
    pub fn client_counts(&self) -> (usize, usize) {
        let sessions = self.0.sessions.lock();
        let persisted = sessions.keys().filter(|id| self.session_file(id).exists());
        (
            persisted.count(),
            self.0.sse_connections.initialized_count(),
        )
    }

    /// The number of sessions on disk that a client could resume.
    pub fn persisted_session_count(&self) -> usize {
        let folder = self.0.settings.data_folder.join("sessions");
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        let read = files.filter_map(|file| fs::read(file.path()).ok());
        read.filter(|text| serde_json::from_slice::<PersistedHubSession>(text).is_ok())
            .count()
    }

    /// Removes the files of sessions that no client has used for long, and the oldest ones beyond the limit.
    pub(super) fn sweep_session_files(&self) {
        let sessions = self.0.sessions.lock();
        let in_memory: HashSet<PathBuf> = sessions.keys().map(|id| self.session_file(id)).collect();
        drop(sessions);
        let folder = self.0.settings.data_folder.join("sessions");
        tokio::task::spawn_blocking(move || {
            let files = fs::read_dir(folder).into_iter().flatten().flatten();
            let files = files.filter_map(|file| {
                let changed = file.metadata().and_then(|m| m.modified()).ok()?;
                Some((changed, file.path()))
            });
            let others = files.filter(|(_, path)| !in_memory.contains(path));
            for path in expired_files(others.collect(), SystemTime::now()) {
                // It does not matter whether the file still exists.
                let _ = fs::remove_file(path);
            }
        });
    }

    /// The file's name does not contain the id, because the id grants access to the session.
    pub(crate) fn session_file(&self, id: &str) -> PathBuf {
        let name = hex(&Sha256::digest(id)[..16]);
        self.0
            .settings
            .data_folder
            .join(Path::new("sessions"))
            .join(name)
    }
}

/// The files that are too old, and the oldest ones beyond [`MAX_PERSISTED_HUB_SESSIONS`].
fn expired_files(mut files: Vec<(SystemTime, PathBuf)>, now: SystemTime) -> Vec<PathBuf> {
    // The newest first.
    files.sort_by(|a, b| b.cmp(a));
    let is_expired = |(number, (changed, _)): &(usize, (SystemTime, PathBuf))| {
        let age = now.duration_since(*changed).unwrap_or_default();
        *number >= MAX_PERSISTED_HUB_SESSIONS || age > PERSISTED_HUB_SESSION_TIMEOUT
    };
    let expired = files.into_iter().enumerate().filter(is_expired);
    expired.map(|(_, (_, path))| path).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        MAX_PERSISTED_HUB_SESSIONS, PERSISTED_HUB_SESSION_TIMEOUT, PersistedHubSession, RpcMessage,
        expired_files,
    };
    use std::path::PathBuf;
    use std::time::{Duration, SystemTime};

    #[test]
    fn the_files_of_old_and_of_too_many_sessions_expire() {
        let now = SystemTime::now();
        let second = Duration::from_secs(1);
        let file = |age: Duration, name: &str| (now - age, name.into());
        let ages = [
            Duration::ZERO,
            second,
            PERSISTED_HUB_SESSION_TIMEOUT + second,
        ];
        let old = ages.map(|age| file(age, &age.as_secs().to_string()));
        let expired = expired_files(old.into(), now);
        assert_eq!(expired, [PathBuf::from(ages[2].as_secs().to_string())]);
        let many = (0..MAX_PERSISTED_HUB_SESSIONS + 2)
            .map(|age| file(second * u32::try_from(age).unwrap(), &age.to_string()));
        let oldest = [MAX_PERSISTED_HUB_SESSIONS, MAX_PERSISTED_HUB_SESSIONS + 1];
        let oldest: Vec<PathBuf> = oldest.map(|age| age.to_string().into()).into();
        assert_eq!(expired_files(many.collect(), now), oldest);
    }

    #[test]
    fn subscriptions_and_log_level_last_as_long_as_their_session() {
        let before = r#"{"wish":{"server":"a","servers":null,"tools":null},"version":"2025-11-25","hello":{"x":1.0}}"#;
        let mut persisted: PersistedHubSession = serde_json::from_str(before).unwrap();
        let mut subscriptions = persisted.client_subscriptions();
        let mut note = |method: &str, params: &str| {
            let text = format!(r#"{{"id":1,"method":"{method}","params":{params}}}"#);
            subscriptions.record_request(&RpcMessage::parse(text.into()).unwrap())
        };
        assert!(!note("tools/call", r#"{"uri":"a:b"}"#));
        assert!(note("resources/subscribe", r#"{"uri":"a:b"}"#));
        assert!(!note("resources/subscribe", r#"{"uri":"a:b"}"#));
        assert!(note("resources/subscribe", r#"{"uri":"a:c"}"#));
        assert!(note("resources/unsubscribe", r#"{"uri":"a:c"}"#));
        assert!(note("logging/setLevel", r#"{"level":"info"}"#));
        (persisted.subscribed, persisted.level) = (subscriptions.subscribed, subscriptions.level);
        let text = serde_json::to_string(&persisted).unwrap();
        let again: PersistedHubSession = serde_json::from_str(&text).unwrap();
        assert_eq!(
            again.client_subscriptions().log_level().unwrap(),
            r#"{"level":"info"}"#
        );
        assert_eq!(again.subscribed.into_iter().collect::<Vec<_>>(), ["a:b"]);
        assert_eq!(again.initialize_params.get(), r#"{"x":1.0}"#);
    }
}
