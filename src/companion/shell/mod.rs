//! Commands in bash, and the contexts that last from one to the next.
//!
//! [`Shells`] is the handle that everyone uses. Every command has a guard ([`supervisor`]), a process of its
//! own and a task that owns both ([`command`]); commands of one session may run at the same time, each
//! begins with the context that is there ([`context`]), and the last one to end leaves its own. What
//! commands leave in the background is a job ([`jobs`]).

mod command;
mod command_run;
mod context;
mod environment;
mod jobs;
mod retained_context;
mod stdin;
pub(super) mod supervisor;
pub(super) mod supervisor_client;

pub(crate) use command_run::{CommandReport, CommandRun};
pub(crate) use context::PackedContext;
pub(crate) use environment::EnvironmentVariables;
pub(crate) use jobs::EndedJob as JobEnded;
pub(crate) use retained_context::RetainedContext;
pub(crate) use stdin::CommandStdin;
pub(crate) use supervisor::supervise_command as guard_command;

use super::runs::{RunIdConflict, RunNotRecorded, RunRegistry, RunStore};
use crate::protocol::kernel::RunStatus;
use crate::protocol::shell::{Command, JobInfo};
use bytes::Bytes;
use command::{CommandOwner, CommandStopReason};
use context::{ShellContext, ShellFolder};
use environment::ExportScript;
use jobs::ShellJobs;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use supervisor_client::SupervisorPool;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// Commands that may run at once.
const MAX_RUNNING_COMMANDS: usize = 256;

/// From the wish to stop to the end of what does not.
const COMMAND_SHUTDOWN_DELAY: Duration = Duration::from_millis(20);

/// Where the parts are.
#[derive(Debug, Clone)]
pub(crate) struct ShellSettings {
    /// Folder of what commands have written and memory does not hold.
    pub(crate) runs: PathBuf,
    /// What is on disk of them.
    pub(crate) store: RunStore,
    /// Where the first command starts.
    pub(crate) cwd: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) bash: PathBuf,
}

impl ShellSettings {
    pub(crate) fn new(settings: &super::CompanionSettings, store: RunStore) -> Self {
        let home = std::env::var_os("HOME").map_or_else(|| "/root".into(), PathBuf::from);
        Self {
            store,
            // Executions may have the same ids.
            runs: settings.lives.own_folder().join("commands"),
            bash: find_bash(),
            cwd: std::env::current_dir().unwrap_or_else(|_| "/".into()),
            home,
        }
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShellRefusal {
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
struct RunningCommand {
    stop: mpsc::Sender<CommandStopReason>,
    stdin: Option<mpsc::Sender<Bytes>>,
}

/// All commands, contexts and jobs, for everyone who uses them.
#[derive(Debug, Clone)]
pub(crate) struct Shells {
    settings: ShellSettings,
    contexts: Arc<Mutex<BTreeMap<String, ShellContext>>>,
    runs: RunRegistry<Command>,
    running: Arc<Mutex<Option<HashMap<String, RunningCommand>>>>,
    jobs: ShellJobs,
    spares: SupervisorPool,
}

impl Shells {
    pub(crate) fn new(settings: ShellSettings) -> Self {
        let runs = RunRegistry::open("sh", settings.store.clone());
        Self {
            settings,
            contexts: Arc::default(),
            runs,
            running: Arc::new(Mutex::new(Some(HashMap::new()))),
            jobs: ShellJobs::default(),
            spares: SupervisorPool::default(),
        }
    }

    /// Begins a command, or finds the one of that id again.
    ///
    /// # Errors
    /// Nothing was executed then.
    pub(crate) async fn execute(&self, command: Command) -> Result<Arc<CommandRun>, ShellRefusal> {
        // Its folder may be gone.
        let known = self.runs.find_same(&command).await;
        if let Some(run) = known.map_err(|RunIdConflict(id)| ShellRefusal::OtherRun(id))? {
            return Ok(run);
        }
        let context = self.session_context(&command.session)?;
        let begun = self.runs.begin_run(command);
        let (run, is_new) = begun.map_err(|RunIdConflict(id)| ShellRefusal::OtherRun(id))?;
        if !is_new {
            return match run.wait_admitted().await {
                true => Ok(run),
                false => Box::pin(self.execute(run.work.clone())).await,
            };
        }
        // In a task of its own: the client may disconnect.
        let started = tokio::spawn(self.clone().start_run(run, context));
        started.await.unwrap_or(Err(ShellRefusal::Stopping))
    }

    async fn start_run(
        self,
        run: Arc<CommandRun>,
        context: ShellContext,
    ) -> Result<Arc<CommandRun>, ShellRefusal> {
        let (stop, stops) = mpsc::channel(4);
        let (stdin, input) = match run.work.stdin_open {
            true => Some(mpsc::channel(4)).unzip(),
            false => (None, None),
        };
        let refused = match &mut *self.lock_running() {
            None => Some(ShellRefusal::Stopping),
            Some(running) if running.len() >= MAX_RUNNING_COMMANDS => Some(ShellRefusal::TooMany),
            Some(running) => {
                running.insert(run.id.clone(), RunningCommand { stop, stdin });
                None
            }
        };
        let recorded = match refused {
            Some(refusal) => Err(refusal),
            None => run
                .wait_recorded()
                .await
                .map_err(|RunNotRecorded| ShellRefusal::NotRecorded),
        };
        let driven = match recorded {
            Err(refusal) => Err(refusal),
            Ok(()) => CommandOwner::new(self.clone(), run.clone(), context, stops, input)
                .map_err(|error| ShellRefusal::NoGuard(format!("{error:#}"))),
        };
        match driven {
            Ok(drive) => {
                run.mark_admitted();
                self.runs.prune_excess();
                tokio::spawn(drive.run());
                Ok(run)
            }
            Err(refusal) => {
                self.remove_running(&run.id);
                self.runs.forget_run(&run);
                run.finish_refused(self.report(&run.work.session));
                Err(refusal)
            }
        }
    }

    /// # Errors
    /// [`ShellRefusal::NoRun`].
    pub(crate) fn find_run(&self, id: &str) -> Result<Arc<CommandRun>, ShellRefusal> {
        self.runs
            .find_run(id)
            .ok_or_else(|| ShellRefusal::NoRun(id.into()))
    }

    /// The commands themselves, for who records them.
    pub(crate) fn run_registry(&self) -> &RunRegistry<Command> {
        &self.runs
    }

    /// The commands that can be found, the oldest first.
    pub(crate) fn list_runs(&self) -> Vec<Arc<CommandRun>> {
        self.runs.list_runs()
    }

    /// What to say of a command that goes on.
    pub(crate) fn report(&self, session: &str) -> CommandReport {
        CommandReport {
            returncode: None,
            cwd: self.cwd(session).display().to_string(),
            background: false,
        }
    }

    /// Interrupts a command as Ctrl-C does, ends what does not stop, and waits until all is over.
    ///
    /// # Errors
    /// [`ShellRefusal::NoRun`].
    pub(crate) async fn interrupt(&self, id: &str) -> Result<Arc<CommandRun>, ShellRefusal> {
        let run = self.find_run(id)?;
        run.wait_admitted().await;
        let running = self
            .lock_running()
            .as_ref()
            .and_then(|r| r.get(id).cloned());
        if let Some(running) = running {
            // One that has just ended no longer hears.
            let _ = running.stop.send(CommandStopReason::Asked).await;
        }
        run.wait_finished().await;
        Ok(run)
    }

    /// The way to a command's stdin.
    ///
    /// # Errors
    /// [`ShellRefusal::NoRun`] or [`ShellRefusal::NoStdin`].
    pub(crate) fn take_stdin(&self, id: &str) -> Result<CommandStdin, ShellRefusal> {
        let run = self.find_run(id)?;
        // Whoever takes it closes it: there is one writer.
        let mut running = self.lock_running();
        let found = running.as_mut().and_then(|r| r.get_mut(id));
        let taken = found.and_then(|running| Some((running.stdin.take()?, running.stop.clone())));
        let (bytes, stop) = taken.ok_or_else(|| ShellRefusal::NoStdin(id.into()))?;
        Ok(CommandStdin {
            bytes: Some(bytes),
            stop,
            run,
        })
    }

    /// Where the next command of a session starts.
    pub(crate) fn cwd(&self, session: &str) -> PathBuf {
        let contexts = self.lock_contexts();
        let found = contexts.get(session).map(|context| context.cwd.clone());
        found.unwrap_or_else(|| self.settings.cwd.clone())
    }

    /// The environment that a command of a session would have; nothing, when it is the companion's.
    pub(crate) async fn session_environment(&self, session: &str) -> Option<EnvironmentVariables> {
        let exports = ExportScript::from_context(self.lock_contexts().get(session)?)?;
        let told = exports.evaluate(&self.settings.bash).await;
        let failed = |error: &io::Error| {
            tracing::warn!("the environment of session `{session}` is not known: {error}");
        };
        told.inspect_err(failed).ok()
    }

    /// Looks for a folder that a session is to [`Self::change_folder`]; a slow disk holds nobody else up.
    ///
    /// # Errors
    /// [`ShellRefusal::NoFolder`].
    pub(crate) async fn find_folder(
        &self,
        session: &str,
        path: &str,
    ) -> Result<ShellFolder, ShellRefusal> {
        let (cwd, home) = (self.cwd(session), self.settings.home.clone());
        let wanted = PathBuf::from(path);
        let found = spawn_blocking(move || ShellFolder::resolve(&wanted, &cwd, &home)).await;
        let found = found.map_err(io::Error::other).and_then(|found| found);
        found.map_err(|error| no_folder(path, &error))
    }

    /// # Errors
    /// [`ShellRefusal::NoFolder`], and then nothing has changed.
    pub(crate) fn change_folder(
        &self,
        session: &str,
        found: ShellFolder,
    ) -> Result<PathBuf, ShellRefusal> {
        let mut context = self.session_context(session)?;
        context.change_folder(found);
        let cwd = context.cwd.clone();
        self.lock_contexts().insert(session.into(), context);
        Ok(cwd)
    }

    /// Sets or unsets a variable of the environment; `key` must be a name.
    ///
    /// # Errors
    /// [`ShellRefusal::NoFolder`].
    pub(crate) fn set_variable(
        &self,
        session: &str,
        key: &str,
        value: Option<&str>,
    ) -> Result<(), ShellRefusal> {
        let mut context = self.session_context(session)?;
        context.set_variable(key, value);
        self.lock_contexts().insert(session.into(), context);
        Ok(())
    }

    /// A session's context in a form that can be stored; nothing, when it has none of its own yet.
    pub(crate) fn pack_context(&self, session: &str) -> Option<PackedContext> {
        self.lock_contexts().get(session).map(ShellContext::pack)
    }

    /// Gives a session a context that was stored.
    ///
    /// # Errors
    /// When its folder is not there; nothing has changed then.
    pub(crate) fn unpack_context(&self, session: &str, packed: PackedContext) -> io::Result<()> {
        let mut context = ShellContext::unpack(packed)?;
        let mut contexts = self.lock_contexts();
        // A command that runs began with another one, and must not leave its own.
        context.serial = contexts.get(session).map_or(1, |now| now.serial + 1);
        contexts.insert(session.into(), context);
        Ok(())
    }

    /// How often each session's context has changed, as far as it has one of its own.
    pub(crate) fn context_serials(&self) -> BTreeMap<String, u64> {
        let contexts = self.lock_contexts();
        let each = contexts.iter();
        each.map(|(session, context)| (session.clone(), context.serial))
            .collect()
    }

    /// All contexts in a form that a later container can take over.
    pub(crate) fn retain_contexts(&self) -> BTreeMap<String, RetainedContext> {
        let contexts = self.lock_contexts().clone();
        let kept = |(session, context): (String, ShellContext)| {
            let environment = command::first_environment(&session).collect();
            (
                session,
                RetainedContext::from_context(&context, &environment),
            )
        };
        contexts.into_iter().map(kept).collect()
    }

    /// Gives sessions the contexts that they had in an earlier container.
    pub(crate) fn restore_contexts(&self, all: BTreeMap<String, RetainedContext>) {
        for (session, kept) in all {
            let environment = command::first_environment(&session).collect();
            match kept.restore_context(&environment, &self.settings.cwd) {
                Ok(context) => drop(self.lock_contexts().insert(session, context)),
                Err(error) => tracing::warn!(session, "its shell begins anew: {error}"),
            }
        }
    }

    /// The sessions of commands and jobs that run.
    pub(crate) fn in_use(&self) -> BTreeSet<String> {
        let ids: Vec<String> = match &*self.lock_running() {
            Some(running) => running.keys().cloned().collect(),
            None => Vec::new(),
        };
        let runs = ids.iter().filter_map(|id| self.runs.find_run(id));
        let mut sessions: BTreeSet<String> = runs.map(|run| run.work.session.clone()).collect();
        sessions.extend(self.jobs.sessions());
        sessions
    }

    /// What commands left running.
    pub(crate) async fn list_jobs(&self) -> Vec<JobInfo> {
        self.jobs.list_jobs().await
    }

    /// Ends what a command left running.
    ///
    /// # Errors
    /// [`ShellRefusal::NoJob`].
    pub(crate) async fn end_job(&self, pid: i32) -> Result<JobEnded, ShellRefusal> {
        self.jobs.end_job(pid).await.ok_or(ShellRefusal::NoJob(pid))
    }

    /// Forgets a session that has ended, and ends all that it runs.
    pub(crate) fn forget_session(&self, session: &str) {
        self.lock_contexts().remove(session);
        for run in self.runs.list_runs() {
            let is_its = run.work.session == session && run.status() == RunStatus::Running;
            if let Some(running) = self.lock_running().as_ref().and_then(|r| r.get(&run.id))
                && is_its
            {
                // A full mailbox has been told already.
                let _ = running.stop.try_send(CommandStopReason::Deleted);
            }
        }
        self.jobs.end_all(Some(session));
    }

    /// Takes no more commands, lets those that run finish within `grace`, then ends all.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        let Some(running) = self.lock_running().take() else {
            return;
        };
        let all = async {
            for id in running.keys() {
                if let Ok(run) = self.find_run(id) {
                    run.wait_finished().await;
                }
            }
        };
        if tokio::time::timeout(grace, all).await.is_err() {
            for running in running.values() {
                let _ = running.stop.try_send(CommandStopReason::Shutdown);
            }
            tokio::time::sleep(COMMAND_SHUTDOWN_DELAY).await;
        }
        self.jobs.end_all(None);
        self.jobs.wait_until_empty().await;
    }

    fn session_context(&self, session: &str) -> Result<ShellContext, ShellRefusal> {
        if let Some(context) = self.lock_contexts().get(session) {
            return Ok(context.clone());
        }
        let cwd = self.settings.cwd.clone();
        let path = cwd.display().to_string();
        ShellContext::new(cwd).map_err(|error| no_folder(&path, &error))
    }

    fn lock_contexts(&self) -> MutexGuard<'_, BTreeMap<String, ShellContext>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_running(&self) -> MutexGuard<'_, Option<HashMap<String, RunningCommand>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove_running(&self, id: &str) {
        if let Some(running) = self.lock_running().as_mut() {
            running.remove(id);
        }
    }
}

/// The first on the companion's own path: a command's may lead elsewhere.
fn find_bash() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&path).map(|folder| folder.join("bash"));
    all.into_iter()
        .find(|program| program.is_file())
        .unwrap_or_else(|| "/bin/bash".into())
}

fn no_folder(path: &str, error: &io::Error) -> ShellRefusal {
    ShellRefusal::NoFolder {
        path: path.into(),
        why: error.to_string(),
    }
}
