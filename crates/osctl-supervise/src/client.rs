//! The companion's end of a command's supervisor, and a pool of supervisors that wait for a command.

use super::descendants;
use super::supervisor::{
    COMMAND_END_ALL, COMMAND_ENDED, COMMAND_EVENT_BYTES, COMMAND_FAILED, COMMAND_LEFT_JOBS,
    COMMAND_STARTED,
};
use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::process::Command;

/// Number of supervisors started in advance.
const MAX_IDLE_SUPERVISORS: usize = 2;
/// Delay from the use of a supervisor to the start of the next: the new command gets the processors first.
const SUPERVISOR_POOL_REFILL_DELAY: Duration = Duration::from_millis(20);

/// An event of a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandSupervisorEvent {
    Started(i32),
    /// The command could not be started, with the errno.
    Failed(i32),
    /// The command ended with this code, 128+n for signal n; `has_background` says whether background processes
    /// remain.
    Ended {
        code: i32,
        has_background: bool,
    },
    /// No process is left.
    AllExited,
}

/// The process that starts one command and runs until the command's last descendant has ended.
#[derive(Debug)]
pub struct CommandSupervisor {
    stream: UnixStream,
    pub pid: i32,
    unparsed: Vec<u8>,
}

impl CommandSupervisor {
    pub fn spawn_supervisor() -> Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        // This binary, even if its file was replaced since the start.
        let mut child = Command::new("/proc/self/exe")
            .args(["reaper", "--waiting"])
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("the command's supervisor can't be started")?;
        let pid = child.id().unwrap_or_default().cast_signed();
        // The connection reports its end; the task only reaps it.
        tokio::spawn(async move { child.wait().await });
        Ok(Self {
            stream: UnixStream::from_std(ours)?,
            pid,
            unparsed: Vec::new(),
        })
    }

    /// Sends the command; the next event reports the result.
    pub async fn send_command(
        &mut self,
        request: &[u8],
        descriptors: [RawFd; 4],
    ) -> io::Result<()> {
        // The first bytes carry the descriptors; a fresh socket accepts them.
        let (length, text) = request.split_at(4);
        let control = [ControlMessage::ScmRights(&descriptors)];
        let fd = self.stream.as_raw_fd();
        sendmsg::<()>(
            fd,
            &[IoSlice::new(length)],
            &control,
            MsgFlags::empty(),
            None,
        )?;
        self.stream.write_all(text).await
    }

    /// Waits for the next event. Cancel safe.
    pub async fn next_event(&mut self) -> CommandSupervisorEvent {
        loop {
            if let Some(event) = self.unparsed.first_chunk::<COMMAND_EVENT_BYTES>() {
                let [event, number @ ..] = *event;
                let number = i32::from_le_bytes(number);
                self.unparsed.drain(..COMMAND_EVENT_BYTES);
                match event {
                    COMMAND_STARTED => return CommandSupervisorEvent::Started(number),
                    COMMAND_FAILED => return CommandSupervisorEvent::Failed(number),
                    COMMAND_ENDED | COMMAND_LEFT_JOBS => {
                        let has_background = event == COMMAND_LEFT_JOBS;
                        return CommandSupervisorEvent::Ended {
                            code: number,
                            has_background,
                        };
                    }
                    _ => {}
                }
                continue;
            }
            // A socket that can't be polled counts as closed.
            let _ = self.stream.readable().await;
            match self.stream.try_read_buf(&mut self.unparsed) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return CommandSupervisorEvent::AllExited,
                Ok(_) => {}
            }
        }
    }

    /// Sends a signal to all remaining processes of the command.
    pub fn send_signal(&self, signal: Signal) {
        self.send_byte(signal as u8);
    }

    /// Ends all remaining processes of the command.
    pub fn end_all(&self) {
        self.send_byte(COMMAND_END_ALL);
    }

    /// Kills a supervisor that no longer reacts, after its descendants.
    pub fn kill_supervisor(&self) {
        let supervisor = Pid::from_raw(self.pid);
        descendants::stop_and_kill_processes(|| {
            descendants::list_descendants(supervisor)
                .into_iter()
                .map(|d| d.pid)
                .collect()
        });
        // A supervisor that is gone already needs no signal.
        let _ = kill(supervisor, Signal::SIGKILL);
    }

    /// Whether the supervisor still waits for its command.
    fn is_waiting(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let mut byte = [0];
        recv(self.stream.as_raw_fd(), &mut byte, flags) == Err(Errno::EAGAIN)
    }

    fn send_byte(&self, byte: u8) {
        // Writes without the async runtime, which may not know yet that a new socket is writable. A failed write means
        // that the supervisor has ended, which its connection reports.
        let _ = nix::unistd::write(self.stream.as_fd(), &[byte]);
        // A stopped supervisor would not read the byte.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGCONT);
    }
}

/// Supervisors that wait for a command.
#[derive(Debug, Clone, Default)]
pub struct SupervisorPool(Arc<Mutex<Vec<CommandSupervisor>>>);

impl SupervisorPool {
    /// Takes a supervisor from the pool, or starts one.
    pub fn take_or_spawn(&self) -> Result<CommandSupervisor> {
        let idle = {
            let mut supervisors = self.0.lock();
            supervisors.retain(CommandSupervisor::is_waiting);
            supervisors.pop()
        };
        let supervisors = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SUPERVISOR_POOL_REFILL_DELAY).await;
            supervisors.refill();
        });
        idle.map_or_else(CommandSupervisor::spawn_supervisor, Ok)
    }

    fn refill(&self) {
        while self.0.lock().len() < MAX_IDLE_SUPERVISORS {
            match CommandSupervisor::spawn_supervisor() {
                Ok(supervisor) => self.0.lock().push(supervisor),
                // The next command tries again, and reports the error.
                Err(error) => return tracing::debug!("{error:#}"),
            }
        }
    }
}
