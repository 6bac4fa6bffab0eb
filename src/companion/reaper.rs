//! The parent of a kernel: a child subreaper that ends every descendant with it.
//!
//! Descendants that call `setsid` leave a process group but never a subreaper. The companion
//! speaks to it by signals: SIGINT is passed on to the command's group, SIGTERM ends all. It
//! runs without a runtime and without threads, so that it works when no process can be made.

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
    // A group of its own, so that an interrupt reaches what the code started, and not us.
    let child = Command::new(program)
        .args(arguments)
        .process_group(0)
        .spawn();
    let child = Pid::from_raw(
        child
            .with_context(|| format!("starting {}", program.display()))?
            .id()
            .cast_signed(),
    );
    // Standard input is the kernel's listening socket, and must close with the kernel.
    drop(fs::File::open("/dev/null").and_then(|null| Ok(nix::unistd::dup2_stdin(null)?)));
    let mut ended = None;
    while ended.is_none() && getppid() == parent {
        match signals.wait()? {
            Signal::SIGINT => drop(killpg(child, Signal::SIGINT)),
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

/// Kills until nobody is left. All are stopped first, so that none forks while others die.
fn end_descendants(command: Pid) {
    // One signal to the whole group is atomic: a fork bomb in it ends here.
    let _ = killpg(command, Signal::SIGKILL);
    loop {
        let mut stopped = Vec::new();
        loop {
            let fresh: Vec<Pid> = descendants()
                .into_iter()
                .filter(|p| !stopped.contains(p))
                .collect();
            if fresh.is_empty() {
                break;
            }
            for pid in fresh {
                let _ = kill(pid, Signal::SIGSTOP);
                stopped.push(pid);
            }
        }
        for pid in stopped {
            let _ = kill(pid, Signal::SIGKILL);
        }
        // Orphans come to us: without any child there is no descendant.
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(_) => return,
            Ok(WaitStatus::StillAlive) => thread::yield_now(),
            Ok(_) => {}
        }
    }
}

/// Everyone below this process, by the parents that /proc tells.
fn descendants() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let parents: Vec<(i32, i32)> = entries
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
            let is_dead = fields.next()? == "Z";
            (!is_dead).then_some((pid, fields.next()?.parse().ok()?))
        })
        .collect();
    let mut found = vec![getpid().as_raw()];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(
            parents
                .iter()
                .filter(|(_, p)| *p == parent)
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    found.into_iter().skip(1).map(Pid::from_raw).collect()
}
