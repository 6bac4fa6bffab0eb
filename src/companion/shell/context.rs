//! The state that each command passes to the next one: folder, environment, variables, functions, aliases, options.
//!
//! Each command runs in its own bash, so it behaves exactly as `bash -c`: `exit`, `set -e`, a crash or a kill end this
//! bash alone. It starts by reading a script that sets up the context (by `BASH_ENV`), and as it exits writes the
//! context for the next command (`leave.bash`). A killed command writes none, and the context stays unchanged.
//!
//! Not kept: jobs of the shell and `$!` (see [`super::jobs`]), open descriptors, history.

use crate::companion::environment::inherited_variable;
use crate::protocol::environment::UserEnvironment;
use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The script that a command's bash reads as it exits.
pub(super) const CONTEXT_EXIT_SCRIPT: &str = include_str!("leave.bash");

/// Variables that bash sets itself, and that cannot or need not be restored.
const BASH_OWN_VARIABLES: &[&str] = &[
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

/// Maximum number of remembered changes from outside.
const MAX_CONTEXT_CHANGES: usize = 256;

/// The context of one session.
#[derive(Debug, Clone)]
pub(super) struct ShellContext {
    pub(super) cwd: PathBuf,
    /// The folder itself, which may have been moved or removed since.
    pub(super) folder: Arc<OwnedFd>,
    /// Bash code that sets up everything but options, and the code for options. `None` until a command has ended; the
    /// environment is then the companion's.
    bash_state: Option<BashState>,
    /// Changes from outside since the last command ended, as bash code.
    changes: Vec<u8>,
    /// Recent changes from outside, including changes that a running command may not have seen.
    recent_changes: VecDeque<ContextChange>,
    /// Rises with every change.
    pub(super) serial: u64,
    /// The user's variables of the next command.
    environment: Arc<UserEnvironment>,
    /// The user's variables with which bash left its state.
    bash_environment: Arc<UserEnvironment>,
}

/// A folder to change to.
#[derive(Debug)]
pub(crate) struct ShellFolder {
    cwd: PathBuf,
    folder: Arc<OwnedFd>,
}

/// A change from outside.
#[derive(Debug, Clone)]
struct ContextChange {
    serial: u64,
    script: Vec<u8>,
    folder: Option<(PathBuf, Arc<OwnedFd>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct BashState {
    options: Vec<u8>,
    definitions: Vec<u8>,
}

/// A context in a form that can be stored; in base64, because bash's output need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PackedContext {
    cwd: PathBuf,
    options: Option<String>,
    rest: Option<String>,
    changes: String,
}

/// The command that makes bash write its context with [`CONTEXT_EXIT_SCRIPT`]. It removes a DEBUG trap first, because
/// the trap would run inside the script; the output of the trap is discarded.
pub(super) fn exit_trap(exit_script: &str, output: &str) -> String {
    let debug = format!("builtin trap -p DEBUG >|{output}; builtin trap - DEBUG");
    format!("{{ {{ {debug}; }} >/dev/null; . {exit_script} >>{output}; }} 2>/dev/null")
}

impl ShellContext {
    pub(super) fn new(cwd: PathBuf) -> io::Result<Self> {
        let folder = Arc::new(open_folder(&cwd)?);
        Ok(Self {
            cwd,
            folder,
            bash_state: None,
            changes: Vec::new(),
            recent_changes: VecDeque::new(),
            serial: 0,
            environment: Arc::default(),
            bash_environment: Arc::default(),
        })
    }

    /// Whether no command has left a context yet; the next command then gets the companion's environment.
    pub(super) fn is_fresh(&self) -> bool {
        self.bash_state.is_none()
    }

    /// The context whose next command has these variables of the user.
    pub(super) fn with_environment(self, environment: Arc<UserEnvironment>) -> Self {
        Self {
            environment,
            ..self
        }
    }

    /// The context in whose state these variables of the user are the inherited ones.
    pub(super) fn with_restored_environment(self, environment: Arc<UserEnvironment>) -> Self {
        Self {
            bash_environment: environment,
            ..self
        }
    }

    /// The user's variables of the next command.
    pub(super) fn environment(&self) -> &Arc<UserEnvironment> {
        &self.environment
    }

    /// The user's variables in bash's state.
    pub(super) fn bash_environment(&self) -> &UserEnvironment {
        &self.bash_environment
    }

    /// Bash code with the changes since bash's state: of the user's variables, then from outside.
    fn change_script(&self) -> Vec<u8> {
        let mut script = Vec::new();
        if !self.is_fresh() {
            let environment = &self.environment;
            for (name, value) in
                environment.changes_since(&self.bash_environment, inherited_variable)
            {
                script.extend_from_slice(&variable_script(&name, value.as_deref()));
            }
        }
        script.extend_from_slice(&self.changes);
        script
    }

    /// The script with which a command starts; `exit_script` is the path of [`CONTEXT_EXIT_SCRIPT`], `output` the path
    /// of its output.
    pub(super) fn start_script(&self, exit_script: &str, output: &str) -> Vec<u8> {
        let mut script = Vec::new();
        // One group, so that nothing in it is traced or expanded by an alias. Options that functions need to be parsed
        // come before it.
        script.extend_from_slice(b"shopt -s extglob\n{\n");
        match &self.bash_state {
            Some(state) => script.extend_from_slice(&state.definitions),
            None => script.extend_from_slice(b"shopt -u extglob\nshopt -s expand_aliases\n"),
        }
        script.extend_from_slice(&self.change_script());
        let trap_script = exit_trap(exit_script, output);
        let trap = format!("unset BASH_ENV\ntrap '{trap_script}' EXIT\n");
        script.extend_from_slice(trap.as_bytes());
        if let Some(state) = &self.bash_state {
            script.extend_from_slice(&state.options);
        }
        script.extend_from_slice(b"} >/dev/null 2>&1\n");
        script
    }

    /// The context that a command left; `None` when it was killed or changed nothing.
    pub(super) fn next_context(&self, written: &[u8]) -> Option<Self> {
        let mut parts = written.split(|byte| *byte == 0);
        let mut next = || parts.next();
        // Text after the last NUL was printed by a trap at the end of a script.
        let [
            Some(debug),
            Some(cwd),
            Some(is_there),
            Some(options),
            Some(definitions),
            Some(_),
        ] = [next(), next(), next(), next(), next(), next()]
        else {
            return None;
        };
        let mut options = filter_lines(options, |line| !line.starts_with(b"shopt -u compat"));
        // The DEBUG trap comes last, because it runs before every command.
        options.extend_from_slice(debug);
        let bash_state = BashState {
            options,
            definitions: filter_lines(definitions, |line| !is_bash_variable(line)),
        };
        let cwd = PathBuf::from(OsString::from_vec(cwd.to_vec()));
        let folder = match cwd == self.cwd {
            // The folder was recreated under the same name, and entered.
            true if !is_there.is_empty() => match open_folder(&cwd) {
                Ok(folder) if !is_same_folder(&folder, &self.folder) => Arc::new(folder),
                _ => self.folder.clone(),
            },
            // The folder was moved or removed, and bash is still in it.
            true => self.folder.clone(),
            // The folder is gone already: the next command starts where this command did.
            false => Arc::new(open_folder(&cwd).ok()?),
        };
        let is_unchanged = cwd == self.cwd && Arc::ptr_eq(&folder, &self.folder);
        if is_unchanged && self.bash_state.as_ref() == Some(&bash_state) {
            return None;
        }
        Some(Self {
            cwd,
            folder,
            bash_state: Some(bash_state),
            changes: Vec::new(),
            recent_changes: VecDeque::new(),
            serial: self.serial + 1,
            environment: self.environment.clone(),
            bash_environment: self.environment.clone(),
        })
    }

    /// Merges changes from outside into the context that a command left. The command started when the serial was
    /// `began`; `now` is the context that the result replaces.
    pub(super) fn merge_changes(mut self, now: &Self, began: u64) -> Self {
        for change in now
            .recent_changes
            .iter()
            .filter(|change| change.serial > began)
        {
            self.changes.extend_from_slice(&change.script);
            if let Some((cwd, folder)) = &change.folder {
                (self.cwd, self.folder) = (cwd.clone(), folder.clone());
            }
        }
        self.recent_changes.clone_from(&now.recent_changes);
        self.serial = now.serial.max(self.serial) + 1;
        self
    }

    fn record_change(&mut self, script: Vec<u8>, folder: Option<(PathBuf, Arc<OwnedFd>)>) {
        self.serial += 1;
        self.changes.extend_from_slice(&script);
        if self.recent_changes.len() == MAX_CONTEXT_CHANGES {
            self.recent_changes.pop_front();
        }
        let serial = self.serial;
        self.recent_changes.push_back(ContextChange {
            serial,
            script,
            folder,
        });
    }

    /// The context in a form that can be stored.
    pub(super) fn pack(&self) -> PackedContext {
        PackedContext {
            cwd: self.cwd.clone(),
            options: self
                .bash_state
                .as_ref()
                .map(|state| encode_base64(&state.options)),
            rest: self
                .bash_state
                .as_ref()
                .map(|state| encode_base64(&state.definitions)),
            changes: encode_base64(&self.changes),
        }
    }

    /// # Errors
    /// When its folder does not exist, or the packed context is damaged.
    pub(super) fn unpack(packed: PackedContext) -> io::Result<Self> {
        let bytes = |text: &str| STANDARD.decode(text).map_err(io::Error::other);
        let bash_state = match (packed.options, packed.rest) {
            (Some(options), Some(definitions)) => Some(BashState {
                options: bytes(&options)?,
                definitions: bytes(&definitions)?,
            }),
            _ => None,
        };
        Ok(Self {
            bash_state,
            changes: bytes(&packed.changes)?,
            ..Self::new(packed.cwd)?
        })
    }

    /// As [`Self::unpack`], but in `home` when the folder no longer exists.
    ///
    /// # Errors
    /// When the packed context is damaged.
    pub(super) fn unpack_or_home(packed: PackedContext, home: &Path) -> io::Result<Self> {
        match open_folder(&packed.cwd) {
            Ok(_) => Self::unpack(packed),
            Err(error) => {
                tracing::warn!(path = %packed.cwd.display(), %error, "the folder of the session can't be entered");
                let cwd = home.to_owned();
                Self::unpack(PackedContext { cwd, ..packed })
            }
        }
    }

    /// Bash's output without options, if a command has left any.
    pub(super) fn definitions_mut(&mut self) -> Option<&mut Vec<u8>> {
        self.bash_state.as_mut().map(|state| &mut state.definitions)
    }

    /// Bash's output without options, if a command has left any, and the changes since then.
    pub(super) fn variable_scripts(&self) -> (Option<&[u8]>, Vec<u8>) {
        let definitions = self
            .bash_state
            .as_ref()
            .map(|state| state.definitions.as_slice());
        (definitions, self.change_script())
    }

    /// Changes the folder.
    pub(super) fn change_folder(&mut self, found: ShellFolder) {
        let ShellFolder { cwd, folder } = found;
        self.folder = folder;
        let mut script = Vec::new();
        for (name, folder) in [("OLDPWD", &self.cwd), ("PWD", &cwd)] {
            script.extend_from_slice(format!("{name}=").as_bytes());
            script.extend_from_slice(&quote_word(folder.as_os_str().as_bytes()));
            script.push(b'\n');
        }
        self.record_change(script, Some((cwd.clone(), self.folder.clone())));
        self.cwd = cwd;
    }

    /// Sets or unsets an environment variable. The caller checks the name.
    pub(super) fn set_variable(&mut self, key: &str, value: Option<&str>) {
        self.record_change(variable_script(key, value), None);
    }
}

impl ShellFolder {
    /// Resolves a folder, relative to `cwd`. May wait for the disk.
    ///
    /// # Errors
    /// When the path is not a folder, or cannot be entered.
    pub(super) fn resolve(path: &Path, cwd: &Path, home: &Path) -> io::Result<Self> {
        if path.as_os_str().is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = match path.strip_prefix("~") {
            Ok(rest) => home.join(rest),
            Err(_) => cwd.join(path),
        };
        let cwd = std::fs::canonicalize(&path)?;
        let folder = Arc::new(open_folder(&cwd)?);
        Ok(Self { cwd, folder })
    }
}

/// Bash code that sets or unsets an environment variable.
fn variable_script(name: &str, value: Option<&str>) -> Vec<u8> {
    let mut script = match value {
        Some(value) => {
            let mut change = format!("declare -gx {name}=").into_bytes();
            change.extend_from_slice(&quote_word(value.as_bytes()));
            change
        }
        None => format!("unset -v {name}").into_bytes(),
    };
    script.push(b'\n');
    script
}

fn encode_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

fn is_same_folder(one: &OwnedFd, other: &OwnedFd) -> bool {
    match (fstat(one), fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

fn filter_lines(text: &[u8], keep: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.filter(|line| keep(line)).flatten().copied().collect()
}

/// Whether the line declares a variable. Bash writes each declaration on one line.
pub(super) fn is_declaration(line: &[u8]) -> bool {
    declared_name(line).is_some()
}

/// Whether the line declares a variable that bash sets itself.
fn is_bash_variable(line: &[u8]) -> bool {
    declared_name(line)
        .is_some_and(|name| BASH_OWN_VARIABLES.iter().any(|own| own.as_bytes() == name))
}

/// The name of the variable that the line declares.
fn declared_name(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"declare -")?;
    let at = rest.iter().position(|byte| *byte == b' ')?;
    let (flags, rest) = rest.split_at(at);
    // `declare -f NAME` is a function.
    if flags.contains(&b'f') {
        return None;
    }
    rest[1..].split(|byte| b"=\n".contains(byte)).next()
}

/// Quotes any bytes as one word of bash.
pub(super) fn quote_word(bytes: &[u8]) -> Vec<u8> {
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
mod tests;
