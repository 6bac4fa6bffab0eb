//! The Python process and its one owner.
//!
//! [`Kernel`] is a handle: it sends messages to the task that owns the process ([`task`]), which
//! asks a pure function what to do next ([`policy`]). Runs outlive the requests that began them
//! ([`run`]).

mod ending;
mod ledger;
mod output;
mod policy;
mod process;
mod run;
mod task;
mod wire;

pub(crate) use run::Run;

use crate::protocol::kernel::{DEFAULT_SESSION, Execute, KernelReport};
use run::Runs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// Where the kernel's parts are.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) python: PathBuf,
    pub(crate) program: PathBuf,
    /// Folder of its socket.
    pub(crate) run: PathBuf,
    /// Folder of the record of generations.
    pub(crate) data: PathBuf,
}

impl From<&super::Settings> for Settings {
    fn from(settings: &super::Settings) -> Self {
        Self {
            python: settings.python.clone(),
            program: settings.body.join("kernel"),
            run: settings.run.join("kernels"),
            data: settings.data.join("kernels"),
        }
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another run is on, and the request did not want to queue.
    Busy,
    /// The queue is full.
    QueueFull,
    /// A run of that id exists and was another request.
    OtherRun(String),
    NoRun(String),
    NoSession(String),
    /// The kernel can't be started; the end of what it said.
    NoKernel(String),
    /// The companion is about to end.
    Stopping,
}

/// What can be seen of the kernel at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) ready: bool,
    /// How it stands, in words.
    pub(crate) detail: String,
    pub(crate) busy: bool,
    pub(crate) queued: usize,
    pub(crate) execution_count: u64,
    pub(crate) globals_count: u64,
    pub(crate) report: KernelReport,
    pub(crate) python: Option<String>,
}

/// What the owner is asked to do.
#[derive(Debug)]
enum Message {
    Execute {
        run: Arc<Run>,
        queue: bool,
        taken: oneshot::Sender<Result<(), Refusal>>,
    },
    Reset {
        done: oneshot::Sender<Result<KernelReport, Refusal>>,
    },
    Interrupt {
        id: String,
    },
    Shutdown {
        grace: Duration,
    },
}

/// The kernel, for everyone who uses it.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    owner: mpsc::Sender<Message>,
    view: watch::Receiver<View>,
    runs: Runs,
}

impl Kernel {
    /// Starts the owner, which starts the process; it ends after [`Kernel::shutdown`].
    pub(crate) fn start(settings: Settings) -> (Self, JoinHandle<()>) {
        let (owner, mailbox) = mpsc::channel(256);
        let (task, view) = task::Owner::new(settings, mailbox);
        let kernel = Self {
            owner,
            view,
            runs: Runs::default(),
        };
        (kernel, tokio::spawn(task.run()))
    }

    pub(crate) fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// Begins a run, or finds the one of that id again.
    ///
    /// # Errors
    /// Every [`Refusal`] but [`Refusal::NoRun`]; nothing was executed then.
    pub(crate) async fn execute(&self, request: Execute) -> Result<Arc<Run>, Refusal> {
        if request.session != DEFAULT_SESSION {
            return Err(Refusal::NoSession(request.session));
        }
        let queue = request.queue;
        let (run, is_new) = self.runs.begin(request)?;
        if !is_new {
            return Ok(run);
        }
        // In a task of its own: a client that leaves now must not leave half a run behind.
        let admitted = tokio::spawn(self.clone().admit(run, queue));
        admitted.await.unwrap_or(Err(Refusal::Stopping))
    }

    async fn admit(self, run: Arc<Run>, queue: bool) -> Result<Arc<Run>, Refusal> {
        let (taken, answer) = oneshot::channel();
        let message = Message::Execute {
            run: run.clone(),
            queue,
            taken,
        };
        let answer = match self.owner.send(message).await {
            Ok(()) => answer.await.unwrap_or(Err(Refusal::Stopping)),
            Err(_) => Err(Refusal::Stopping),
        };
        if let Err(refusal) = answer {
            self.runs.forget(&run);
            return Err(refusal);
        }
        Ok(run)
    }

    /// # Errors
    /// [`Refusal::NoRun`].
    pub(crate) fn run(&self, id: &str) -> Result<Arc<Run>, Refusal> {
        self.runs.find(id).ok_or_else(|| Refusal::NoRun(id.into()))
    }

    /// Interrupts a run, and waits until it has ended.
    ///
    /// # Errors
    /// [`Refusal::NoRun`], or [`Refusal::Stopping`].
    pub(crate) async fn interrupt(&self, id: &str) -> Result<Arc<Run>, Refusal> {
        let run = self.run(id)?;
        let message = Message::Interrupt { id: id.into() };
        self.owner
            .send(message)
            .await
            .map_err(|_| Refusal::Stopping)?;
        run.finished().await;
        Ok(run)
    }

    /// Empties the namespace.
    ///
    /// # Errors
    /// [`Refusal::Busy`] while code runs; [`Refusal::NoKernel`] or [`Refusal::Stopping`].
    pub(crate) async fn reset(&self, session: &str) -> Result<KernelReport, Refusal> {
        if session != DEFAULT_SESSION {
            return Err(Refusal::NoSession(session.into()));
        }
        let (done, answer) = oneshot::channel();
        self.owner
            .send(Message::Reset { done })
            .await
            .map_err(|_| Refusal::Stopping)?;
        answer.await.unwrap_or(Err(Refusal::Stopping))
    }

    /// Takes no more requests, lets what runs finish within `grace`, then ends the process.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        // A closed mailbox means that it has ended already.
        let _ = self.owner.send(Message::Shutdown { grace }).await;
        self.owner.closed().await;
    }
}
