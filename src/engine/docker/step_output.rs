//! The output of one step of a build: its last lines, and the line that says why the step failed.

use crate::protocol::line_buffer::LineBuffer;
use std::collections::VecDeque;

/// Lines of a failed step's output that the error includes.
const MAX_STEP_OUTPUT_LINES: usize = 20;
/// Characters of such a line.
const MAX_STEP_LINE_CHARS: usize = 400;
/// A longer line is split: it is held until its end.
const MAX_UNFINISHED_LINE_BYTES: usize = 64 << 10;

/// The starts of lines with which programs report an error, in lower case.
const ERROR_LABELS: [&str; 7] = [
    "e: ",
    "error: ",
    "error[",
    "fatal: ",
    "fatal error: ",
    "npm err! ",
    "npm error ",
];
/// The same within a line: `cc1: fatal error: …`, `bash: line 3: error: …`.
const INNER_ERROR_LABELS: [&str; 2] = [": error: ", ": fatal error: "];

/// What to do about causes that are common, by a part of the line in lower case.
const COMMON_FIXES: [(&str, &str); 6] = [
    (
        "unable to locate package",
        "check the name; the image has no package lists: `install-debs NAME` fetches them",
    ),
    (
        "--require-hashes",
        "`osctl add NAME` adds a package with its hashes",
    ),
    (
        "no solution found when resolving",
        "check the names and versions of the requirements",
    ),
    (
        "no matching distribution found",
        "check the name and version of the requirement",
    ),
    (
        "temporary failure resolving",
        "check the machine's network and proxies",
    ),
    (
        "could not resolve host",
        "check the machine's network and proxies",
    ),
];

#[derive(Debug, Default)]
pub(super) struct StepOutput {
    unfinished: LineBuffer,
    tail: VecDeque<String>,
    /// The first line that a program has labelled as an error.
    labelled: Option<String>,
    /// The last exception of Python, and the last place of code before it.
    exception: Option<String>,
    place: Option<String>,
}

impl StepOutput {
    /// Adds output that arrives in chunks, and calls `on_line` with each complete line.
    pub(super) fn push(&mut self, chunk: &[u8], on_line: &mut dyn FnMut(&str)) {
        self.unfinished.push(chunk);
        while let Some(line) = self.unfinished.next_line() {
            self.add_line(&line, on_line);
        }
        if self.unfinished.unread_bytes() > MAX_UNFINISHED_LINE_BYTES {
            self.finish(on_line);
        }
    }

    /// Adds the last line, which may have no line feed.
    pub(super) fn finish(&mut self, on_line: &mut dyn FnMut(&str)) {
        let line = self.unfinished.take_unread();
        self.add_line(&line, on_line);
    }

    fn add_line(&mut self, line: &[u8], on_line: &mut dyn FnMut(&str)) {
        let line = plain_line(&String::from_utf8_lossy(line));
        if line.is_empty() {
            return;
        }
        on_line(&line);
        let kept: String = line.chars().take(MAX_STEP_LINE_CHARS).collect();
        if self.labelled.is_none() && is_labelled_error(&kept) {
            self.labelled = Some(kept.trim_start().to_owned());
        }
        match python_place(&kept) {
            Some(place) => self.place = Some(place),
            None if is_exception(&kept) => {
                let place = self.place.take();
                let place = place.map(|place| format!(" ({place})"));
                self.exception = Some(format!("{kept}{}", place.unwrap_or_default()));
            }
            None => {}
        }
        if self.tail.len() == MAX_STEP_OUTPUT_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(kept);
    }

    /// Why the step failed, with what to do about it; the last line if no line says so.
    pub(super) fn find_cause(&self) -> Option<String> {
        let exception = self.exception.as_ref();
        let cause = self.labelled.as_ref().or(exception);
        let cause = cause.or(self.tail.back())?;
        let lower = cause.to_lowercase();
        let fix = COMMON_FIXES.iter().find(|(part, _)| lower.contains(part));
        Some(match fix {
            Some((_, fix)) => format!("{cause}; {fix}"),
            None => cause.clone(),
        })
    }

    /// The last lines.
    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.tail.iter().map(String::as_str)
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.tail.into()
    }
}

/// The text that a terminal would show: without colors, and without what a carriage return overwrites.
fn plain_line(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line.trim_end().chars();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' if rest.as_str().starts_with('[') => {
                rest.next();
                // The parameters, up to the letter that ends the sequence.
                rest.by_ref().find(|c| ('\x40'..='\x7e').contains(c));
            }
            '\r' => text.clear(),
            c => text.push(c),
        }
    }
    text.truncate(text.trim_end().len());
    text
}

fn is_labelled_error(line: &str) -> bool {
    let lower = line.trim_start().to_lowercase();
    ERROR_LABELS.iter().any(|label| lower.starts_with(label))
        || INNER_ERROR_LABELS.iter().any(|label| lower.contains(label))
}

/// Whether the line is the last of a traceback: `ModuleNotFoundError: No module named 'x'`.
fn is_exception(line: &str) -> bool {
    let name = line.split(':').next().unwrap_or_default();
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    (name.ends_with("Error") || name.ends_with("Exception")) && name.chars().all(is_name)
}

/// `FILE:LINE` of a line of a traceback, `  File "FILE", line LINE, in NAME`.
fn python_place(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
    (!number.is_empty()).then(|| format!("{file}:{number}"))
}

#[cfg(test)]
mod tests {
    use super::{MAX_STEP_OUTPUT_LINES, StepOutput};

    fn output(chunks: &[&str]) -> (StepOutput, Vec<String>) {
        let (mut output, mut lines) = (StepOutput::default(), Vec::new());
        let mut on_line = |line: &str| lines.push(line.to_owned());
        for chunk in chunks {
            output.push(chunk.as_bytes(), &mut on_line);
        }
        output.finish(&mut on_line);
        (output, lines)
    }

    #[test]
    fn the_line_that_names_the_cause_is_found() {
        for (text, cause) in [
            (
                "Reading package lists...\nE: Unable to locate package rigrep\n",
                "E: Unable to locate package rigrep; check the name; the image has no package lists: `install-debs NAME` fetches them",
            ),
            (
                "error: In `--require-hashes` mode, all requirements must have a hash: a==1\nerror: later",
                "error: In `--require-hashes` mode, all requirements must have a hash: a==1; \
                 `osctl add NAME` adds a package with its hashes",
            ),
            (
                "*** Error compiling 'x.py'...\n  File \"/opt/x.py\", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n",
                "SyntaxError: invalid syntax (/opt/x.py:3)",
            ),
            (
                "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    import b\n  File \"b.py\", line 7\nModuleNotFoundError: No module named 'c'\n",
                "ModuleNotFoundError: No module named 'c' (b.py:7)",
            ),
            (
                "x.c:1:10: fatal error: y.h: No such file or directory\ncompilation terminated.\n",
                "x.c:1:10: fatal error: y.h: No such file or directory",
            ),
            ("one\ntwo\n", "two"),
            ("no errors: 0\nErrors: none\n", "Errors: none"),
        ] {
            assert_eq!(output(&[text]).0.find_cause().as_deref(), Some(cause));
        }
        assert_eq!(output(&["", "\n \n"]).0.find_cause(), None);
    }

    #[test]
    fn chunks_become_lines_without_colors_and_overwritten_text() {
        let (found, lines) = output(&[
            "\x1b[31mE: ",
            "\x1b[0mUnable to locate",
            " package x\r\n",
            "10%\r100%\n",
            "rest",
        ]);
        assert_eq!(lines, ["E: Unable to locate package x", "100%", "rest"]);
        assert_eq!(found.into_lines(), lines);
        let (long, lines) = output(&["line\n"; 30]);
        assert_eq!(
            (lines.len(), long.into_lines().len()),
            (30, MAX_STEP_OUTPUT_LINES)
        );
    }
}
