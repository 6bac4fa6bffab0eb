//! Checkpoint and restore of kernels as whole processes, with criu.
//!
//! ```text
//! checkpoint: idle kernel ─ detach ─▶ detached ─ criu dump ─▶ stopped ─ on disk ─┬─▶ ended: checkpointed
//!                                        ▲                     │                 └─▶ reattached: running
//!                                        └───── any failure ───┘
//! restore:    same files? ids free? ─ criu restore ─▶ connected ─▶ replaces the current kernel
//! ```
//!
//! [`Criu`] is the shared handle; it runs one operation at a time.
//!
//! - [`store`] and [`manifest`]: the checkpoints on disk
//! - [`markers`]: which checkpoint holds which session, across companion generations
//! - [`criu_cli`]: how criu is run
//! - [`error_text`]: translation of criu's log
//! - [`criu_probe`]: the check whether criu works here
//! - [`open_files`]: open files that criu would reject
//! - [`pid_reservation`]: process IDs that stay free
//! - [`objects`]: the objects that cryo stores with each checkpoint

mod checkpoint;
mod criu_cli;
mod criu_probe;
mod criu_progress;
mod error_text;
mod manifest;
mod markers;
mod objects;
mod open_files;
mod pid_reservation;
mod refusal;
mod restore;
mod store;

use super::cryo;
use super::kernel::{self, KernelSessions, SessionRestoring};
use super::shell::Shells;
use crate::protocol::criu::{
    CheckpointReply, CheckpointRequest, CriuRemoved, CriuRestored, CriuStatus, RestoreRequest,
    StoredCheckpoint,
};
use crate::protocol::kernel::DEFAULT_SESSION;
use criu_cli::CriuTool;
use criu_probe::PidReservation;
use criu_progress::CriuProgress;
use markers::CriuMarkers;
use objects::KernelObjectStore;
pub(crate) use refusal::CriuRefusal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{CriuStore, FoundCheckpoint};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
#[cfg(test)]
pub(super) use {
    error_text::{CriuFailure, CriuFailureKind},
    refusal::StateAfterFailedRestore,
};

/// Settings of checkpoints.
#[derive(Debug, Clone)]
pub(crate) struct CriuSettings {
    /// Folder of the checkpoints.
    checkpoint_folder: PathBuf,
    /// Folder of the objects that are stored with checkpoints.
    object_folder: PathBuf,
    /// Folder of temporary files of one operation.
    work_folder: PathBuf,
    /// Whether this container was started with `--criu`.
    is_enabled: bool,
}

impl From<&super::CompanionSettings> for CriuSettings {
    fn from(settings: &super::CompanionSettings) -> Self {
        Self {
            checkpoint_folder: settings.data_folder.join("criu"),
            object_folder: settings.cryo_folder(),
            work_folder: settings.run_folder.join("criu"),
            is_enabled: settings.criu,
        }
    }
}

/// The shared handle of checkpoint and restore.
#[derive(Debug, Clone)]
pub(crate) struct Criu {
    settings: CriuSettings,
    store: CriuStore,
    markers: CriuMarkers,
    tool: CriuTool,
    pid_reservation: PidReservation,
    /// Messages about the sessions whose checkpoints were unusable when this companion generation started.
    unusable_checkpoints: Vec<String>,
    sessions: KernelSessions,
    shells: Shells,
    object_store: Arc<dyn KernelObjectStore>,
    /// Held by the operation that runs: a checkpoint, a restore or a trial.
    operation_lock: Arc<Mutex<()>>,
    current_operation: Arc<parking_lot::Mutex<CriuOperation>>,
}

/// The running checkpoint or restore, and its progress.
#[derive(Debug, Default)]
struct CriuOperation {
    session: String,
    progress: Arc<CriuProgress>,
}

/// State that must be prepared before the first kernel starts.
#[derive(Debug)]
pub(crate) struct CriuPrerequisites {
    settings: CriuSettings,
    store: CriuStore,
    markers: CriuMarkers,
    pid_reservation: PidReservation,
    restoring_sessions: BTreeMap<String, SessionRestoring>,
    unusable_checkpoints: Vec<String>,
}

impl CriuPrerequisites {
    /// Removes unfinished checkpoints of an earlier companion, and reserves the process IDs of checkpoints.
    pub(crate) async fn prepare(settings: CriuSettings) -> Self {
        let prepared = spawn_blocking(move || {
            let store = CriuStore::open(settings.checkpoint_folder.clone());
            let pid_reservation = match settings.is_enabled {
                true => criu_probe::reserve_pids(&store),
                false => PidReservation::Failed("the instance was started without `--criu`".into()),
            };
            let markers = CriuMarkers::new(settings.checkpoint_folder.clone());
            let found = markers.list_all(&store);
            (settings, store, pid_reservation, markers, found)
        });
        let (settings, store, pid_reservation, markers, found) = match prepared.await {
            Ok(prepared) => prepared,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        match (&pid_reservation, settings.is_enabled) {
            (PidReservation::Reserved(begin), _) => {
                tracing::info!(begin, "process IDs of checkpoints are reserved")
            }
            (PidReservation::Failed(why), true) => {
                tracing::warn!(%why, "process IDs of checkpoints can't be reserved");
            }
            (PidReservation::Failed(_), false) => {}
        }
        let (restoring_sessions, unusable_checkpoints) =
            plan_restoring_sessions(found, &settings.object_folder);
        Self {
            settings,
            store,
            markers,
            pid_reservation,
            restoring_sessions,
            unusable_checkpoints,
        }
    }

    /// How to start the sessions that were checkpointed when the last companion ended.
    pub(crate) fn restoring_sessions(&self) -> BTreeMap<String, SessionRestoring> {
        self.restoring_sessions.clone()
    }
}

/// Plans how these sessions start. Also returns messages about unusable checkpoints.
fn plan_restoring_sessions(
    found: Vec<markers::FoundCriuMarker>,
    objects: &Path,
) -> (BTreeMap<String, SessionRestoring>, Vec<String>) {
    let (mut restoring, mut unusable) = (BTreeMap::new(), Vec::new());
    for found in found {
        let markers::FoundCriuMarker {
            marker,
            checkpoint: kernel_checkpoint,
            problem,
        } = found;
        let (session, checkpoint) = (marker.session, &kernel_checkpoint.id);
        let start = match problem {
            None => {
                tracing::info!(session, checkpoint, "the session is in a checkpoint");
                SessionRestoring::Checkpointed(kernel_checkpoint)
            }
            Some(why) => {
                let folders =
                    objects::find_object_folders(objects, marker.objects.as_ref(), &session);
                let instead = match folders.is_empty() {
                    false => "the objects that were stored with the checkpoint",
                    true => "its last stored state, if any",
                };
                let message = format!(
                    "session `{session}` was in the checkpoint `{checkpoint}`, but {why}; \
                     the session started with {instead}"
                );
                tracing::error!(
                    session,
                    checkpoint,
                    why,
                    instead,
                    "the checkpoint of the session can't be restored"
                );
                unusable.push(message);
                SessionRestoring::Objects {
                    checkpoint: kernel_checkpoint,
                    folders,
                }
            }
        };
        restoring.insert(session, start);
    }
    (restoring, unusable)
}

impl Criu {
    pub(crate) fn new(
        prerequisites: CriuPrerequisites,
        sessions: KernelSessions,
        shells: Shells,
        objects: Arc<dyn KernelObjectStore>,
    ) -> Self {
        let CriuPrerequisites {
            settings,
            store,
            markers,
            pid_reservation,
            restoring_sessions: _,
            unusable_checkpoints,
        } = prerequisites;
        Self {
            tool: CriuTool {
                work_folder: settings.work_folder.clone(),
            },
            settings,
            store,
            markers,
            pid_reservation,
            unusable_checkpoints,
            sessions,
            shells,
            object_store: objects,
            operation_lock: Arc::default(),
            current_operation: Arc::default(),
        }
    }

    /// Bytes that the checkpoint or restore of a session has moved up to now, and the total if known.
    pub(crate) fn transferred_bytes(&self, session: &str) -> (u64, Option<u64>) {
        let current = self.current_operation.lock();
        match current.session == session {
            true => current.progress.read(),
            false => (0, None),
        }
    }

    /// Starts the progress of an operation.
    fn start_progress(&self, session: &str) -> Arc<CriuProgress> {
        let progress = Arc::new(CriuProgress::default());
        let mut current = self.current_operation.lock();
        *current = CriuOperation {
            session: session.to_owned(),
            progress: Arc::clone(&progress),
        };
        progress
    }

    /// Whether this container was started with `--criu`.
    pub(crate) fn is_enabled(&self) -> bool {
        self.settings.is_enabled
    }

    /// Checkpoints an idle kernel.
    ///
    /// # Errors
    /// The kernel continues, unless the refusal says otherwise.
    pub(crate) async fn checkpoint(
        &self,
        request: CheckpointRequest,
    ) -> Result<CheckpointReply, CriuRefusal> {
        let criu = self.clone();
        self.run_exclusive(async move { criu.checkpoint_kernel(request).await })
            .await
    }

    /// Restores a checkpointed kernel.
    ///
    /// # Errors
    /// The current kernel keeps running, unless the refusal says otherwise.
    pub(crate) async fn restore(
        &self,
        request: RestoreRequest,
    ) -> Result<CriuRestored, CriuRefusal> {
        let criu = self.clone();
        self.run_exclusive(async move { criu.restore_kernel(request).await })
            .await
    }

    /// Reports whether checkpoints are possible here, and which are stored. Does not wait: while a checkpoint or
    /// restore runs, the trial is skipped.
    pub(crate) async fn status(&self) -> CriuStatus {
        let lock = self.operation_lock.try_lock().ok();
        let tool = lock.as_ref().map(|_| &self.tool);
        let findings =
            criu_probe::probe_criu(self.settings.is_enabled, &self.pid_reservation, tool).await;
        drop(lock);
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
            warnings: [findings.warnings, self.unusable_checkpoints.clone()].concat(),
            is_checkpointed: checkpointed.iter().any(|name| name == DEFAULT_SESSION),
            checkpointed,
            checkpoints: self.list_checkpoints().await,
        }
    }

    /// Lists the stored checkpoints, the newest first.
    pub(crate) async fn list_checkpoints(&self) -> Vec<StoredCheckpoint> {
        let store = self.store.clone();
        let stored = spawn_blocking(move || store.list_all()).await;
        let stored = stored.unwrap_or_default().into_iter();
        stored.map(stored_checkpoint).collect()
    }

    /// Removes every generation of a checkpoint name.
    ///
    /// # Errors
    /// [`CriuRefusal::NoCheckpoint`], or [`CriuRefusal::InUse`] while a checkpoint of that name holds a session's
    /// kernel.
    pub(crate) async fn remove_checkpoint(&self, name: String) -> Result<CriuRemoved, CriuRefusal> {
        let criu = self.clone();
        self.run_exclusive(async move { criu.remove_if_unused(name).await })
            .await
    }

    async fn remove_if_unused(&self, name: String) -> Result<CriuRemoved, CriuRefusal> {
        let name = resolve_checkpoint_name(Some(name.clone()), &name)?;
        let folder = self.store.name_folder(&name);
        let sessions = self.sessions.list_sessions().into_iter();
        let mut checkpoints =
            sessions.filter_map(|(session, view)| Some((session, view.checkpoint?)));
        if let Some((session, _)) =
            checkpoints.find(|(_, path)| Path::new(path).starts_with(&folder))
        {
            return Err(CriuRefusal::InUse { name, session });
        }
        let (store, owned) = (self.store.clone(), name.clone());
        let removed = spawn_blocking(move || store.remove(&owned)).await;
        let removed = removed.map_err(|_| kernel::KernelRefusal::ShuttingDown)?;
        match removed.map_err(|error| CriuRefusal::NotRemoved(error.to_string()))? {
            true => {
                self.object_store.retain_objects(&name, &[]).await;
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

    /// Removes the objects to which no checkpoint of that name refers.
    async fn prune_objects(&self, name: &str) {
        let (store, owned) = (self.store.clone(), name.to_owned());
        let stored = spawn_blocking(move || store.list_objects(&owned)).await;
        if let Ok(Some(stored)) = stored {
            self.object_store.retain_objects(name, &stored).await;
        }
    }

    /// Runs one operation at a time. An operation completes even if the caller drops the future.
    async fn run_exclusive<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, CriuRefusal>> + Send + 'static,
    ) -> Result<T, CriuRefusal> {
        let lock = self.operation_lock.clone().lock_owned().await;
        let done = tokio::spawn(async move {
            let done = work.await;
            drop(lock);
            done
        });
        match done.await {
            Ok(done) => done,
            Err(_) => Err(kernel::KernelRefusal::ShuttingDown.into()),
        }
    }

    /// # Errors
    /// [`CriuRefusal::Unavailable`]. The check is quick: it runs no trial, so a fault that only a trial finds appears
    /// during the operation.
    async fn ensure_available(&self) -> Result<String, CriuRefusal> {
        if !self.settings.is_enabled {
            let why = "this instance was started without `--criu`";
            return Err(CriuRefusal::Unavailable(why.into()));
        }
        CriuTool::read_version()
            .await
            .map_err(CriuRefusal::Unavailable)
    }
}

fn stored_checkpoint(found: FoundCheckpoint) -> StoredCheckpoint {
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

/// Returns the checkpoint's name, which is also the name of its folder.
fn resolve_checkpoint_name(name: Option<String>, session: &str) -> Result<String, CriuRefusal> {
    let name = name.unwrap_or_else(|| session.into());
    // The objects are stored under a derived name, which must be valid, too.
    match kernel::is_session_name(&name) && cryo::is_cryo_name(&objects::cryo_name_for(&name)) {
        true => Ok(name),
        false => Err(CriuRefusal::Invalid(format!(
            "`{name}` can't be a checkpoint's name: use up to 59 letters, digits, \
             `-`, `_` and `.`, and begin with a letter or digit"
        ))),
    }
}
