//! A supervisor that a test scripts: it reads the requests of an owner, and reports the end of its process tree.

use super::clock::{settle, wait_until};
use crate::supervise::{Supervisor, SupervisorEvent, SupervisorFrame, SupervisorRequest};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

#[derive(Debug)]
#[must_use = "a supervisor that is dropped ends"]
pub(crate) struct FakeSupervisor {
    /// The process that gets the signals to the supervisor and to its first process.
    process: Child,
    /// `None` after the supervisor has ended.
    stream: Option<UnixStream>,
}

impl FakeSupervisor {
    /// Starts a supervisor; returns also the owner's end.
    pub(crate) fn start() -> (Self, Supervisor) {
        let (stream, theirs) = UnixStream::pair().unwrap();
        let supervisor = Self {
            process: start_signal_target(),
            stream: Some(stream),
        };
        let pid = supervisor.pid();
        (supervisor, Supervisor::adopt_supervisor(theirs, pid, None))
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).unwrap()
    }

    /// The next request of the owner.
    pub(crate) async fn next_request(&mut self) -> Option<SupervisorRequest> {
        settle().await;
        let mut frame = SupervisorFrame::default();
        self.stream.as_ref().unwrap().try_read(&mut frame).ok()?;
        SupervisorRequest::from_frame(frame)
    }

    /// Checks that the owner has the tree killed.
    pub(crate) async fn expect_kill(&mut self) {
        assert_eq!(self.next_request().await, Some(SupervisorRequest::Kill));
    }

    /// Checks that the owner asks the first process to end.
    pub(crate) async fn expect_shut_down(&mut self) {
        let request = self.next_request().await;
        let is_shut_down = matches!(request, Some(SupervisorRequest::ShutDown(_)));
        assert!(is_shut_down, "{request:?}");
    }

    pub(crate) async fn report(&mut self, event: SupervisorEvent) {
        let frame = event.to_frame().unwrap();
        let stream = self.stream.as_mut().unwrap();
        stream.write_all(&frame).await.unwrap();
    }

    /// Ends with the first process, which exits with this code, or 128+n for signal n.
    pub(crate) async fn exit(&mut self, code: u8) {
        let has_background = false;
        self.report(SupervisorEvent::Ended {
            code,
            has_background,
        })
        .await;
        self.end().await;
    }

    /// Ends without a report, as a supervisor that was killed.
    pub(crate) async fn end(&mut self) {
        // A process that another test forks at this moment holds a copy of the socket: closing it is not enough.
        self.stream.take().unwrap().shutdown().await.unwrap();
        settle().await;
    }

    /// Whether no signal has ended the process.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Waits until the supervisor has been killed.
    pub(crate) async fn wait_killed(&self) {
        self.wait_signal(Signal::SIGKILL).await;
    }

    /// Waits for the first signal that ends the process.
    pub(crate) async fn wait_signal(&self, expected: Signal) {
        let pid = Pid::from_raw(self.pid());
        // The process stays a zombie: the owner may send further signals.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        let mut end = WaitStatus::StillAlive;
        wait_until(|| {
            end = waitid(Id::Pid(pid), flags).unwrap();
            end != WaitStatus::StillAlive
        })
        .await;
        assert_eq!(end, WaitStatus::Signaled(pid, expected, false));
    }
}

impl Drop for FakeSupervisor {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a process that ends with the first signal.
fn start_signal_target() -> Child {
    let mut command = Command::new("sleep");
    command.arg("600");
    // A shell that starts the tests in the background ignores the signal, and so would the process.
    let restore_default = || {
        // SAFETY: no handler is set; the default action is restored.
        unsafe { signal(Signal::SIGINT, SigHandler::SigDfl) }?;
        Ok(())
    };
    // SAFETY: the function only calls `sigaction`, which is safe between fork and exec.
    unsafe { command.pre_exec(restore_default) };
    command.spawn().unwrap()
}
