//! The companion's end of a command's guard, and guards that wait for a command in advance.

use super::supervisor::{
    COMMAND_END_ALL, COMMAND_ENDED, COMMAND_EVENT_BYTES, COMMAND_FAILED, COMMAND_LEFT_JOBS,
    COMMAND_STARTED,
};
use crate::companion::descendants;
use crate::error::Result;
use anyhow::Context;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use nix::unistd::Pid;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::process::Command;

/// Guards started in advance.
const SPARE_SUPERVISORS: usize = 2;
/// From the use of one to the start of the next: the command shall have the processors first.
const SPARE_SUPERVISOR_DELAY: Duration = Duration::from_millis(20);

/// What a guard says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::companion) enum CommandSupervisorEvent {
    Started(i32),
    /// The command could not be started: the system's number for why.
    Failed(i32),
    /// The command ended with that code, 128+n for signal n; whether it left processes.
    Ended {
        code: i32,
        left: bool,
    },
    /// Nobody is left.
    Gone,
}

/// The process that starts one command and outlives it as long as something of it runs.
#[derive(Debug)]
pub(in crate::companion) struct CommandSupervisor {
    stream: UnixStream,
    pub(super) pid: i32,
    unread: Vec<u8>,
}

impl CommandSupervisor {
    pub(in crate::companion) fn spawn_supervisor() -> Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        // This very binary, also when its file was replaced meanwhile.
        let mut child = Command::new("/proc/self/exe")
            .args(["reaper", "--waiting"])
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting a guard")?;
        let pid = child.id().unwrap_or_default().cast_signed();
        // Its end is told by its connection; its exit has only to be taken.
        tokio::spawn(async move { child.wait().await });
        Ok(Self {
            stream: UnixStream::from_std(ours)?,
            pid,
            unread: Vec::new(),
        })
    }

    /// Hands the command over; what became of it is said next.
    pub(in crate::companion) async fn send_command(
        &mut self,
        order: &[u8],
        descriptors: [RawFd; 4],
    ) -> io::Result<()> {
        // The first bytes carry the descriptors; a fresh socket takes them.
        let (length, text) = order.split_at(4);
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

    /// The next thing it says. Loses nothing when dropped.
    pub(in crate::companion) async fn next_event(&mut self) -> CommandSupervisorEvent {
        loop {
            if let Some(word) = self.unread.first_chunk::<COMMAND_EVENT_BYTES>() {
                let [word, number @ ..] = *word;
                let number = i32::from_le_bytes(number);
                self.unread.drain(..COMMAND_EVENT_BYTES);
                match word {
                    COMMAND_STARTED => return CommandSupervisorEvent::Started(number),
                    COMMAND_FAILED => return CommandSupervisorEvent::Failed(number),
                    COMMAND_ENDED | COMMAND_LEFT_JOBS => {
                        let left = word == COMMAND_LEFT_JOBS;
                        return CommandSupervisorEvent::Ended { code: number, left };
                    }
                    _ => {}
                }
                continue;
            }
            // What can't be polled any more is over.
            let _ = self.stream.readable().await;
            match self.stream.try_read_buf(&mut self.unread) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return CommandSupervisorEvent::Gone,
                Ok(_) => {}
            }
        }
    }

    /// Sends a signal to all that is left of the command.
    pub(super) fn send_signal(&self, signal: Signal) {
        self.send_byte(signal as u8);
    }

    /// Ends all that is left of the command.
    pub(in crate::companion) fn end_all(&self) {
        self.send_byte(COMMAND_END_ALL);
    }

    /// Ends the guard itself, which no longer does as it is told; what it guards is ended first.
    pub(in crate::companion) fn kill_supervisor(&self) {
        let guard = Pid::from_raw(self.pid);
        descendants::kill_found(|| {
            descendants::list_descendants(guard)
                .into_iter()
                .map(|d| d.pid)
                .collect()
        });
        // Gone already is as good.
        let _ = kill(guard, Signal::SIGKILL);
    }

    /// Whether it still waits for its command.
    fn is_waiting(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let mut byte = [0];
        recv(self.stream.as_raw_fd(), &mut byte, flags) == Err(Errno::EAGAIN)
    }

    fn send_byte(&self, word: u8) {
        // Past the runtime, which may not have heard yet that a new socket takes bytes. A guard that
        // is gone has nobody left to end, which its connection tells.
        let _ = nix::unistd::write(self.stream.as_fd(), &[word]);
        // One that was stopped would never read it.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGCONT);
    }
}

/// Guards that wait for a command.
#[derive(Debug, Clone, Default)]
pub(super) struct SupervisorPool(Arc<Mutex<Vec<CommandSupervisor>>>);

impl SupervisorPool {
    /// One that was started in advance, or now.
    pub(super) fn take_or_spawn(&self) -> Result<CommandSupervisor> {
        let spare = {
            let mut spares = self.lock();
            spares.retain(CommandSupervisor::is_waiting);
            spares.pop()
        };
        let spares = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SPARE_SUPERVISOR_DELAY).await;
            spares.refill();
        });
        spare.map_or_else(CommandSupervisor::spawn_supervisor, Ok)
    }

    fn refill(&self) {
        while self.lock().len() < SPARE_SUPERVISORS {
            match CommandSupervisor::spawn_supervisor() {
                Ok(guard) => self.lock().push(guard),
                // Whoever needs one tries again, and is told.
                Err(error) => return tracing::debug!("{error:#}"),
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<CommandSupervisor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
