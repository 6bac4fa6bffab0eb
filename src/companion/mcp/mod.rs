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
mod config;
mod face;
mod filter;
mod lasting;
mod links;
mod list_delay;
mod located;
mod log;
mod member;
mod merge;
mod merged_lists;
mod message;
mod os;
mod params;
mod prove;
mod server;
mod session;
mod stream;
mod template;
mod visits;
mod voice;

pub(super) use face::routes;
pub(super) use os::{Handles, Os};

use crate::error::Result;
use crate::protocol::hex::hex;
use crate::protocol::mcp::{HubStatus, ServerStatus};
use bytes::Bytes;
use child::{NoHello, Within};
use config::{Files, Found};
use filter::Filter;
use lasting::{Kept, Lasting};
use member::{Ears, Member};
use merge::Merge;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use server::Served;
use session::{Backend, Outlet, Session};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stream::Stream;
use visits::Visits;

/// Between two looks at the files and at the sessions.
const TICK: Duration = Duration::from_secs(1);
/// Sessions in memory; those who ask again come back from disk.
const SESSIONS: usize = 1024;
/// A session that nobody has used for so long leaves memory, and after longer the disk.
const FORGOTTEN: Duration = Duration::from_secs(3600);
const LOST: Duration = Duration::from_secs(14 * 24 * 3600);

/// Where its files lie.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Of servers; later ones win.
    files: Vec<PathBuf>,
    data: PathBuf,
    /// Whose files are resources of the built-in server.
    pub(super) root: PathBuf,
}

impl From<&super::Settings> for Settings {
    fn from(settings: &super::Settings) -> Self {
        let data = settings.data.join("mcp");
        Self {
            files: vec![
                settings.body.join("mcp.json"),
                // Written by `osctl up` from `servers` in osctl.yaml.
                data.join("servers.json"),
                // Anybody's.
                settings.data.join("mcp.json"),
            ],
            data,
            root: settings.root.clone(),
        }
    }
}

/// Whom a client wants, and how much of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Wish {
    /// The server's name; none for all.
    server: Option<String>,
    /// Of all, only these.
    servers: Option<String>,
    tools: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Hub(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    os: Arc<dyn Within>,
    servers: Mutex<BTreeMap<String, Arc<Served>>>,
    files: Mutex<Files>,
    /// What the configuration can't be followed in.
    amiss: Mutex<Amiss>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Connections of the older transport.
    visits: Visits,
    is_stopping: AtomicBool,
    /// How often servers have changed.
    changes: AtomicU64,
    /// Servers that are not offered any more, as long as calls to them are open.
    retired: Mutex<Vec<Arc<Served>>>,
    /// Of members and streams. It goes on after a restart, so that no old event id names a new stream.
    last: AtomicU64,
    /// The last number of the time before.
    before: u64,
}

/// What is wrong with the configuration.
#[derive(Debug, Default)]
struct Amiss {
    problems: Vec<String>,
    /// Servers that make no sense, and why.
    refused: BTreeMap<String, String>,
}

/// Why a client can't be served.
#[derive(Debug)]
enum Refusal {
    /// In words.
    NoServer(String),
    Stopping,
    NoSession,
    Hello(NoHello),
}

impl Hub {
    /// Reads the servers and watches their files. Nothing but eager servers is started.
    pub(super) fn start(settings: Settings, os: Os) -> Self {
        let hub = Self::new(settings, Arc::new(os));
        let stamp = config::stamp(&hub.0.settings.files);
        hub.read_again();
        tokio::spawn(hub.clone().watch(stamp));
        hub
    }

    /// Without any server yet.
    fn new(settings: Settings, os: Arc<dyn Within>) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // More in a microsecond there can't be.
        let before = since.map_or(0, |s| u64::try_from(s.as_micros()).unwrap_or(0));
        Self(Arc::new(Inner {
            files: Mutex::new(Files::new(settings.files.clone())),
            settings,
            os,
            servers: Mutex::default(),
            amiss: Mutex::default(),
            sessions: Mutex::default(),
            visits: Visits::default(),
            is_stopping: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            retired: Mutex::default(),
            last: AtomicU64::new(before),
            before,
        }))
    }

    async fn watch(self, mut stamp: Vec<Option<(SystemTime, u64)>>) {
        let mut ticks: u64 = 0;
        loop {
            tokio::time::sleep(TICK).await;
            let now = config::stamp(&self.0.settings.files);
            if now != stamp {
                stamp = now;
                self.read_again();
            }
            ticks += 1;
            if ticks.is_multiple_of(60) {
                self.sweep();
            }
        }
    }

    /// Reads the servers' files now.
    pub(in crate::companion) fn read_again(&self) {
        let files = self.0.files.lock();
        let found = files.unwrap_or_else(PoisonError::into_inner).read();
        self.adopt(found);
    }

    /// Takes the servers over that are new or other; those that are the same go on.
    fn adopt(&self, found: Found) {
        for problem in &found.problems {
            tracing::warn!("{problem}");
        }
        *self.amiss() = Amiss {
            problems: found.problems,
            refused: found.refused,
        };
        let mut gone = Vec::new();
        let mut is_new = false;
        {
            let mut servers = self.servers();
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
                    Served::new(server, &self.0.settings.data, &self.0.os)
                });
            }
        }
        if gone.is_empty() && !is_new {
            return;
        }
        self.0.changes.fetch_add(1, Ordering::Relaxed);
        let servers = self.servers().clone();
        self.sessions().retain(|_, session| {
            let stays = session.follow(&servers, || self.next());
            if !stays {
                session.outlet.retire();
            }
            stays
        });
        let names: Vec<&str> = gone.iter().map(|served| served.name()).collect();
        self.0.visits.follow(|session, server| match session {
            Some(session) => session.follow(&servers, || self.next()),
            None => server.is_some_and(|name| !names.contains(&name)),
        });
        gone.iter().for_each(|served| served.retire());
        let mut retired = self.retired();
        retired.retain(|served| !served.is_over());
        retired.extend(gone);
    }

    fn sweep(&self) {
        self.sessions()
            .retain(|_, session| session.idle() < FORGOTTEN);
        self.retired().retain(|served| !served.is_over());
        let folder = self.0.settings.data.join("sessions");
        tokio::task::spawn_blocking(move || {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let age = entry.metadata().and_then(|m| m.modified()).ok();
                let age = age.and_then(|changed| changed.elapsed().ok());
                if age.is_some_and(|age| age > LOST) {
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
        let sessions: Vec<_> = self.sessions().drain().collect();
        let retiring = sessions.iter().map(|(_, session)| &session.outlet);
        retiring.for_each(|outlet| outlet.retire());
        // With their servers all open calls end, and who waits is told so.
        let mut servers: Vec<_> = std::mem::take(&mut *self.servers()).into_values().collect();
        servers.append(&mut self.retired());
        let ends = servers.iter().map(|served| served.end());
        futures_util::future::join_all(ends).await;
        let ended = sessions.iter().map(|(_, session)| &session.outlet);
        ended.for_each(|outlet| outlet.close());
        self.0.visits.end();
    }

    fn is_stopping(&self) -> bool {
        self.0.is_stopping.load(Ordering::Relaxed)
    }

    /// Whether a stream of that number was one of the companion before this one.
    fn is_of_before(&self, stream: u64) -> bool {
        stream <= self.0.before
    }

    fn next(&self) -> u64 {
        self.0.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn backend(
        &self,
        wish: &Wish,
        hello: Option<Bytes>,
        ears: Arc<dyn Ears>,
    ) -> Result<Backend, Refusal> {
        if self.is_stopping() {
            return Err(Refusal::Stopping);
        }
        let tools = Filter::from_query(wish.tools.as_deref());
        let Some(name) = &wish.server else {
            let wanted = Filter::from_query(wish.servers.as_deref());
            let servers = self.servers().clone();
            let merge = Merge::new(servers, wanted, tools, hello, ears, || self.next());
            return Ok(Backend::All(merge));
        };
        let served = self.servers().get(name).cloned();
        let served = served.ok_or_else(|| self.no_server(name))?;
        let number = self.next();
        let member = Member {
            number,
            hello,
            ears,
        };
        Ok(Backend::One(served.access(Arc::new(member), &tools)))
    }

    /// Whom those talk to who come without a session.
    fn passing(&self, wish: &Wish, ears: Arc<dyn Ears>) -> Result<Backend, Refusal> {
        self.backend(wish, None, ears)
    }

    /// A session for who says `initialize` with these parameters, and the result for it.
    async fn open(&self, wish: Wish, hello: Bytes) -> Result<(Arc<Session>, Bytes), Refusal> {
        let id = new_id()?;
        let (before, outlet, backend, result) = loop {
            let before = self.changes();
            let outlet = Outlet::new(Arc::new(Stream::general(self.next())));
            let backend = self.backend(&wish, Some(hello.clone()), outlet.clone())?;
            let result = backend.hello().await;
            // What was said by a server that was exchanged meanwhile does not count.
            if self.changes() == before {
                break (before, outlet, backend, result.map_err(Refusal::Hello)?);
            }
        };
        let version = version(&result);
        let server = wish.server.clone();
        let lasting = Lasting::default();
        let session = Session::new(
            id.clone(),
            version.clone(),
            server,
            backend,
            lasting,
            outlet,
        );
        let raw = String::from_utf8(hello.into()).ok();
        if let Some(hello) = raw.and_then(|raw| RawValue::from_string(raw).ok()) {
            let kept = Kept {
                wish,
                version,
                hello,
                subscribed: BTreeSet::new(),
                level: None,
            };
            if let Err(error) = cache::write(&self.file(&id), &kept) {
                tracing::warn!("a session can't be kept: {error:#}");
            }
        }
        Ok((self.keep(session, before)?, result))
    }

    fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Relaxed)
    }

    /// The session under its id: this one, unless there is one already. `before` it there were so many changes of
    /// the servers; those since then it may not have seen.
    fn keep(&self, session: Session, before: u64) -> Result<Arc<Session>, Refusal> {
        let kept = self.keep_or_find(session);
        if self.changes() != before && !kept.follow(&self.servers().clone(), || self.next()) {
            self.sessions().remove(&kept.id);
            return Err(Refusal::NoSession);
        }
        Ok(kept)
    }

    fn keep_or_find(&self, session: Session) -> Arc<Session> {
        let mut sessions = self.sessions();
        if sessions.len() >= SESSIONS {
            let oldest = sessions.values().max_by_key(|session| session.idle());
            if let Some(id) = oldest.map(|session| session.id.clone()) {
                sessions.remove(&id);
            }
        }
        let id = session.id.clone();
        let kept = sessions.entry(id).or_insert_with(|| Arc::new(session));
        kept.clone()
    }

    /// A session, which may come back from the time before a restart.
    fn session(&self, id: &str, server: Option<&str>) -> Result<Arc<Session>, Refusal> {
        if self.is_stopping() {
            return Err(Refusal::Stopping);
        }
        let found = self.sessions().get(id).cloned();
        let session = match found {
            Some(session) => session,
            None => self.revive(id)?,
        };
        if session.server.as_deref() != server {
            return Err(Refusal::NoSession);
        }
        session.touch();
        Ok(session)
    }

    /// Ends a session for ever.
    fn close(&self, session: &Session) {
        self.sessions().remove(&session.id);
        // Not while what it has asked for is written, which would bring it back.
        let lasting = session.lasting();
        // Gone already is as good.
        let _ = fs::remove_file(self.file(&session.id));
        drop(lasting);
        session.end();
    }

    fn status(&self) -> HubStatus {
        let mut servers: Vec<ServerStatus> = self.servers().values().map(|s| s.status()).collect();
        let amiss = self.amiss();
        let refused = amiss.refused.iter();
        servers.extend(refused.map(|(name, why)| server::refused(name, why)));
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        let problems = amiss.problems.clone();
        drop(amiss);
        HubStatus {
            status: "ok".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            sessions: self.sessions().len(),
            servers,
            problems,
        }
    }

    fn amiss(&self) -> MutexGuard<'_, Amiss> {
        self.0.amiss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn no_server(&self, name: &str) -> Refusal {
        Refusal::NoServer(match self.amiss().refused.get(name) {
            Some(why) => format!("the server `{name}` is refused: {why}"),
            None => format!("there is no server `{name}`"),
        })
    }

    fn server(&self, name: &str) -> Option<Arc<Served>> {
        self.servers().get(name).cloned()
    }

    fn servers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Served>>> {
        self.0
            .servers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn retired(&self) -> MutexGuard<'_, Vec<Arc<Served>>> {
        self.0
            .retired
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.0
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_id() -> Result<String, Refusal> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| Refusal::NoSession)?;
    Ok(hex(random))
}

/// What a handshake has agreed on.
fn version(result: &[u8]) -> String {
    let text = std::str::from_utf8(result).unwrap_or_default();
    let span = message::find(text, &["protocolVersion"]);
    span.map_or("", |span| text[span].trim_matches('"'))
        .to_owned()
}
