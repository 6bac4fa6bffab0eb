//! A service's process, below its own supervisor (see `companion::supervisor`), which ends all descendants with
//! it. The companion sends the supervisor one-byte commands, and the supervisor replies with one byte, the exit code.

use super::declaration::ServiceDeclaration;
use crate::companion::kernel::{SUPERVISOR_END_BYTE, SUPERVISOR_SHUTDOWN_BYTE};
use crate::companion::settings;
use crate::error::Result;
use anyhow::Context;
use nix::libc;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};

#[derive(Debug)]
pub(super) struct ServiceProcess {
    supervisor_stream: UnixStream,
    /// The supervisor, which is reaped after its end and never killed: it ends all descendants when the companion is
    /// gone.
    supervisor_process: Child,
    exit_code: Option<u8>,
}

impl ServiceProcess {
    /// Starts the process and returns the reader of its output. The process gets `failures`, the number of short runs
    /// before it, in its environment.
    pub(super) fn start(
        declaration: &ServiceDeclaration,
        failures: u32,
    ) -> Result<(Self, Receiver)> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let (output, written) = io::pipe()?;
        // The running binary, even if its file was replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg("reaper").arg("--grace");
        command.arg(declaration.grace.as_secs().to_string());
        if let Some(files) = declaration.max_open_files {
            command.arg("--files").arg(files.to_string());
        }
        command
            .arg("--service")
            .args(&declaration.command)
            .envs(declaration.environment.iter())
            .env("OSCTL_SERVICE_FAILURES", failures.to_string())
            .stdin(OwnedFd::from(theirs))
            .stdout(written.try_clone()?)
            .stderr(written);
        for secret in settings::COMPANION_ONLY_VARIABLES {
            command.env_remove(secret);
        }
        let supervisor_process = command.spawn().context("starting the supervisor")?;
        let output = Receiver::from_owned_fd(output.into())?;
        let process = Self {
            supervisor_stream: UnixStream::from_std(ours)?,
            supervisor_process,
            exit_code: None,
        };
        Ok((process, output))
    }

    /// The pid of the supervisor, below which all processes of the service run.
    pub(super) fn supervisor_pid(&self) -> Option<u32> {
        self.supervisor_process.id()
    }

    /// Waits until the process and all its descendants have ended, and returns the exit code, 128+n for signal n.
    /// Dropping the future loses nothing.
    pub(super) async fn wait_exit(&mut self) -> u8 {
        loop {
            // A socket that can't be polled has ended; the read finds out.
            let _ = self.supervisor_stream.readable().await;
            let mut byte = [0];
            match self.supervisor_stream.try_read(&mut byte) {
                Ok(1) => self.exit_code = Some(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Without a code, the supervisor was killed or could not start the service and logged that.
                Ok(_) | Err(_) => return self.exit_code.unwrap_or(128 + libc::SIGKILL as u8),
            }
        }
    }

    /// Asks the process to exit; the supervisor kills it after the grace time.
    pub(super) fn request_shutdown(&self) {
        self.send_command(SUPERVISOR_SHUTDOWN_BYTE);
    }

    /// Kills the process and all its descendants now.
    pub(super) fn kill_tree(&self) {
        self.send_command(SUPERVISOR_END_BYTE);
    }

    fn send_command(&self, command: u8) {
        // Write directly, because the runtime may not have registered yet that a new socket is writable. If the
        // supervisor is gone, no process is left to end.
        let _ = nix::unistd::write(self.supervisor_stream.as_fd(), &[command]);
    }
}

/// Starts the service inside the supervisor and returns its pid.
///
/// # Errors
/// When the program does not exist.
pub(crate) fn spawn_service(command: &[OsString], files: Option<u64>) -> Result<i32> {
    let (program, arguments) = command
        .split_first()
        .context("the command of the service is missing")?;
    // This call comes before the start, so that orphaned descendants become children of the supervisor.
    prctl::set_child_subreaper(true)?;
    if let Some(files) = files {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, files.min(most), files.min(most))?;
    }
    let service = std::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .process_group(0)
        .spawn();
    let service = service.with_context(|| format!("starting `{}`", program.to_string_lossy()))?;
    Ok(service.id().cast_signed())
}
