//! The companion's end of a supervisor.

use super::descendants;
use super::protocol::{ProcessStart, SUPERVISOR_FRAME_BYTES, SupervisorEvent, SupervisorRequest};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, IoSlice, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::process::Command;

/// A supervisor and its process tree. The tree ends when this value is dropped.
#[derive(Debug)]
pub struct Supervisor {
    stream: UnixStream,
    pid: i32,
    unparsed: Vec<u8>,
    /// The process group that the first process leads, while that process may exist.
    process_group: Option<Pid>,
    exit: Option<SupervisedExit>,
}

/// How the first process of a tree ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SupervisedExit {
    /// The exit code, or 128+n for signal n.
    Code(u8),
    /// The supervisor was killed, and the process with it.
    SupervisorKilled,
    /// No process was created.
    NotStarted(String),
}

impl SupervisedExit {
    /// The code that a shell would report.
    pub fn code(&self) -> u8 {
        match self {
            Self::Code(code) => *code,
            Self::SupervisorKilled => 128 + Signal::SIGKILL as u8,
            Self::NotStarted(_) => 127,
        }
    }
}

impl Supervisor {
    /// Starts a supervisor, which waits for its process.
    ///
    /// # Errors
    /// When no process can be created.
    pub fn spawn_supervisor() -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        // This binary, even if its file was replaced since the start.
        let mut child = Command::new("/proc/self/exe")
            .arg("reaper")
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pid = child.id().unwrap_or_default().cast_signed();
        // The connection reports its end; the task only reaps it. It is never killed: it ends its tree when the
        // companion is gone.
        tokio::spawn(async move { child.wait().await });
        Ok(Self::adopt_supervisor(
            UnixStream::from_std(ours)?,
            pid,
            None,
        ))
    }

    /// The supervisor `pid`, which another process has started. `first` is the process that it supervises.
    pub fn adopt_supervisor(stream: UnixStream, pid: i32, first: Option<i32>) -> Self {
        Self {
            stream,
            pid,
            unparsed: Vec::new(),
            process_group: first.and_then(process_group),
            exit: None,
        }
    }

    /// Starts a supervisor and its process, with stdin, stdout and stderr, and the working directory.
    ///
    /// # Errors
    /// When the supervisor can't be started. The events report whether the process was started.
    pub fn spawn_process(
        start: &ProcessStart,
        descriptors: [BorrowedFd<'_>; 4],
    ) -> io::Result<Self> {
        let supervisor = Self::spawn_supervisor()?;
        supervisor.start_process(start, descriptors)?;
        Ok(supervisor)
    }

    /// Starts the process of a supervisor that waits for it; the next event reports the result.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub fn start_process(
        &self,
        start: &ProcessStart,
        [stdin, stdout, stderr, folder]: [BorrowedFd<'_>; 4],
    ) -> io::Result<()> {
        // A file in memory accepts any length at once, unlike the socket.
        let mut file = File::from(memfd_create(c"osctl-start", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(&start.encode())?;
        file.rewind()?;
        let descriptors = [stdin, stdout, stderr, folder].map(|end| end.as_raw_fd());
        let descriptors = [&descriptors[..], &[file.as_raw_fd()]].concat();
        let frame = SupervisorRequest::Start.to_frame();
        sendmsg::<()>(
            self.stream.as_raw_fd(),
            &[IoSlice::new(&frame)],
            &[ControlMessage::ScmRights(&descriptors)],
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?;
        Ok(())
    }

    /// The process that all processes of the tree descend from.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn next_event(&mut self) -> SupervisorEvent {
        loop {
            if let Some(event) = self.poll_event() {
                return event;
            }
            // A socket that can't be polled counts as closed, which `poll_event` reports.
            let _ = self.stream.readable().await;
        }
    }

    /// Waits until no process is left. Cancel-safe.
    pub async fn wait_exit(&mut self) -> SupervisedExit {
        while self.next_event().await != SupervisorEvent::AllExited {}
        self.exit
            .clone()
            .unwrap_or(SupervisedExit::SupervisorKilled)
    }

    /// Whether a process of the tree may still exist.
    pub fn is_alive(&mut self) -> bool {
        loop {
            match self.poll_event() {
                None => return true,
                Some(SupervisorEvent::AllExited) => return false,
                Some(_) => {}
            }
        }
    }

    fn poll_event(&mut self) -> Option<SupervisorEvent> {
        loop {
            if let Some(frame) = self.unparsed.first_chunk::<SUPERVISOR_FRAME_BYTES>() {
                let event = SupervisorEvent::from_frame(*frame);
                self.unparsed.drain(..SUPERVISOR_FRAME_BYTES);
                if let Some(event) = event {
                    self.record_event(event);
                    return Some(event);
                }
                continue;
            }
            match self.stream.try_read_buf(&mut self.unparsed) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Ok(0) | Err(_) => {
                    // A supervisor that was killed could not end the processes of the group.
                    self.kill_group();
                    return Some(SupervisorEvent::AllExited);
                }
                Ok(_) => {}
            }
        }
    }

    fn record_event(&mut self, event: SupervisorEvent) {
        let exit = match event {
            SupervisorEvent::Started(pid) => {
                self.process_group = process_group(pid);
                return;
            }
            SupervisorEvent::NotStarted(errno) => {
                SupervisedExit::NotStarted(io::Error::from_raw_os_error(errno).to_string())
            }
            SupervisorEvent::Ended { code, .. } => SupervisedExit::Code(code),
            SupervisorEvent::AllExited => return,
        };
        self.process_group = None;
        self.exit.get_or_insert(exit);
    }

    fn kill_group(&mut self) {
        if let Some(group) = self.process_group.take() {
            // One signal reaches the whole group, also a fork bomb. The system reuses a group number only after all
            // others.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }

    /// Sends a signal to all processes of the tree.
    pub fn send_signal(&self, signal: Signal) {
        self.send_request(SupervisorRequest::Signal(signal));
    }

    /// Asks the first process to end, and kills the tree after this time.
    pub fn shut_down(&self, time: Duration) {
        self.send_request(SupervisorRequest::ShutDown(time));
    }

    /// Kills all processes of the tree.
    pub fn kill_tree(&self) {
        self.send_request(SupervisorRequest::Kill);
    }

    /// Kills the tree and then its supervisor, which no longer reacts.
    pub fn kill_supervisor(&mut self) {
        self.kill_group();
        let supervisor = Pid::from_raw(self.pid);
        descendants::kill_tree_beneath(supervisor);
        // A supervisor that is gone already needs no signal.
        let _ = kill(supervisor, Signal::SIGKILL);
    }

    fn send_request(&self, request: SupervisorRequest) {
        // Writes without the async runtime, which may not know yet that a new socket is writable. A failed write means
        // that the supervisor has ended, which its connection reports.
        let _ = nix::unistd::write(&self.stream, &request.to_frame());
        // A stopped supervisor would not read the request.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGCONT);
    }

    /// Whether the supervisor still waits for its process.
    pub(super) fn is_waiting(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let mut byte = [0];
        recv(self.stream.as_raw_fd(), &mut byte, flags) == Err(Errno::EAGAIN)
    }
}

/// The system gives the groups 0 and 1 another meaning.
fn process_group(leader: i32) -> Option<Pid> {
    (leader > 1).then(|| Pid::from_raw(leader))
}
