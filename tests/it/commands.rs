//! Child processes of the trials: run to the end, followed line by line, or started on a terminal.

use crate::harness::TEST_TIMEOUT;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;

/// Exit code and output of a command.
#[derive(Debug, Clone)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs the command on its own terminal and types `answer`; all output is in `stdout`.
pub(crate) fn on_terminal(command: &Command, answer: &str) -> Ran {
    let mut child = terminal(command).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(format!("{answer}\n").as_bytes()).unwrap();
    Ran::from(child.wait_with_output().unwrap())
}

/// The command on its own terminal, with pipes for input and output.
pub(crate) fn terminal(command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = |word: &OsStr| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''"));
    let words = words.map(quoted).collect::<Vec<_>>().join(" ");
    let line = format!("stty rows 40 columns 120; exec {words}");
    let mut terminal = Command::new("/usr/bin/script");
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    terminal.envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
    terminal.envs([("SHELL", "/bin/sh")]);
    if let Some(folder) = command.get_current_dir() {
        terminal.current_dir(folder);
    }
    terminal.stdin(Stdio::piped()).stdout(Stdio::piped());
    terminal
}

/// A running command whose stderr is followed line by line.
#[derive(Debug)]
pub(crate) struct Followed {
    child: Child,
    /// Kills a command that hangs, so that its test fails instead of hanging too.
    _watch: Sender<()>,
    lines: BufReader<std::process::ChildStderr>,
    pub(crate) seen: Vec<String>,
}

impl Followed {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        let (watch, gone) = mpsc::channel::<()>();
        let pid = child.id().to_string();
        thread::spawn(move || {
            if gone.recv_timeout(5 * TEST_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-s", "KILL", &pid]).status();
            }
        });
        Self {
            child,
            _watch: watch,
            lines,
            seen: Vec::new(),
        }
    }

    /// Waits for a line that contains `text`; `false` when the command ended without it.
    pub(crate) fn wait_for(&mut self, text: &str) -> bool {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            self.seen.push(std::mem::take(&mut line));
            if self.seen.last().is_some_and(|l| l.contains(text)) {
                return true;
            }
        }
        false
    }

    /// Sends a signal by name, such as `INT` or `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let signal: Signal = format!("SIG{name}").parse().unwrap();
        nix::sys::signal::kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Waits for the end; returns the exit code and the lines of stderr.
    pub(crate) fn end(mut self) -> (i32, Vec<String>) {
        self.wait_for("\u{0}");
        (self.child.wait().unwrap().code().unwrap_or(-1), self.seen)
    }
}
