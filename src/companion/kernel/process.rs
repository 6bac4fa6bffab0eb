//! One generation of a kernel process: its supervisor, its connection, its output.

use super::connection::{
    KernelConnection, KernelFrame, KernelQuery, KernelQueryFrame, KernelRequest,
};
use super::supervisor::{KernelExit, KernelSupervisor};
use super::template::{KernelSocket, KernelTemplate, SpawnedKernel, StderrTail};
use crate::companion::descendants;
use crate::companion::pipes::OutputPipes;
use crate::error::Result;
use crate::protocol::kernel::OutputStream;
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

/// From the end of the connection to the exit of a process that is ending by itself.
const KERNEL_EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a kernel may take to close the connection that it lets go of.
const KERNEL_DETACH_TIMEOUT: Duration = Duration::from_secs(5);

/// A kernel that is being made, or was.
#[derive(Debug)]
pub(super) struct KernelProcess {
    session: String,
    plain: bool,
    link: KernelLink,
    guard: Option<KernelSupervisor>,
    socket: Option<KernelSocket>,
    greeting: KernelGreeting,
    is_ending: bool,
    /// The pipes of a connection that ended, with what was written last.
    left: OutputPipes,
    last_words: StderrTail,
}

#[derive(Debug)]
enum KernelLink {
    /// It is being made.
    Coming(oneshot::Receiver<Result<SpawnedKernel>>),
    /// Connected; the kernel has not said anything yet.
    Waiting(UnixStream),
    Open {
        wire: Box<KernelConnection>,
        pipes: OutputPipes,
    },
    /// It has let go, and may be frozen.
    Apart,
    /// Ended, for that reason; the process has until then to exit by itself.
    Ending {
        why: String,
        until: Instant,
    },
    Closed,
}

/// What is said to a kernel that has said hello.
#[derive(Debug, Clone, Copy)]
enum KernelGreeting {
    /// Its name.
    Adopt,
    /// Nothing new: it was there before.
    Probe,
}

/// What comes from a process.
#[derive(Debug)]
pub(super) enum ProcessEvent {
    Frame(KernelFrame),
    Output(OutputStream, Vec<u8>),
    /// The connection ended or broke, and the process is still there.
    Broken(String),
    Ended(KernelExit),
}

impl KernelProcess {
    /// A kernel of that session. Its hello comes as the first frame. `plain`: without the packages
    /// that were installed at run time.
    pub(super) fn start(template: &KernelTemplate, session: &str, plain: bool) -> Self {
        Self::new(
            session,
            plain,
            KernelLink::Coming(template.request_kernel(plain)),
        )
    }

    /// A kernel that came out of a checkpoint. Its hello comes as the first frame, too.
    pub(super) fn from_restored(made: SpawnedKernel, session: &str) -> Self {
        let mut process = Self::new(session, false, KernelLink::Closed);
        process.greeting = KernelGreeting::Probe;
        process.attach_spawned(made);
        process
    }

    fn new(session: &str, plain: bool, link: KernelLink) -> Self {
        Self {
            session: session.into(),
            plain,
            link,
            guard: None,
            socket: None,
            greeting: KernelGreeting::Adopt,
            is_ending: false,
            left: OutputPipes::closed(),
            last_words: StderrTail::default(),
        }
    }

    /// The next thing that happens. Loses nothing when dropped.
    pub(super) async fn next_event(&mut self) -> ProcessEvent {
        loop {
            match &mut self.link {
                KernelLink::Coming(made) => {
                    let made = made.await;
                    if let Some(why) = self.accept_spawned(made) {
                        return ProcessEvent::Ended(KernelExit::NotMade(why));
                    }
                }
                KernelLink::Waiting(stream) => {
                    let first = KernelConnection::receive_first(stream).await;
                    self.open_connection(first);
                }
                KernelLink::Open { wire, pipes } => {
                    tokio::select! {
                        (stream, bytes) = pipes.next_piece() => return ProcessEvent::Output(stream, bytes),
                        frame = wire.read_frame() => match frame {
                            Ok(Some(frame)) => {
                                pipes.read_soon();
                                return ProcessEvent::Frame(frame);
                            }
                            Ok(None) => self.close_connection("it closed its connection".into()),
                            Err(why) => self.close_connection(format!("its connection broke: {why}")),
                        },
                        // The exit comes after the end of the frames, or the last would be lost.
                    }
                }
                KernelLink::Ending { why, until } => {
                    let until = *until;
                    tokio::select! {
                        ended = wait_process_exit(&mut self.guard) => return ProcessEvent::Ended(ended),
                        () = sleep_until(until) => {
                            let why = std::mem::take(why);
                            self.link = KernelLink::Closed;
                            return ProcessEvent::Broken(why);
                        }
                    }
                }
                KernelLink::Apart | KernelLink::Closed => {
                    return ProcessEvent::Ended(wait_process_exit(&mut self.guard).await);
                }
            }
        }
    }

    /// Why there is no kernel, when there is none.
    fn accept_spawned(
        &mut self,
        made: Result<Result<SpawnedKernel>, oneshot::error::RecvError>,
    ) -> Option<String> {
        self.link = KernelLink::Closed;
        match made {
            Ok(Ok(made)) => {
                self.attach_spawned(made);
                None
            }
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some("too many kernels are asked for".into()),
        }
    }

    fn attach_spawned(&mut self, made: SpawnedKernel) {
        let SpawnedKernel {
            guard,
            stream,
            socket,
            last_words,
        } = made;
        if self.is_ending {
            guard.end_kernel();
        }
        (self.guard, self.socket) = (Some(guard), Some(socket));
        self.last_words = last_words;
        self.link = KernelLink::Waiting(stream);
    }

    fn open_connection(&mut self, first: io::Result<(BytesMut, [OwnedFd; 2])>) {
        let opened = first.and_then(|(bytes, pipes)| Ok((bytes, OutputPipes::open(pipes)?)));
        match (
            opened,
            std::mem::replace(&mut self.link, KernelLink::Closed),
        ) {
            (Ok((bytes, pipes)), KernelLink::Waiting(stream)) => {
                let mut wire = Box::new(KernelConnection::new(stream, bytes));
                // A few bytes fit into any frame.
                let _ = match self.greeting {
                    KernelGreeting::Adopt => wire.queue_frame(&KernelRequest::Adopt {
                        id: "adopt",
                        session: &self.session,
                        plain: self.plain,
                    }),
                    KernelGreeting::Probe => wire.queue_frame(&KernelQueryFrame {
                        id: "probe",
                        question: &KernelQuery::Probe,
                    }),
                };
                self.link = KernelLink::Open { wire, pipes };
            }
            (Err(why), _) => self.close_connection(format!("it did not say hello: {why}")),
            (Ok(_), link) => self.link = link,
        }
    }

    /// A process that is about to exit closes its connection first.
    fn close_connection(&mut self, why: String) {
        let drained = std::mem::replace(
            &mut self.link,
            KernelLink::Ending {
                why,
                until: Instant::now() + KERNEL_EXIT_TIMEOUT,
            },
        );
        if let KernelLink::Open { pipes, .. } = drained {
            self.left = pipes;
        }
    }

    /// Closes the companion's ends of the connection and the pipes, after the kernel has closed its own. Frames that
    /// arrive in between are dropped.
    ///
    /// # Errors
    /// When it does not.
    pub(super) async fn detach(&mut self) -> io::Result<()> {
        let KernelLink::Open { wire, .. } = &mut self.link else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        timeout(KERNEL_DETACH_TIMEOUT, async {
            while wire.read_frame().await?.is_some() {}
            io::Result::Ok(())
        })
        .await??;
        self.link = KernelLink::Apart;
        Ok(())
    }

    /// Connects again with a kernel that has let go. Its hello comes once more.
    pub(super) fn reattach(&mut self) {
        self.greeting = KernelGreeting::Probe;
        let connected = self.socket_path().map_or_else(
            || Err(io::ErrorKind::NotConnected.into()),
            |path| connect_kernel(&path),
        );
        match connected {
            Ok(stream) => self.link = KernelLink::Waiting(stream),
            Err(why) => self.close_connection(format!("it can't be reached any more: {why}")),
        }
    }

    /// Where it listens.
    pub(super) fn socket_path(&self) -> Option<PathBuf> {
        self.socket.as_ref().map(|socket| socket.path().to_owned())
    }

    /// What is in the pipes now, until they are empty.
    pub(super) fn drain_output(&self) -> Vec<(OutputStream, Vec<u8>)> {
        match &self.link {
            KernelLink::Open { pipes, .. } => pipes.drain(),
            _ => self.left.drain(),
        }
    }

    /// # Errors
    /// When the connection is broken.
    pub(super) fn send_frame(&mut self, request: &impl Serialize) -> io::Result<()> {
        match &mut self.link {
            KernelLink::Open { wire, .. } => wire.queue_frame(request),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Interrupts the code in `kernel`, and what it started at `since` or later: code that waits
    /// for a child in C is not woken otherwise.
    pub(super) fn interrupt(&self, kernel: i32, since: i64) {
        let children = self.list_children(kernel, since);
        for pid in std::iter::once(Pid::from_raw(kernel)).chain(children) {
            // Gone already is as good.
            let _ = kill(pid, Signal::SIGINT);
        }
    }

    /// Ends what `kernel` started at `since` or later, wherever it went. Returns how many.
    pub(super) fn end_children(&self, kernel: i32, since: i64) -> usize {
        descendants::kill_found(|| self.list_children(kernel, since))
    }

    fn list_children(&self, kernel: i32, since: i64) -> Vec<Pid> {
        let Some(guard) = &self.guard else {
            return Vec::new();
        };
        descendants::list_started_since(guard.pid, Pid::from_raw(kernel), since)
    }

    /// Ends the process and all its descendants; its end comes as news. Asked again, it does not
    /// rely on the guard.
    pub(super) fn end_process(&mut self) {
        match &self.guard {
            Some(guard) if self.is_ending => guard.kill_supervisor(),
            Some(guard) => guard.end_kernel(),
            // It ends when it comes.
            None => {}
        }
        self.is_ending = true;
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Ends an idle kernel, which tears down its resources before.
    pub(super) fn shut_down(&mut self) {
        self.guard
            .iter()
            .for_each(KernelSupervisor::shut_down_kernel);
        self.is_ending = true;
    }

    /// The process that all of the kernel's descend from.
    pub(super) fn root_pid(&self) -> Option<i32> {
        self.guard.as_ref().map(|guard| guard.pid.as_raw())
    }

    /// The end of what it said outside of any cell.
    pub(super) fn stderr_tail(&self) -> String {
        self.last_words.to_text()
    }
}

/// A connection to a kernel that listens there.
pub(super) fn connect_kernel(path: &Path) -> io::Result<UnixStream> {
    let stream = StdStream::connect(path)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

async fn wait_process_exit(guard: &mut Option<KernelSupervisor>) -> KernelExit {
    match guard {
        Some(guard) => guard.wait_exit().await,
        None => KernelExit::Unguarded,
    }
}
