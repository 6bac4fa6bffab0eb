//! Queries for the properties of the terminal, with a short timeout.
//!
//! Two queries are sent together: the size of the text area in pixels, which many terminals do not answer, and the
//! primary device attributes, which all terminals answer. Responses arrive in the order of the queries, so the second
//! response is the last. The terminal's mode is always restored. Input typed during the query, which happens once per
//! process, is lost.

use super::TerminalAnswers;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{self, LocalFlags, SetArg, Termios};
use nix::unistd::{getpgrp, tcgetpgrp};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// `CSI 14 t`, then `CSI c`.
const TERMINAL_QUERIES: &[u8] = b"\x1b[14t\x1b[c";

/// A terminal at the other end of a slow connection answers in this time; a pipe never does.
const TERMINAL_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// A longer input is not a response.
const MAX_TERMINAL_ANSWER_BYTES: usize = 1024;

/// The attribute of terminals that draw sixels.
const SIXEL_ATTRIBUTE: &str = "4";

/// `None` if there is no terminal, or another job is in its foreground.
pub(super) fn query_terminal() -> Option<TerminalAnswers> {
    let terminal = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/tty")
        .ok()?;
    // A background process would be stopped when it accesses the terminal.
    if tcgetpgrp(&terminal).ok()? != getpgrp() {
        return None;
    }
    let mut raw = UnbufferedTerminal::new(terminal)?;
    raw.terminal.write_all(TERMINAL_QUERIES).ok()?;
    Some(parse_answers(&raw.read_answers()))
}

/// The terminal in a mode without line buffering and echo.
#[derive(Debug)]
struct UnbufferedTerminal {
    terminal: File,
    original_mode: Termios,
}

impl UnbufferedTerminal {
    fn new(terminal: File) -> Option<Self> {
        let before = termios::tcgetattr(&terminal).ok()?;
        let mut mode = before.clone();
        // Ctrl-C keeps its effect: `ISIG` stays set.
        mode.local_flags
            .remove(LocalFlags::ICANON | LocalFlags::ECHO);
        termios::tcsetattr(&terminal, SetArg::TCSANOW, &mode).ok()?;
        Some(Self {
            terminal,
            original_mode: before,
        })
    }

    /// Reads until the responses are complete or the timeout expires.
    fn read_answers(&mut self) -> String {
        let mut answer = Vec::new();
        let end = Instant::now() + TERMINAL_ANSWER_TIMEOUT;
        while !is_complete_answer(&answer) && answer.len() < MAX_TERMINAL_ANSWER_BYTES {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            let mut poll_fds = [PollFd::new(self.terminal.as_fd(), PollFlags::POLLIN)];
            if !matches!(poll(&mut poll_fds, timeout), Ok(1..)) {
                break;
            }
            let mut bytes = [0; 256];
            match self.terminal.read(&mut bytes) {
                Ok(length @ 1..) => answer.extend_from_slice(&bytes[..length]),
                _ => break,
            }
        }
        String::from_utf8_lossy(&answer).into_owned()
    }
}

impl Drop for UnbufferedTerminal {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = termios::tcsetattr(&self.terminal, SetArg::TCSANOW, &self.original_mode);
    }
}

fn is_complete_answer(answer: &[u8]) -> bool {
    let answer = String::from_utf8_lossy(answer);
    find_parameters(&answer, "\x1b[?", 'c').is_some()
}

fn parse_answers(answer: &str) -> TerminalAnswers {
    let attributes = find_parameters(answer, "\x1b[?", 'c').unwrap_or_default();
    let size = find_parameters(answer, "\x1b[4;", 't').unwrap_or_default();
    TerminalAnswers {
        // The first attribute is the class of the terminal.
        sixel: attributes.iter().skip(1).any(|a| *a == SIXEL_ATTRIBUTE),
        width: size
            .get(1)
            .and_then(|width| width.parse().ok())
            .filter(|width| *width > 0),
    }
}

/// The text between `begin` and `end`, if it consists only of numbers and separators.
fn find_parameters<'a>(answer: &'a str, begin: &str, end: char) -> Option<Vec<&'a str>> {
    answer.split(begin).skip(1).find_map(|rest| {
        let (inner, _) = rest.split_once(end)?;
        let is_numbers = inner.chars().all(|c| c.is_ascii_digit() || c == ';');
        is_numbers.then(|| inner.split(';').collect())
    })
}

#[cfg(test)]
mod tests {
    use super::{TerminalAnswers, is_complete_answer, parse_answers};

    #[test]
    fn the_answers_report_sixel_support_and_the_width() {
        let both = parse_answers("\x1b[4;600;800t\x1b[?62;4;22c");
        let sixel = true;
        let width = Some(800);
        assert_eq!(both, TerminalAnswers { sixel, width });
        let silent = parse_answers("\x1b[?62;4c");
        assert_eq!(silent, TerminalAnswers { sixel, width: None });
        assert_eq!(parse_answers("\x1b[4;0;0t\x1b[?62;4c"), silent);
    }

    #[test]
    fn a_class_differs_from_an_attribute_and_a_longer_number_from_a_shorter_one() {
        for answer in [
            "\x1b[?4c",
            "\x1b[?4;2c",
            "\x1b[?1;2c",
            "\x1b[?62;14;44c",
            "",
        ] {
            assert!(!parse_answers(answer).sixel, "{answer:?}");
        }
    }

    #[test]
    fn keys_typed_during_a_query_are_not_its_response() {
        assert!(parse_answers("abc\x1b[A\x1b[?62;4cxyz").sixel);
        assert!(!is_complete_answer(b"cc\x1b[?62;4"));
        assert!(!is_complete_answer(b"\x1b[4;600;800t"));
        assert!(is_complete_answer(b"ls\n\x1b[?62;4c"));
    }
}
