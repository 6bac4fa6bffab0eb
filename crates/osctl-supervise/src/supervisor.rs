//! The supervisor of one command: a child subreaper that starts the command, reports its end, and runs until the last
//! of its background processes has ended.
//!
//! The companion starts it in advance; it waits for its command on its standard input, a socket. Both sides then use
//! this socket:
//!
//! ```text
//! companion                             supervisor
//!    │── command, stdin stdout stderr cwd ─▶│
//!    │◀── STARTED pid | FAILED errno ───────│
//!    │── END_ALL, or any signal's number ──▶│   to all descendants
//!    │◀── ENDED code | LEFT_JOBS code ──────│   LEFT_JOBS: some descendants still run
//!    │◀── closed ───────────────────────────│   no descendant is left
//! ```
//!
//! When the companion ends, the supervisor ends all descendants. It uses no async runtime and no threads, so that it
//! works when the system can create no more processes.

use super::descendants::{self, kill_descendants};
use anyhow::{Context, Result, bail};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, fchdir, getpid, getppid};
use std::ffi::OsStr;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

pub(super) const COMMAND_STARTED: u8 = b'S';
pub(super) const COMMAND_FAILED: u8 = b'F';
pub(super) const COMMAND_ENDED: u8 = b'E';
pub(super) const COMMAND_LEFT_JOBS: u8 = b'L';
/// Bytes of each event of the supervisor: its kind, and a number.
pub(super) const COMMAND_EVENT_BYTES: usize = 5;
/// The request that ends all descendants; other requests are signal numbers.
pub(super) const COMMAND_END_ALL: u8 = 0xff;

/// Encodes a command: its length, the number of arguments, the arguments, then the environment. The first argument is
/// the path of the program, the second its `argv[0]`.
pub fn encode_command(args: &[&[u8]], environment: &[Vec<u8>]) -> Vec<u8> {
    let mut text = (args.len() as u32).to_le_bytes().to_vec();
    for part in args
        .iter()
        .copied()
        .chain(environment.iter().map(Vec::as_slice))
    {
        text.extend_from_slice(part);
        text.push(0);
    }
    let mut request = (text.len() as u32).to_le_bytes().to_vec();
    request.append(&mut text);
    request
}

/// Waits for a command, supervises it, and returns when no descendant is left.
///
/// # Errors
/// When the system refuses the watch on signals and processes, or the command is malformed.
pub fn supervise_command() -> Result<()> {
    prctl::set_child_subreaper(true)?;
    let mut watched = SigSet::empty();
    watched.add(Signal::SIGCHLD);
    watched.thread_block()?;
    let children = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut companion = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some((text, descriptors)) = receive_command(&mut companion)? else {
        return Ok(());
    };
    let command = match spawn_command(&text, descriptors) {
        Ok(pid) => {
            send_event(&companion, COMMAND_STARTED, pid.as_raw());
            pid
        }
        Err(error) => {
            send_event(
                &companion,
                COMMAND_FAILED,
                error.raw_os_error().unwrap_or(0),
            );
            return Ok(());
        }
    };
    let mut leader = Some(command);
    loop {
        let mut both = [
            PollFd::new(companion.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut both, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_spoken_to = both[0].any() == Some(true);
        while let Ok(Some(_)) = children.read_signal() {}
        let (ended, is_alone) = reap_children(command);
        if let Some(code) = ended {
            leader = None;
            send_event(
                &companion,
                if is_alone {
                    COMMAND_ENDED
                } else {
                    COMMAND_LEFT_JOBS
                },
                code,
            );
        }
        if is_alone {
            return Ok(());
        }
        if is_spoken_to && !handle_request(&mut companion) {
            kill_descendants(leader);
            send_event(&companion, COMMAND_ENDED, 128 + Signal::SIGKILL as i32);
            return Ok(());
        }
    }
}

/// Receives the command and its descriptors; `None` when the companion sends none.
fn receive_command(companion: &mut UnixStream) -> Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let mut space = cmsg_space!([RawFd; 4]);
    let mut descriptors = Vec::new();
    {
        let mut parts = [IoSliceMut::new(&mut length)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_WAITALL;
        let message = recvmsg::<()>(companion.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
        if message.bytes < 4 {
            return Ok(None);
        }
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel has just created these descriptors for this process, and no other code has them.
                descriptors.extend(
                    raw.into_iter()
                        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
                );
            }
        }
    }
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    companion
        .read_exact(&mut text)
        .context("the request can't be read")?;
    if descriptors.len() != 4 {
        bail!(
            "the request has {} descriptors instead of 4",
            descriptors.len()
        );
    }
    Ok(Some((text, descriptors)))
}

fn spawn_command(text: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Pid> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let (count, text) = text.split_first_chunk::<4>().ok_or_else(invalid)?;
    let mut parts = text.split(|byte| *byte == 0);
    let mut next = || parts.next().map(OsStr::from_bytes).ok_or_else(invalid);
    let mut command = Command::new(next()?);
    command.arg0(next()?);
    for _ in 2..u32::from_le_bytes(*count) {
        command.arg(OsStr::from_bytes(parts.next().ok_or_else(invalid)?));
    }
    command.env_clear();
    for variable in parts {
        if let Some(at) = variable.iter().position(|byte| *byte == b'=') {
            let (name, value) = variable.split_at(at);
            command.env(OsStr::from_bytes(name), OsStr::from_bytes(&value[1..]));
        }
    }
    let [stdin, stdout, stderr, folder] =
        <[OwnedFd; 4]>::try_from(descriptors).map_err(|_| invalid())?;
    // Changes the folder of the whole process, which runs no other code.
    fchdir(&folder)?;
    command
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr))
        .process_group(0);
    let supervisor = getpid();
    let dies_with_supervisor = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The supervisor may have died before the call.
        match getppid() == supervisor {
            true => Ok(()),
            false => Err(io::ErrorKind::NotConnected.into()),
        }
    };
    // SAFETY: two system calls, and no allocation or lock.
    unsafe { command.pre_exec(dies_with_supervisor) };
    Ok(Pid::from_raw(command.spawn()?.id().cast_signed()))
}

fn send_event(companion: &UnixStream, kind: u8, number: i32) {
    let mut bytes = [kind; COMMAND_EVENT_BYTES];
    bytes[1..].copy_from_slice(&number.to_le_bytes());
    // After the end of the companion, no process reads the event.
    let _ = nix::unistd::write(companion.as_fd(), &bytes);
}

/// Performs a request of the companion; `false` when all descendants must end.
fn handle_request(companion: &mut UnixStream) -> bool {
    let mut command = [0];
    match companion.read(&mut command) {
        Ok(1) if command[0] != COMMAND_END_ALL => {
            if let Ok(signal) = Signal::try_from(i32::from(command[0])) {
                for below in descendants::list_descendants(getpid()) {
                    // A process that is gone already needs no signal.
                    let _ = kill(below.pid, signal);
                }
            }
            true
        }
        _ => false,
    }
}

/// Reaps all ended children; returns the command's exit code, and whether no child is left.
fn reap_children(command: Pid) -> (Option<i32>, bool) {
    let mut ended = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => ended = Some(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                ended = Some(128 + signal as i32);
            }
            Ok(WaitStatus::StillAlive) => return (ended, false),
            Err(_) => return (ended, true),
            Ok(_) => {}
        }
    }
}
