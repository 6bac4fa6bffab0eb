//! A user at a terminal: types, and waits for output.

use crate::commands::terminal;
use crate::harness::TEST_TIMEOUT;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The time until a key is pressed again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Terminal {
    child: Child,
    keys: ChildStdin,
    shows: Receiver<Vec<u8>>,
    /// Output that no wait has consumed yet.
    unread: String,
}

impl Terminal {
    /// Starts the command without the variables that identify the terminal in which the tests run.
    pub(crate) fn start(mut command: Command) -> Self {
        quiet(&mut command);
        let mut child = terminal(&command).spawn().unwrap();
        let keys = child.stdin.take().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (show, shows) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 65536];
            while let Ok(length @ 1..) = stdout.read(&mut bytes) {
                if show.send(bytes[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            keys,
            shows,
            unread: String::new(),
        }
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Presses a key until `text` is shown: the shell drops a completion that takes too long.
    #[track_caller]
    pub(crate) fn press_until(&mut self, key: &str, text: &str) {
        let begin = Instant::now();
        while begin.elapsed() < TEST_TIMEOUT && !self.unread.contains(text) {
            self.types(key);
            let pressed = Instant::now();
            while let Some(left) = REPEAT_INTERVAL.checked_sub(pressed.elapsed())
                && !self.unread.contains(text)
                && let Ok(bytes) = self.shows.recv_timeout(left)
            {
                self.unread += &String::from_utf8_lossy(&bytes);
            }
        }
        self.wait_for(text);
    }

    /// Waits until `text` is shown; the output up to its end.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            if let Some(at) = self.unread.find(text) {
                let rest = self.unread.split_off(at + text.len());
                return std::mem::replace(&mut self.unread, rest);
            }
            let left = TEST_TIMEOUT.saturating_sub(begin.elapsed());
            match self.shows.recv_timeout(left) {
                Ok(bytes) => self.unread += &String::from_utf8_lossy(&bytes),
                Err(_) => {
                    let _ = self.child.kill();
                    panic!("`{text}` was not shown, but {:?}", self.unread);
                }
            }
        }
    }

    /// Waits for the end; the exit code, and the rest of the output.
    #[track_caller]
    pub(crate) fn end(mut self) -> (i32, String) {
        loop {
            match self.shows.recv_timeout(TEST_TIMEOUT) {
                Ok(bytes) => self.unread += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    panic!("the program did not end, but showed {:?}", self.unread);
                }
            }
        }
        let code = self.child.wait().unwrap().code();
        (code.unwrap_or(-1), self.unread)
    }
}

/// A plain xterm without colours, whatever the environment of the tests.
fn quiet(command: &mut Command) {
    for name in [
        "TMUX",
        "STY",
        "ZELLIJ",
        "KITTY_WINDOW_ID",
        "LC_TERMINAL",
        "TERM_PROGRAM",
        "WEZTERM_PANE",
        "WEZTERM_EXECUTABLE",
    ] {
        if !command.get_envs().any(|(known, _)| known == name) {
            command.env(name, "");
        }
    }
    command.env("TERM", "xterm-256color").env("NO_COLOR", "1");
}
