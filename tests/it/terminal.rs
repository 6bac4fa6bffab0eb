//! A person at a terminal: types, and waits for what is shown.

use crate::commands::terminal;
use crate::harness::TEST_TIMEOUT;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// After how long a key is pressed again.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Terminal {
    child: Child,
    keys: ChildStdin,
    shows: Receiver<Vec<u8>>,
    /// What was shown and not waited for yet.
    fresh: String,
}

impl Terminal {
    /// Without the variables by which the terminal of whoever runs the tests is known.
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
            fresh: String::new(),
        }
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Presses a key until `text` is shown: a completion that takes too long is none.
    #[track_caller]
    pub(crate) fn press_until(&mut self, key: &str, text: &str) {
        let begin = Instant::now();
        while begin.elapsed() < TEST_TIMEOUT && !self.fresh.contains(text) {
            self.types(key);
            let pressed = Instant::now();
            while let Some(left) = AGAIN.checked_sub(pressed.elapsed())
                && !self.fresh.contains(text)
                && let Ok(bytes) = self.shows.recv_timeout(left)
            {
                self.fresh += &String::from_utf8_lossy(&bytes);
            }
        }
        self.wait_for(text);
    }

    /// Waits until `text` is shown; everything up to there.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            if let Some(at) = self.fresh.find(text) {
                let rest = self.fresh.split_off(at + text.len());
                return std::mem::replace(&mut self.fresh, rest);
            }
            let left = TEST_TIMEOUT.saturating_sub(begin.elapsed());
            match self.shows.recv_timeout(left) {
                Ok(bytes) => self.fresh += &String::from_utf8_lossy(&bytes),
                Err(_) => {
                    let _ = self.child.kill();
                    panic!("`{text}` was not shown, but {:?}", self.fresh);
                }
            }
        }
    }

    /// The exit code, and the rest of what was shown.
    #[track_caller]
    pub(crate) fn end(mut self) -> (i32, String) {
        loop {
            match self.shows.recv_timeout(TEST_TIMEOUT) {
                Ok(bytes) => self.fresh += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    panic!("it did not end, but showed {:?}", self.fresh);
                }
            }
        }
        let code = self.child.wait().unwrap().code();
        (code.unwrap_or(-1), self.fresh)
    }
}

/// A plain xterm without colours, whatever the tests run in.
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
