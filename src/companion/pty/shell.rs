//! The shell of a terminal, below its own supervisor (see `companion::supervisor`): all processes that the shell starts
//! end with the terminal, even processes that left its session.
//!
//! ```text
//! companion ═══ supervisor (its stdin: one byte in, one byte out) ── shell (session, terminal) ── …
//! ```
//!
//! The supervisor holds the terminal open, so the end of file of the terminal comes after the end of the last
//! descendant.

use super::device::TerminalSize;
use crate::companion::kernel::{SUPERVISOR_END_BYTE, SUPERVISOR_SHUTDOWN_BYTE};
use crate::companion::settings;
use crate::error::Result;
use anyhow::Context;
use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::unistd::setsid;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// The `TERM` used when the container has no description of the client's terminal.
const FALLBACK_TERM: &str = "xterm-256color";

/// Folders of terminal descriptions, sorted by the first letter of their names.
const TERMINFO_FOLDERS: &[&str] = &[
    "/etc/terminfo",
    "/lib/terminfo",
    "/usr/share/terminfo",
    "/usr/lib/terminfo",
];

/// The parameters of a shell.
#[derive(Debug, Clone)]
pub(crate) struct PtyStart {
    pub(crate) size: TerminalSize,
    /// The kind of the client's terminal.
    pub(crate) term: Option<String>,
    pub(crate) cwd: Option<PathBuf>,
    /// The environment; the companion's own when missing.
    pub(crate) environment: Option<Vec<(OsString, OsString)>>,
    pub(crate) session: String,
}

#[derive(Debug)]
pub(super) struct PtyShell {
    supervisor_stream: UnixStream,
    /// Reaped when it has ended. Never killed: it ends all its descendants when the companion is gone.
    _process: Child,
    exit_code: Option<u8>,
}

impl PtyShell {
    pub(super) fn start_shell(terminal: OwnedFd, start: &PtyStart) -> Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        // This binary, even if its file was replaced since the start.
        let mut command = Command::new("/proc/self/exe");
        if let Some(environment) = &start.environment {
            command.env_clear().envs(environment.iter().cloned());
        }
        command
            .args(["reaper", "--terminal"])
            .arg(shell_program())
            .arg("-i")
            .env("TERM", supported_term(start.term.as_deref()))
            .env("OSCTL_SESSION", &start.session)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            // A start error appears on the terminal, to the person who opened it.
            .stderr(terminal);
        for secret in settings::COMPANION_ONLY_VARIABLES {
            command.env_remove(secret);
        }
        if let Some(folder) = start.cwd.as_deref().filter(|folder| folder.is_dir()) {
            command.current_dir(folder);
        }
        let process = command
            .spawn()
            .context("the shell's supervisor can't be started")?;
        Ok(Self {
            supervisor_stream: UnixStream::from_std(ours)?,
            _process: process,
            exit_code: None,
        })
    }

    /// The exit code, 128+n for signal n, once the shell and all its descendants are gone. Cancel safe.
    pub(super) async fn wait_for_exit(&mut self) -> u8 {
        loop {
            // A socket that can't be polled counts as closed.
            let _ = self.supervisor_stream.readable().await;
            let mut byte = [0];
            match self.supervisor_stream.try_read(&mut byte) {
                Ok(1) => self.exit_code = Some(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Without an exit code, the supervisor was killed, and the shell with it.
                Ok(_) | Err(_) => return self.exit_code.unwrap_or(128 + libc::SIGKILL as u8),
            }
        }
    }

    /// Asks the shell to end; it has a moment to do so.
    pub(super) fn hang_up(&self) {
        self.send_byte(SUPERVISOR_SHUTDOWN_BYTE);
    }

    /// Ends the shell and all its descendants now.
    pub(super) fn kill_tree(&self) {
        self.send_byte(SUPERVISOR_END_BYTE);
    }

    fn send_byte(&self, byte: u8) {
        // Writes without the async runtime, which may not know yet that a new socket is writable. A failed write means
        // that the supervisor has ended, and all its descendants with it.
        let _ = nix::unistd::write(self.supervisor_stream.as_fd(), &[byte]);
    }
}

/// Starts the shell in the supervisor process; the terminal is this process's stderr. Returns the shell's pid.
///
/// # Errors
/// When the program does not exist.
pub(crate) fn spawn_terminal_shell(command: &[OsString]) -> Result<i32> {
    let (program, arguments) = command
        .split_first()
        .context("the command of the shell is missing")?;
    // Before the shell starts: orphaned descendants must be reparented to this process.
    prctl::set_child_subreaper(true)?;
    let terminal = || io::stderr().as_fd().try_clone_to_owned();
    let mut shell = std::process::Command::new(program);
    shell
        .args(arguments)
        .stdin(terminal()?)
        .stdout(terminal()?)
        .stderr(terminal()?);
    // SAFETY: between fork and exec only two system calls are made, and nothing is allocated.
    unsafe {
        shell.pre_exec(|| {
            setsid()?;
            Errno::result(libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0))?;
            Ok(())
        });
    }
    let shell = shell.spawn();
    let shell =
        shell.with_context(|| format!("`{}` can't be started", program.to_string_lossy()))?;
    Ok(shell.id().cast_signed())
}

/// The user's shell in embedded mode, bash in a container, otherwise `/bin/sh`.
fn shell_program() -> OsString {
    let own = env::var_os("SHELL").filter(|_| env::var_os("OSCTL_EMBEDDED").is_some());
    let known = ["/bin/bash", "/usr/bin/bash"].map(OsString::from);
    own.into_iter()
        .chain(known)
        .find(|path| Path::new(path).is_file())
        .unwrap_or_else(|| "/bin/sh".into())
}

/// The client's kind of terminal if its description exists here.
fn supported_term(requested: Option<&str>) -> &str {
    let requested = requested.filter(|requested| is_term_name(requested));
    requested
        .filter(|kind| has_terminfo(kind))
        .unwrap_or(FALLBACK_TERM)
}

/// Validates the name, because it becomes part of a path.
fn is_term_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(fits) && !name.starts_with('.')
}

fn has_terminfo(kind: &str) -> bool {
    TERMINFO_FOLDERS.iter().any(|folder| {
        let first: &OsStr = kind[..1].as_ref();
        Path::new(folder).join(first).join(kind).is_file()
    })
}

#[cfg(test)]
mod tests {
    use super::{FALLBACK_TERM, is_term_name, supported_term};

    #[test]
    fn an_unknown_kind_of_terminal_becomes_a_common_one() {
        assert_eq!(supported_term(Some("no-such-terminal")), FALLBACK_TERM);
        assert_eq!(supported_term(Some("../../etc/passwd")), FALLBACK_TERM);
        assert_eq!(supported_term(None), FALLBACK_TERM);
    }

    #[test]
    fn a_terminal_type_is_not_a_path() {
        assert!(is_term_name("xterm-256color") && is_term_name("rxvt-unicode+x"));
        for name in ["", ".", "..", "a/b", "ä", "a b", &"x".repeat(65)] {
            assert!(!is_term_name(name), "{name}");
        }
    }
}
