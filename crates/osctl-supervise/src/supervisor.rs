//! The process that supervises a process tree.

use super::descendants;
use super::protocol::{
    ProcessKind, ProcessStart, SUPERVISOR_FRAME_BYTES, SupervisorEvent, SupervisorRequest,
};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, fchdir, getpid, getppid, setpgid, setsid};
use std::fs::{self, File};
use std::io::{self, IoSliceMut, Read};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Instant;

/// The exit code of a process that was killed.
const KILLED_EXIT_CODE: u8 = 128 + Signal::SIGKILL as u8;

/// Supervises the child `adopted`, or the process that the companion requests on stdin. Returns when no descendant is
/// left.
///
/// # Errors
/// When stdin is no socket, or the system refuses to watch processes.
pub fn run_supervisor(adopted: Option<i32>) -> io::Result<()> {
    // Before the first process starts: orphaned descendants must become children of this process.
    prctl::set_child_subreaper(true)?;
    let mut watched = SigSet::empty();
    watched.add(Signal::SIGCHLD);
    watched.thread_block()?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let mut supervision = Supervision {
        companion: UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?),
        children: SignalFd::with_flags(&watched, flags)?,
        kind: ProcessKind::Service,
        first: adopted.map(Pid::from_raw),
        deadline: None,
        _terminal: None,
    };
    match adopted {
        // The system ends other processes first when memory is short. A process that the template forked has the high
        // OOM score of kernels; without the supervisor, the kernel's forks would survive. A system without /proc has
        // nothing to set.
        Some(_) => drop(fs::write("/proc/self/oom_score_adj", "0")),
        None if !supervision.start_process()? => return Ok(()),
        None => {}
    }
    supervision.supervise_tree()
}

#[derive(Debug)]
struct Supervision {
    companion: UnixStream,
    /// Readable when a child has ended.
    children: SignalFd,
    kind: ProcessKind,
    /// The process that the tree begins with, until its exit was collected.
    first: Option<Pid>,
    /// When all processes are killed.
    deadline: Option<Instant>,
    /// Held open until the last descendant has ended.
    _terminal: Option<OwnedFd>,
}

impl Supervision {
    /// Waits for the request to start a process; `false` when no process was started.
    fn start_process(&mut self) -> io::Result<bool> {
        let Some((start, [stdin, stdout, stderr, folder])) = self.receive_start()? else {
            return Ok(false);
        };
        if start.kind == ProcessKind::Terminal {
            self._terminal = Some(stdin.try_clone()?);
        }
        let is_restore = matches!(start.kind, ProcessKind::Restore(_));
        match spawn_process(&start, [stdin, stdout, stderr], &folder) {
            Ok(pid) => {
                self.first = Some(pid);
                self.kind = start.kind;
                if !is_restore {
                    self.send_event(SupervisorEvent::Started(pid.as_raw()));
                }
                Ok(true)
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
                self.send_event(SupervisorEvent::NotStarted(errno));
                Ok(false)
            }
        }
    }

    /// Receives the process and its descriptors; `None` when the companion sends none.
    fn receive_start(&self) -> io::Result<Option<(ProcessStart, [OwnedFd; 4])>> {
        let mut frame = [0; SUPERVISOR_FRAME_BYTES];
        let mut space = cmsg_space!([RawFd; 5]);
        let mut descriptors = Vec::new();
        {
            let mut parts = [IoSliceMut::new(&mut frame)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_WAITALL;
            let socket = self.companion.as_raw_fd();
            let message = recvmsg::<()>(socket, &mut parts, Some(&mut space), flags)?;
            for control in message.cmsgs()? {
                if let ControlMessageOwned::ScmRights(raw) = control {
                    // SAFETY: the kernel has just created these descriptors for this process, and no other code has
                    // them.
                    let owned = raw
                        .into_iter()
                        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
                    descriptors.extend(owned);
                }
            }
        }
        if SupervisorRequest::from_frame(frame) != Some(SupervisorRequest::Start) {
            return Ok(None);
        }
        let mut encoded = Vec::new();
        let file = descriptors.pop().map(File::from);
        file.map(|mut file| file.read_to_end(&mut encoded))
            .transpose()?;
        let start = ProcessStart::decode(&encoded);
        let received = start.zip(descriptors.try_into().ok());
        received
            .map(Some)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn supervise_tree(&mut self) -> io::Result<()> {
        let mut has_request = false;
        let code = loop {
            // The process may have ended before this function watched it.
            let (ended, is_alone) = self.reap_children();
            if let Some(code) = ended {
                match mem::replace(&mut self.kind, ProcessKind::Service) {
                    ProcessKind::Restore(pid_file) if code == 0 => {
                        let restored = fs::read_to_string(pid_file).unwrap_or_default();
                        let Ok(pid) = restored.trim().parse() else {
                            break code;
                        };
                        self.first = Some(Pid::from_raw(pid));
                        self.send_event(SupervisorEvent::Started(pid));
                    }
                    ProcessKind::Command => {
                        self.kind = ProcessKind::Command;
                        let has_background = !is_alone;
                        self.send_event(SupervisorEvent::Ended {
                            code,
                            has_background,
                        });
                    }
                    _ => break code,
                }
            }
            if is_alone {
                return Ok(());
            }
            let is_overdue = self.deadline.is_some_and(|at| at <= Instant::now());
            if is_overdue || has_request && !self.handle_request() {
                break KILLED_EXIT_CODE;
            }
            has_request = self.wait_event()?;
        };
        self.kill_descendants();
        let has_background = false;
        self.send_event(SupervisorEvent::Ended {
            code,
            has_background,
        });
        Ok(())
    }

    /// Waits for the end of a child, a request or the deadline; returns whether there is a request.
    fn wait_event(&self) -> io::Result<bool> {
        let mut both = [
            PollFd::new(self.companion.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.children.as_fd(), PollFlags::POLLIN),
        ];
        let left = self
            .deadline
            .map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| PollTimeout::try_from(left).ok());
        match poll(&mut both, timeout.unwrap_or(PollTimeout::NONE)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(Some(_)) = self.children.read_signal() {}
        Ok(both[0].any() == Some(true))
    }

    /// Performs a request of the companion; `false` when all processes must be killed.
    fn handle_request(&mut self) -> bool {
        let mut frame = [0; SUPERVISOR_FRAME_BYTES];
        // The companion has ended, or dropped its end.
        if self.companion.read_exact(&mut frame).is_err() {
            return false;
        }
        match SupervisorRequest::from_frame(frame) {
            Some(SupervisorRequest::Kill) => return false,
            Some(SupervisorRequest::Signal(signal)) => {
                for descendant in descendants::list_descendants(getpid()) {
                    // A process that has already ended needs no signal.
                    let _ = kill(descendant.pid, signal);
                }
            }
            Some(SupervisorRequest::ShutDown(time)) => {
                if let Some(first) = self.first {
                    let _ = kill(first, Signal::SIGTERM);
                }
                self.deadline = Some(Instant::now() + time);
            }
            Some(SupervisorRequest::Start) | None => {}
        }
        true
    }

    /// Collects all pending exits; returns the exit code of the first process, and whether no child is left.
    fn reap_children(&mut self) -> (Option<u8>, bool) {
        let mut ended = None;
        loop {
            let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code as u8),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as u8),
                Ok(WaitStatus::StillAlive) => return (ended, false),
                Err(_) => return (ended, true),
                Ok(_) => continue,
            };
            if self.first == Some(pid) {
                (self.first, ended) = (None, Some(code));
            }
        }
    }

    /// Kills descendants until none is left.
    fn kill_descendants(&self) {
        // One signal to the whole group is atomic and ends a fork bomb in it. Once the exit of the group's leader was
        // collected, its id may belong to another process.
        if let Some(first) = self.first {
            let _ = killpg(first, Signal::SIGKILL);
        }
        loop {
            descendants::kill_tree_beneath(getpid());
            // Orphans become children of this process, so without any child there is no descendant.
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Err(_) => return,
                Ok(WaitStatus::StillAlive) => thread::yield_now(),
                Ok(_) => {}
            }
        }
    }

    fn send_event(&self, event: SupervisorEvent) {
        if let Some(frame) = event.to_frame() {
            // After the end of the companion, no process reads the event.
            let _ = nix::unistd::write(&self.companion, &frame);
        }
    }
}

fn spawn_process(
    start: &ProcessStart,
    [stdin, stdout, stderr]: [OwnedFd; 3],
    folder: &OwnedFd,
) -> io::Result<Pid> {
    if let Some(files) = start.max_open_files {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, files.min(most), files.min(most))?;
    }
    // Changes the folder of the whole process, which runs no other code.
    fchdir(folder)?;
    let mut command = Command::new(&start.program);
    if let [name, args @ ..] = &start.args[..] {
        command.arg0(name).args(args);
    }
    command
        .env_clear()
        .envs(start.environment.iter().cloned())
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr);
    let is_restore = matches!(start.kind, ProcessKind::Restore(_));
    let is_terminal = start.kind == ProcessKind::Terminal;
    let supervisor = getpid();
    let prepare = move || {
        if is_restore {
            return Ok(());
        }
        if is_terminal {
            setsid()?;
            // SAFETY: the call reads only its arguments.
            Errno::result(unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) })?;
        } else {
            setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        }
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The supervisor may have died before the call.
        match getppid() == supervisor {
            true => Ok(()),
            false => Err(io::ErrorKind::NotConnected.into()),
        }
    };
    // SAFETY: only system calls, and no allocation or lock.
    unsafe { command.pre_exec(prepare) };
    Ok(Pid::from_raw(command.spawn()?.id().cast_signed()))
}
