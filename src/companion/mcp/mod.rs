//! The hub of MCP servers: what clients of any transport and revision say goes to the servers' one
//! child or to a child of their own, and back, byte for byte.
//!
//! ```text
//! face (HTTP) ── session ──┬── access ── child's owner ── process | URL
//!    one call's stream  ◀──┤      one server
//!    the general stream ◀──┴── merge ── access … : all servers as one
//! ```
//!
//! [`Hub`] is the handle. It knows the servers ([`config`], read again when a file changes) and the
//! sessions, which are kept on disk and so survive the container. Nothing but what is eager is started
//! before it is needed: what servers say of themselves is told from a cache ([`cache`]).
//!
//! It does not interpret what tools do, and never writes a message anew ([`message`]).

mod cache;
mod child;
mod client;
mod config;
mod filter;
mod list_delay;
mod log;
mod merged_lists;
mod merged_servers;
mod message;
mod notification_source;
mod os;
mod param_headers;
mod persisted_sessions;
mod probe;
mod resource_index;
mod resource_route;
mod server;
mod session;
mod settings;
mod sse_connections;
mod stream;
mod transport;
mod uri_template;

pub(super) use os::{Os, ToolContext};
pub(super) use settings::HubSettings;
pub(super) use transport::hub_routes;

use crate::error::Result;
use crate::protocol::hex::hex;
use crate::protocol::mcp::{HubStatus, ServerStatus};
use bytes::Bytes;
use child::{HandshakeError, InProcessServer};
use client::{McpClient, NotificationSink};
use config::{McpConfig, McpConfigFiles};
use filter::NameFilter;
use merged_servers::MergedServers;
use persisted_sessions::{ClientSubscriptions, PersistedHubSession};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use server::ServerEntry;
use session::{Backend, ClientStreams, HubSession};
use sse_connections::SseConnections;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stream::MessageStream;

/// Between two looks at the files and at the sessions.
const HUB_WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Sessions in memory; those who ask again come back from disk.
const MAX_HUB_SESSIONS: usize = 1024;
/// A session that nobody has used for so long leaves memory, and after longer the disk.
const HUB_SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
const PERSISTED_HUB_SESSION_TIMEOUT: Duration = Duration::from_secs(14 * 24 * 3600);

/// Whom a client wants, and how much of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct HubTarget {
    /// The server's name; none for all.
    server: Option<String>,
    /// Of all, only these.
    servers: Option<String>,
    tools: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Hub(Arc<HubInner>);

#[derive(Debug)]
struct HubInner {
    settings: HubSettings,
    os: Arc<dyn InProcessServer>,
    servers: Mutex<BTreeMap<String, Arc<ServerEntry>>>,
    files: Mutex<McpConfigFiles>,
    /// What the configuration can't be followed in.
    amiss: Mutex<ConfigErrors>,
    sessions: Mutex<HashMap<String, Arc<HubSession>>>,
    /// Connections of the older transport.
    visits: SseConnections,
    is_stopping: AtomicBool,
    /// How often servers have changed.
    changes: AtomicU64,
    /// Servers that are not offered any more, as long as calls to them are open.
    retired: Mutex<Vec<Arc<ServerEntry>>>,
    /// Of members and streams. It goes on after a restart, so that no old event id names a new stream.
    last: AtomicU64,
    /// The last number of the time before.
    before: u64,
}

/// What is wrong with the configuration.
#[derive(Debug, Default)]
struct ConfigErrors {
    problems: Vec<String>,
    /// Servers that make no sense, and why.
    refused: BTreeMap<String, String>,
}

/// Why a client can't be served.
#[derive(Debug)]
enum HubRefusal {
    /// In words.
    NoServer(String),
    Stopping,
    NoSession,
    Hello(HandshakeError),
}

impl Hub {
    /// Reads the servers and watches their files. Nothing but eager servers is started.
    pub(super) fn start(settings: HubSettings, os: Os) -> Self {
        let hub = Self::new(settings, Arc::new(os));
        let stamp = config::file_stamps(&hub.0.settings.files);
        hub.reload_config();
        tokio::spawn(hub.clone().watch_files(stamp));
        hub
    }

    /// Without any server yet.
    fn new(settings: HubSettings, os: Arc<dyn InProcessServer>) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // More in a microsecond there can't be.
        let before = since.map_or(0, |s| u64::try_from(s.as_micros()).unwrap_or(0));
        Self(Arc::new(HubInner {
            files: Mutex::new(McpConfigFiles::new(settings.files.clone())),
            settings,
            os,
            servers: Mutex::default(),
            amiss: Mutex::default(),
            sessions: Mutex::default(),
            visits: SseConnections::default(),
            is_stopping: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            retired: Mutex::default(),
            last: AtomicU64::new(before),
            before,
        }))
    }

    async fn watch_files(self, mut stamp: Vec<Option<(SystemTime, u64)>>) {
        let mut ticks: u64 = 0;
        loop {
            tokio::time::sleep(HUB_WATCH_INTERVAL).await;
            let now = config::file_stamps(&self.0.settings.files);
            if now != stamp {
                stamp = now;
                self.reload_config();
            }
            ticks += 1;
            if ticks.is_multiple_of(60) {
                self.sweep_sessions();
            }
        }
    }

    /// Reads the servers' files now.
    pub(in crate::companion) fn reload_config(&self) {
        let files = self.0.files.lock();
        let found = files.unwrap_or_else(PoisonError::into_inner).read();
        self.apply_config(found);
    }

    /// Takes the servers over that are new or other; those that are the same go on.
    fn apply_config(&self, found: McpConfig) {
        for problem in &found.problems {
            tracing::warn!("{problem}");
        }
        *self.lock_config_errors() = ConfigErrors {
            problems: found.problems,
            refused: found.refused,
        };
        let mut gone = Vec::new();
        let mut is_new = false;
        {
            let mut servers = self.lock_servers();
            servers.retain(|name, served| {
                let same = found.servers.get(name) == Some(&served.known.server);
                if !same {
                    gone.push(served.clone());
                }
                same
            });
            for (name, server) in found.servers {
                servers.entry(name).or_insert_with(|| {
                    is_new = true;
                    ServerEntry::new(server, &self.0.settings.data, &self.0.os)
                });
            }
        }
        if gone.is_empty() && !is_new {
            return;
        }
        self.0.changes.fetch_add(1, Ordering::Relaxed);
        let servers = self.lock_servers().clone();
        self.lock_sessions().retain(|_, session| {
            let stays = session.update_servers(&servers, || self.next_number());
            if !stays {
                session.outlet.drain();
            }
            stays
        });
        let names: Vec<&str> = gone.iter().map(|served| served.name()).collect();
        self.0
            .visits
            .retain_connections(|session, server| match session {
                Some(session) => session.update_servers(&servers, || self.next_number()),
                None => server.is_some_and(|name| !names.contains(&name)),
            });
        gone.iter().for_each(|served| served.drain());
        let mut retired = self.lock_retired();
        retired.retain(|served| !served.is_over());
        retired.extend(gone);
    }

    fn sweep_sessions(&self) {
        self.lock_sessions()
            .retain(|_, session| session.idle_time() < HUB_SESSION_IDLE_TIMEOUT);
        self.lock_retired().retain(|served| !served.is_over());
        let folder = self.0.settings.data.join("sessions");
        tokio::task::spawn_blocking(move || {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let age = entry.metadata().and_then(|m| m.modified()).ok();
                let age = age.and_then(|changed| changed.elapsed().ok());
                if age.is_some_and(|age| age > PERSISTED_HUB_SESSION_TIMEOUT) {
                    // Gone already is as good.
                    let _ = fs::remove_file(entry.path());
                }
            }
        });
    }

    /// Ends all servers, with everything that they have started.
    pub(super) async fn shutdown(&self) {
        // From here on nobody is told that a session or a server is gone, which they are not.
        self.0.is_stopping.store(true, Ordering::Relaxed);
        let sessions: Vec<_> = self.lock_sessions().drain().collect();
        let retiring = sessions.iter().map(|(_, session)| &session.outlet);
        retiring.for_each(|outlet| outlet.drain());
        // With their servers all open calls end, and who waits is told so.
        let mut servers: Vec<_> = std::mem::take(&mut *self.lock_servers())
            .into_values()
            .collect();
        servers.append(&mut self.lock_retired());
        let ends = servers.iter().map(|served| served.shutdown());
        futures_util::future::join_all(ends).await;
        let ended = sessions.iter().map(|(_, session)| &session.outlet);
        ended.for_each(|outlet| outlet.close());
        self.0.visits.close_all();
    }

    fn is_stopping(&self) -> bool {
        self.0.is_stopping.load(Ordering::Relaxed)
    }

    /// Whether a stream of that number was one of the companion before this one.
    fn is_from_previous_run(&self, stream: u64) -> bool {
        stream <= self.0.before
    }

    fn next_number(&self) -> u64 {
        self.0.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn open_backend(
        &self,
        wish: &HubTarget,
        hello: Option<Bytes>,
        ears: Arc<dyn NotificationSink>,
    ) -> Result<Backend, HubRefusal> {
        if self.is_stopping() {
            return Err(HubRefusal::Stopping);
        }
        let tools = NameFilter::from_query(wish.tools.as_deref());
        let Some(name) = &wish.server else {
            let wanted = NameFilter::from_query(wish.servers.as_deref());
            let servers = self.lock_servers().clone();
            let merge =
                MergedServers::new(servers, wanted, tools, hello, ears, || self.next_number());
            return Ok(Backend::All(merge));
        };
        let served = self.lock_servers().get(name).cloned();
        let served = served.ok_or_else(|| self.no_server(name))?;
        let number = self.next_number();
        let member = McpClient {
            number,
            hello,
            ears,
        };
        Ok(Backend::One(served.open_access(Arc::new(member), &tools)))
    }

    /// Whom those talk to who come without a session.
    fn sessionless_backend(
        &self,
        wish: &HubTarget,
        ears: Arc<dyn NotificationSink>,
    ) -> Result<Backend, HubRefusal> {
        self.open_backend(wish, None, ears)
    }

    /// A session for who says `initialize` with these parameters, and the result for it.
    async fn open_session(
        &self,
        wish: HubTarget,
        hello: Bytes,
    ) -> Result<(Arc<HubSession>, Bytes), HubRefusal> {
        let id = new_session_id()?;
        let (before, outlet, backend, result) = loop {
            let before = self.change_count();
            let outlet = ClientStreams::new(Arc::new(MessageStream::general(self.next_number())));
            let backend = self.open_backend(&wish, Some(hello.clone()), outlet.clone())?;
            let result = backend.initialize_result().await;
            // What was said by a server that was exchanged meanwhile does not count.
            if self.change_count() == before {
                break (before, outlet, backend, result.map_err(HubRefusal::Hello)?);
            }
        };
        let version = protocol_version(&result);
        let server = wish.server.clone();
        let lasting = ClientSubscriptions::default();
        let session = HubSession::new(
            id.clone(),
            version.clone(),
            server,
            backend,
            lasting,
            outlet,
        );
        let raw = String::from_utf8(hello.into()).ok();
        if let Some(hello) = raw.and_then(|raw| RawValue::from_string(raw).ok()) {
            let kept = PersistedHubSession {
                wish,
                version,
                hello,
                subscribed: BTreeSet::new(),
                level: None,
            };
            if let Err(error) = cache::write_json(&self.session_file(&id), &kept) {
                tracing::warn!("a session can't be kept: {error:#}");
            }
        }
        Ok((self.register_session(session, before)?, result))
    }

    fn change_count(&self) -> u64 {
        self.0.changes.load(Ordering::Relaxed)
    }

    /// The session under its id: this one, unless there is one already. `before` it there were so many changes of
    /// the servers; those since then it may not have seen.
    fn register_session(
        &self,
        session: HubSession,
        before: u64,
    ) -> Result<Arc<HubSession>, HubRefusal> {
        let kept = self.insert_or_find_session(session);
        if self.change_count() != before
            && !kept.update_servers(&self.lock_servers().clone(), || self.next_number())
        {
            self.lock_sessions().remove(&kept.id);
            return Err(HubRefusal::NoSession);
        }
        Ok(kept)
    }

    fn insert_or_find_session(&self, session: HubSession) -> Arc<HubSession> {
        let mut sessions = self.lock_sessions();
        if sessions.len() >= MAX_HUB_SESSIONS {
            let oldest = sessions.values().max_by_key(|session| session.idle_time());
            if let Some(id) = oldest.map(|session| session.id.clone()) {
                sessions.remove(&id);
            }
        }
        let id = session.id.clone();
        let kept = sessions.entry(id).or_insert_with(|| Arc::new(session));
        kept.clone()
    }

    /// A session, which may come back from the time before a restart.
    fn find_session(&self, id: &str, server: Option<&str>) -> Result<Arc<HubSession>, HubRefusal> {
        if self.is_stopping() {
            return Err(HubRefusal::Stopping);
        }
        let found = self.lock_sessions().get(id).cloned();
        let session = match found {
            Some(session) => session,
            None => self.restore_session(id)?,
        };
        if session.server.as_deref() != server {
            return Err(HubRefusal::NoSession);
        }
        session.touch();
        Ok(session)
    }

    /// Ends a session for ever.
    fn close_session(&self, session: &HubSession) {
        self.lock_sessions().remove(&session.id);
        // Not while what it has asked for is written, which would bring it back.
        let lasting = session.lock_subscriptions();
        // Gone already is as good.
        let _ = fs::remove_file(self.session_file(&session.id));
        drop(lasting);
        session.close();
    }

    fn status(&self) -> HubStatus {
        let mut servers: Vec<ServerStatus> =
            self.lock_servers().values().map(|s| s.status()).collect();
        let amiss = self.lock_config_errors();
        let refused = amiss.refused.iter();
        servers.extend(refused.map(|(name, why)| server::refused_status(name, why)));
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        let problems = amiss.problems.clone();
        drop(amiss);
        HubStatus {
            status: "ok".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            sessions: self.lock_sessions().len(),
            servers,
            problems,
        }
    }

    fn lock_config_errors(&self) -> MutexGuard<'_, ConfigErrors> {
        self.0.amiss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn no_server(&self, name: &str) -> HubRefusal {
        HubRefusal::NoServer(match self.lock_config_errors().refused.get(name) {
            Some(why) => format!("the server `{name}` is refused: {why}"),
            None => format!("there is no server `{name}`"),
        })
    }

    fn find_server(&self, name: &str) -> Option<Arc<ServerEntry>> {
        self.lock_servers().get(name).cloned()
    }

    fn lock_servers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ServerEntry>>> {
        self.0
            .servers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_retired(&self) -> MutexGuard<'_, Vec<Arc<ServerEntry>>> {
        self.0
            .retired
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<HubSession>>> {
        self.0
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_session_id() -> Result<String, HubRefusal> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| HubRefusal::NoSession)?;
    Ok(hex(random))
}

/// What a handshake has agreed on.
fn protocol_version(result: &[u8]) -> String {
    let text = std::str::from_utf8(result).unwrap_or_default();
    let span = message::find_value(text, &["protocolVersion"]);
    span.map_or("", |span| text[span].trim_matches('"'))
        .to_owned()
}
