//! The printer: data on stdout, messages on stderr, progress on terminals, questions to the user. No other module
//! prints.

mod meter;
pub(crate) mod picture;
pub(crate) mod screen;
mod secret;
mod text;
mod traceback;

pub(crate) use meter::ByteMeter;

use crate::engine::EngineProgress;
use crate::error::{Error, Result, hint_for_instance};
use console::{Style, Term};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;
use text::{COLUMN_GAP, SanitizedText};

/// The answer of a command that failed, with `--json`. The same error is on stderr as text.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FailureAnswer<'a> {
    /// Always `failed`.
    status: &'static str,
    error: FailureEntry<'a>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct FailureEntry<'a> {
    /// A word for programs, such as `usage`, `not_running`, `precondition` or `interrupted`.
    r#type: &'a str,
    /// The error as a sentence.
    message: &'a str,
    /// How to fix it.
    hint: Option<&'a str>,
}

/// A narrow terminal wraps lines instead of a shorter last column.
const MIN_LAST_COLUMN_WIDTH: usize = 16;

/// The color of a word that says how something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Doubtful,
    Bad,
}

/// The output settings, made once from the global flags.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ui {
    pub(crate) json: bool,
    quiet: bool,
    verbose: u8,
    interactive: bool,
}

impl Ui {
    pub(crate) fn new(json: bool, quiet: bool, verbose: u8, color: Option<bool>) -> Self {
        // Without an explicit choice, the console crate decides by NO_COLOR, CLICOLOR and the terminal.
        if let Some(color) = color {
            console::set_colors_enabled(color);
            console::set_colors_enabled_stderr(color);
        }
        Self {
            json,
            quiet,
            verbose,
            interactive: io::stderr().is_terminal(),
        }
    }

    /// Whether the user can be asked a question.
    pub(crate) fn can_prompt(self) -> bool {
        io::stdin().is_terminal() && self.interactive
    }

    /// Whether `--verbose` is given.
    pub(crate) fn is_verbose(self) -> bool {
        self.verbose > 0
    }

    /// Whether stdin and stdout are terminals.
    pub(crate) fn has_terminal(self) -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Whether stdout is a terminal.
    pub(crate) fn prints_to_terminal(self) -> bool {
        io::stdout().is_terminal()
    }

    /// Whether stdout has colours.
    pub(crate) fn has_colors(self) -> bool {
        console::colors_enabled()
    }

    /// Prints data to stdout unchanged: output of the user's code, and data for programs. A terminal interprets escape
    /// sequences in it.
    ///
    /// # Errors
    /// [`Error::OutputClosed`] when stdout is closed, [`Error::OutputFailed`] when the data can't be written.
    pub(crate) fn print_data(self, text: &str) -> Result<()> {
        Ok(write_all(io::stdout(), text.as_bytes()).map_err(Error::from)?)
    }

    /// Prints the stderr of the user's code unchanged.
    ///
    /// # Errors
    /// As of [`Ui::print_data`].
    pub(crate) fn print_stderr(self, text: &str) -> Result<()> {
        Ok(write_all(io::stderr(), text.as_bytes()).map_err(Error::from)?)
    }

    /// Prints a line of a traceback of the user's code.
    ///
    /// # Errors
    /// As of [`Ui::print_data`].
    pub(crate) fn print_traceback_line(self, line: &str) -> Result<()> {
        let line = traceback::style_traceback_line(line, &Style::new().for_stderr());
        self.print_stderr(&format!("{line}\n"))
    }

    /// A writer for data that is not text.
    pub(crate) fn stdout_writer(self) -> impl Write + Send + 'static {
        io::stdout()
    }

    /// A writer for stderr output that is not text.
    pub(crate) fn stderr_writer(self) -> impl Write + Send + 'static {
        io::stderr()
    }

    /// Prints one line of data, sanitized.
    pub(crate) fn print_line(self, text: impl AsRef<str>) {
        self.print_sanitized(&SanitizedText::line(text.as_ref()));
    }

    /// Prints one line of data that begins with a colored word, sanitized.
    pub(crate) fn print_toned_line(self, before: &str, tone: Tone, word: &str, rest: &str) {
        let style = match tone {
            Tone::Good => Style::new().green(),
            Tone::Doubtful => Style::new().yellow().bold(),
            Tone::Bad => Style::new().red().bold(),
        };
        let word = SanitizedText::line(word).styled(&style);
        let [before, rest] = [before, rest].map(SanitizedText::line);
        let _ = self.print_data(&format!(
            "{}{}{}\n",
            before.as_str(),
            word.as_str(),
            rest.as_str()
        ));
    }

    /// Prints lines of data, sanitized: logs, diffs, results of tools.
    ///
    /// # Errors
    /// As of [`Ui::print_data`].
    pub(crate) fn print_text(self, text: &str) -> Result<()> {
        self.print_data(SanitizedText::lines(text).as_str())
    }

    /// Prints a JSON document to stdout; characters that a terminal interprets are escaped in its strings.
    pub(crate) fn print_json(self, value: &impl Serialize) -> Result<()> {
        let document = SanitizedText::json(&serde_json::to_string_pretty(value)?);
        self.print_data(&format!("{}\n", document.as_str()))
    }

    /// Prints a JSON document as one line of a stream.
    ///
    /// # Errors
    /// As of [`Ui::print_data`].
    pub(crate) fn print_json_line(self, value: &impl Serialize) -> Result<()> {
        let document = SanitizedText::json(&serde_json::to_string(value)?);
        self.print_data(&format!("{}\n", document.as_str()))
    }

    fn print_sanitized(self, line: &SanitizedText) {
        // Errors are ignored for short output: the reader may close the pipe (`osctl ls | head`).
        let _ = self.print_data(&format!("{}\n", line.as_str()));
    }

    /// Writes a message to stderr; errors are ignored.
    fn write_message(self, message: &SanitizedText) {
        let _ = self.print_stderr(&format!("{}\n", message.as_str()));
    }

    /// Prints a message, unless `--quiet` is given.
    pub(crate) fn print_message(self, text: impl AsRef<str>) {
        if !self.quiet {
            self.write_message(&SanitizedText::message(text.as_ref()));
        }
    }

    /// Prints a log line that explains the next message.
    pub(crate) fn print_detail(self, line: &str) {
        let line = SanitizedText::line(&format!("  {}", line.trim_end()));
        self.write_message(&line.styled(&Style::new().for_stderr().dim()));
    }

    pub(crate) fn print_warning(self, text: impl AsRef<str>) {
        let style = Style::new().for_stderr().yellow().bold();
        self.write_message(&SanitizedText::labelled("warning", &style, text.as_ref()));
    }

    /// Prints an error that is the result of a command.
    pub(crate) fn print_error(self, text: impl AsRef<str>) {
        let style = Style::new().for_stderr().red().bold();
        self.write_message(&SanitizedText::labelled("error", &style, text.as_ref()));
    }

    /// Prints a failure: the log that explains it, the sentence, and the hint. `instance` is the name of the instance if
    /// hints name it.
    pub(crate) fn print_failure(self, error: &anyhow::Error, instance: Option<&str>) {
        let expected = error.downcast_ref::<Error>();
        let sentence = match expected {
            Some(expected) => expected.to_string(),
            None => format!("{error:#}"),
        };
        let hint = match expected {
            Some(expected) => expected.hint(),
            None => Some("this is a bug in osctl; `osctl -vv …` shows more".into()),
        };
        let hint = hint.map(|hint| hint_for_instance(&hint, instance));
        if self.json {
            // The error is also printed on stderr.
            let _ = self.print_json(&FailureAnswer {
                status: "failed",
                error: FailureEntry {
                    r#type: expected.map_or("bug", Error::kind),
                    message: &sentence,
                    hint: hint.as_deref(),
                },
            });
        }
        for line in expected.map(Error::log_tail).unwrap_or_default() {
            self.print_detail(line);
        }
        self.print_error(&sentence);
        if let Some(hint) = hint {
            let style = Style::new().for_stderr().cyan();
            self.write_message(&SanitizedText::line(""));
            self.write_message(&SanitizedText::labelled("hint", &style, &hint));
        }
    }

    /// Prints a list as a table, or the message `empty` if there is only the header.
    pub(crate) fn print_list(self, rows: &[Vec<String>], empty: &str) {
        match rows.len() {
            0 | 1 => self.print_message(empty),
            _ => self.print_table(rows),
        }
    }

    /// Prints aligned columns; the first row is the header. A terminal shows as much of the last column as fits.
    pub(crate) fn print_table(self, rows: &[Vec<String>]) {
        let mut rows: Vec<Vec<SanitizedText>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| SanitizedText::line(cell)).collect())
            .collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|c| {
                rows.iter()
                    .filter_map(|r| r.get(c))
                    .map(SanitizedText::width)
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        if let Some(last) = columns.checked_sub(1)
            && let Some((_, width)) = Term::stdout().size_checked()
        {
            let before = widths[..last].iter().map(|width| width + COLUMN_GAP).sum();
            let room = usize::from(width).saturating_sub(before);
            for cell in rows.iter_mut().filter_map(|row| row.get_mut(last)) {
                cell.truncate(room.max(MIN_LAST_COLUMN_WIDTH));
            }
        }
        for (number, row) in rows.iter().enumerate() {
            let style = if number == 0 {
                Style::new().bold()
            } else {
                Style::new()
            };
            self.print_sanitized(&SanitizedText::row(row, &widths).styled(&style));
        }
    }

    /// Prints an added or removed line of a text.
    pub(crate) fn print_difference(self, is_new: bool, line: &str) {
        let (sign, style) = match is_new {
            true => ("+", Style::new().green()),
            false => ("-", Style::new().red()),
        };
        self.print_sanitized(&SanitizedText::line(&format!("{sign} {line}")).styled(&style));
    }

    /// Asks a question; `true` if the user agrees.
    ///
    /// # Errors
    /// When the user can't be asked: the error names the `flag` that answers instead.
    pub(crate) fn confirm(self, question: &str, flag: &str) -> Result<bool> {
        if !self.can_prompt() {
            return Err(Error::precondition(
                format!("confirmation needed: {question}"),
                format!("pass `{flag}` to confirm"),
            )
            .into());
        }
        let answer = dialoguer::Confirm::new()
            .with_prompt(SanitizedText::message(question))
            .default(false)
            .interact_on(&Term::stderr());
        answer.map_err(prompt_error)
    }

    /// Lets the user select items of a list; returns their positions.
    ///
    /// # Errors
    /// [`Error::Interrupted`], or when the terminal fails.
    pub(crate) fn choose_several(self, question: &str, items: &[&str]) -> Result<Vec<usize>> {
        let answer = dialoguer::MultiSelect::new()
            .with_prompt(SanitizedText::message(question))
            .items(items)
            .defaults(&vec![true; items.len()])
            .interact_on_opt(&Term::stderr());
        match answer {
            Ok(chosen) => chosen.ok_or_else(|| Error::Interrupted.into()),
            Err(error) => Err(prompt_error(error)),
        }
    }

    /// Shows work in progress: a spinner on a terminal, lines elsewhere.
    pub(crate) fn start_work(self, what: &str) -> WorkSpinner {
        let work = self.new_spinner();
        work.report_step(what);
        work
    }

    /// Shows the progress of one request, on a terminal only.
    pub(crate) fn start_request(self, what: &str) -> WorkSpinner {
        let work = self.new_spinner();
        if work.bar.is_some() {
            work.report_step(what);
        }
        work
    }

    fn new_spinner(self) -> WorkSpinner {
        let bar = if self.interactive && !self.quiet && self.verbose == 0 {
            let bar = ProgressBar::new_spinner().with_style(spinner_style());
            bar.enable_steady_tick(Duration::from_millis(100));
            Some(bar)
        } else {
            None
        };
        WorkSpinner {
            ui: self,
            bar,
            last: Mutex::new(String::new()),
        }
    }
}

fn spinner_style() -> ProgressStyle {
    ProgressStyle::with_template("{spinner:.cyan} {wide_msg} {elapsed:.dim}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn prompt_error(dialoguer::Error::IO(error): dialoguer::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::Interrupted => Error::Interrupted.into(),
        _ => error.into(),
    }
}

/// Prints a usage error, whose text the caller returns with or without colours.
pub(crate) fn print_usage_error(text: &dyn Fn(bool) -> String) {
    let text = text(console::colors_enabled_stderr());
    // The terminal may be gone.
    let _ = write_all(io::stderr(), text.as_bytes());
}

fn write_all(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// The progress of one piece of work; it disappears from a terminal when dropped.
#[derive(Debug)]
pub(crate) struct WorkSpinner {
    ui: Ui,
    bar: Option<ProgressBar>,
    last: Mutex<String>,
}

impl WorkSpinner {
    /// Hides the spinner while `f` prints or asks something.
    pub(crate) fn suspend<T>(&self, f: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(f),
            None => f(),
        }
    }
}

impl EngineProgress for WorkSpinner {
    fn report_step(&self, what: &str) {
        let what = String::from(SanitizedText::line(what));
        let mut last = self.last.lock();
        if *last == what {
            return;
        }
        what.clone_into(&mut last);
        match &self.bar {
            Some(bar) => bar.set_message(what),
            None => self.ui.print_message(what),
        }
    }

    fn report_amount(&self, what: &str, done: u64, total: Option<u64>) {
        let Some(bar) = &self.bar else {
            return self.report_step(what);
        };
        let (what, done) = (
            String::from(SanitizedText::line(what)),
            indicatif::HumanBytes(done),
        );
        bar.set_message(match total {
            Some(total) => format!("{what} ({done} of {})", indicatif::HumanBytes(total)),
            None => format!("{what} ({done})"),
        });
    }

    fn log(&self, line: &str) {
        if self.ui.verbose > 0 {
            self.ui.print_detail(line);
        }
    }

    fn warn(&self, line: &str) {
        self.suspend(|| self.ui.print_warning(line));
    }
}

impl Drop for WorkSpinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Formats a number of bytes for people.
pub(crate) fn format_bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}
