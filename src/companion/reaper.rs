//! The parent of a kernel: a child subreaper that ends every descendant with it.
//!
//! Descendants that call `setsid` leave a process group but never a subreaper. The companion
//! speaks to it by signals: SIGINT is passed on to the command, SIGTERM ends all. It
//! runs without a runtime and without threads, so that it works when no process can be made.

use super::descendants;
use crate::error::Result;
use anyhow::Context;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, getppid};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{fs, thread};

/// Runs `command` to its end, then ends what it left. Returns its exit code, 128+n for a signal.
///
/// # Errors
/// When the command can't be started.
pub(crate) fn run(command: &[OsString]) -> Result<u8> {
    let parent = getppid();
    prctl::set_child_subreaper(true)?;
    prctl::set_pdeathsig(Signal::SIGTERM)?;
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let (program, arguments) = command.split_first().context("no command")?;
    let mut child = Command::new(program);
    // A group of its own, so that what code sends to its group does not reach us.
    child.args(arguments).process_group(0);
    // SAFETY: between fork and exec only async-signal-safe functions may run; this is one call
    // of sigprocmask. Without it the command would inherit what is blocked here.
    unsafe { child.pre_exec(move || Ok(signals.thread_unblock()?)) };
    let child = child
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let child = Pid::from_raw(child.id().cast_signed());
    // Standard input is the kernel's listening socket, and must close with the kernel.
    drop(fs::File::open("/dev/null").and_then(|null| Ok(nix::unistd::dup2_stdin(null)?)));
    let mut ended = None;
    while ended.is_none() && getppid() == parent {
        match signals.wait()? {
            Signal::SIGINT => drop(kill(child, Signal::SIGINT)),
            Signal::SIGTERM => {
                ended = collect(child);
                break;
            }
            _ => ended = collect(child),
        }
    }
    end_descendants(child);
    Ok(ended.unwrap_or(128 + 9))
}

/// Takes every exit that is due; the command's own code when it is among them.
fn collect(command: Pid) -> Option<u8> {
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
fn end_descendants(command: Pid) {
    // One signal to the whole group is atomic: a fork bomb in it ends here.
    let _ = killpg(command, Signal::SIGKILL);
    loop {
        descendants::end(|| {
            descendants::of(getpid())
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
