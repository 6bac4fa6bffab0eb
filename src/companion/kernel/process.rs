//! One generation of a kernel process: its supervisor, its connection, its output.

use super::connection::{
    KernelConnection, KernelFrame, KernelQuery, KernelQueryFrame, KernelRequest,
};
use super::template::{KernelSocket, KernelTemplate, SpawnedKernel, StderrTail};
use crate::companion::pipes::OutputPipes;
use crate::error::Result;
use crate::protocol::environment::UserEnvironment;
use crate::protocol::kernel::OutputStream;
use crate::supervise::{SupervisedExit, Supervisor, descendants};
use bytes::BytesMut;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

/// Time from the end of the connection to the exit of a process that exits without a signal from the companion.
const KERNEL_EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// Time for an idle kernel to release its resources.
const KERNEL_TEARDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Time in which a kernel must close the connection that it releases.
const KERNEL_DETACH_TIMEOUT: Duration = Duration::from_secs(5);

/// A kernel process, from its request to its end.
#[derive(Debug)]
pub(super) struct KernelProcess {
    session: String,
    is_plain: bool,
    connection_state: KernelConnectionState,
    supervisor: Option<Supervisor>,
    socket: Option<KernelSocket>,
    first_request: KernelFirstRequest,
    is_ending: bool,
    /// The pipes of a connection that ended; they contain the last output.
    closed_pipes: OutputPipes,
    stderr_tail: StderrTail,
}

#[derive(Debug)]
enum KernelConnectionState {
    /// The template forks the kernel.
    Spawning(oneshot::Receiver<Result<SpawnedKernel>>),
    /// Connected; the kernel has not sent a frame yet.
    AwaitingHello(UnixStream),
    Open {
        connection: Box<KernelConnection>,
        pipes: OutputPipes,
    },
    /// The kernel has closed its connection, and may be checkpointed.
    Detached,
    /// The connection ended for the reason `reason`; the process has until `deadline` to exit.
    AwaitingExit {
        reason: String,
        deadline: Instant,
    },
    Closed,
}

/// The first request to a kernel after its hello frame.
#[derive(Debug, Clone, Copy)]
enum KernelFirstRequest {
    /// Gives the kernel its name.
    Adopt,
    /// Only checks an existing kernel.
    Probe,
}

/// Events of a kernel process.
#[derive(Debug)]
pub(super) enum ProcessEvent {
    Frame(KernelFrame),
    Output(OutputStream, Vec<u8>),
    /// The connection ended or broke, and the process still exists.
    ConnectionLost(String),
    Exited(SupervisedExit),
}

impl KernelProcess {
    /// Requests a kernel for the session. Its hello comes as the first frame. `is_plain`: without the packages that
    /// were installed at run time.
    pub(super) fn start(template: &KernelTemplate, session: &str, is_plain: bool) -> Self {
        Self::new(
            session,
            is_plain,
            KernelConnectionState::Spawning(template.request_kernel(is_plain)),
        )
    }

    /// Takes a kernel that was restored from a checkpoint. Its hello comes as the first frame, too.
    pub(super) fn from_restored(spawned: SpawnedKernel, session: &str) -> Self {
        let mut process = Self::new(session, false, KernelConnectionState::Closed);
        process.first_request = KernelFirstRequest::Probe;
        process.attach_spawned(spawned);
        process
    }

    fn new(session: &str, is_plain: bool, connection_state: KernelConnectionState) -> Self {
        Self {
            session: session.into(),
            is_plain,
            connection_state,
            supervisor: None,
            socket: None,
            first_request: KernelFirstRequest::Adopt,
            is_ending: false,
            closed_pipes: OutputPipes::closed(),
            stderr_tail: StderrTail::default(),
        }
    }

    /// Returns the next event. Cancel-safe: dropping the future loses no event.
    pub(super) async fn next_event(&mut self) -> ProcessEvent {
        loop {
            match &mut self.connection_state {
                KernelConnectionState::Spawning(spawned) => {
                    let spawned = spawned.await;
                    if let Some(reason) = self.accept_spawned(spawned) {
                        return ProcessEvent::Exited(SupervisedExit::NotStarted(reason));
                    }
                }
                KernelConnectionState::AwaitingHello(stream) => {
                    let first = KernelConnection::receive_first(stream).await;
                    self.open_connection(first);
                }
                KernelConnectionState::Open { connection, pipes } => {
                    tokio::select! {
                        (stream, bytes) = pipes.next_piece() => return ProcessEvent::Output(stream, bytes),
                        frame = connection.read_frame() => match frame {
                            Ok(Some(frame)) => {
                                pipes.read_soon();
                                return ProcessEvent::Frame(frame);
                            }
                            Ok(None) => self.close_connection("the kernel closed its connection".into()),
                            Err(reason) => self.close_connection(format!("the connection to the kernel broke: {reason}")),
                        },
                        // The exit is reported after the last frame; otherwise that frame would be lost.
                    }
                }
                KernelConnectionState::AwaitingExit { reason, deadline } => {
                    let deadline = *deadline;
                    tokio::select! {
                        ended = wait_process_exit(&mut self.supervisor) => return ProcessEvent::Exited(ended),
                        () = sleep_until(deadline) => {
                            let reason = std::mem::take(reason);
                            self.connection_state = KernelConnectionState::Closed;
                            return ProcessEvent::ConnectionLost(reason);
                        }
                    }
                }
                KernelConnectionState::Detached | KernelConnectionState::Closed => {
                    return ProcessEvent::Exited(wait_process_exit(&mut self.supervisor).await);
                }
            }
        }
    }

    /// Attaches the spawned kernel; without one, returns the reason.
    fn accept_spawned(
        &mut self,
        spawned: Result<Result<SpawnedKernel>, oneshot::error::RecvError>,
    ) -> Option<String> {
        self.connection_state = KernelConnectionState::Closed;
        match spawned {
            Ok(Ok(spawned)) => {
                self.attach_spawned(spawned);
                None
            }
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some("too many kernels are requested".into()),
        }
    }

    fn attach_spawned(&mut self, spawned: SpawnedKernel) {
        let SpawnedKernel {
            supervisor,
            stream,
            socket,
            stderr_tail,
        } = spawned;
        if self.is_ending {
            supervisor.kill_tree();
        }
        (self.supervisor, self.socket) = (Some(supervisor), Some(socket));
        self.stderr_tail = stderr_tail;
        self.connection_state = KernelConnectionState::AwaitingHello(stream);
    }

    fn open_connection(&mut self, first: io::Result<(BytesMut, [OwnedFd; 2])>) {
        let opened = first.and_then(|(bytes, pipes)| Ok((bytes, OutputPipes::open(pipes)?)));
        match (
            opened,
            std::mem::replace(&mut self.connection_state, KernelConnectionState::Closed),
        ) {
            (Ok((bytes, pipes)), KernelConnectionState::AwaitingHello(stream)) => {
                let mut connection = Box::new(KernelConnection::new(stream, bytes));
                // Each frame accepts a few bytes.
                let _ = match self.first_request {
                    KernelFirstRequest::Adopt => connection.queue_frame(&KernelRequest::Adopt {
                        id: "adopt",
                        session: &self.session,
                        plain: self.is_plain,
                    }),
                    KernelFirstRequest::Probe => connection.queue_frame(&KernelQueryFrame {
                        id: "probe",
                        question: &KernelQuery::Probe,
                        environment: None,
                    }),
                };
                self.connection_state = KernelConnectionState::Open { connection, pipes };
            }
            (Err(reason), _) => {
                self.close_connection(format!("the kernel did not send its hello frame: {reason}"))
            }
            (Ok(_), link) => self.connection_state = link,
        }
    }

    /// Handles the end of the connection. A process that is about to exit closes its connection first.
    fn close_connection(&mut self, reason: String) {
        let drained = std::mem::replace(
            &mut self.connection_state,
            KernelConnectionState::AwaitingExit {
                reason,
                deadline: Instant::now() + KERNEL_EXIT_TIMEOUT,
            },
        );
        if let KernelConnectionState::Open { pipes, .. } = drained {
            self.closed_pipes = pipes;
        }
    }

    /// Closes the companion's ends of the connection and the pipes after the kernel has closed its own ends. Drops
    /// frames that arrive before.
    ///
    /// # Errors
    /// When the kernel does not close its ends.
    pub(super) async fn detach(&mut self) -> io::Result<()> {
        let KernelConnectionState::Open { connection, .. } = &mut self.connection_state else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        timeout(KERNEL_DETACH_TIMEOUT, async {
            while connection.read_frame().await?.is_some() {}
            io::Result::Ok(())
        })
        .await??;
        self.connection_state = KernelConnectionState::Detached;
        Ok(())
    }

    /// Connects again to a kernel that has closed its connection. Its hello comes again.
    pub(super) fn reattach(&mut self) {
        self.first_request = KernelFirstRequest::Probe;
        let connected = self.socket_path().map_or_else(
            || Err(io::ErrorKind::NotConnected.into()),
            |path| connect_kernel(&path),
        );
        match connected {
            Ok(stream) => self.connection_state = KernelConnectionState::AwaitingHello(stream),
            Err(reason) => self.close_connection(format!("the kernel can't be reached: {reason}")),
        }
    }

    /// Path of the socket on which the kernel listens.
    pub(super) fn socket_path(&self) -> Option<PathBuf> {
        self.socket.as_ref().map(|socket| socket.path().to_owned())
    }

    /// Returns the current content of the pipes and empties them.
    pub(super) fn drain_output(&self) -> Vec<(OutputStream, Vec<u8>)> {
        match &self.connection_state {
            KernelConnectionState::Open { pipes, .. } => pipes.drain(),
            _ => self.closed_pipes.drain(),
        }
    }

    /// # Errors
    /// When the connection is broken.
    pub(super) fn send_frame(&mut self, request: &impl Serialize) -> io::Result<()> {
        match &mut self.connection_state {
            KernelConnectionState::Open { connection, .. } => connection.queue_frame(request),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sends a query.
    ///
    /// # Errors
    /// Those of [`KernelProcess::send_frame`].
    pub(super) fn send_query(
        &mut self,
        query: &KernelQuery,
        environment: Option<&UserEnvironment>,
    ) -> io::Result<()> {
        self.send_frame(&KernelQueryFrame {
            id: "ask",
            question: query,
            environment,
        })
    }

    /// Interrupts the code in `kernel`, and the processes that it started at `since` or later: code that waits for a
    /// child in C would not wake otherwise.
    pub(super) fn interrupt(&self, kernel: i32, since: i64) {
        let children = self.list_children(kernel, since);
        for pid in std::iter::once(Pid::from_raw(kernel)).chain(children) {
            // A process that has exited already needs no signal.
            let _ = kill(pid, Signal::SIGINT);
        }
    }

    /// Ends the processes that `kernel` started at `since` or later, also those in other process groups. Returns their
    /// number.
    pub(super) fn end_children(&self, kernel: i32, since: i64) -> usize {
        descendants::stop_and_kill_processes(|| self.list_children(kernel, since))
    }

    fn list_children(&self, kernel: i32, since: i64) -> Vec<Pid> {
        let Some(supervisor) = &self.supervisor else {
            return Vec::new();
        };
        descendants::list_started_since(
            Pid::from_raw(supervisor.pid()),
            Pid::from_raw(kernel),
            since,
        )
    }

    /// Ends the process and all its descendants; the exit follows as an event. A second call does not rely on the
    /// supervisor.
    pub(super) fn end_process(&mut self) {
        match &mut self.supervisor {
            Some(supervisor) if self.is_ending => supervisor.kill_supervisor(),
            Some(supervisor) => supervisor.kill_tree(),
            // The process is ended when the template delivers it.
            None => {}
        }
        self.is_ending = true;
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Ends an idle kernel, which releases its resources before.
    pub(super) fn shut_down(&mut self) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.shut_down(KERNEL_TEARDOWN_TIMEOUT);
        }
        self.is_ending = true;
    }

    /// PID of the process that all processes of the kernel descend from.
    pub(super) fn root_pid(&self) -> Option<i32> {
        self.supervisor.as_ref().map(Supervisor::pid)
    }

    /// Last lines that the kernel wrote outside of cells.
    pub(super) fn stderr_tail(&self) -> String {
        self.stderr_tail.to_text()
    }
}

/// Connects to a kernel that listens at `path`.
pub(super) fn connect_kernel(path: &Path) -> io::Result<UnixStream> {
    let stream = StdStream::connect(path)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

async fn wait_process_exit(supervisor: &mut Option<Supervisor>) -> SupervisedExit {
    match supervisor {
        Some(supervisor) => supervisor.wait_exit().await,
        None => SupervisedExit::SupervisorKilled,
    }
}
