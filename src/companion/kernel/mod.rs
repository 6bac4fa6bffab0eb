//! Python kernels: their processes, sessions and runs.
//!
//! [`KernelSessions`] is the entry point: it finds kernels by name and runs by ID. A [`KernelHandle`] sends messages to
//! the task that owns one process ([`task`]). The task asks a pure function for the next state and actions
//! ([`policy`]). Before a caller checkpoints a process, the process closes all its connections ([`detached`]). The
//! session then stays in the checkpoint, across companion restarts, until the session has a kernel again
//! ([`checkpoint`]). Processes are forked from a [`template`]. Runs outlive the requests that started them
//! ([`execution`]).

mod checkpoint;
mod connection;
mod detached;
mod execution;
mod exit_reason;
mod generation_store;
mod policy;
mod process;
mod restore_source;
mod run_count;
mod run_end;
mod sessions;
mod task;
mod template;
#[cfg(test)]
mod tests;

pub(crate) use checkpoint::{KernelCheckpoint, SessionRestoring};
pub(crate) use connection::{KernelCounts, KernelQuery};
pub(crate) use detached::{DetachedKernel, RestoredKernel};
pub(crate) use execution::KernelRun;
pub(crate) use exit_reason::StopReason;
pub(crate) use generation_store::stored_sessions;
pub(crate) use restore_source::RestoreSource;
pub(crate) use run_count::runs_since;
pub(crate) use sessions::{KernelSessions, is_session_name};

use crate::companion::environment::EnvironmentHandle;
use crate::companion::runs::{RetainedRuns, RunIdConflict, RunStore};
use crate::companion::settings;
use crate::error::Result;
use crate::protocol::kernel::{KernelReport, RunError};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use template::KernelTemplate;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

const DEFAULT_MAX_SESSIONS: usize = 16;
const DEFAULT_SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_SESSION_PROBE_INTERVAL: Duration = Duration::from_secs(30);

/// Paths and stores that kernels use.
#[derive(Debug, Clone)]
pub(crate) struct KernelSettings {
    pub(crate) python: PathBuf,
    pub(crate) program: PathBuf,
    /// The working directory of a new kernel.
    pub(crate) start_folder: PathBuf,
    /// Folder of the kernel's socket.
    pub(crate) socket_folder: PathBuf,
    /// Folder of the generation records.
    pub(crate) record_folder: PathBuf,
    /// The stored generations (cryo).
    pub(crate) restore_source: Arc<dyn RestoreSource>,
    /// Folder of this companion's run journal and of the run output that memory does not hold.
    pub(crate) output_folder: PathBuf,
    /// Folder of the container's memory counters.
    pub(crate) cgroup_folder: PathBuf,
    /// Runs on disk.
    pub(crate) run_store: RunStore,
    pub(crate) limits: SessionLimits,
    /// The user's variables.
    pub(crate) environment: EnvironmentHandle,
}

/// Limits of sessions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionLimits {
    /// Maximum number of sessions, including the default session.
    pub(crate) max_sessions: usize,
    /// Maximum bytes of memory of one session, including its child processes.
    pub(crate) max_memory_bytes: Option<u64>,
    /// Idle time after which a session is released. The default session is never released.
    pub(crate) idle_timeout: Duration,
    /// Idle time after which the companion probes a kernel; also the interval of later probes. The kernel has twice
    /// this time to answer: a thread that a run left behind may hold the interpreter lock for a while, and ending the
    /// kernel would lose a healthy state.
    pub(crate) probe_interval: Duration,
}

impl SessionLimits {
    /// # Errors
    /// When a variable is invalid.
    pub(crate) fn from_environment() -> Result<Self> {
        Ok(Self {
            max_sessions: settings::read_value("OSCTL_SESSIONS_MAX")?
                .unwrap_or(DEFAULT_MAX_SESSIONS),
            max_memory_bytes: settings::read_value("OSCTL_SESSIONS_MEMORY")?,
            idle_timeout: settings::read_seconds("OSCTL_SESSIONS_IDLE")?
                .unwrap_or(DEFAULT_SESSION_IDLE_TIMEOUT),
            probe_interval: settings::read_seconds("OSCTL_SESSIONS_CHECK")?
                .unwrap_or(DEFAULT_SESSION_PROBE_INTERVAL),
        })
    }
}

impl KernelSettings {
    pub(crate) fn new(
        settings: &super::CompanionSettings,
        limits: SessionLimits,
        retained_runs: &RetainedRuns,
        store: RunStore,
        restore_source: Arc<dyn RestoreSource>,
        environment: EnvironmentHandle,
    ) -> Self {
        Self {
            run_store: store,
            python: settings.python.clone(),
            program: settings.body_folder.join("kernel"),
            start_folder: settings.project_folder.clone(),
            socket_folder: settings.run_folder.join("kernels"),
            record_folder: settings.data_folder.join("kernels"),
            restore_source,
            output_folder: retained_runs.own_folder(),
            cgroup_folder: "/sys/fs/cgroup".into(),
            limits,
            environment,
        }
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KernelRefusal {
    /// Another run is in progress, and the request does not allow queueing.
    Busy,
    /// The queue is full.
    QueueFull,
    /// A run with that id exists and came from a different request.
    RunIdConflict(String),
    /// A run with that id was removed.
    RunIdRemoved(String),
    NoRun(String),
    /// The run must be durable, and the record could not be written to disk.
    NotRecorded,
    NoSession(String),
    /// The maximum number of sessions exists.
    TooManySessions(usize),
    /// The session name is invalid, or the request would delete the default session.
    Invalid(String),
    /// The kernel can't be started. Contains the end of the kernel's stderr.
    NoKernel(String),
    /// The kernel ended during the request, and its variables are lost. Contains the reason.
    KernelLost(String),
    /// The session's kernel is in this checkpoint.
    Checkpointed {
        session: String,
        checkpoint: String,
    },
    /// The kernel can't release a resource.
    ResourceHeld(String),
    /// The current kernel generation is not the requested one.
    GenerationMismatch {
        seen: u64,
        generation: u64,
    },
    /// The companion is shutting down.
    ShuttingDown,
}

impl From<RunIdConflict> for KernelRefusal {
    fn from(conflict: RunIdConflict) -> Self {
        match conflict {
            RunIdConflict::OtherRequest(id) => Self::RunIdConflict(id),
            RunIdConflict::Removed(id) => Self::RunIdRemoved(id),
        }
    }
}

/// Current state of a kernel, readable without the owner.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KernelView {
    pub(crate) ready: bool,
    /// The checkpoint that contains the kernel. Counts as ready.
    pub(crate) checkpoint: Option<String>,
    /// Description of the state.
    pub(crate) detail: String,
    /// Why the last start has failed, if several have failed in succession: how the process ended, and the end of its
    /// stderr.
    pub(crate) start_failure: Option<String>,
    pub(crate) busy: bool,
    pub(crate) queued: usize,
    pub(crate) counts: KernelCounts,
    /// Execution count when the namespace was last emptied.
    pub(crate) reset_execution_count: u64,
    pub(crate) report: KernelReport,
    pub(crate) python: Option<String>,
    /// The process that all processes of the session descend from.
    pub(crate) root_pid: Option<i32>,
    /// Time of the last request or answer.
    pub(crate) last_used: Instant,
    /// Time when the namespace may last have changed.
    pub(crate) last_changed: Instant,
    /// Bytes that a store or reload has moved up to now.
    pub(crate) transferred_bytes: u64,
}

impl KernelView {
    /// Whether the namespace is in its initial state, with nothing to store.
    pub(crate) fn is_blank(&self) -> bool {
        self.counts.globals_count == 0 && self.counts.execution_count <= self.reset_execution_count
    }
}

/// Result of a query.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KernelAnswer {
    /// The kernel's answer, or the exception that user code raised during the query.
    pub(crate) value: Result<Value, RunError>,
    pub(crate) report: KernelReport,
}

impl KernelAnswer {
    fn without_value(report: KernelReport) -> Self {
        Self {
            value: Ok(Value::Null),
            report,
        }
    }
}

type KernelAnswerSender = oneshot::Sender<Result<KernelAnswer, KernelRefusal>>;

/// Messages to the owner task.
#[derive(Debug)]
enum KernelMessage {
    Execute {
        run: Arc<KernelRun>,
        queue: bool,
        admitted: oneshot::Sender<Result<(), KernelRefusal>>,
    },
    Query {
        query: KernelQuery,
        /// Do not report the kernel generation to this caller.
        quiet: bool,
        done: KernelAnswerSender,
    },
    /// Interrupts the given run, or the current one. The answer comes when the run has ended.
    Interrupt {
        id: Option<String>,
        done: oneshot::Sender<KernelReport>,
    },
    /// Probes an idle kernel, and replaces the kernel if the probe fails.
    CheckHealth,
    /// Marks the session as used, although the kernel got no request.
    MarkUsed,
    /// Another container may have changed the state before. `done` is dropped after the newer state is read.
    AdoptNewerState {
        done: oneshot::Sender<()>,
    },
    Restart {
        why: StopReason,
        done: KernelAnswerSender,
    },
    /// Release all resources and connections as soon as the kernel is idle.
    Detach {
        done: oneshot::Sender<Result<DetachedKernel, KernelRefusal>>,
    },
    /// Replace the kernel with this restored one.
    RestoreProcess {
        restored: Box<RestoredKernel>,
        done: KernelAnswerSender,
    },
    /// Ends the session if nothing runs, nothing is queued, and the last request is older than `idle`. Reports whether
    /// the session ends.
    ReleaseIfIdle {
        idle: Duration,
        done: oneshot::Sender<bool>,
    },
    /// Refuse new requests, and let current runs finish within `grace`. The owner stays, so that the namespace can be
    /// stored. `done` is dropped when nothing runs any more.
    DrainRuns {
        grace: Duration,
        done: oneshot::Sender<()>,
    },
    Shutdown {
        grace: Duration,
        why: StopReason,
    },
}

/// Handle to one kernel, shared by all its users.
#[derive(Debug, Clone)]
pub(crate) struct KernelHandle {
    owner: mpsc::Sender<KernelMessage>,
    view: watch::Receiver<KernelView>,
    run_store: RunStore,
}

impl KernelHandle {
    /// Starts the owner task, which starts the process. The owner task ends after [`KernelHandle::shutdown`].
    fn start(
        session: &str,
        settings: KernelSettings,
        template: KernelTemplate,
        restoring: Option<SessionRestoring>,
    ) -> (Self, JoinHandle<()>) {
        let (owner, mailbox) = mpsc::channel(256);
        let run_store = settings.run_store.clone();
        let (task, view) = task::KernelOwner::new(session, settings, template, mailbox, restoring);
        let handle = Self {
            owner,
            view,
            run_store,
        };
        (handle, tokio::spawn(task.run()))
    }

    pub(crate) fn view(&self) -> KernelView {
        self.view.borrow().clone()
    }

    /// Waits until the kernel is ready, including the reload of stored variables. Returns the view then.
    pub(crate) async fn wait_ready(&self) -> KernelView {
        let mut view = self.view.clone();
        let ready = view.wait_for(|view| view.ready).await.map(|v| v.clone());
        // After the owner has ended, its last view remains.
        ready.unwrap_or_else(|_| self.view())
    }

    async fn execute(&self, run: Arc<KernelRun>, queue: bool) -> Result<(), KernelRefusal> {
        let (admitted, answer) = oneshot::channel();
        let message = KernelMessage::Execute {
            run,
            queue,
            admitted,
        };
        self.send_message(message).await?;
        answer.await.unwrap_or(Err(KernelRefusal::ShuttingDown))
    }

    /// Sends a query that needs an idle kernel.
    ///
    /// # Errors
    /// [`KernelRefusal::Busy`] while code runs; [`KernelRefusal::NoKernel`] or [`KernelRefusal::ShuttingDown`].
    pub(crate) async fn query(&self, query: KernelQuery) -> Result<KernelAnswer, KernelRefusal> {
        self.send_query(query, false).await
    }

    /// Like [`KernelHandle::query`], for the companion's own queries: the report stays unread for the next caller.
    ///
    /// # Errors
    /// Those of [`KernelHandle::query`].
    pub(crate) async fn query_quietly(
        &self,
        query: KernelQuery,
    ) -> Result<KernelAnswer, KernelRefusal> {
        self.send_query(query, true).await
    }

    async fn send_query(
        &self,
        query: KernelQuery,
        quiet: bool,
    ) -> Result<KernelAnswer, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        let message = KernelMessage::Query { query, quiet, done };
        self.send_message(message).await?;
        answer.await.unwrap_or(Err(KernelRefusal::ShuttingDown))
    }

    /// Interrupts the current run, and waits until the run has ended. Returns the state report.
    ///
    /// # Errors
    /// [`KernelRefusal::ShuttingDown`].
    pub(crate) async fn interrupt(&self) -> Result<KernelReport, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        let message = KernelMessage::Interrupt { id: None, done };
        self.send_message(message).await?;
        let report = answer.await.map_err(|_| KernelRefusal::ShuttingDown)?;
        // The end of a run is visible when it is on the disk.
        self.run_store.wait_synced().await;
        Ok(report)
    }

    /// Ends the process, even while code runs, and waits for the next process.
    ///
    /// # Errors
    /// [`KernelRefusal::NoKernel`] or [`KernelRefusal::ShuttingDown`].
    pub(crate) async fn restart(&self, why: StopReason) -> Result<KernelAnswer, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        self.send_message(KernelMessage::Restart { why, done })
            .await?;
        let answer = answer.await.unwrap_or(Err(KernelRefusal::ShuttingDown));
        self.run_store.wait_synced().await;
        answer
    }

    /// Probes an idle kernel. A busy kernel or a full mailbox already shows that the kernel is in use.
    fn check_health(&self) {
        let _ = self.owner.try_send(KernelMessage::CheckHealth);
    }

    /// Marks the session as used, although the kernel got no request. A full mailbox shows the same, so the message may
    /// be dropped.
    pub(crate) fn mark_used(&self) {
        let _ = self.owner.try_send(KernelMessage::MarkUsed);
    }

    async fn adopt_newer_state(&self) {
        let (done, known) = oneshot::channel();
        // An owner that has ended has no generation.
        if self
            .owner
            .send(KernelMessage::AdoptNewerState { done })
            .await
            .is_ok()
        {
            let _ = known.await;
        }
    }

    /// Ends the session if the kernel is idle and the last request is older than `idle`. Returns whether the session
    /// ends.
    async fn release_if_idle(&self, idle: Duration) -> bool {
        let (done, answer) = oneshot::channel();
        let sent = self
            .send_message(KernelMessage::ReleaseIfIdle { idle, done })
            .await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    /// Refuses new requests except stores, lets current runs finish within `grace`, then stops them. Returns when
    /// nothing runs any more.
    pub(crate) async fn drain_runs(&self, grace: Duration) {
        let (done, quiescent) = oneshot::channel();
        // An owner that has ended has no runs.
        if self
            .send_message(KernelMessage::DrainRuns { grace, done })
            .await
            .is_ok()
        {
            let _ = quiescent.await;
        }
    }

    /// Refuses new requests, lets current runs finish within `grace`, then ends the process.
    async fn shutdown(&self, grace: Duration, why: StopReason) {
        // A closed mailbox shows that the owner has ended already.
        let _ = self
            .owner
            .send(KernelMessage::Shutdown { grace, why })
            .await;
        self.wait_ended().await;
    }

    /// Waits until the owner and its process have ended.
    async fn wait_ended(&self) {
        self.owner.closed().await;
    }

    async fn send_message(&self, message: KernelMessage) -> Result<(), KernelRefusal> {
        let sent = self.owner.send(message).await;
        sent.map_err(|_| KernelRefusal::ShuttingDown)
    }
}
