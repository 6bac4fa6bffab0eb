//! Python processes, their sessions and what they run.
//!
//! [`KernelSessions`] is the handle that everyone uses: it knows the kernels by name and the runs by id.
//! A [`KernelHandle`] sends messages to the task that owns one process ([`task`]), which asks a pure
//! function what to do next ([`policy`]). Who freezes a process has it let go of everything first
//! ([`detached`]), and the session lies there over all lives until it has a kernel again ([`checkpoint`]).
//! Processes are forked from a [`template`]. Runs outlive the requests that began them ([`execution`]).

mod checkpoint;
mod connection;
mod detached;
mod execution;
mod exit_reason;
mod generation_store;
mod policy;
mod process;
mod run_count;
mod sessions;
mod supervisor;
mod task;
mod template;

pub(crate) use checkpoint::{KernelCheckpoint, SessionRestoring};
pub(crate) use connection::{KernelCounts, KernelQuery};
pub(crate) use detached::{DetachedKernel, RestoredKernel};
pub(crate) use execution::KernelRun;
pub(crate) use exit_reason::StopReason;
pub(crate) use generation_store::stored_sessions;
pub(crate) use run_count::runs_since;
pub(crate) use sessions::{KernelSessions, is_name};
pub(crate) use supervisor::{SUPERVISOR_END_BYTE, SUPERVISOR_SHUTDOWN_BYTE};

use crate::companion::runs::RunStore;
use crate::protocol::kernel::{KernelReport, RunError};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use template::KernelTemplate;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Where the kernel's parts are.
#[derive(Debug, Clone)]
pub(crate) struct KernelSettings {
    pub(crate) python: PathBuf,
    pub(crate) program: PathBuf,
    /// Folder of its socket.
    pub(crate) run: PathBuf,
    /// Folder of the record of generations.
    pub(crate) data: PathBuf,
    /// Folder of what cryo has stored.
    pub(crate) cryo: PathBuf,
    /// Folder of what runs have written and memory does not hold; nobody else's.
    pub(crate) runs: PathBuf,
    /// What is on disk of runs.
    pub(crate) store: RunStore,
    pub(crate) limits: SessionLimits,
}

/// How much sessions may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionLimits {
    /// How many there may be, the default one included.
    pub(crate) count: usize,
    /// Bytes of one session, its child processes included.
    pub(crate) memory: Option<u64>,
    /// After which time without a request a session is released; the default one never is.
    pub(crate) idle: Duration,
    /// After which time without a request a kernel is asked whether it is well, and again. It has
    /// twice as long to answer: a thread that was left behind may hold the interpreter's lock for a
    /// while, and ending it would lose what was never in danger.
    pub(crate) check: Duration,
}

impl KernelSettings {
    pub(crate) fn new(settings: &super::CompanionSettings, store: RunStore) -> Self {
        Self {
            store,
            python: settings.python.clone(),
            program: settings.body.join("kernel"),
            run: settings.run.join("kernels"),
            data: settings.data.join("kernels"),
            cryo: settings.cryo.folder.clone(),
            runs: settings.lives.own_folder(),
            limits: settings.sessions,
        }
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KernelRefusal {
    /// Another run is on, and the request did not want to queue.
    Busy,
    /// The queue is full.
    QueueFull,
    /// A run of that id exists and was another request.
    OtherRun(String),
    NoRun(String),
    /// The run was to be durable, and the disk does not take it.
    NotRecorded,
    NoSession(String),
    /// There are as many sessions as there may be.
    TooManySessions(usize),
    /// That can't be a session's name, or the default session can't be deleted.
    Invalid(String),
    /// The kernel can't be started; the end of what it said.
    NoKernel(String),
    /// The session's kernel lies in this checkpoint.
    Checkpointed {
        session: String,
        checkpoint: String,
    },
    /// The kernel can't let go of something.
    Held(String),
    /// The kernel is not the one that was meant.
    OtherGeneration {
        seen: u64,
        generation: u64,
    },
    /// The companion is about to end.
    Stopping,
}

/// What can be seen of a kernel at any time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KernelView {
    pub(crate) ready: bool,
    /// The checkpoint that the kernel lies in, which is as good as ready.
    pub(crate) checkpoint: Option<String>,
    /// How it stands, in words.
    pub(crate) detail: String,
    pub(crate) busy: bool,
    pub(crate) queued: usize,
    pub(crate) counts: KernelCounts,
    /// Cells that had run when its namespace was last emptied.
    pub(crate) emptied: u64,
    pub(crate) report: KernelReport,
    pub(crate) python: Option<String>,
    /// The process that all of the session's descend from.
    pub(crate) root: Option<i32>,
    /// When something was last asked or answered.
    pub(crate) used: Instant,
    /// When what it holds may last have become another.
    pub(crate) changed: Instant,
    /// Bytes that a store or reload has moved so far.
    pub(crate) moved: u64,
}

impl KernelView {
    /// Whether its namespace is as it began: nothing to store.
    pub(crate) fn is_blank(&self) -> bool {
        self.counts.globals_count == 0 && self.counts.execution_count <= self.emptied
    }
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KernelAnswer {
    /// What the kernel said, or what user code raised meanwhile.
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

/// What the owner is asked to do.
#[derive(Debug)]
enum KernelMessage {
    Execute {
        run: Arc<KernelRun>,
        queue: bool,
        taken: oneshot::Sender<Result<(), KernelRefusal>>,
    },
    Ask {
        question: KernelQuery,
        /// Whoever asks is nobody who is told which life it is.
        quiet: bool,
        done: KernelAnswerSender,
    },
    /// That run, or whatever is on; the answer comes when it has ended.
    Interrupt {
        id: Option<String>,
        done: oneshot::Sender<KernelReport>,
    },
    /// Finds out whether an idle kernel is well, and replaces it otherwise.
    Check,
    /// The session is in use, if not its kernel.
    Touch,
    /// Another container may have had the state meanwhile; `done` is dropped when it is known.
    Overtake {
        done: oneshot::Sender<()>,
    },
    Restart {
        why: StopReason,
        done: KernelAnswerSender,
    },
    /// Let go of everything, once idle.
    Part {
        done: oneshot::Sender<Result<DetachedKernel, KernelRefusal>>,
    },
    /// Take this one instead.
    Thaw {
        restored: Box<RestoredKernel>,
        done: KernelAnswerSender,
    },
    /// Ends the session, if nothing is on, nothing waits, and nothing was asked for so long; says
    /// whether it does.
    Release {
        idle: Duration,
        done: oneshot::Sender<bool>,
    },
    /// Take no more requests and let what runs finish within that time, but stay, so that what is held
    /// can be stored; `done` is dropped when nothing runs any more.
    Close {
        grace: Duration,
        done: oneshot::Sender<()>,
    },
    Shutdown {
        grace: Duration,
        why: StopReason,
    },
}

/// One kernel, for everyone who uses it.
#[derive(Debug, Clone)]
pub(crate) struct KernelHandle {
    owner: mpsc::Sender<KernelMessage>,
    view: watch::Receiver<KernelView>,
}

impl KernelHandle {
    /// Starts the owner, which starts the process; it ends after [`KernelHandle::shutdown`].
    fn start(
        session: &str,
        settings: KernelSettings,
        template: KernelTemplate,
        waking: Option<SessionRestoring>,
    ) -> (Self, JoinHandle<()>) {
        let (owner, mailbox) = mpsc::channel(256);
        let (task, view) = task::KernelOwner::new(session, settings, template, mailbox, waking);
        (Self { owner, view }, tokio::spawn(task.run()))
    }

    pub(crate) fn view(&self) -> KernelView {
        self.view.borrow().clone()
    }

    /// How it stands once it is ready, with what the last life has stored.
    pub(crate) async fn wait_ready(&self) -> KernelView {
        let mut view = self.view.clone();
        let ready = view.wait_for(|view| view.ready).await.map(|v| v.clone());
        // One that has ended stands as it did.
        ready.unwrap_or_else(|_| self.view())
    }

    async fn execute(&self, run: Arc<KernelRun>, queue: bool) -> Result<(), KernelRefusal> {
        let (taken, answer) = oneshot::channel();
        let message = KernelMessage::Execute { run, queue, taken };
        self.send_message(message).await?;
        answer.await.unwrap_or(Err(KernelRefusal::Stopping))
    }

    /// Asks what needs the kernel idle.
    ///
    /// # Errors
    /// [`KernelRefusal::Busy`] while code runs; [`KernelRefusal::NoKernel`] or [`KernelRefusal::Stopping`].
    pub(crate) async fn query(&self, question: KernelQuery) -> Result<KernelAnswer, KernelRefusal> {
        self.send_query(question, false).await
    }

    /// The same, for the companion itself: the next caller still learns what became of the state.
    ///
    /// # Errors
    /// Those of [`KernelHandle::query`].
    pub(crate) async fn query_quietly(
        &self,
        question: KernelQuery,
    ) -> Result<KernelAnswer, KernelRefusal> {
        self.send_query(question, true).await
    }

    async fn send_query(
        &self,
        question: KernelQuery,
        quiet: bool,
    ) -> Result<KernelAnswer, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        let message = KernelMessage::Ask {
            question,
            quiet,
            done,
        };
        self.send_message(message).await?;
        answer.await.unwrap_or(Err(KernelRefusal::Stopping))
    }

    /// Interrupts what is on, and waits until it has ended. Returns what became of the state.
    ///
    /// # Errors
    /// [`KernelRefusal::Stopping`].
    pub(crate) async fn interrupt(&self) -> Result<KernelReport, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        let message = KernelMessage::Interrupt { id: None, done };
        self.send_message(message).await?;
        answer.await.map_err(|_| KernelRefusal::Stopping)
    }

    /// Ends the process, whatever it does, and waits for the next one.
    ///
    /// # Errors
    /// [`KernelRefusal::NoKernel`] or [`KernelRefusal::Stopping`].
    pub(crate) async fn restart(&self, why: StopReason) -> Result<KernelAnswer, KernelRefusal> {
        let (done, answer) = oneshot::channel();
        self.send_message(KernelMessage::Restart { why, done })
            .await?;
        answer.await.unwrap_or(Err(KernelRefusal::Stopping))
    }

    /// Has an idle kernel looked after; one that is busy, or full of messages, shows its health.
    fn check_health(&self) {
        let _ = self.owner.try_send(KernelMessage::Check);
    }

    /// The session is in use, if not its kernel; a full mailbox says so, too.
    pub(crate) fn mark_used(&self) {
        let _ = self.owner.try_send(KernelMessage::Touch);
    }

    async fn adopt_newer_state(&self) {
        let (done, known) = oneshot::channel();
        // An owner that has ended has no generation.
        if self
            .owner
            .send(KernelMessage::Overtake { done })
            .await
            .is_ok()
        {
            let _ = known.await;
        }
    }

    /// Has it take no more requests if it rests and nothing was asked of it for so long.
    async fn release_if_idle(&self, idle: Duration) -> bool {
        let (done, answer) = oneshot::channel();
        let sent = self
            .send_message(KernelMessage::Release { idle, done })
            .await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    /// Takes no more requests but to be stored, lets what runs finish within `grace`, then stops it;
    /// waits until nothing runs.
    pub(crate) async fn drain_runs(&self, grace: Duration) {
        let (done, rests) = oneshot::channel();
        // An owner that has ended has nothing that could run.
        if self
            .send_message(KernelMessage::Close { grace, done })
            .await
            .is_ok()
        {
            let _ = rests.await;
        }
    }

    /// Takes no more requests, lets what runs finish within `grace`, then ends the process.
    async fn shutdown(&self, grace: Duration, why: StopReason) {
        // A closed mailbox means that it has ended already.
        let _ = self
            .owner
            .send(KernelMessage::Shutdown { grace, why })
            .await;
        self.wait_ended().await;
    }

    /// Waits until nothing is left of it.
    async fn wait_ended(&self) {
        self.owner.closed().await;
    }

    async fn send_message(&self, message: KernelMessage) -> Result<(), KernelRefusal> {
        let sent = self.owner.send(message).await;
        sent.map_err(|_| KernelRefusal::Stopping)
    }
}
