//! The guard of a kernel, or of a terminal's shell: a child subreaper that ends every descendant of
//! it with it.
//!
//! Descendants that call `setsid` leave a process group but never a subreaper. It is handed a
//! child that was started already, and speaks with the companion over its standard input
//! (see `kernel::guard` and `pty::shell`): the companion's end, or its word, ends all. It runs without a runtime and
//! without threads, so that it works when no process can be made. A kernel that comes out of a
//! checkpoint is made under its guard ([`run_kernel_restore`]), which it then has as any other.

use super::descendants;
use super::kernel::{SUPERVISOR_END_BYTE, SUPERVISOR_SHUTDOWN_BYTE};
use crate::error::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What is said before everything else when a kernel is back.
pub(super) const KERNEL_RESTORED_REPLY: u8 = b'K';

/// How long a kernel may tear down its resources, and a shell end by itself.
pub(crate) const SUPERVISOR_TEARDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the program that brings a kernel back as this process's child, and writes the kernel's id to
/// `pidfile`. Returns the id, after it has told the companion by [`KERNEL_RESTORED_REPLY`]; nothing when there is no
/// kernel, and nothing is left of it.
///
/// # Errors
/// When the program can't be started, or the system does not let it watch.
pub(crate) fn run_kernel_restore(pidfile: &Path, program: &[OsString]) -> Result<Option<i32>> {
    prctl::set_child_subreaper(true)?;
    let children = watch_children()?;
    let companion = io::stdin();
    let [name, arguments @ ..] = program else {
        anyhow::bail!("no program is named");
    };
    let mut command = Command::new(name);
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
    let thawing = quiet.args(arguments).spawn()?;
    let thawing = Pid::from_raw(thawing.id().cast_signed());
    let ended = loop {
        let mut both = [
            PollFd::new(companion.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut both, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // It has ended, or wants this to end: no other word fits here.
        if both[0].any() == Some(true) {
            break None;
        }
        while let Ok(Some(_)) = children.read_signal() {}
        match waitpid(thawing, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => {}
            ended => break ended.ok(),
        }
    };
    let written = fs::read_to_string(pidfile).unwrap_or_default();
    let kernel = written.trim().parse().ok();
    let (Some(WaitStatus::Exited(_, 0)), Some(kernel)) = (ended, kernel) else {
        end_descendants(None);
        return Ok(None);
    };
    // A companion that is gone is noticed by the guard.
    let _ = nix::unistd::write(companion.as_fd(), &[KERNEL_RESTORED_REPLY]);
    Ok(Some(kernel))
}

/// Lets the system take others first when memory is short: a guard inherits the kernel's readiness to go, and without
/// it the kernel's forks would live on.
fn reset_oom_score() {
    // As far as the container's own processes may stay; a system without /proc has nothing to set.
    let _ = fs::write("/proc/self/oom_score_adj", "0");
}

fn watch_children() -> Result<SignalFd> {
    let mut watched = SigSet::empty();
    watched.add(Signal::SIGCHLD);
    watched.thread_block()?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok(SignalFd::with_flags(&watched, flags)?)
}

/// Waits for the kernel's end (or the shell's), then ends what it left, and tells its exit code, 128+n for a signal.
///
/// # Errors
/// When the system does not let it watch.
pub(crate) fn supervise_process(kernel: i32, teardown: Duration) -> Result<()> {
    reset_oom_score();
    prctl::set_child_subreaper(true)?;
    let kernel = Pid::from_raw(kernel);
    let children = watch_children()?;
    let companion = io::stdin();
    // It may have ended before anybody watched.
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
        let patience = left.and_then(|left| PollTimeout::try_from(left).ok());
        match poll(&mut both, patience.unwrap_or(PollTimeout::NONE)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if both[0].any() == Some(true) {
            match read_command_byte() {
                Some(SUPERVISOR_SHUTDOWN_BYTE) => {
                    // Gone already is as good.
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
    end_descendants(ended.is_none().then_some(kernel));
    let code = ended.unwrap_or(128 + Signal::SIGKILL as u8);
    // The same socket; nobody is there to read it when the companion has ended.
    let _ = nix::unistd::write(companion.as_fd(), &[code]);
    Ok(())
}

/// What the companion said; nothing, when it is gone.
fn read_command_byte() -> Option<u8> {
    let mut word = [0];
    // Standard input has no buffer in between here: what is not read yet must wake the next poll.
    nix::unistd::read(io::stdin().as_fd(), &mut word)
        .ok()
        .filter(|count| *count == 1)
        .map(|_| word[0])
}

/// Takes every exit that is due; the command's own code when it is among them.
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

/// Kills until nobody is left.
pub(super) fn end_descendants(leader: Option<Pid>) {
    // One signal to the whole group is atomic: a fork bomb in it ends here. A leader whose exit was
    // taken already may have left its number to somebody else.
    if let Some(leader) = leader {
        let _ = killpg(leader, Signal::SIGKILL);
    }
    loop {
        descendants::kill_found(|| {
            descendants::list_descendants(getpid())
                .into_iter()
                .map(|d| d.pid)
                .collect()
        });
        // Orphans come to us: without any child there is no descendant.
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(_) => return,
            Ok(WaitStatus::StillAlive) => thread::yield_now(),
            Ok(_) => {}
        }
    }
}
