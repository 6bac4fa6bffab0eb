//! The shell of a terminal, beneath a supervisor: all processes that the shell starts end with the terminal.

use super::device::TerminalSize;
use crate::companion::settings::inherited_environment;
use crate::supervise::{ProcessKind, ProcessStart, Supervisor};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

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

/// Starts the supervisor of the shell, and requests the shell.
///
/// # Errors
/// When the supervisor can't be started.
pub(super) fn spawn_shell(terminal: OwnedFd, start: &PtyStart) -> io::Result<Supervisor> {
    let term = supported_term(start.term.as_deref()).into();
    let mut environment = start
        .environment
        .clone()
        .unwrap_or_else(|| inherited_environment().collect());
    environment.extend([
        ("TERM".into(), term),
        ("OSCTL_SESSION".into(), start.session.clone().into()),
    ]);
    let folder = start.cwd.as_deref().filter(|folder| folder.is_dir());
    let folder = File::open(folder.unwrap_or(Path::new(".")))?;
    let shell = shell_program();
    let start = ProcessStart {
        kind: ProcessKind::Terminal,
        program: shell.clone(),
        args: vec![shell, "-i".into()],
        environment,
        max_open_files: None,
    };
    let ends = terminal.as_fd();
    Supervisor::spawn_process(&start, [ends, ends, ends, folder.as_fd()])
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
