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
//! in [`store`] and [`manifest`], which session lies in which over all lives in [`markers`], how criu is
//! called in [`criu_cli`], what it says in [`error_text`], whether it can work here in [`probe`], what it will find
//! amiss in [`open_files`], and ids that stay free in [`pid_reservation`]. Objects are saved by cryo, which is asked to
//! do so beside each checkpoint ([`objects`]).

mod checkpoint;
mod criu_cli;
mod error_text;
mod manifest;
mod markers;
mod objects;
mod open_files;
mod pid_reservation;
mod probe;
mod progress;
mod refusal;
mod restore;
mod store;

use super::cryo;
use super::kernel::{self, KernelSessions, SessionRestoring};
use super::shell::Shells;
use crate::protocol::criu::{
    Checkpoint, Checkpointed, CriuRemoved, CriuRestored, CriuStatus, Restore, StoredCheckpoint,
};
use crate::protocol::kernel::DEFAULT_SESSION;
use criu_cli::CriuTool;
use markers::CriuMarkers;
use objects::KernelObjectStore;
use probe::PidReservation;
use progress::CriuProgress;
pub(crate) use refusal::CriuRefusal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use store::{CriuStore, FoundCheckpoint};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// Where the parts are.
#[derive(Debug, Clone)]
pub(crate) struct CriuSettings {
    /// Folder of the checkpoints.
    data: PathBuf,
    /// Folder of the objects beside them.
    objects: PathBuf,
    /// Folder of what lasts for one call.
    work: PathBuf,
    /// Whether this container was made for it.
    is_wanted: bool,
}

impl From<&super::CompanionSettings> for CriuSettings {
    fn from(settings: &super::CompanionSettings) -> Self {
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
    settings: CriuSettings,
    store: CriuStore,
    marks: CriuMarkers,
    tool: CriuTool,
    placed: PidReservation,
    /// The sessions whose checkpoints were of no use when this life began, in sentences.
    useless: Vec<String>,
    sessions: KernelSessions,
    shells: Shells,
    objects: Arc<dyn KernelObjectStore>,
    /// Held by who freezes, thaws or tries.
    turn: Arc<Mutex<()>>,
    now: Arc<StdMutex<CriuOperation>>,
}

/// What is frozen or thawed, and how far it is.
#[derive(Debug, Default)]
struct CriuOperation {
    session: String,
    gauge: Arc<CriuProgress>,
}

/// What is done before any kernel is made.
#[derive(Debug)]
pub(crate) struct CriuPrerequisites {
    settings: CriuSettings,
    store: CriuStore,
    marks: CriuMarkers,
    placed: PidReservation,
    waking: BTreeMap<String, SessionRestoring>,
    useless: Vec<String>,
}

impl CriuPrerequisites {
    /// Clears what an earlier life left, and keeps the ids of checkpoints free.
    pub(crate) async fn prepare(settings: CriuSettings) -> Self {
        let prepared = spawn_blocking(move || {
            let store = CriuStore::open(settings.data.clone());
            let placed = match settings.is_wanted {
                true => probe::reserve_pids(&store),
                false => PidReservation::Not("the instance was started without `--criu`".into()),
            };
            let marks = CriuMarkers::new(settings.data.clone());
            let found = marks.list_all(&store);
            (settings, store, placed, marks, found)
        });
        let (settings, store, placed, marks, found) = match prepared.await {
            Ok(prepared) => prepared,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        match (&placed, settings.is_wanted) {
            (PidReservation::At(begin), _) => tracing::info!(begin, "ids of processes are placed"),
            (PidReservation::Not(why), true) => {
                tracing::warn!("ids of processes could not be placed: {why}");
            }
            (PidReservation::Not(_), false) => {}
        }
        let (waking, useless) = plan_restoring_sessions(found, &settings.objects);
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
    pub(crate) fn restoring_sessions(&self) -> BTreeMap<String, SessionRestoring> {
        self.waking.clone()
    }
}

/// How sessions begin, and of those whose checkpoint is of no use, why, in sentences.
fn plan_restoring_sessions(
    found: Vec<markers::FoundCriuMarker>,
    objects: &Path,
) -> (BTreeMap<String, SessionRestoring>, Vec<String>) {
    let (mut waking, mut useless) = (BTreeMap::new(), Vec::new());
    for found in found {
        let markers::FoundCriuMarker {
            mark,
            frozen,
            trouble,
        } = found;
        let (session, checkpoint) = (mark.session, &frozen.checkpoint);
        let begins = match trouble {
            None => {
                tracing::info!(session, "it lies in the checkpoint `{checkpoint}`");
                SessionRestoring::Sleeping(frozen)
            }
            Some(why) => {
                let folders =
                    objects::find_object_folders(objects, mark.objects.as_ref(), &session);
                let instead = match folders.is_empty() {
                    false => "the objects that were stored beside it",
                    true => "what was stored of it before, if anything was",
                };
                let told = format!(
                    "session `{session}` lay in the checkpoint `{checkpoint}`, and {why}; it has begun with {instead}"
                );
                tracing::error!("{told}");
                useless.push(told);
                SessionRestoring::Objects { frozen, folders }
            }
        };
        waking.insert(session, begins);
    }
    (waking, useless)
}

impl Criu {
    pub(crate) fn new(
        ground: CriuPrerequisites,
        sessions: KernelSessions,
        shells: Shells,
        objects: Arc<dyn KernelObjectStore>,
    ) -> Self {
        let CriuPrerequisites {
            settings,
            store,
            marks,
            placed,
            waking: _,
            useless,
        } = ground;
        Self {
            tool: CriuTool {
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
    pub(crate) fn moved_bytes(&self, session: &str) -> (u64, Option<u64>) {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        match now.session == session {
            true => now.gauge.read(),
            false => (0, None),
        }
    }

    /// A gauge for what begins now.
    fn start_progress(&self, session: &str) -> Arc<CriuProgress> {
        let gauge = Arc::new(CriuProgress::default());
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = CriuOperation {
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
    pub(crate) async fn checkpoint(
        &self,
        request: Checkpoint,
    ) -> Result<Checkpointed, CriuRefusal> {
        let criu = self.clone();
        self.run_exclusive(async move { criu.checkpoint_kernel(request).await })
            .await
    }

    /// Brings a frozen kernel back.
    ///
    /// # Errors
    /// The present kernel went on, unless the refusal says otherwise.
    pub(crate) async fn restore(&self, request: Restore) -> Result<CriuRestored, CriuRefusal> {
        let criu = self.clone();
        self.run_exclusive(async move { criu.restore_kernel(request).await })
            .await
    }

    /// Whether it can be done here, and what is stored. Waits for nobody: while a kernel is frozen or
    /// brought back, nothing is tried.
    pub(crate) async fn status(&self) -> CriuStatus {
        let turn = self.turn.try_lock().ok();
        let tool = turn.as_ref().map(|_| &self.tool);
        let findings = probe::probe_criu(self.settings.is_wanted, &self.placed, tool).await;
        drop(turn);
        let checkpointed: Vec<String> = self
            .sessions
            .list_sessions()
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
            checkpoints: self.list_checkpoints().await,
        }
    }

    /// What is stored, the newest first.
    pub(crate) async fn list_checkpoints(&self) -> Vec<StoredCheckpoint> {
        let store = self.store.clone();
        let stored = spawn_blocking(move || store.list_all()).await;
        let stored = stored.unwrap_or_default().into_iter();
        stored.map(stored_as).collect()
    }

    /// Removes every generation of a name.
    ///
    /// # Errors
    /// [`CriuRefusal::NoCheckpoint`], or [`CriuRefusal::InUse`] while a kernel lies in one.
    pub(crate) async fn remove_checkpoint(&self, name: String) -> Result<CriuRemoved, CriuRefusal> {
        let criu = self.clone();
        self.run_exclusive(async move { criu.remove_if_unused(name).await })
            .await
    }

    async fn remove_if_unused(&self, name: String) -> Result<CriuRemoved, CriuRefusal> {
        let name = resolve_checkpoint_name(Some(name.clone()), &name)?;
        let folder = self.store.name_folder(&name);
        let sessions = self.sessions.list_sessions().into_iter();
        let mut frozen = sessions.filter_map(|(session, view)| Some((session, view.checkpoint?)));
        if let Some((session, _)) = frozen.find(|(_, path)| Path::new(path).starts_with(&folder)) {
            return Err(CriuRefusal::InUse { name, session });
        }
        let (store, owned) = (self.store.clone(), name.clone());
        let removed = spawn_blocking(move || store.remove(&owned)).await;
        let removed = removed.map_err(|_| kernel::KernelRefusal::Stopping)?;
        match removed.map_err(|error| CriuRefusal::Stays(error.to_string()))? {
            true => {
                self.objects.retain_objects(&name, &[]).await;
                Ok(CriuRemoved {
                    status: "completed".into(),
                    name,
                })
            }
            false => Err(CriuRefusal::NoCheckpoint {
                name,
                generation: None,
            }),
        }
    }

    /// Removes the objects that no checkpoint of that name refers to.
    async fn prune_objects(&self, name: &str) {
        let (store, owned) = (self.store.clone(), name.to_owned());
        let stored = spawn_blocking(move || store.list_objects(&owned)).await;
        if let Ok(Some(stored)) = stored {
            self.objects.retain_objects(name, &stored).await;
        }
    }

    /// One after the other, and to its end: whoever asked may leave.
    async fn run_exclusive<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, CriuRefusal>> + Send + 'static,
    ) -> Result<T, CriuRefusal> {
        let turn = self.turn.clone().lock_owned().await;
        let done = tokio::spawn(async move {
            let done = work.await;
            drop(turn);
            done
        });
        match done.await {
            Ok(done) => done,
            Err(_) => Err(kernel::KernelRefusal::Stopping.into()),
        }
    }

    /// # Errors
    /// [`CriuRefusal::Unavailable`], quickly: what only a trial shows shows itself.
    async fn ensure_possible(&self) -> Result<String, CriuRefusal> {
        if !self.settings.is_wanted {
            let why = "this instance was started without `--criu`";
            return Err(CriuRefusal::Unavailable(why.into()));
        }
        CriuTool::read_version()
            .await
            .map_err(CriuRefusal::Unavailable)
    }
}

fn stored_as(found: FoundCheckpoint) -> StoredCheckpoint {
    let FoundCheckpoint { manifest, path } = found;
    StoredCheckpoint {
        size_bytes: manifest.total_image_bytes(),
        name: manifest.name,
        generation: manifest.generation,
        session: manifest.session,
        created: manifest.created,
        path: path.display().to_string(),
    }
}

/// The checkpoint's name, which becomes a folder's.
fn resolve_checkpoint_name(name: Option<String>, session: &str) -> Result<String, CriuRefusal> {
    let name = name.unwrap_or_else(|| session.into());
    // The objects beside it are stored under a name that has to fit, too.
    match kernel::is_name(&name) && cryo::is_name(&objects::cryo_name_for(&name)) {
        true => Ok(name),
        false => Err(CriuRefusal::Invalid(format!(
            "`{name}` can't be a checkpoint's name: use letters, digits, `-`, `_` and `.`, 59 at most, beginning with a letter or digit"
        ))),
    }
}
