//! Commands in bash, and the contexts that last from one to the next.
//!
//! [`Shells`] is the handle that everyone uses. Every command has a guard ([`warden`]), a process of its
//! own and a task that owns both ([`command`]); commands of one session may run at the same time, each
//! begins with the context that is there ([`context`]), and the last one to end leaves its own. What
//! commands leave in the background is a job ([`jobs`]).

mod command;
mod context;
mod environment;
pub(super) mod guard;
mod jobs;
mod keep;
pub(super) mod warden;
mod work;

pub(crate) use context::Packed;
pub(crate) use environment::Variables;
pub(crate) use jobs::Ended as JobEnded;
pub(crate) use keep::Kept;
pub(crate) use warden::run as guard_command;
pub(crate) use work::{Report, Run};

use super::runs::{NotRecorded, OtherRun, RunStore, Runs};
use crate::protocol::kernel::RunStatus;
use crate::protocol::shell::{Command, Job};
use bytes::Bytes;
use command::{Drive, Stop};
use context::{Context, Found};
use environment::Exports;
use guard::Spares;
use jobs::Jobs;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// Commands that may run at once.
const AT_ONCE: usize = 256;

/// From the wish to stop to the end of what does not.
const STOPPING: Duration = Duration::from_millis(20);

/// Where the parts are.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Folder of what commands have written and memory does not hold.
    pub(crate) runs: PathBuf,
    /// What is on disk of them.
    pub(crate) store: RunStore,
    /// Where the first command starts.
    pub(crate) cwd: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) bash: PathBuf,
}

impl Settings {
    pub(crate) fn new(settings: &super::Settings, store: RunStore) -> Self {
        let home = std::env::var_os("HOME").map_or_else(|| "/root".into(), PathBuf::from);
        Self {
            store,
            // Executions may have the same ids.
            runs: settings.lives.own().join("commands"),
            bash: bash(),
            cwd: std::env::current_dir().unwrap_or_else(|_| "/".into()),
            home,
        }
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A run of that id exists and was another command.
    OtherRun(String),
    NoRun(String),
    /// The command was to be durable, and the disk does not take it.
    NotRecorded,
    NoJob(i32),
    /// The run has ended, or its stdin is not open.
    NoStdin(String),
    /// That can't be gone to.
    NoFolder {
        path: String,
        why: String,
    },
    /// As many commands run as may.
    TooMany,
    /// No guard can be made.
    NoGuard(String),
    Stopping,
}

/// What reaches a command that runs.
#[derive(Debug, Clone)]
struct Running {
    stop: mpsc::Sender<Stop>,
    stdin: Option<mpsc::Sender<Bytes>>,
}

/// The way to a command's stdin. Dropped before [`Stdin::end`], what came was not whole: the command
/// must not take that for all there is, and is stopped.
#[derive(Debug)]
pub(crate) struct Stdin {
    bytes: Option<mpsc::Sender<Bytes>>,
    stop: mpsc::Sender<Stop>,
    run: Arc<Run>,
}

impl Stdin {
    /// `false` when the command needs no more.
    pub(crate) async fn send(&self, bytes: Bytes) -> bool {
        match &self.bytes {
            Some(way) => way.send(bytes).await.is_ok(),
            None => false,
        }
    }

    /// Waits until the command needs no more.
    pub(crate) async fn closed(&self) {
        if let Some(way) = &self.bytes {
            way.closed().await;
        }
    }

    /// That was all.
    pub(crate) fn end(mut self) {
        self.bytes = None;
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        let Some(bytes) = self.bytes.take().filter(|way| !way.is_closed()) else {
            return;
        };
        let (stop, run) = (self.stop.clone(), self.run.clone());
        tokio::spawn(async move {
            // One that has just ended no longer hears.
            let _ = stop.send(Stop::Cut).await;
            run.finished().await;
            // Only now, or it would see the end.
            drop(bytes);
        });
    }
}

/// All commands, contexts and jobs, for everyone who uses them.
#[derive(Debug, Clone)]
pub(crate) struct Shells {
    settings: Settings,
    contexts: Arc<Mutex<BTreeMap<String, Context>>>,
    runs: Runs<Command>,
    running: Arc<Mutex<Option<HashMap<String, Running>>>>,
    jobs: Jobs,
    spares: Spares,
}

impl Shells {
    pub(crate) fn new(settings: Settings) -> Self {
        let runs = Runs::open("sh", settings.store.clone());
        Self {
            settings,
            contexts: Arc::default(),
            runs,
            running: Arc::new(Mutex::new(Some(HashMap::new()))),
            jobs: Jobs::default(),
            spares: Spares::default(),
        }
    }

    /// Begins a command, or finds the one of that id again.
    ///
    /// # Errors
    /// Nothing was executed then.
    pub(crate) async fn execute(&self, command: Command) -> Result<Arc<Run>, Refusal> {
        // Its folder may be gone.
        let known = self.runs.known(&command).await;
        if let Some(run) = known.map_err(|OtherRun(id)| Refusal::OtherRun(id))? {
            return Ok(run);
        }
        let context = self.context(&command.session)?;
        let begun = self.runs.begin(command);
        let (run, is_new) = begun.map_err(|OtherRun(id)| Refusal::OtherRun(id))?;
        if !is_new {
            return match run.taken().await {
                true => Ok(run),
                false => Box::pin(self.execute(run.work.clone())).await,
            };
        }
        // In a task of its own: the client may disconnect.
        let started = tokio::spawn(self.clone().start(run, context));
        started.await.unwrap_or(Err(Refusal::Stopping))
    }

    async fn start(self, run: Arc<Run>, context: Context) -> Result<Arc<Run>, Refusal> {
        let (stop, stops) = mpsc::channel(4);
        let (stdin, input) = match run.work.stdin_open {
            true => Some(mpsc::channel(4)).unzip(),
            false => (None, None),
        };
        let refused = match &mut *self.running() {
            None => Some(Refusal::Stopping),
            Some(running) if running.len() >= AT_ONCE => Some(Refusal::TooMany),
            Some(running) => {
                running.insert(run.id.clone(), Running { stop, stdin });
                None
            }
        };
        let recorded = match refused {
            Some(refusal) => Err(refusal),
            None => run
                .recorded()
                .await
                .map_err(|NotRecorded| Refusal::NotRecorded),
        };
        let driven = match recorded {
            Err(refusal) => Err(refusal),
            Ok(()) => Drive::new(self.clone(), run.clone(), context, stops, input)
                .map_err(|error| Refusal::NoGuard(format!("{error:#}"))),
        };
        match driven {
            Ok(drive) => {
                run.admitted();
                self.runs.admitted();
                tokio::spawn(drive.run());
                Ok(run)
            }
            Err(refusal) => {
                self.ended(&run.id);
                self.runs.forget(&run);
                run.refused(self.report(&run.work.session));
                Err(refusal)
            }
        }
    }

    /// # Errors
    /// [`Refusal::NoRun`].
    pub(crate) fn run(&self, id: &str) -> Result<Arc<Run>, Refusal> {
        self.runs.find(id).ok_or_else(|| Refusal::NoRun(id.into()))
    }

    /// The commands themselves, for who records them.
    pub(crate) fn registry(&self) -> &Runs<Command> {
        &self.runs
    }

    /// The commands that can be found, the oldest first.
    pub(crate) fn runs(&self) -> Vec<Arc<Run>> {
        self.runs.all()
    }

    /// What to say of a command that goes on.
    pub(crate) fn report(&self, session: &str) -> Report {
        Report {
            returncode: None,
            cwd: self.cwd(session).display().to_string(),
            background: false,
        }
    }

    /// Interrupts a command as Ctrl-C does, ends what does not stop, and waits until all is over.
    ///
    /// # Errors
    /// [`Refusal::NoRun`].
    pub(crate) async fn interrupt(&self, id: &str) -> Result<Arc<Run>, Refusal> {
        let run = self.run(id)?;
        run.taken().await;
        let running = self.running().as_ref().and_then(|r| r.get(id).cloned());
        if let Some(running) = running {
            // One that has just ended no longer hears.
            let _ = running.stop.send(Stop::Asked).await;
        }
        run.finished().await;
        Ok(run)
    }

    /// The way to a command's stdin.
    ///
    /// # Errors
    /// [`Refusal::NoRun`] or [`Refusal::NoStdin`].
    pub(crate) fn stdin(&self, id: &str) -> Result<Stdin, Refusal> {
        let run = self.run(id)?;
        // Whoever takes it closes it: there is one writer.
        let mut running = self.running();
        let found = running.as_mut().and_then(|r| r.get_mut(id));
        let taken = found.and_then(|running| Some((running.stdin.take()?, running.stop.clone())));
        let (bytes, stop) = taken.ok_or_else(|| Refusal::NoStdin(id.into()))?;
        Ok(Stdin {
            bytes: Some(bytes),
            stop,
            run,
        })
    }

    /// Where the next command of a session starts.
    pub(crate) fn cwd(&self, session: &str) -> PathBuf {
        let contexts = self.contexts();
        let found = contexts.get(session).map(|context| context.cwd.clone());
        found.unwrap_or_else(|| self.settings.cwd.clone())
    }

    /// The environment that a command of a session would have; nothing, when it is the companion's.
    pub(crate) async fn environment(&self, session: &str) -> Option<Variables> {
        let exports = Exports::of(self.contexts().get(session)?)?;
        let told = exports.told(&self.settings.bash).await;
        let failed = |error: &io::Error| {
            tracing::warn!("the environment of session `{session}` is not known: {error}");
        };
        told.inspect_err(failed).ok()
    }

    /// Looks for a folder that a session is to [`Self::enter`]; a slow disk holds nobody else up.
    ///
    /// # Errors
    /// [`Refusal::NoFolder`].
    pub(crate) async fn folder(&self, session: &str, path: &str) -> Result<Found, Refusal> {
        let (cwd, home) = (self.cwd(session), self.settings.home.clone());
        let wanted = PathBuf::from(path);
        let found = spawn_blocking(move || Found::at(&wanted, &cwd, &home)).await;
        let found = found.map_err(io::Error::other).and_then(|found| found);
        found.map_err(|error| no_folder(path, &error))
    }

    /// # Errors
    /// [`Refusal::NoFolder`], and then nothing has changed.
    pub(crate) fn enter(&self, session: &str, found: Found) -> Result<PathBuf, Refusal> {
        let mut context = self.context(session)?;
        context.enter(found);
        let cwd = context.cwd.clone();
        self.contexts().insert(session.into(), context);
        Ok(cwd)
    }

    /// Sets or unsets a variable of the environment; `key` must be a name.
    ///
    /// # Errors
    /// [`Refusal::NoFolder`].
    pub(crate) fn set(&self, session: &str, key: &str, value: Option<&str>) -> Result<(), Refusal> {
        let mut context = self.context(session)?;
        context.set(key, value);
        self.contexts().insert(session.into(), context);
        Ok(())
    }

    /// A session's context in a form that can be stored; nothing, when it has none of its own yet.
    pub(crate) fn pack(&self, session: &str) -> Option<Packed> {
        self.contexts().get(session).map(Context::pack)
    }

    /// Gives a session a context that was stored.
    ///
    /// # Errors
    /// When its folder is not there; nothing has changed then.
    pub(crate) fn unpack(&self, session: &str, packed: Packed) -> io::Result<()> {
        let mut context = Context::unpack(packed)?;
        let mut contexts = self.contexts();
        // A command that runs began with another one, and must not leave its own.
        context.serial = contexts.get(session).map_or(1, |now| now.serial + 1);
        contexts.insert(session.into(), context);
        Ok(())
    }

    /// How often each session's context has changed, as far as it has one of its own.
    pub(crate) fn serials(&self) -> BTreeMap<String, u64> {
        let contexts = self.contexts();
        let each = contexts.iter();
        each.map(|(session, context)| (session.clone(), context.serial))
            .collect()
    }

    /// All contexts in a form that a later container can take over.
    pub(crate) fn keep(&self) -> BTreeMap<String, Kept> {
        let contexts = self.contexts().clone();
        let kept = |(session, context): (String, Context)| {
            let environment = command::first_environment(&session).collect();
            (session, Kept::of(&context, &environment))
        };
        contexts.into_iter().map(kept).collect()
    }

    /// Gives sessions the contexts that they had in an earlier container.
    pub(crate) fn adopt(&self, all: BTreeMap<String, Kept>) {
        for (session, kept) in all {
            let environment = command::first_environment(&session).collect();
            match kept.restored(&environment, &self.settings.cwd) {
                Ok(context) => drop(self.contexts().insert(session, context)),
                Err(error) => tracing::warn!(session, "its shell begins anew: {error}"),
            }
        }
    }

    /// The sessions of commands and jobs that run.
    pub(crate) fn in_use(&self) -> BTreeSet<String> {
        let ids: Vec<String> = match &*self.running() {
            Some(running) => running.keys().cloned().collect(),
            None => Vec::new(),
        };
        let runs = ids.iter().filter_map(|id| self.runs.find(id));
        let mut sessions: BTreeSet<String> = runs.map(|run| run.work.session.clone()).collect();
        sessions.extend(self.jobs.sessions());
        sessions
    }

    /// What commands left running.
    pub(crate) async fn jobs(&self) -> Vec<Job> {
        self.jobs.all().await
    }

    /// Ends what a command left running.
    ///
    /// # Errors
    /// [`Refusal::NoJob`].
    pub(crate) async fn end_job(&self, pid: i32) -> Result<JobEnded, Refusal> {
        self.jobs.end(pid).await.ok_or(Refusal::NoJob(pid))
    }

    /// Forgets a session that has ended, and ends all that it runs.
    pub(crate) fn forget(&self, session: &str) {
        self.contexts().remove(session);
        for run in self.runs.all() {
            let is_its = run.work.session == session && run.status() == RunStatus::Running;
            if let Some(running) = self.running().as_ref().and_then(|r| r.get(&run.id))
                && is_its
            {
                // A full mailbox has been told already.
                let _ = running.stop.try_send(Stop::Deleted);
            }
        }
        self.jobs.end_all(Some(session));
    }

    /// Takes no more commands, lets those that run finish within `grace`, then ends all.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        let Some(running) = self.running().take() else {
            return;
        };
        let all = async {
            for id in running.keys() {
                if let Ok(run) = self.run(id) {
                    run.finished().await;
                }
            }
        };
        if tokio::time::timeout(grace, all).await.is_err() {
            for running in running.values() {
                let _ = running.stop.try_send(Stop::Shutdown);
            }
            tokio::time::sleep(STOPPING).await;
        }
        self.jobs.end_all(None);
        self.jobs.ended().await;
    }

    fn context(&self, session: &str) -> Result<Context, Refusal> {
        if let Some(context) = self.contexts().get(session) {
            return Ok(context.clone());
        }
        let cwd = self.settings.cwd.clone();
        let path = cwd.display().to_string();
        Context::new(cwd).map_err(|error| no_folder(&path, &error))
    }

    fn contexts(&self) -> MutexGuard<'_, BTreeMap<String, Context>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, Option<HashMap<String, Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self, id: &str) {
        if let Some(running) = self.running().as_mut() {
            running.remove(id);
        }
    }
}

/// The first on the companion's own path: a command's may lead elsewhere.
fn bash() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&path).map(|folder| folder.join("bash"));
    all.into_iter()
        .find(|program| program.is_file())
        .unwrap_or_else(|| "/bin/bash".into())
}

fn no_folder(path: &str, error: &io::Error) -> Refusal {
    Refusal::NoFolder {
        path: path.into(),
        why: error.to_string(),
    }
}
