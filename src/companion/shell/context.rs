//! What lasts from command to command: folder, environment, variables, functions, aliases, options.
//!
//! Each command has a bash of its own, so it behaves as `bash -c` does to the byte: `exit`, `set -e`,
//! a crash or a kill end it alone. It begins by reading a script that makes the context (by
//! `BASH_ENV`), and as it exits writes the next one's (`leave.bash`). One that is killed leaves none,
//! and the context stays as it was.
//!
//! Not kept: jobs of the shell and `$!` (see [`super::jobs`]), open descriptors, history.

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Read as a command's bash exits.
pub(super) const LEAVE: &str = include_str!("leave.bash");

/// Variables that bash sets itself, and that can't or need not be made again.
const ITS_OWN: &[&str] = &[
    "_",
    "__osctl_code",
    "BASH",
    "BASHOPTS",
    "BASHPID",
    "BASH_ARGC",
    "BASH_ARGV",
    "BASH_ARGV0",
    "BASH_CMDS",
    "BASH_COMMAND",
    "BASH_COMPAT",
    "BASH_ENV",
    "BASH_EXECUTION_STRING",
    "BASH_LINENO",
    "BASH_SOURCE",
    "BASH_SUBSHELL",
    "BASH_VERSINFO",
    "BASH_VERSION",
    "DIRSTACK",
    "EPOCHREALTIME",
    "EPOCHSECONDS",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "LINENO",
    "PIPESTATUS",
    "PPID",
    "RANDOM",
    "SECONDS",
    "SHELLOPTS",
    "SRANDOM",
    "UID",
];

/// The context of one session.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) cwd: PathBuf,
    /// The folder itself, which may have been moved or removed since.
    pub(super) folder: Arc<OwnedFd>,
    /// Bash that makes everything but options, and then the options; no command has ended yet when
    /// there is none, and the environment is the companion's.
    left: Option<Left>,
    /// What was changed from outside since.
    changes: Vec<u8>,
    /// Rises with every change.
    pub(super) serial: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Left {
    options: Vec<u8>,
    rest: Vec<u8>,
}

impl Context {
    pub(super) fn new(cwd: PathBuf) -> io::Result<Self> {
        let folder = Arc::new(open_folder(&cwd)?);
        Ok(Self {
            cwd,
            folder,
            left: None,
            changes: Vec::new(),
            serial: 0,
        })
    }

    /// Whether the next command gets the companion's environment, as none has left one yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.left.is_none()
    }

    /// The script that a command begins with; `leave` is the path of [`LEAVE`], `left` where that
    /// writes.
    pub(super) fn script(&self, leave: &str, left: &str) -> Vec<u8> {
        let mut script = Vec::new();
        // One group, so that nothing of it is traced or expanded by an alias. What functions need to
        // be parsed comes before.
        script.extend_from_slice(b"shopt -s extglob\n{\n");
        match &self.left {
            Some(left) => script.extend_from_slice(&left.rest),
            None => script.extend_from_slice(b"shopt -u extglob\nshopt -s expand_aliases\n"),
        }
        script.extend_from_slice(&self.changes);
        let trap = format!("unset BASH_ENV\ntrap '{{ . {leave} >{left}; }} 2>/dev/null' EXIT\n");
        script.extend_from_slice(trap.as_bytes());
        if let Some(left) = &self.left {
            script.extend_from_slice(&left.options);
        }
        script.extend_from_slice(b"} >/dev/null 2>&1\n");
        script
    }

    /// The context that a command left; nothing, when it was killed or changed nothing.
    pub(super) fn after(&self, written: &[u8]) -> Option<Self> {
        let mut parts = written.split(|byte| *byte == 0);
        let [Some(cwd), Some(options), Some(rest), Some([])] =
            [parts.next(), parts.next(), parts.next(), parts.next()]
        else {
            return None;
        };
        let left = Left {
            options: lines(options, |line| !line.starts_with(b"shopt -u compat")),
            rest: lines(rest, |line| !is_its_own(line)),
        };
        let cwd = PathBuf::from(OsString::from_vec(cwd.to_vec()));
        if cwd == self.cwd && self.left.as_ref() == Some(&left) {
            return None;
        }
        let folder = match cwd == self.cwd {
            true => self.folder.clone(),
            // One that is gone already: the next command starts where this one did.
            false => Arc::new(open_folder(&cwd).ok()?),
        };
        Some(Self {
            cwd,
            folder,
            left: Some(left),
            changes: Vec::new(),
            serial: self.serial + 1,
        })
    }

    /// Goes to a folder, relative to the present one.
    ///
    /// # Errors
    /// When it is none, or can't be entered; nothing has changed then.
    pub(super) fn cd(&mut self, path: &Path, home: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = match path.strip_prefix("~") {
            Ok(rest) => home.join(rest),
            Err(_) => self.cwd.join(path),
        };
        let cwd = std::fs::canonicalize(&path)?;
        self.folder = Arc::new(open_folder(&cwd)?);
        for (name, folder) in [("OLDPWD", &self.cwd), ("PWD", &cwd)] {
            self.changes
                .extend_from_slice(format!("{name}=").as_bytes());
            let folder = quoted(folder.as_os_str().as_bytes());
            self.changes.extend_from_slice(&folder);
            self.changes.push(b'\n');
        }
        self.cwd = cwd;
        self.serial += 1;
        Ok(())
    }

    /// Sets a variable of the environment, or unsets it. The name must be one.
    pub(super) fn set(&mut self, key: &str, value: Option<&str>) {
        let change = match value {
            Some(value) => {
                let mut change = format!("declare -gx {key}=").into_bytes();
                change.extend_from_slice(&quoted(value.as_bytes()));
                change
            }
            None => format!("unset -v {key}").into_bytes(),
        };
        self.changes.extend_from_slice(&change);
        self.changes.push(b'\n');
        self.serial += 1;
    }
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

fn lines(text: &[u8], keep: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let kept = text.split_inclusive(|byte| *byte == b'\n');
    kept.filter(|line| keep(line)).flatten().copied().collect()
}

/// Whether the line declares a variable of bash's own. Bash writes each variable on one line.
fn is_its_own(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"declare -") else {
        return false;
    };
    let mut words = rest.splitn(2, |byte| *byte == b' ');
    let (Some(flags), Some(rest)) = (words.next(), words.next()) else {
        return false;
    };
    let name = rest.split(|byte| b"=\n".contains(byte)).next();
    // `declare -f NAME` is a function.
    !flags.contains(&b'f')
        && name.is_some_and(|name| ITS_OWN.iter().any(|own| own.as_bytes() == name))
}

/// As one word of bash, whatever is in it.
pub(super) fn quoted(bytes: &[u8]) -> Vec<u8> {
    let mut word = vec![b'\''];
    for byte in bytes {
        match byte {
            b'\'' => word.extend_from_slice(b"'\\''"),
            byte => word.push(*byte),
        }
    }
    word.push(b'\'');
    word
}

#[cfg(test)]
mod tests {
    use super::{Context, is_its_own, quoted};
    use std::path::Path;

    #[test]
    fn only_a_whole_context_replaces_the_old_one() {
        let context = Context::new("/".into()).unwrap();
        assert!(context.after(b"").is_none());
        assert!(context.after(b"/tmp\0set +o xtrace\n\0declare").is_none());
        let left = b"/tmp\0set +o xtrace\nshopt -u compat31\n\0declare -- A=\"1\"\ndeclare -ir UID=\"0\"\n\0";
        let next = context.after(left).unwrap();
        assert_eq!(next.cwd, Path::new("/tmp"));
        let script = String::from_utf8(next.script("L", "O")).unwrap();
        assert!(
            script.contains("A=\"1\"") && script.contains("xtrace"),
            "{script}"
        );
        assert!(!script.contains("UID") && !script.contains("compat31"));
        // The same again is no change.
        assert!(next.after(left).is_none());
    }

    #[test]
    fn a_folder_that_is_none_changes_nothing() {
        let mut context = Context::new("/".into()).unwrap();
        assert!(context.cd(Path::new("no/such"), Path::new("/")).is_err());
        assert_eq!(context.cwd, Path::new("/"));
        context.cd(Path::new("~"), Path::new("/tmp")).unwrap();
        assert_eq!(context.cwd, Path::new("/tmp"));
    }

    #[test]
    fn words_are_quoted() {
        assert_eq!(quoted(b"it's $HOME"), b"'it'\\''s $HOME'");
    }

    #[test]
    fn variables_of_bash_are_told_from_functions() {
        assert!(is_its_own(b"declare -ir PPID=\"1\"\n"));
        assert!(!is_its_own(b"declare -x PATH=\"/bin\"\n") && !is_its_own(b"declare -fx UID\n"));
    }
}
