//! A service's process, below a guard of its own (see `companion::reaper`), which ends all below it
//! with it. One word goes to the guard, one byte comes back.

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
    guard: UnixStream,
    /// Collected when it has ended. Never killed: it ends all below it when we are gone.
    process: Child,
    code: Option<u8>,
}

impl ServiceProcess {
    /// The process, and where its output is read. It is told how many lives before it were short.
    pub(super) fn start(
        declaration: &ServiceDeclaration,
        failures: u32,
    ) -> Result<(Self, Receiver)> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let (output, written) = io::pipe()?;
        // This very binary, also when its file was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg("reaper").arg("--grace");
        command.arg(declaration.grace.as_secs().to_string());
        if let Some(files) = declaration.files {
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
        let process = command.spawn().context("starting its guard")?;
        let output = Receiver::from_owned_fd(output.into())?;
        let process = Self {
            guard: UnixStream::from_std(ours)?,
            process,
            code: None,
        };
        Ok((process, output))
    }

    /// The guard's, below which all of it is.
    pub(super) fn supervisor_pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// The exit code, 128+n for signal n, once it and all below it are gone. Loses nothing when
    /// dropped.
    pub(super) async fn wait_end(&mut self) -> u8 {
        loop {
            // What can't be polled any more is over.
            let _ = self.guard.readable().await;
            let mut byte = [0];
            match self.guard.try_read(&mut byte) {
                Ok(1) => self.code = Some(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Without a code its guard was killed, or could not start it and said so.
                Ok(_) | Err(_) => return self.code.unwrap_or(128 + libc::SIGKILL as u8),
            }
        }
    }

    /// Lets it end by itself; its guard ends it after its grace.
    pub(super) fn request_shutdown(&self) {
        self.send_command(SUPERVISOR_SHUTDOWN_BYTE);
    }

    /// Ends it and all below it now.
    pub(super) fn kill_tree(&self) {
        self.send_command(SUPERVISOR_END_BYTE);
    }

    fn send_command(&self, word: u8) {
        // Past the runtime, which may not have heard yet that a new socket takes bytes. A guard that
        // is gone has nobody left to end.
        let _ = nix::unistd::write(self.guard.as_fd(), &[word]);
    }
}

/// Starts the service, in the guard, and returns its pid.
///
/// # Errors
/// When there is no such program.
pub(crate) fn spawn_service(command: &[OsString], files: Option<u64>) -> Result<i32> {
    let (program, arguments) = command.split_first().context("no service is named")?;
    // Before anything is started: a descendant whose parent has ended must come to us.
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
