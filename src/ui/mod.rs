//! The only mouth: data to stdout, talk to stderr, progress on terminals, questions to people.

mod meter;
pub(crate) mod picture;
pub(crate) mod screen;
mod text;

pub(crate) use meter::ByteMeter;

use crate::engine::EngineProgress;
use crate::error::{Error, Result, hint_for_instance};
use crate::protocol::error::{ApiError, Failed};
use console::{Style, Term};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;
use text::SanitizedText;

/// How to speak; made once from the global flags.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ui {
    pub(crate) json: bool,
    quiet: bool,
    verbose: u8,
    interactive: bool,
}

impl Ui {
    pub(crate) fn new(json: bool, quiet: bool, verbose: u8, color: Option<bool>) -> Self {
        // Without a wish, the console crate honours NO_COLOR, CLICOLOR and the terminal by itself.
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

    /// Whether somebody can be asked.
    pub(crate) fn can_ask(self) -> bool {
        io::stdin().is_terminal() && self.interactive
    }

    /// Whether somebody types, and sees what is typed.
    pub(crate) fn is_typed_at(self) -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Whether words on stdout have colours.
    pub(crate) fn has_colors(self) -> bool {
        console::colors_enabled()
    }

    /// What stands before a line that somebody types.
    pub(crate) fn style_prompt(self, text: &str) -> String {
        SanitizedText::line(text)
            .styled(&Style::new().green())
            .into()
    }

    /// Data, as it is, to stdout: what the user's own code writes, and what programs read. A terminal obeys escape
    /// sequences in it.
    ///
    /// # Errors
    /// [`Error::Unread`] when nobody reads it, [`Error::Unwritten`] when there is no room for it.
    pub(crate) fn print_data(self, text: &str) -> Result<()> {
        Ok(write_all(io::stdout(), text.as_bytes()).map_err(Error::from)?)
    }

    /// What the user's code writes to stderr, as it is.
    ///
    /// # Errors
    /// As of [`Ui::print_data`].
    pub(crate) fn print_stderr(self, text: &str) -> Result<()> {
        Ok(write_all(io::stderr(), text.as_bytes()).map_err(Error::from)?)
    }

    /// Where data goes that is no text.
    pub(crate) fn stdout_writer(self) -> impl Write + Send + 'static {
        io::stdout()
    }

    /// Where talk goes that is no text.
    pub(crate) fn stderr_writer(self) -> impl Write + Send + 'static {
        io::stderr()
    }

    /// One line of data, sanitized.
    pub(crate) fn print_line(self, text: impl AsRef<str>) {
        self.print_sanitized(&SanitizedText::line(text.as_ref()));
    }

    /// Lines of data, sanitized: logs, differences, answers of tools.
    ///
    /// # Errors
    /// As of [`Ui::print_data`].
    pub(crate) fn print_text(self, text: &str) -> Result<()> {
        self.print_data(SanitizedText::lines(text).as_str())
    }

    /// One JSON document to stdout; its strings escape what a terminal obeys.
    pub(crate) fn print_json(self, value: &impl Serialize) -> Result<()> {
        let document = SanitizedText::json(&serde_json::to_string_pretty(value)?);
        self.print_data(&format!("{}\n", document.as_str()))
    }

    fn print_sanitized(self, line: &SanitizedText) {
        // A few words that nobody reads (`osctl ls | head`) are the reader's choice.
        let _ = self.print_data(&format!("{}\n", line.as_str()));
    }

    /// Talk that nobody hears is nobody's loss.
    fn write_message(self, message: &SanitizedText) {
        let _ = self.print_stderr(&format!("{}\n", message.as_str()));
    }

    /// Talk.
    pub(crate) fn print_message(self, text: impl AsRef<str>) {
        if !self.quiet {
            self.write_message(&SanitizedText::message(text.as_ref()));
        }
    }

    /// A line of a log that explains what follows.
    pub(crate) fn print_detail(self, line: &str) {
        let line = SanitizedText::line(&format!("  {}", line.trim_end()));
        self.write_message(&line.styled(&Style::new().for_stderr().dim()));
    }

    pub(crate) fn print_warning(self, text: impl AsRef<str>) {
        let look = Style::new().for_stderr().yellow().bold();
        self.write_message(&SanitizedText::labelled("warning", &look, text.as_ref()));
    }

    /// What ended the verb: the sentence, the log that explains it, the hint for the instance.
    pub(crate) fn print_failure(self, error: &anyhow::Error, instance: &str) {
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
            let mut fault = ApiError::new(expected.map_or("bug", Error::kind), &sentence);
            fault.hint = hint.clone();
            // The same is said on stderr.
            let _ = self.print_json(&Failed::from(fault));
        }
        for line in expected.map(Error::log_tail).unwrap_or_default() {
            self.print_detail(line);
        }
        let look = Style::new().for_stderr();
        self.write_message(&SanitizedText::labelled(
            "error",
            &look.clone().red().bold(),
            &sentence,
        ));
        if let Some(hint) = hint {
            self.write_message(&SanitizedText::line(""));
            self.write_message(&SanitizedText::labelled("hint", &look.cyan(), &hint));
        }
    }

    /// Columns, aligned; the first row is the header.
    pub(crate) fn print_table(self, rows: &[Vec<String>]) {
        let rows: Vec<Vec<SanitizedText>> = rows
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
        for (number, row) in rows.iter().enumerate() {
            let look = if number == 0 {
                Style::new().bold()
            } else {
                Style::new()
            };
            self.print_sanitized(&SanitizedText::row(row, &widths).styled(&look));
        }
    }

    /// What comes into a text, or goes out of it.
    pub(crate) fn print_difference(self, is_new: bool, line: &str) {
        let (mark, look) = match is_new {
            true => ("+", Style::new().green()),
            false => ("-", Style::new().red()),
        };
        self.print_sanitized(&SanitizedText::line(&format!("{mark} {line}")).styled(&look));
    }

    /// `true` when the person says yes.
    ///
    /// # Errors
    /// Where nobody can be asked: names the `flag` that answers instead.
    pub(crate) fn confirm(self, question: &str, flag: &str) -> Result<bool> {
        if !self.can_ask() {
            return Err(Error::precondition(
                format!("{question} Nobody can be asked here."),
                format!("add `{flag}` to say yes"),
            )
            .into());
        }
        let answer = dialoguer::Confirm::new()
            .with_prompt(SanitizedText::message(question))
            .default(false)
            .interact_on(&Term::stderr());
        answer.map_err(|dialoguer::Error::IO(error)| match error.kind() {
            io::ErrorKind::Interrupted => Error::Interrupted.into(),
            _ => error.into(),
        })
    }

    /// Work that takes time: a spinner on a terminal, lines elsewhere.
    pub(crate) fn start_work(self, what: &str) -> WorkSpinner {
        let bar = if self.interactive && !self.quiet && self.verbose == 0 {
            let bar = ProgressBar::new_spinner().with_style(spinner_style());
            bar.enable_steady_tick(Duration::from_millis(100));
            Some(bar)
        } else {
            None
        };
        let work = WorkSpinner {
            ui: self,
            bar,
            last: Mutex::new(String::new()),
        };
        work.step(what);
        work
    }
}

fn spinner_style() -> ProgressStyle {
    ProgressStyle::with_template("{spinner:.cyan} {wide_msg} {elapsed:.dim}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn write_all(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// The progress of one piece of work; it disappears from a terminal when it ends.
#[derive(Debug)]
pub(crate) struct WorkSpinner {
    ui: Ui,
    bar: Option<ProgressBar>,
    last: Mutex<String>,
}

impl WorkSpinner {
    /// Ends the display, so that something else can be printed or asked.
    pub(crate) fn suspend<T>(&self, f: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(f),
            None => f(),
        }
    }
}

impl EngineProgress for WorkSpinner {
    fn step(&self, what: &str) {
        let what = String::from(SanitizedText::line(what));
        let mut last = self
            .last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if *last == what {
            return;
        }
        what.clone_into(&mut last);
        match &self.bar {
            Some(bar) => bar.set_message(what),
            None => self.ui.print_message(what),
        }
    }

    fn amount(&self, what: &str, done: u64, total: Option<u64>) {
        let Some(bar) = &self.bar else {
            return self.step(what);
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

/// Bytes, as people read them.
pub(crate) fn format_bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}
