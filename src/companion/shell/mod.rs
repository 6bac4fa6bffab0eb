//! Commands in bash, and the context that each session keeps between commands.
//!
//! [`Shells`] is the handle. Every command has a supervisor process (`crate::supervise`), a bash process, and a task that
//! owns both ([`command`]). Commands of one session may run at the same time: each starts with the current context
//! ([`context`]), and the last one to end stores its own. Processes that commands leave in the background are jobs
//! ([`jobs`]).

mod command;
mod command_run;
mod context;
mod context_exit;
mod environment;
mod jobs;
mod retained_context;
mod stdin;

pub(crate) use command_run::{CommandReport, CommandRun};
pub(crate) use context::PackedContext;
pub(crate) use environment::EnvironmentVariables;
pub(crate) use jobs::EndedJob as JobEnded;
pub(crate) use retained_context::RetainedContext;
pub(crate) use stdin::CommandStdin;

use super::runs::{RetainedRuns, RunIdConflict, RunNotRecorded, RunRegistry, RunStore};
use crate::companion::environment::EnvironmentHandle;
use crate::protocol::kernel::RunStatus;
use crate::protocol::shell::{JobInfo, ShellRequest};
use crate::supervise::SupervisorPool;
use bytes::Bytes;
use command::{CommandOwner, CommandStopReason};
use context::{ShellContext, ShellFolder};
use environment::ExportScript;
use jobs::ShellJobs;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// Maximum number of running commands.
const MAX_RUNNING_COMMANDS: usize = 256;

/// Time from the stop signal until all remaining commands are killed.
const COMMAND_SHUTDOWN_DELAY: Duration = Duration::from_millis(20);

/// Paths and the store that commands use.
#[derive(Debug, Clone)]
pub(crate) struct ShellSettings {
    /// The folder of command output that exceeds the memory limit.
    pub(crate) output_folder: PathBuf,
    /// The store of commands on disk.
    pub(crate) run_store: RunStore,
    /// The folder in which the first command starts.
    pub(crate) cwd: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) bash: PathBuf,
    /// The user's variables.
    pub(crate) environment: EnvironmentHandle,
}

impl ShellSettings {
    pub(crate) fn new(
        settings: &super::CompanionSettings,
        retained_runs: &RetainedRuns,
        run_store: RunStore,
        environment: EnvironmentHandle,
    ) -> Self {
        let home = std::env::var_os("HOME").map_or_else(|| "/root".into(), PathBuf::from);
        Self {
            run_store,
            // A separate folder, because executions may have the same IDs.
            output_folder: retained_runs.own_folder().join("commands"),
            bash: find_bash(),
            environment,
            cwd: settings.project_folder.clone(),
            home,
        }
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShellRefusal {
    /// A run of that id exists and was another command.
    RunIdConflict(String),
    /// A run with that id was removed.
    RunIdRemoved(String),
    NoRun(String),
    /// The command must be durable, and the write to the disk failed.
    NotRecorded,
    NoJob(i32),
    /// The run has ended, or its stdin is not open.
    NoStdin(String),
    /// The folder cannot be entered.
    NoFolder {
        path: String,
        why: String,
    },
    /// The maximum number of commands is running.
    TooManyCommands,
    /// The supervisor cannot be started.
    NoSupervisor(String),
    ShuttingDown,
}

impl From<RunIdConflict> for ShellRefusal {
    fn from(conflict: RunIdConflict) -> Self {
        match conflict {
            RunIdConflict::OtherRequest(id) => Self::RunIdConflict(id),
            RunIdConflict::Removed(id) => Self::RunIdRemoved(id),
        }
    }
}

/// The channels to a running command.
#[derive(Debug, Clone)]
struct RunningCommand {
    stop: mpsc::Sender<CommandStopReason>,
    stdin: Option<mpsc::Sender<Bytes>>,
}

/// A handle to all commands, contexts and jobs.
#[derive(Debug, Clone)]
pub(crate) struct Shells {
    settings: ShellSettings,
    contexts: Arc<Mutex<BTreeMap<String, ShellContext>>>,
    runs: RunRegistry<ShellRequest>,
    running: Arc<Mutex<Option<HashMap<String, RunningCommand>>>>,
    jobs: ShellJobs,
    supervisor_pool: SupervisorPool,
}

impl Shells {
    pub(crate) fn new(settings: ShellSettings) -> Self {
        let runs = RunRegistry::open("sh", settings.run_store.clone());
        Self {
            settings,
            contexts: Arc::default(),
            runs,
            running: Arc::new(Mutex::new(Some(HashMap::new()))),
            jobs: ShellJobs::default(),
            supervisor_pool: SupervisorPool::default(),
        }
    }

    /// Starts a command, or finds an earlier run of the same id.
    ///
    /// # Errors
    /// Nothing was executed then.
    pub(crate) async fn execute(
        &self,
        command: ShellRequest,
    ) -> Result<Arc<CommandRun>, ShellRefusal> {
        // Checked before the folder, which may be gone.
        if let Some(run) = self.runs.find_same_request(&command).await? {
            return Ok(run);
        }
        let context = self.session_context(&command.session)?;
        let (run, is_new) = self.runs.begin_run(command)?;
        if !is_new {
            return match run.wait_admitted().await {
                true => Ok(run),
                false => Box::pin(self.execute(run.request.clone())).await,
            };
        }
        // In a separate task, because the client may disconnect.
        let started = tokio::spawn(self.clone().start_run(run, context));
        started.await.unwrap_or(Err(ShellRefusal::ShuttingDown))
    }

    async fn start_run(
        self,
        run: Arc<CommandRun>,
        context: ShellContext,
    ) -> Result<Arc<CommandRun>, ShellRefusal> {
        let (stop, stops) = mpsc::channel(4);
        let (stdin, input) = match run.request.stdin_open {
            true => Some(mpsc::channel(4)).unzip(),
            false => (None, None),
        };
        let refused = match &mut *self.running.lock() {
            None => Some(ShellRefusal::ShuttingDown),
            Some(running) if running.len() >= MAX_RUNNING_COMMANDS => {
                Some(ShellRefusal::TooManyCommands)
            }
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
                .map_err(|error| ShellRefusal::NoSupervisor(format!("{error:#}"))),
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
                run.finish_refused(self.command_report(&run.request.session));
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

    /// The registry of commands, for the code that records them.
    pub(crate) fn run_registry(&self) -> &RunRegistry<ShellRequest> {
        &self.runs
    }

    /// The retained commands, oldest first.
    pub(crate) fn list_runs(&self) -> Vec<Arc<CommandRun>> {
        self.runs.list_runs()
    }

    /// The report of a command that is still running.
    pub(crate) fn command_report(&self, session: &str) -> CommandReport {
        CommandReport {
            returncode: None,
            cwd: self.session_cwd(session).display().to_string(),
            background: false,
        }
    }

    /// Interrupts a command as Ctrl-C does, kills processes that do not stop, and waits until all have ended.
    ///
    /// # Errors
    /// [`ShellRefusal::NoRun`].
    pub(crate) async fn interrupt(&self, id: &str) -> Result<Arc<CommandRun>, ShellRefusal> {
        let run = self.find_run(id)?;
        run.wait_admitted().await;
        let running = self
            .running
            .lock()
            .as_ref()
            .and_then(|r| r.get(id).cloned());
        if let Some(running) = running {
            // A command that has just ended does not receive this.
            let _ = running.stop.send(CommandStopReason::Requested).await;
        }
        run.wait_finished().await;
        Ok(run)
    }

    /// Takes the writer of a command's stdin.
    ///
    /// # Errors
    /// [`ShellRefusal::NoRun`] or [`ShellRefusal::NoStdin`].
    pub(crate) fn take_stdin(&self, id: &str) -> Result<CommandStdin, ShellRefusal> {
        let run = self.find_run(id)?;
        // There is one writer, and it closes the stdin.
        let mut running = self.running.lock();
        let found = running.as_mut().and_then(|r| r.get_mut(id));
        let taken = found.and_then(|running| Some((running.stdin.take()?, running.stop.clone())));
        let (bytes, stop) = taken.ok_or_else(|| ShellRefusal::NoStdin(id.into()))?;
        Ok(CommandStdin {
            sender: Some(bytes),
            stop,
            run,
        })
    }

    /// The folder in which the next command of a session starts.
    pub(crate) fn session_cwd(&self, session: &str) -> PathBuf {
        let contexts = self.contexts.lock();
        let found = contexts.get(session).map(|context| context.cwd.clone());
        found.unwrap_or_else(|| self.settings.cwd.clone())
    }

    /// The environment of a command of the session; `None` when it is the companion's.
    pub(crate) async fn session_environment(&self, session: &str) -> Option<EnvironmentVariables> {
        let context = self.session_context(session).ok()?;
        let exports = ExportScript::from_context(&context)?;
        let environment = exports.evaluate(&self.settings.bash).await;
        let failed = |error: &io::Error| {
            tracing::warn!(session, %error, "the environment of the session can't be read");
        };
        environment.inspect_err(failed).ok()
    }

    /// Resolves a folder for [`Self::change_folder`]; a slow disk delays no other request.
    ///
    /// # Errors
    /// [`ShellRefusal::NoFolder`].
    pub(crate) async fn find_folder(
        &self,
        session: &str,
        path: &str,
    ) -> Result<ShellFolder, ShellRefusal> {
        let (cwd, home) = (self.session_cwd(session), self.settings.home.clone());
        let wanted = PathBuf::from(path);
        let found = spawn_blocking(move || ShellFolder::resolve(&wanted, &cwd, &home)).await;
        let found = found.map_err(io::Error::other).and_then(|found| found);
        found.map_err(|error| folder_refusal(path, &error))
    }

    /// # Errors
    /// [`ShellRefusal::NoFolder`]; nothing has changed then.
    pub(crate) fn change_folder(
        &self,
        session: &str,
        found: ShellFolder,
    ) -> Result<PathBuf, ShellRefusal> {
        let mut context = self.session_context(session)?;
        context.change_folder(found);
        let cwd = context.cwd.clone();
        self.contexts.lock().insert(session.into(), context);
        Ok(cwd)
    }

    /// Sets or unsets an environment variable; `key` must be a valid name.
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
        self.contexts.lock().insert(session.into(), context);
        Ok(())
    }

    /// The context of a session in a form that can be stored; `None` when the session has no context yet.
    pub(crate) fn pack_context(&self, session: &str) -> Option<PackedContext> {
        self.contexts.lock().get(session).map(ShellContext::pack)
    }

    /// Replaces the context of a session by a stored one.
    ///
    /// # Errors
    /// When its folder does not exist; nothing has changed then.
    pub(crate) fn unpack_context(&self, session: &str, packed: PackedContext) -> io::Result<()> {
        let mut context = ShellContext::unpack(packed)?;
        let mut contexts = self.contexts.lock();
        // A running command started with another context, and must not store its own.
        context.serial = contexts.get(session).map_or(1, |now| now.serial + 1);
        contexts.insert(session.into(), context);
        Ok(())
    }

    /// The number of changes of each session's context. Sessions without a context are left out.
    pub(crate) fn context_serials(&self) -> BTreeMap<String, u64> {
        let contexts = self.contexts.lock();
        let each = contexts.iter();
        each.map(|(session, context)| (session.clone(), context.serial))
            .collect()
    }

    /// All contexts in a form that a later container can restore.
    pub(crate) fn retain_contexts(&self) -> BTreeMap<String, RetainedContext> {
        let contexts = self.contexts.lock().clone();
        let retain = |(session, context): (String, ShellContext)| {
            let user = context.bash_environment();
            let environment = command::initial_variables(&session, user);
            (
                session,
                RetainedContext::from_context(&context, &environment),
            )
        };
        contexts.into_iter().map(retain).collect()
    }

    /// Restores the contexts of an earlier container.
    pub(crate) fn restore_contexts(&self, all: BTreeMap<String, RetainedContext>) {
        for (session, retained) in all {
            let user = self.settings.environment.current();
            let environment = command::initial_variables(&session, &user);
            match retained.restore_context(&environment, &self.settings.cwd) {
                Ok(context) => {
                    let context = context.with_restored_environment(user);
                    drop(self.contexts.lock().insert(session, context));
                }
                Err(error) => {
                    tracing::warn!(session, %error, "the shell's context can't be restored, the session starts with an empty one")
                }
            }
        }
    }

    /// The sessions with running commands or jobs.
    pub(crate) fn sessions_in_use(&self) -> BTreeSet<String> {
        let ids: Vec<String> = match &*self.running.lock() {
            Some(running) => running.keys().cloned().collect(),
            None => Vec::new(),
        };
        let runs = ids.iter().filter_map(|id| self.runs.find_run(id));
        let mut sessions: BTreeSet<String> = runs.map(|run| run.request.session.clone()).collect();
        sessions.extend(self.jobs.job_sessions());
        sessions
    }

    /// The background processes of commands.
    pub(crate) async fn list_jobs(&self) -> Vec<JobInfo> {
        self.jobs.list_jobs().await
    }

    /// Ends a background process of a command.
    ///
    /// # Errors
    /// [`ShellRefusal::NoJob`].
    pub(crate) async fn end_job(&self, pid: i32) -> Result<JobEnded, ShellRefusal> {
        self.jobs.end_job(pid).await.ok_or(ShellRefusal::NoJob(pid))
    }

    /// Removes the context of a session that has ended, and ends all its processes.
    pub(crate) fn remove_session(&self, session: &str) {
        self.contexts.lock().remove(session);
        for run in self.runs.list_runs() {
            let is_its = run.request.session == session && run.status() == RunStatus::Running;
            if let Some(running) = self.running.lock().as_ref().and_then(|r| r.get(&run.id))
                && is_its
            {
                // A full mailbox holds a stop request already.
                let _ = running.stop.try_send(CommandStopReason::Deleted);
            }
        }
        self.jobs.end_all(Some(session));
    }

    /// Refuses new commands, lets running commands finish within `grace`, then ends all.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        let Some(running) = self.running.lock().take() else {
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
        let found = self.contexts.lock().get(session).cloned();
        let context = match found {
            Some(context) => context,
            None => {
                let cwd = self.settings.cwd.clone();
                let path = cwd.display().to_string();
                ShellContext::new(cwd).map_err(|error| folder_refusal(&path, &error))?
            }
        };
        Ok(context.with_environment(self.settings.environment.current()))
    }

    fn remove_running(&self, id: &str) {
        if let Some(running) = self.running.lock().as_mut() {
            running.remove(id);
        }
    }
}

/// The first bash on the companion's own path; the path of a command may lead elsewhere.
fn find_bash() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&path).map(|folder| folder.join("bash"));
    all.into_iter()
        .find(|program| program.is_file())
        .unwrap_or_else(|| "/bin/bash".into())
}

fn folder_refusal(path: &str, error: &io::Error) -> ShellRefusal {
    ShellRefusal::NoFolder {
        path: path.into(),
        why: error.to_string(),
    }
}
