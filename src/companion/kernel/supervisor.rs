//! Connection to a kernel's supervisor: the process that ends all of the kernel's descendants with the kernel, and
//! reports how the kernel ended.
//!
//! The companion sends one byte, [`SUPERVISOR_END_BYTE`] or [`SUPERVISOR_SHUTDOWN_BYTE`]. The supervisor answers with
//! one byte when all processes are gone: the exit code, or 128+n for signal n. The connection closes when the
//! supervisor exits, also when it was killed.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::io;
use std::os::fd::AsFd;
use tokio::net::UnixStream;

/// The word that ends a kernel with all its descendants.
pub(crate) const SUPERVISOR_END_BYTE: u8 = b'T';

/// The word that lets a kernel tear down its resources before.
pub(crate) const SUPERVISOR_SHUTDOWN_BYTE: u8 = b'L';

#[derive(Debug)]
pub(super) struct KernelSupervisor {
    stream: UnixStream,
    pub(super) pid: Pid,
    /// The process group that the kernel leads, where its number is known.
    group: Option<Pid>,
    code: Option<u8>,
}

/// How a kernel's life was over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KernelExit {
    /// The exit code, 128+n for signal n.
    Code(u8),
    /// Its guard was killed, and it with it.
    Unguarded,
    /// It was never made.
    NotMade(String),
}

impl KernelSupervisor {
    pub(super) fn new(stream: UnixStream, pid: i32, kernel: Option<i32>) -> Self {
        Self {
            stream,
            pid: Pid::from_raw(pid),
            // To the system, 0 and 1 are other groups.
            group: kernel.filter(|pid| *pid > 1).map(Pid::from_raw),
            code: None,
        }
    }

    /// Waits until the kernel and all its descendants are gone. Loses nothing when dropped.
    pub(super) async fn wait_exit(&mut self) -> KernelExit {
        loop {
            // What can't be polled any more is over.
            let _ = self.stream.readable().await;
            if let Some(ended) = self.poll_exit() {
                return ended;
            }
        }
    }

    /// Whether the kernel or one of its descendants may still exist.
    pub(super) fn is_alive(&mut self) -> bool {
        self.poll_exit().is_none()
    }

    fn poll_exit(&mut self) -> Option<KernelExit> {
        let mut byte = [0];
        loop {
            match self.stream.try_read(&mut byte) {
                Ok(1) => self.code = Some(byte[0]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Ok(_) | Err(_) => return Some(self.exit_on_close()),
            }
        }
    }

    /// What a closed connection means. A guard that was killed could not end the kernel's forks.
    fn exit_on_close(&mut self) -> KernelExit {
        if let Some(code) = self.code {
            return KernelExit::Code(code);
        }
        if let Some(group) = self.group.take() {
            // One signal reaches the whole group, also a fork bomb. The system reuses the number after all others.
            let _ = killpg(group, Signal::SIGKILL);
        }
        KernelExit::Unguarded
    }

    /// Ends the kernel and all its descendants.
    pub(super) fn end_kernel(&self) {
        self.send_byte(SUPERVISOR_END_BYTE);
    }

    /// The same, and lets an idle kernel tear down its resources before.
    pub(super) fn shut_down_kernel(&self) {
        self.send_byte(SUPERVISOR_SHUTDOWN_BYTE);
    }

    fn send_byte(&self, word: u8) {
        // Written past the runtime, which may not know yet that a new socket is writable. A supervisor that has exited
        // has no process left to end; its connection reports the exit.
        let _ = nix::unistd::write(self.stream.as_fd(), &[word]);
        // One that was stopped would never read it.
        self.signal_supervisor(Signal::SIGCONT);
    }

    /// Ends the guard itself; its death is the kernel's, too.
    pub(super) fn kill_supervisor(&self) {
        self.signal_supervisor(Signal::SIGKILL);
    }

    fn signal_supervisor(&self, signal: Signal) {
        // It may just have ended, which its connection tells.
        let _ = kill(self.pid, signal);
    }
}
