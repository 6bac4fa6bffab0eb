//! The task that owns one command, from start to end: its supervisor and its pipes.

use super::Shells;
use super::command_run::{CommandReport, CommandRun};
use super::context::{CONTEXT_EXIT_SCRIPT, ShellContext};
use super::context_exit::with_context_exit;
use super::jobs::BackgroundJob;
use super::retained_context::InheritedEnvironment;
use crate::companion::pipes::OutputPipes;
use crate::companion::runs::SpillFiles;
use crate::companion::settings::inherited_environment;
use crate::error::Result;
use crate::protocol::environment::UserEnvironment;
use crate::protocol::kernel::{OutputStream, RunError, RunEventKind, RunStatus};
use crate::supervise::{ProcessKind, ProcessStart, Supervisor, SupervisorEvent};
use anyhow::Context;
use bytes::Bytes;
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::unistd::pipe2;
use std::ffi::OsString;
use std::fs::File;
use std::future::pending;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// Time from the signal until processes that did not stop are killed.
const COMMAND_STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum bytes of the command as an argument; a longer command is passed as a file in memory. Linux's limit is 128
/// KiB.
const MAX_COMMAND_ARG_BYTES: usize = 120 << 10;

/// A year: a timeout beyond the range of the clock never expires.
const MAX_COMMAND_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why a command ends early.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum CommandStopReason {
    Requested,
    Timeout(f64),
    /// Its stdin was cut off.
    StdinCut,
    Deleted,
    Shutdown,
}

impl CommandStopReason {
    fn to_error(self) -> RunError {
        let (kind, message) = match self {
            Self::Requested => ("Interrupted", "the command was interrupted".into()),
            Self::Timeout(seconds) => (
                "Timeout",
                format!("the command ran longer than {seconds} s and was stopped"),
            ),
            Self::StdinCut => (
                "InputCut",
                "the connection that sent the command's stdin broke".into(),
            ),
            Self::Deleted => (
                "Interrupted",
                "the session was deleted while the command ran".into(),
            ),
            Self::Shutdown => (
                "Interrupted",
                "the companion was stopped while the command ran".into(),
            ),
        };
        command_error(kind, message)
    }
}

fn command_error(kind: &str, message: String) -> RunError {
    RunError {
        kind: kind.into(),
        message,
        traceback: Vec::new(),
    }
}

/// Owns one running command.
#[derive(Debug)]
pub(super) struct CommandOwner {
    shells: Shells,
    run: Arc<CommandRun>,
    context: ShellContext,
    supervisor: Supervisor,
    stop_requests: mpsc::Receiver<CommandStopReason>,
    input: Option<mpsc::Receiver<Bytes>>,
    /// The task that writes the command's stdin.
    stdin_task: Option<AbortHandle>,
}

/// Files shared with bash while the command runs.
#[derive(Debug)]
struct CommandFiles {
    pipes: OutputPipes,
    /// Bash writes its context to this file when it exits.
    context_file: File,
    /// Must stay open until bash has read them.
    _scripts: Vec<File>,
}

/// How a command ended.
enum CommandEnd {
    /// `has_background`: background processes are still running; always `false` for a command that was stopped.
    Code {
        code: u8,
        has_background: bool,
    },
    NotStarted(i32),
    SupervisorKilled,
}

impl CommandOwner {
    pub(super) fn new(
        shells: Shells,
        run: Arc<CommandRun>,
        context: ShellContext,
        stop_requests: mpsc::Receiver<CommandStopReason>,
        input: Option<mpsc::Receiver<Bytes>>,
    ) -> Result<Self> {
        let supervisor = shells.supervisor_pool.take_or_spawn();
        let supervisor = supervisor.context("the command's supervisor can't be started")?;
        Ok(Self {
            shells,
            run,
            context,
            supervisor,
            stop_requests,
            input,
            stdin_task: None,
        })
    }

    #[tracing::instrument(name = "command", skip_all, fields(session = %self.run.request.session, run = %self.run.id))]
    pub(super) async fn run(mut self) {
        let mut shared = match self.start_command() {
            Ok(shared) => shared,
            Err(error) => {
                let error = command_error(
                    "NotStarted",
                    format!("the command can't be started: {error}"),
                );
                return self.finish_run(RunStatus::Failed, Some(error), None, false);
            }
        };
        let mut spill = SpillFiles::default();
        let (end, stop) = self.wait_for_end(&mut shared, &mut spill).await;
        self.drain_pipes(&shared, &mut spill).await;
        match end {
            CommandEnd::Code {
                code,
                has_background,
            } => {
                let (status, code) = match stop {
                    // A command that was stopped leaves no context, even if it had finished.
                    Some(_) => (RunStatus::Interrupted, -1),
                    None => {
                        self.adopt_context(&mut shared.context_file);
                        (RunStatus::Completed, code.into())
                    }
                };
                self.finish_run(
                    status,
                    stop.map(CommandStopReason::to_error),
                    Some(code),
                    has_background,
                );
                if has_background {
                    let background = BackgroundJob::new(&self.run, self.supervisor, shared.pipes);
                    self.shells.jobs.add_job(background);
                }
            }
            CommandEnd::NotStarted(errno) => {
                let why = io::Error::from_raw_os_error(errno);
                let error =
                    command_error("NotStarted", format!("the command can't be started: {why}"));
                self.finish_run(RunStatus::Failed, Some(error), None, false);
            }
            CommandEnd::SupervisorKilled => {
                let (status, error) = match stop {
                    Some(stop) => (RunStatus::Interrupted, stop.to_error()),
                    None => {
                        let message =
                            "the command's supervisor was killed, and the command with it".into();
                        (RunStatus::Failed, command_error("Killed", message))
                    }
                };
                self.finish_run(status, Some(error), Some(-1), false);
            }
        }
    }

    /// Waits for the end of the command, for any reason. After a request to stop the command, also waits for all
    /// processes that the command started; they have the same time to stop.
    async fn wait_for_end(
        &mut self,
        shared: &mut CommandFiles,
        spill: &mut SpillFiles,
    ) -> (CommandEnd, Option<CommandStopReason>) {
        let timeout = self.run.request.timeout.map(|seconds| {
            let time = Duration::try_from_secs_f64(seconds)
                .map_or(MAX_COMMAND_TIMEOUT, |t| t.min(MAX_COMMAND_TIMEOUT));
            (Instant::now() + time, seconds)
        });
        let mut deadline = timeout.map(|(at, _)| at);
        let mut stop = None;
        let mut is_made_to = false;
        // The exit code of the command, while processes that it started are still stopping.
        let mut ended = None;
        loop {
            let has_room = self.run.can_accept_output();
            let (stream, bytes) = tokio::select! {
                biased;
                reason = self.stop_requests.recv(), if stop.is_none() => {
                    let reason = reason.unwrap_or(CommandStopReason::Shutdown);
                    deadline = Some(self.request_stop(reason));
                    stop = Some(reason);
                    continue;
                }
                // The deadline has priority over output, because a flood of output would delay it.
                () = sleep_until_deadline(deadline) => {
                    match (stop, timeout) {
                        (None, Some((_, seconds))) => {
                            let reason = CommandStopReason::Timeout(seconds);
                            deadline = Some(self.request_stop(reason));
                            stop = Some(reason);
                        }
                        _ if is_made_to => {
                            // The supervisor does not react: it is stopped or hangs.
                            self.supervisor.kill_supervisor();
                            deadline = None;
                        }
                        _ => {
                            self.supervisor.kill_tree();
                            is_made_to = true;
                            deadline = Some(Instant::now() + COMMAND_STOP_TIMEOUT);
                        }
                    }
                    continue;
                }
                event = self.supervisor.next_event() => match event {
                    SupervisorEvent::Started(pid) => {
                        self.run.mark_started(pid.cast_unsigned().into());
                        continue;
                    }
                    SupervisorEvent::NotStarted(errno) => return (CommandEnd::NotStarted(errno), stop),
                    SupervisorEvent::Ended { code, has_background: true } if stop.is_some() && ended.is_none() => {
                        ended = Some(code);
                        // Background processes ignore an interrupt.
                        if stop == Some(CommandStopReason::Requested) {
                            self.supervisor.send_signal(Signal::SIGTERM);
                        }
                        continue;
                    }
                    SupervisorEvent::Ended { code, has_background } => {
                        let code = ended.unwrap_or(code);
                        let has_background = has_background && stop.is_none();
                        return (CommandEnd::Code { code, has_background }, stop);
                    }
                    SupervisorEvent::AllExited => return match ended {
                        Some(code) => (CommandEnd::Code { code, has_background: false }, stop),
                        None => (CommandEnd::SupervisorKilled, stop),
                    },
                },
                () = self.run.wait_output_capacity(), if !has_room => continue,
                piece = shared.pipes.next_piece(), if has_room => piece,
            };
            self.record_output(spill, stream, bytes).await;
        }
    }

    /// Signals the command to stop; returns the time at which it is killed.
    fn request_stop(&self, why: CommandStopReason) -> Instant {
        self.supervisor.send_signal(match why {
            CommandStopReason::Requested => Signal::SIGINT,
            CommandStopReason::Timeout(_)
            | CommandStopReason::StdinCut
            | CommandStopReason::Deleted
            | CommandStopReason::Shutdown => Signal::SIGTERM,
        });
        Instant::now() + COMMAND_STOP_TIMEOUT
    }

    async fn record_output(
        &self,
        spill: &mut SpillFiles,
        stream: OutputStream,
        mut bytes: Vec<u8>,
    ) {
        let spilled_bytes = self.run.write_output(stream, &bytes);
        if spilled_bytes > 0 {
            bytes.drain(..bytes.len() - spilled_bytes);
            let folder = &self.shells.settings.output_folder;
            spill.write_output(folder, &self.run, stream, bytes).await;
        }
    }

    /// The pipes hold all output of the command itself by now; background processes may keep them open.
    async fn drain_pipes(&self, shared: &CommandFiles, spill: &mut SpillFiles) {
        for (stream, bytes) in shared.pipes.drain() {
            self.record_output(spill, stream, bytes).await;
        }
    }

    /// Stores the context that the command left in its session, if the session still exists.
    fn adopt_context(&mut self, file: &mut File) {
        let mut written = Vec::new();
        // The file is in memory and as short as a context, so reading it does not block.
        if file
            .rewind()
            .and_then(|()| file.read_to_end(&mut written))
            .is_err()
        {
            return;
        }
        if let Some(next) = self.context.next_context(&written) {
            let session = self.run.request.session.clone();
            let mut contexts = self.shells.contexts.lock();
            // The session was deleted while the last output of the command was read.
            if matches!(
                self.stop_requests.try_recv(),
                Ok(CommandStopReason::Deleted)
            ) {
                return;
            }
            let next = match contexts.get(&session) {
                // The first command of a session has no earlier context to compare with, so its changes are unknown.
                // The contexts of commands that have ended since have priority.
                Some(now) if self.context.is_fresh() && !now.is_fresh() => return,
                Some(now) => next.merge_changes(now, self.context.serial),
                None => next,
            };
            contexts.insert(session, next);
        }
    }

    fn finish_run(
        &self,
        status: RunStatus,
        error: Option<RunError>,
        code: Option<i32>,
        has_background: bool,
    ) {
        if let Some(error) = error {
            self.run.add_event(RunEventKind::Error { error });
        }
        let report = CommandReport {
            returncode: code,
            background: has_background,
            ..self.shells.command_report(&self.run.request.session)
        };
        if let Some(stdin_task) = &self.stdin_task {
            stdin_task.abort();
        }
        self.shells.remove_running(&self.run.id);
        self.run.finish(status, report);
    }

    fn start_command(&mut self) -> io::Result<CommandFiles> {
        let context_file = create_memory_file(b"")?;
        let exit_script = create_memory_file(CONTEXT_EXIT_SCRIPT.as_bytes())?;
        let (exit_path, output_path) = (proc_fd_path(&exit_script), proc_fd_path(&context_file));
        let script = create_memory_file(&self.context.start_script(&exit_path, &output_path))?;
        let request = &self.run.request;
        let mut scripts = Vec::new();
        let text = match request.command.len() > MAX_COMMAND_ARG_BYTES {
            true => {
                let file = create_memory_file(request.command.as_bytes())?;
                let text = format!(". {}", proc_fd_path(&file));
                scripts.push(file);
                text
            }
            false => with_context_exit(&request.command, &exit_path, &output_path),
        };
        let mut environment = match self.context.is_fresh() {
            true => initial_environment(&request.session, self.context.environment()).collect(),
            false => Vec::new(),
        };
        environment.push(("BASH_ENV".into(), proc_fd_path(&script).into()));
        let (out, out_end) = pipe2(OFlag::O_CLOEXEC)?;
        let (err, err_end) = pipe2(OFlag::O_CLOEXEC)?;
        let stdin = self.open_stdin()?;
        let start = ProcessStart {
            kind: ProcessKind::Command,
            program: self.shells.settings.bash.clone().into(),
            args: vec!["bash".into(), "-c".into(), text.into()],
            environment,
            max_open_files: None,
        };
        let folder = self.context.folder.as_fd();
        let descriptors = [stdin.as_fd(), out_end.as_fd(), err_end.as_fd(), folder];
        self.supervisor.start_process(&start, descriptors)?;
        scripts.extend([exit_script, script]);
        Ok(CommandFiles {
            pipes: OutputPipes::open([out, err])?,
            context_file,
            _scripts: scripts,
        })
    }

    /// Opens the command's stdin.
    fn open_stdin(&mut self) -> io::Result<OwnedFd> {
        let configured = self.run.request.stdin.clone().map(Bytes::from);
        if configured.is_none() && self.input.is_none() {
            return Ok(File::open("/dev/null")?.into());
        }
        let (end, ours) = pipe2(OFlag::O_CLOEXEC)?;
        let mut ours = Sender::from_owned_fd(ours)?;
        let mut more = self.input.take();
        let stdin_task = tokio::spawn(async move {
            let mut next = configured;
            loop {
                // A command that has closed its stdin needs no more bytes; the rest is dropped.
                if let Some(bytes) = next.take()
                    && ours.write_all(&bytes).await.is_err()
                {
                    return;
                }
                next = match &mut more {
                    Some(more) => more.recv().await,
                    None => None,
                };
                if next.is_none() {
                    return;
                }
            }
        });
        self.stdin_task = Some(stdin_task.abort_handle());
        Ok(end)
    }
}

/// The variables of a session's first command; the last one of equal names counts.
pub(super) fn initial_environment(
    session: &str,
    user: &UserEnvironment,
) -> impl Iterator<Item = (OsString, OsString)> {
    let user = user.0.iter();
    let user = user.map(|(name, value)| (name.into(), value.into()));
    let session = ("OSCTL_SESSION".into(), session.into());
    inherited_environment().chain(user).chain([session])
}

/// The same variables, by name.
pub(super) fn initial_variables(session: &str, user: &UserEnvironment) -> InheritedEnvironment {
    let all = initial_environment(session, user);
    all.map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect()
}

/// A file that exists only in memory.
fn create_memory_file(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"osctl-shell", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// The path under which another process opens the file.
fn proc_fd_path(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

pub(super) async fn sleep_until_deadline(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}
