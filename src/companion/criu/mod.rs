//! Kernels frozen as whole processes, by criu.
//!
//! ```text
//! checkpoint: idle kernel ─ lets go ─▶ apart ─ criu dump ─▶ stopped ─ on disk ─┬─▶ ended, and frozen
//!                                        ▲                     │               └─▶ goes on
//!                                        └── whatever fails ───┘
//! restore:    files the same? ids free? ─ criu restore ─▶ answers ─▶ takes the present one's place
//! ```
//!
//! [`Criu`] is the handle that everyone uses; it does one thing at a time. What the checkpoints are is
//! in [`store`] and [`manifest`], which session lies in which over all lives in [`marks`], how criu is
//! called in [`tool`], what it says in [`words`], whether it can work here in [`probe`], what it will find
//! amiss in [`opened`], and ids that stay free in [`numbers`]. Objects are saved by cryo, which is asked to
//! do so beside each checkpoint ([`objects`]).

mod checkpoint;
mod gauge;
mod manifest;
mod marks;
mod numbers;
mod objects;
mod opened;
mod probe;
mod refusal;
mod restore;
mod store;
mod tool;
mod words;

use super::cryo;
use super::kernel::{self, Sessions, Waking};
use super::shell::Shells;
use crate::protocol::criu::{
    Checkpoint, Checkpointed, CriuStatus, Removed, Restore, Restored, Stored,
};
use crate::protocol::kernel::DEFAULT_SESSION;
use gauge::Gauge;
use marks::Marks;
use objects::Objects;
use probe::Placed;
pub(crate) use refusal::Refusal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use store::{Found, Store};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tool::Tool;

/// Where the parts are.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Folder of the checkpoints.
    data: PathBuf,
    /// Folder of the objects beside them.
    objects: PathBuf,
    /// Folder of what lasts for one call.
    work: PathBuf,
    /// Whether this container was made for it.
    is_wanted: bool,
}

impl From<&super::Settings> for Settings {
    fn from(settings: &super::Settings) -> Self {
        Self {
            data: settings.data.join("criu"),
            objects: settings.cryo.folder.clone(),
            work: settings.run.join("criu"),
            is_wanted: settings.criu,
        }
    }
}

/// Freezing and thawing, for everyone who asks.
#[derive(Debug, Clone)]
pub(crate) struct Criu {
    settings: Settings,
    store: Store,
    marks: Marks,
    tool: Tool,
    placed: Placed,
    /// The sessions whose checkpoints were of no use when this life began, in sentences.
    useless: Vec<String>,
    sessions: Sessions,
    shells: Shells,
    objects: Arc<dyn Objects>,
    /// Held by who freezes, thaws or tries.
    turn: Arc<Mutex<()>>,
    now: Arc<StdMutex<Now>>,
}

/// What is frozen or thawed, and how far it is.
#[derive(Debug, Default)]
struct Now {
    session: String,
    gauge: Arc<Gauge>,
}

/// What is done before any kernel is made.
#[derive(Debug)]
pub(crate) struct Ground {
    settings: Settings,
    store: Store,
    marks: Marks,
    placed: Placed,
    waking: BTreeMap<String, Waking>,
    useless: Vec<String>,
}

impl Ground {
    /// Clears what an earlier life left, and keeps the ids of checkpoints free.
    pub(crate) async fn prepare(settings: Settings) -> Self {
        let prepared = spawn_blocking(move || {
            let store = Store::open(settings.data.clone());
            let placed = match settings.is_wanted {
                true => probe::place(&store),
                false => Placed::Not("the instance was started without `--criu`".into()),
            };
            let marks = Marks::new(settings.data.clone());
            let found = marks.all(&store);
            (settings, store, placed, marks, found)
        });
        let (settings, store, placed, marks, found) = match prepared.await {
            Ok(prepared) => prepared,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        match (&placed, settings.is_wanted) {
            (Placed::At(begin), _) => tracing::info!(begin, "ids of processes are placed"),
            (Placed::Not(why), true) => {
                tracing::warn!("ids of processes could not be placed: {why}");
            }
            (Placed::Not(_), false) => {}
        }
        let (waking, useless) = waking(found, &settings.objects);
        Self {
            settings,
            store,
            marks,
            placed,
            waking,
            useless,
        }
    }

    /// How the sessions begin that lay in a checkpoint when the last life ended.
    pub(crate) fn waking(&self) -> BTreeMap<String, Waking> {
        self.waking.clone()
    }
}

/// How sessions begin, and of those whose checkpoint is of no use, why, in sentences.
fn waking(found: Vec<marks::Found>, objects: &Path) -> (BTreeMap<String, Waking>, Vec<String>) {
    let (mut waking, mut useless) = (BTreeMap::new(), Vec::new());
    for found in found {
        let marks::Found {
            mark,
            frozen,
            trouble,
        } = found;
        let (session, checkpoint) = (mark.session, &frozen.checkpoint);
        let begins = match trouble {
            None => {
                tracing::info!(session, "it lies in the checkpoint `{checkpoint}`");
                Waking::Sleeping(frozen)
            }
            Some(why) => {
                let folders = objects::folders(objects, mark.objects.as_ref(), &session);
                let instead = match folders.is_empty() {
                    false => "the objects that were stored beside it",
                    true => "what was stored of it before, if anything was",
                };
                let told = format!(
                    "session `{session}` lay in the checkpoint `{checkpoint}`, and {why}; it has begun with {instead}"
                );
                tracing::error!("{told}");
                useless.push(told);
                Waking::Objects { frozen, folders }
            }
        };
        waking.insert(session, begins);
    }
    (waking, useless)
}

impl Criu {
    pub(crate) fn new(
        ground: Ground,
        sessions: Sessions,
        shells: Shells,
        objects: Arc<dyn Objects>,
    ) -> Self {
        let Ground {
            settings,
            store,
            marks,
            placed,
            waking: _,
            useless,
        } = ground;
        Self {
            tool: Tool {
                work: settings.work.clone(),
            },
            settings,
            store,
            marks,
            placed,
            useless,
            sessions,
            shells,
            objects,
            turn: Arc::default(),
            now: Arc::default(),
        }
    }

    /// Bytes that the checkpoint or restore of a session has moved so far, and of how many.
    pub(crate) fn moved(&self, session: &str) -> (u64, Option<u64>) {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        match now.session == session {
            true => now.gauge.read(),
            false => (0, None),
        }
    }

    /// A gauge for what begins now.
    fn gauge(&self, session: &str) -> Arc<Gauge> {
        let gauge = Arc::new(Gauge::default());
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = Now {
            session: session.to_owned(),
            gauge: Arc::clone(&gauge),
        };
        gauge
    }

    /// Whether this container was made for it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.settings.is_wanted
    }

    /// Freezes an idle kernel.
    ///
    /// # Errors
    /// The kernel went on, unless the refusal says otherwise.
    pub(crate) async fn checkpoint(&self, request: Checkpoint) -> Result<Checkpointed, Refusal> {
        let criu = self.clone();
        self.alone(async move { criu.freeze(request).await }).await
    }

    /// Brings a frozen kernel back.
    ///
    /// # Errors
    /// The present kernel went on, unless the refusal says otherwise.
    pub(crate) async fn restore(&self, request: Restore) -> Result<Restored, Refusal> {
        let criu = self.clone();
        self.alone(async move { criu.thaw(request).await }).await
    }

    /// Whether it can be done here, and what is stored. Waits for nobody: while a kernel is frozen or
    /// brought back, nothing is tried.
    pub(crate) async fn status(&self) -> CriuStatus {
        let turn = self.turn.try_lock().ok();
        let tool = turn.as_ref().map(|_| &self.tool);
        let findings = probe::probe(self.settings.is_wanted, &self.placed, tool).await;
        drop(turn);
        let checkpointed: Vec<String> = self
            .sessions
            .all()
            .into_iter()
            .filter(|(_, view)| view.checkpoint.is_some())
            .map(|(name, _)| name)
            .collect();
        CriuStatus {
            available: findings.is_available(),
            message: findings.message(),
            checks: findings.checks,
            warnings: [findings.warnings, self.useless.clone()].concat(),
            is_checkpointed: checkpointed.iter().any(|name| name == DEFAULT_SESSION),
            checkpointed,
            checkpoints: self.stored().await,
        }
    }

    /// What is stored, the newest first.
    pub(crate) async fn stored(&self) -> Vec<Stored> {
        let store = self.store.clone();
        let stored = spawn_blocking(move || store.all()).await;
        let stored = stored.unwrap_or_default().into_iter();
        stored.map(stored_as).collect()
    }

    /// Removes every generation of a name.
    ///
    /// # Errors
    /// [`Refusal::NoCheckpoint`], or [`Refusal::InUse`] while a kernel lies in one.
    pub(crate) async fn remove(&self, name: String) -> Result<Removed, Refusal> {
        let criu = self.clone();
        self.alone(async move { criu.forget(name).await }).await
    }

    async fn forget(&self, name: String) -> Result<Removed, Refusal> {
        let name = named(Some(name.clone()), &name)?;
        let folder = self.store.folder(&name);
        let sessions = self.sessions.all().into_iter();
        let mut frozen = sessions.filter_map(|(session, view)| Some((session, view.checkpoint?)));
        if let Some((session, _)) = frozen.find(|(_, path)| Path::new(path).starts_with(&folder)) {
            return Err(Refusal::InUse { name, session });
        }
        let (store, owned) = (self.store.clone(), name.clone());
        let removed = spawn_blocking(move || store.remove(&owned)).await;
        let removed = removed.map_err(|_| kernel::Refusal::Stopping)?;
        match removed.map_err(|error| Refusal::Stays(error.to_string()))? {
            true => {
                self.objects.keep(&name, &[]).await;
                Ok(Removed {
                    status: "completed".into(),
                    name,
                })
            }
            false => Err(Refusal::NoCheckpoint {
                name,
                generation: None,
            }),
        }
    }

    /// Removes the objects that no checkpoint of that name refers to.
    async fn tidy(&self, name: &str) {
        let (store, owned) = (self.store.clone(), name.to_owned());
        let stored = spawn_blocking(move || store.objects(&owned)).await;
        if let Ok(Some(stored)) = stored {
            self.objects.keep(name, &stored).await;
        }
    }

    /// One after the other, and to its end: whoever asked may leave.
    async fn alone<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = self.turn.clone().lock_owned().await;
        let done = tokio::spawn(async move {
            let done = work.await;
            drop(turn);
            done
        });
        match done.await {
            Ok(done) => done,
            Err(_) => Err(kernel::Refusal::Stopping.into()),
        }
    }

    /// # Errors
    /// [`Refusal::Unavailable`], quickly: what only a trial shows shows itself.
    async fn ensure_possible(&self) -> Result<String, Refusal> {
        if !self.settings.is_wanted {
            let why = "this instance was started without `--criu`";
            return Err(Refusal::Unavailable(why.into()));
        }
        Tool::version().await.map_err(Refusal::Unavailable)
    }
}

fn stored_as(found: Found) -> Stored {
    let Found { manifest, path } = found;
    Stored {
        size_bytes: manifest.size(),
        name: manifest.name,
        generation: manifest.generation,
        session: manifest.session,
        created: manifest.created,
        path: path.display().to_string(),
    }
}

/// The checkpoint's name, which becomes a folder's.
fn named(name: Option<String>, session: &str) -> Result<String, Refusal> {
    let name = name.unwrap_or_else(|| session.into());
    // The objects beside it are stored under a name that has to fit, too.
    match kernel::is_name(&name) && cryo::is_name(&objects::named(&name)) {
        true => Ok(name),
        false => Err(Refusal::Invalid(format!(
            "`{name}` can't be a checkpoint's name: use letters, digits, `-`, `_` and `.`, 59 at most, beginning with a letter or digit"
        ))),
    }
}
