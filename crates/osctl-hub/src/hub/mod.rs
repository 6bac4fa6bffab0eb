//! The hub: its servers, and the sessions and connections of its clients.

mod persisted_sessions;
mod server_probe;
mod sessionless_clients;
mod sessions;
mod sse_connections;

use crate::child::{HandshakeError, InProcessServer};
use crate::client::{McpClient, NotificationSink};
use crate::config::{McpConfig, McpConfigFiles};
use crate::merged_servers::{MergedSelection, MergedServers};
use crate::message::RpcMessage;
use crate::name_filter::NameFilter;
use crate::server_entry::{self, ServerEntry};
use crate::session::{Backend, HubSession};
use crate::settings::{HubContext, HubSettings};
use anyhow::Result;
use bytes::Bytes;
use osctl_protocol::mcp::{HubStatus, ServerStatus, ToolProfile};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sessionless_clients::SessionlessClients;
use sse_connections::SseConnections;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The pause between two checks of the configuration files; every 60th check also removes idle sessions.
const HUB_WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Sessions in memory. A session that was evicted is loaded from disk at its next request.
const MAX_HUB_SESSIONS: usize = 1024;
/// A session that is idle for this long is removed from memory; its file stays for longer.
const HUB_SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// The servers and tools that a client selects.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct HubTarget {
    /// The server's name; `None` for all servers.
    pub(super) server: Option<String>,
    /// With all servers selected: the patterns of the servers to include.
    pub(super) servers: Option<String>,
    pub(super) tools: Option<String>,
    /// With all servers selected: how many of their tools are listed; by default [`ToolProfile::Lean`] unless the
    /// client names servers or tools.
    #[serde(default)]
    pub(super) profile: Option<ToolProfile>,
}

impl HubTarget {
    fn tool_profile(&self) -> ToolProfile {
        let names_all = self.servers.is_none() && self.tools.is_none();
        self.profile.unwrap_or(match names_all {
            true => ToolProfile::Lean,
            false => ToolProfile::Full,
        })
    }
}

#[derive(Debug, Clone)]
pub struct Hub(Arc<HubInner>);

#[derive(Debug)]
struct HubInner {
    settings: HubSettings,
    built_in_server: Arc<dyn InProcessServer>,
    servers: Mutex<BTreeMap<String, Arc<ServerEntry>>>,
    config_files: Mutex<McpConfigFiles>,
    /// Errors of the configuration files and of single servers.
    config_errors: Mutex<ConfigErrors>,
    sessions: Mutex<HashMap<String, Arc<HubSession>>>,
    /// Connections of the HTTP+SSE transport of 2024-11-05.
    sse_connections: SseConnections,
    sessionless_clients: SessionlessClients,
    is_stopping: AtomicBool,
    /// How often the set of servers has changed.
    change_count: AtomicU64,
    /// Servers that were removed from the configuration; kept while calls to them are open.
    removed_servers: Mutex<Vec<Arc<ServerEntry>>>,
    /// The last number given to a client or a stream. Numbers continue after a restart, so no old event id names a
    /// new stream.
    last_number: AtomicU64,
    /// Numbers of this companion process are greater than this: its start time in microseconds.
    first_number_floor: u64,
}

/// Errors of the last read of the configuration.
#[derive(Debug, Default)]
struct ConfigErrors {
    problems: Vec<String>,
    /// Servers with an invalid configuration, and the reason.
    invalid_servers: BTreeMap<String, String>,
}

/// Why the hub refuses a client.
#[derive(Debug)]
pub(super) enum HubRefusal {
    /// The message for the client.
    NoServer(String),
    Stopping,
    NoSession,
    Handshake(HandshakeError),
}

impl Hub {
    /// Reads the configuration, starts the eager servers and watches the configuration files.
    pub fn start(settings: HubSettings, built_in_server: Arc<dyn InProcessServer>) -> Self {
        let hub = Self::new(settings, built_in_server);
        hub.reload_config();
        tokio::spawn(hub.clone().watch_files());
        hub
    }

    /// A hub without servers.
    pub(super) fn new(settings: HubSettings, built_in_server: Arc<dyn InProcessServer>) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // Numbers start at the current time in microseconds: a run never assigns more than one number a microsecond.
        let first_number_floor = since.map_or(0, |s| u64::try_from(s.as_micros()).unwrap_or(0));
        Self(Arc::new(HubInner {
            config_files: Mutex::new(McpConfigFiles::new(settings.config_files.clone())),
            settings,
            built_in_server,
            servers: Mutex::default(),
            config_errors: Mutex::default(),
            sessions: Mutex::default(),
            sse_connections: SseConnections::default(),
            sessionless_clients: SessionlessClients::default(),
            is_stopping: AtomicBool::new(false),
            change_count: AtomicU64::new(0),
            removed_servers: Mutex::default(),
            last_number: AtomicU64::new(first_number_floor),
            first_number_floor,
        }))
    }

    async fn watch_files(self) {
        let mut ticks: u64 = 0;
        loop {
            tokio::time::sleep(HUB_WATCH_INTERVAL).await;
            self.reload_changed_config();
            ticks += 1;
            if ticks.is_multiple_of(60) {
                self.sweep_sessions();
            }
        }
    }

    /// Reads the configuration files if one has changed.
    pub(super) fn reload_changed_config(&self) {
        if self.0.config_files.lock().has_changed() {
            self.reload_config();
        }
    }

    /// Reads the configuration files now.
    pub fn reload_config(&self) {
        let environment = self.0.settings.context.user_environment();
        let found = self.0.config_files.lock().read(&environment);
        self.apply_config(found);
    }

    /// Adds new and changed servers, and drains removed and changed ones. Unchanged servers keep running.
    pub(super) fn apply_config(&self, found: McpConfig) {
        for problem in &found.problems {
            tracing::warn!(why = problem, "the MCP configuration has a problem");
        }
        *self.0.config_errors.lock() = ConfigErrors {
            problems: found.problems,
            invalid_servers: found.invalid_servers,
        };
        let mut removed = Vec::new();
        let mut is_new = false;
        {
            let mut servers = self.0.servers.lock();
            servers.retain(|name, entry| {
                let same = found.servers.get(name) == Some(&entry.spec.config);
                if !same {
                    removed.push(entry.clone());
                }
                same
            });
            for (name, server) in found.servers {
                servers.entry(name).or_insert_with(|| {
                    is_new = true;
                    ServerEntry::new(server, &self.0.settings, &self.0.built_in_server)
                });
            }
        }
        if removed.is_empty() && !is_new {
            return;
        }
        self.0.change_count.fetch_add(1, Ordering::Relaxed);
        let servers = self.0.servers.lock().clone();
        self.0.sessions.lock().retain(|_, session| {
            let stays = session.update_servers(&servers, || self.next_number());
            if !stays {
                session.streams.drain();
            }
            stays
        });
        let names: Vec<&str> = removed.iter().map(|entry| entry.name()).collect();
        self.0
            .sse_connections
            .retain_connections(|session, server| match session {
                Some(session) => session.update_servers(&servers, || self.next_number()),
                None => server.is_some_and(|name| !names.contains(&name)),
            });
        removed.iter().for_each(|entry| entry.drain());
        let mut removed_servers = self.0.removed_servers.lock();
        removed_servers.retain(|entry| !entry.has_ended());
        removed_servers.extend(removed);
    }

    fn sweep_sessions(&self) {
        self.0.sessions.lock().retain(|_, session| {
            session.streams.sweep();
            session.idle_time() < HUB_SESSION_IDLE_TIMEOUT
        });
        self.0
            .removed_servers
            .lock()
            .retain(|served| !served.has_ended());
        self.sweep_session_files();
    }

    /// Ends all servers and every process that they started.
    pub async fn shutdown(&self) {
        // From here on no client receives an error that its session or server does not exist: both exist after the
        // restart.
        self.0.is_stopping.store(true, Ordering::Relaxed);
        let sessions: Vec<_> = self.0.sessions.lock().drain().collect();
        let retiring = sessions.iter().map(|(_, session)| &session.streams);
        retiring.for_each(|streams| streams.drain());
        // The end of a server ends its open calls with an error to their clients.
        let mut servers: Vec<_> = std::mem::take(&mut *self.0.servers.lock())
            .into_values()
            .collect();
        servers.append(&mut self.0.removed_servers.lock());
        let ends = servers.iter().map(|entry| entry.shutdown());
        futures_util::future::join_all(ends).await;
        let ended = sessions.iter().map(|(_, session)| &session.streams);
        ended.for_each(|streams| streams.close());
        self.0.sse_connections.close_all();
    }

    pub(super) fn context(&self) -> &Arc<dyn HubContext> {
        &self.0.settings.context
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.0.is_stopping.load(Ordering::Relaxed)
    }

    /// Whether the number of a stream comes from the previous run of the companion.
    pub(super) fn is_from_previous_run(&self, stream: u64) -> bool {
        stream <= self.0.first_number_floor
    }

    pub(super) fn next_number(&self) -> u64 {
        self.0.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn open_backend(
        &self,
        target: &HubTarget,
        params: Option<Bytes>,
        sink: Arc<dyn NotificationSink>,
    ) -> Result<Backend, HubRefusal> {
        if self.is_stopping() {
            return Err(HubRefusal::Stopping);
        }
        let tools = NameFilter::from_query(target.tools.as_deref());
        let Some(name) = &target.server else {
            let wanted = NameFilter::from_query(target.servers.as_deref());
            let servers = self.0.servers.lock().clone();
            let selection = MergedSelection {
                server_filter: wanted,
                tool_filter: tools,
                profile: target.tool_profile(),
            };
            let merged =
                MergedServers::new(servers, selection, params, sink, || self.next_number());
            return Ok(Backend::Merged(merged));
        };
        let entry = self.0.servers.lock().get(name).cloned();
        let entry = entry.ok_or_else(|| self.no_server(name))?;
        let number = self.next_number();
        let client = McpClient {
            number,
            initialize_params: params,
            notification_sink: sink,
        };
        Ok(Backend::Single(entry.open_access(Arc::new(client), &tools)))
    }

    /// The backend for a request of a client without a session.
    pub(super) fn sessionless_backend(
        &self,
        target: &HubTarget,
        request: &RpcMessage,
        sink: Arc<dyn NotificationSink>,
    ) -> Result<Backend, HubRefusal> {
        let backend = self.open_backend(target, None, sink)?;
        self.0.sessionless_clients.record_request(request, target);
        Ok(backend)
    }

    pub(super) fn change_count(&self) -> u64 {
        self.0.change_count.load(Ordering::Relaxed)
    }

    pub(super) fn status(&self) -> HubStatus {
        let mut servers: Vec<ServerStatus> =
            self.0.servers.lock().values().map(|s| s.status()).collect();
        let config_errors = self.0.config_errors.lock();
        let refused = config_errors.invalid_servers.iter();
        servers.extend(refused.map(|(name, why)| server_entry::refused_status(name, why)));
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        let problems = config_errors.problems.clone();
        drop(config_errors);
        let mut clients = self.0.sse_connections.client_statuses();
        let sessions = self.0.sessions.lock();
        clients.extend(sessions.values().map(|session| session.client_status()));
        drop(sessions);
        clients.extend(self.0.sessionless_clients.client_statuses());
        clients.sort_by_key(|client| client.idle_seconds);
        HubStatus {
            status: "ok".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            sessions: self.0.sessions.lock().len(),
            clients,
            servers,
            problems,
        }
    }

    pub(super) fn no_server(&self, name: &str) -> HubRefusal {
        let config_errors = self.0.config_errors.lock();
        HubRefusal::NoServer(match config_errors.invalid_servers.get(name) {
            Some(why) => format!("the server `{name}` is refused: {why}"),
            None => format!("there is no server `{name}`"),
        })
    }

    pub(super) fn find_server(&self, name: &str) -> Option<Arc<ServerEntry>> {
        self.0.servers.lock().get(name).cloned()
    }
}
