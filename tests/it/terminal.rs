//! A user at a terminal: types, and waits for output.

use crate::commands::terminal;
use crate::harness::TEST_TIMEOUT;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, ChildStdin, Command};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The time until a key is pressed again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The request for the position of the cursor.
const CURSOR_QUERY: &[u8] = b"\x1b[6n";

pub(crate) struct Terminal {
    child: Child,
    keys: Arc<Mutex<ChildStdin>>,
    shows: Receiver<Vec<u8>>,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Output that no wait has consumed yet.
    unread: String,
}

impl Terminal {
    /// Starts the command without the variables that identify the terminal in which the tests run.
    pub(crate) fn start(command: Command) -> Self {
        Self::start_program(command, false)
    }

    /// Like [`Self::start`], and reports the position of the cursor to the program.
    pub(crate) fn start_with_cursor(command: Command) -> Self {
        Self::start_program(command, true)
    }

    fn start_program(mut command: Command, reports_cursor: bool) -> Self {
        quiet(&mut command);
        let mut child = terminal(&command).spawn().unwrap();
        let keys = Arc::new(Mutex::new(child.stdin.take().unwrap()));
        let mut stdout = child.stdout.take().unwrap();
        let (show, shows) = mpsc::channel();
        // The size that `terminal` sets.
        let [rows, columns] = [40, 120].map(|side| NonZero::new(side).unwrap());
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        // Without this clone, the program loses its input with the terminal.
        let answers = reports_cursor.then(|| Arc::clone(&keys));
        let drawn = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 65536];
            let mut undrawn = Vec::new();
            while let Ok(length @ 1..) = stdout.read(&mut bytes) {
                undrawn.extend_from_slice(&bytes[..length]);
                for (row, column) in draw(&drawn, &mut undrawn) {
                    let report = format!("\x1b[{};{}R", row + 1, column + 1);
                    if let Some(answers) = &answers {
                        // A program that has ended reads no answer.
                        let _ = answers.lock().unwrap().write_all(report.as_bytes());
                    }
                }
                if show.send(bytes[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            keys,
            shows,
            screen,
            unread: String::new(),
        }
    }

    pub(crate) fn types(&mut self, keys: &str) {
        let mut input = self.keys.lock().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Waits until the last line of the screen is as expected; the screen.
    #[track_caller]
    pub(crate) fn wait_for_last_line(&mut self, is_expected: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.screen.lock().unwrap().screen().contents();
            if is_expected(screen.trim_end().lines().last().unwrap_or_default()) {
                return screen;
            }
            let left = TEST_TIMEOUT.saturating_sub(begin.elapsed());
            match self.shows.recv_timeout(left) {
                Ok(bytes) => self.unread += &String::from_utf8_lossy(&bytes),
                Err(_) => {
                    let _ = self.child.kill();
                    panic!("the last line is not as expected: {screen}");
                }
            }
        }
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

/// Draws what was written; the places of the cursor at each request for it. Keeps the begin of a request.
fn draw(screen: &Mutex<vt100::Parser>, undrawn: &mut Vec<u8>) -> Vec<(u16, u16)> {
    let mut screen = screen.lock().unwrap();
    let mut places = Vec::new();
    let find = |bytes: &[u8]| {
        let mut windows = bytes.windows(CURSOR_QUERY.len());
        windows.position(|window| window == CURSOR_QUERY)
    };
    while let Some(at) = find(undrawn) {
        let before: Vec<u8> = undrawn.drain(..at + CURSOR_QUERY.len()).collect();
        screen.process(&before[..at]);
        places.push(screen.screen().cursor_position());
    }
    let kept = (1..CURSOR_QUERY.len())
        .rev()
        .find(|length| undrawn.ends_with(&CURSOR_QUERY[..*length]));
    let rest = undrawn.split_off(undrawn.len() - kept.unwrap_or_default());
    screen.process(undrawn);
    *undrawn = rest;
    places
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
