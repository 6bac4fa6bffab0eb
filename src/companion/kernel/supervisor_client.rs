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

/// Byte that ends a kernel with all its descendants.
pub(crate) const SUPERVISOR_END_BYTE: u8 = b'T';

/// Byte that ends a kernel after it has released its resources.
pub(crate) const SUPERVISOR_SHUTDOWN_BYTE: u8 = b'L';

#[derive(Debug)]
pub(super) struct KernelSupervisor {
    stream: UnixStream,
    pub(super) pid: Pid,
    /// The process group that the kernel leads, if its number is known.
    process_group: Option<Pid>,
    exit_code: Option<u8>,
}

/// How a kernel ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KernelExit {
    /// The exit code, or 128+n for signal n.
    Code(u8),
    /// The supervisor was killed, and the kernel with it.
    SupervisorKilled,
    /// No process was created.
    NotSpawned(String),
}

impl KernelSupervisor {
    pub(super) fn new(stream: UnixStream, pid: i32, kernel: Option<i32>) -> Self {
        Self {
            stream,
            pid: Pid::from_raw(pid),
            // The system gives the groups 0 and 1 another meaning.
            process_group: kernel.filter(|pid| *pid > 1).map(Pid::from_raw),
            exit_code: None,
        }
    }

    /// Waits until the kernel and all its descendants are gone. Cancel-safe.
    pub(super) async fn wait_exit(&mut self) -> KernelExit {
        loop {
            // A socket that can't be polled is closed; `poll_exit` reports this.
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
                Ok(1) => self.exit_code = Some(byte[0]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Ok(_) | Err(_) => return Some(self.exit_on_close()),
            }
        }
    }

    /// The exit that a closed connection means. A supervisor that was killed could not end the kernel's child
    /// processes.
    fn exit_on_close(&mut self) -> KernelExit {
        if let Some(code) = self.exit_code {
            return KernelExit::Code(code);
        }
        if let Some(group) = self.process_group.take() {
            // One signal reaches the whole group, also a fork bomb. The system reuses a group number only after all
            // others.
            let _ = killpg(group, Signal::SIGKILL);
        }
        KernelExit::SupervisorKilled
    }

    /// Ends the kernel and all its descendants.
    pub(super) fn end_kernel(&self) {
        self.send_byte(SUPERVISOR_END_BYTE);
    }

    /// Ends the kernel and all its descendants, after an idle kernel has released its resources.
    pub(super) fn shut_down_kernel(&self) {
        self.send_byte(SUPERVISOR_SHUTDOWN_BYTE);
    }

    fn send_byte(&self, command: u8) {
        // Written past the runtime, which may not know yet that a new socket is writable. A supervisor that has exited
        // has no process left to end; its connection reports the exit.
        let _ = nix::unistd::write(self.stream.as_fd(), &[command]);
        // A stopped supervisor would never read the byte.
        self.signal_supervisor(Signal::SIGCONT);
    }

    /// Kills the supervisor. The kernel ends with it.
    pub(super) fn kill_supervisor(&self) {
        self.signal_supervisor(Signal::SIGKILL);
    }

    fn signal_supervisor(&self, signal: Signal) {
        // The supervisor may just have exited; its connection reports the exit.
        let _ = kill(self.pid, signal);
    }
}
