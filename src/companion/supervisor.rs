//! The supervisor of a kernel, a terminal's shell, a command or a service: a child subreaper that ends all descendants
//! of the process with it.
//!
//! Descendants that call `setsid` leave a process group but never a subreaper. The supervisor takes over a child that
//! was started already, and communicates with the companion over its standard input (see `kernel::supervisor_client`
//! and `pty::shell`). It ends all processes when the companion ends or orders the end. It uses neither a runtime nor
//! threads, so it works when no process can be created. A kernel that is restored from a checkpoint starts under its
//! supervisor ([`run_kernel_restore`]), which then treats the kernel as any other.

use super::kernel::{SUPERVISOR_END_BYTE, SUPERVISOR_SHUTDOWN_BYTE};
use crate::error::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use osctl_supervise::descendants::kill_descendants;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The first byte that the supervisor sends after a kernel was restored.
pub(super) const KERNEL_RESTORED_REPLY: u8 = b'K';

/// Time for a kernel to release its resources, and for a shell to exit.
pub(crate) const SUPERVISOR_TEARDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the program that restores a kernel as a child of this process, and writes the kernel's id to `pidfile`. Sends
/// [`KERNEL_RESTORED_REPLY`] to the companion and returns the id. Returns nothing when no kernel was restored; then no
/// process of it is left.
///
/// # Errors
/// When the program can't be started, or its exit can't be watched.
pub(crate) fn run_kernel_restore(pidfile: &Path, program: &[OsString]) -> Result<Option<i32>> {
    prctl::set_child_subreaper(true)?;
    let children = watch_children()?;
    let companion = io::stdin();
    let [name, arguments @ ..] = program else {
        anyhow::bail!("the command is missing");
    };
    let mut command = Command::new(name);
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
    let restoring = quiet.args(arguments).spawn()?;
    let restoring = Pid::from_raw(restoring.id().cast_signed());
    let ended = loop {
        let mut both = [
            PollFd::new(companion.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut both, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // The companion has ended or orders the end: no other command is valid here.
        if both[0].any() == Some(true) {
            break None;
        }
        while let Ok(Some(_)) = children.read_signal() {}
        match waitpid(restoring, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => {}
            ended => break ended.ok(),
        }
    };
    let written = fs::read_to_string(pidfile).unwrap_or_default();
    let kernel = written.trim().parse().ok();
    let (Some(WaitStatus::Exited(_, 0)), Some(kernel)) = (ended, kernel) else {
        kill_descendants(None);
        return Ok(None);
    };
    // The supervisor loop detects a companion that has ended.
    let _ = nix::unistd::write(companion.as_fd(), &[KERNEL_RESTORED_REPLY]);
    Ok(Some(kernel))
}

/// Makes the system end other processes first when memory is short. The supervisor inherits the kernel's high OOM
/// score; without the supervisor, the kernel's forks would survive.
fn reset_oom_score() {
    // 0 is the score of the container's own processes. A system without /proc has nothing to set.
    let _ = fs::write("/proc/self/oom_score_adj", "0");
}

fn watch_children() -> Result<SignalFd> {
    let mut watched = SigSet::empty();
    watched.add(Signal::SIGCHLD);
    watched.thread_block()?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok(SignalFd::with_flags(&watched, flags)?)
}

/// Waits for the end of the kernel or shell, ends its remaining descendants, and reports its exit code, 128+n for
/// signal n.
///
/// # Errors
/// When the exits of children can't be watched.
pub(crate) fn supervise_process(kernel: i32, teardown: Duration) -> Result<()> {
    reset_oom_score();
    prctl::set_child_subreaper(true)?;
    let kernel = Pid::from_raw(kernel);
    let children = watch_children()?;
    let companion = io::stdin();
    // The process may have ended before this function watched it.
    let mut ended = reap_children(kernel);
    let mut deadline = None;
    while ended.is_none() {
        let left = deadline.map(|at: Instant| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        let mut both = [
            PollFd::new(companion.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        let timeout = left.and_then(|left| PollTimeout::try_from(left).ok());
        match poll(&mut both, timeout.unwrap_or(PollTimeout::NONE)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if both[0].any() == Some(true) {
            match read_command_byte() {
                Some(SUPERVISOR_SHUTDOWN_BYTE) => {
                    // A process that has already ended needs no signal.
                    let _ = kill(kernel, Signal::SIGTERM);
                    deadline = Some(Instant::now() + teardown);
                }
                Some(SUPERVISOR_END_BYTE) | None => break,
                Some(_) => {}
            }
        }
        while let Ok(Some(_)) = children.read_signal() {}
        ended = reap_children(kernel);
    }
    kill_descendants(ended.is_none().then_some(kernel));
    let code = ended.unwrap_or(128 + Signal::SIGKILL as u8);
    // Standard input is a socket in both directions; the write fails when the companion has ended.
    let _ = nix::unistd::write(companion.as_fd(), &[code]);
    Ok(())
}

/// The companion's command; nothing when the companion has ended.
fn read_command_byte() -> Option<u8> {
    let mut word = [0];
    // The read is unbuffered, because unread commands must wake the next poll.
    nix::unistd::read(io::stdin().as_fd(), &mut word)
        .ok()
        .filter(|count| *count == 1)
        .map(|_| word[0])
}

/// Collects every pending exit and returns the exit code of `command` if it is among them.
fn reap_children(command: Pid) -> Option<u8> {
    let mut ended = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => ended = Some(code as u8),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                ended = Some(128 + signal as u8)
            }
            Ok(WaitStatus::StillAlive) | Err(_) => return ended,
            Ok(_) => {}
        }
    }
}
