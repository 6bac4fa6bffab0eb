//! The shell of a terminal, below a guard of its own (see `companion::reaper`): whatever the shell
//! starts ends with the terminal, also what left its session.
//!
//! ```text
//! companion ═══ guard (its stdin: one word in, one byte out) ── shell (session, terminal) ── …
//! ```
//!
//! The guard holds the terminal open, so its end of file comes after the last descendant's.

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

/// What programs draw for when the client's kind of terminal is not known inside.
const FALLBACK_TERM: &str = "xterm-256color";

/// Where the descriptions of terminals are, by the first letter of their names.
const TERMINFO_FOLDERS: &[&str] = &[
    "/etc/terminfo",
    "/lib/terminfo",
    "/usr/share/terminfo",
    "/usr/lib/terminfo",
];

/// What a shell is started with.
#[derive(Debug, Clone)]
pub(crate) struct PtyStart {
    pub(crate) size: TerminalSize,
    /// The kind of the client's terminal.
    pub(crate) term: Option<String>,
    pub(crate) folder: Option<PathBuf>,
    /// The companion's own when missing.
    pub(crate) environment: Option<Vec<(OsString, OsString)>>,
    pub(crate) session: String,
}

#[derive(Debug)]
pub(super) struct PtyShell {
    guard: UnixStream,
    /// Collected when it has ended. Never killed: it ends all below it when we are gone.
    _process: Child,
    code: Option<u8>,
}

impl PtyShell {
    pub(super) fn start_shell(terminal: OwnedFd, start: &PtyStart) -> Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        // This very binary, also when its file was replaced meanwhile.
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
            // What keeps it from starting is then shown to whom it concerns.
            .stderr(terminal);
        for secret in settings::COMPANION_ONLY_VARIABLES {
            command.env_remove(secret);
        }
        if let Some(folder) = start.folder.as_deref().filter(|folder| folder.is_dir()) {
            command.current_dir(folder);
        }
        let process = command.spawn().context("starting a shell's guard")?;
        Ok(Self {
            guard: UnixStream::from_std(ours)?,
            _process: process,
            code: None,
        })
    }

    /// The exit code, 128+n for signal n, once the shell and all below it are gone. Loses nothing
    /// when dropped.
    pub(super) async fn wait_for_exit(&mut self) -> u8 {
        loop {
            // What can't be polled any more is over.
            let _ = self.guard.readable().await;
            let mut byte = [0];
            match self.guard.try_read(&mut byte) {
                Ok(1) => self.code = Some(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Without a code its guard was killed, and it with it.
                Ok(_) | Err(_) => return self.code.unwrap_or(128 + libc::SIGKILL as u8),
            }
        }
    }

    /// Ends the shell, which has a moment to end by itself.
    pub(super) fn hang_up(&self) {
        self.send_byte(SUPERVISOR_SHUTDOWN_BYTE);
    }

    /// Ends the shell and all below it now.
    pub(super) fn end_now(&self) {
        self.send_byte(SUPERVISOR_END_BYTE);
    }

    fn send_byte(&self, word: u8) {
        // Past the runtime, which may not have heard yet that a new socket takes bytes. A guard that
        // is gone has nobody left to end.
        let _ = nix::unistd::write(self.guard.as_fd(), &[word]);
    }
}

/// Starts the shell, in the guard: its terminal is this process's stderr. Returns its pid.
///
/// # Errors
/// When there is no such program.
pub(crate) fn spawn_terminal_shell(command: &[OsString]) -> Result<i32> {
    let (program, arguments) = command.split_first().context("no shell is named")?;
    // Before anything is started: a descendant whose parent has ended must come to us.
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
    let shell = shell.with_context(|| format!("starting `{}`", program.to_string_lossy()))?;
    Ok(shell.id().cast_signed())
}

/// The person's own shell where the machine is theirs, bash inside, else what every system has.
fn shell_program() -> OsString {
    let own = env::var_os("SHELL").filter(|_| env::var_os("OSCTL_EMBEDDED").is_some());
    let known = ["/bin/bash", "/usr/bin/bash"].map(OsString::from);
    own.into_iter()
        .chain(known)
        .find(|path| Path::new(path).is_file())
        .unwrap_or_else(|| "/bin/sh".into())
}

/// The client's kind of terminal where it is known here.
fn supported_term(asked: Option<&str>) -> &str {
    let asked = asked.filter(|asked| is_kind(asked));
    asked.filter(|kind| is_known(kind)).unwrap_or(FALLBACK_TERM)
}

/// A name becomes part of a path.
fn is_kind(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(fits) && !name.starts_with('.')
}

fn is_known(kind: &str) -> bool {
    TERMINFO_FOLDERS.iter().any(|folder| {
        let first: &OsStr = kind[..1].as_ref();
        Path::new(folder).join(first).join(kind).is_file()
    })
}

#[cfg(test)]
mod tests {
    use super::{FALLBACK_TERM, is_kind, supported_term};

    #[test]
    fn a_kind_of_terminal_that_is_not_known_is_a_common_one() {
        assert_eq!(supported_term(Some("no-such-terminal")), FALLBACK_TERM);
        assert_eq!(supported_term(Some("../../etc/passwd")), FALLBACK_TERM);
        assert_eq!(supported_term(None), FALLBACK_TERM);
    }

    #[test]
    fn a_kind_can_be_no_path() {
        assert!(is_kind("xterm-256color") && is_kind("rxvt-unicode+x"));
        for name in ["", ".", "..", "a/b", "ä", "a b", &"x".repeat(65)] {
            assert!(!is_kind(name), "{name}");
        }
    }
}
