//! The only mouth: data to stdout, talk to stderr, progress on terminals, questions to people.

mod meter;
pub(crate) mod picture;
pub(crate) mod screen;
mod text;

pub(crate) use meter::Meter;

use crate::engine::Progress;
use crate::error::{Error, Result, addressed};
use crate::protocol::fault::{Failed, Fault};
use console::{Style, Term};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;
use text::Text;

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
    pub(crate) fn prompt(self, text: &str) -> String {
        Text::line(text).styled(&Style::new().green()).into()
    }

    /// Data, as it is, to stdout: what the user's own code writes, and what programs read. A terminal obeys escape
    /// sequences in it.
    ///
    /// # Errors
    /// [`Error::Unread`] when nobody reads it, [`Error::Unwritten`] when there is no room for it.
    pub(crate) fn data(self, text: &str) -> Result<()> {
        Ok(write_all(io::stdout(), text.as_bytes()).map_err(Error::from)?)
    }

    /// What the user's code writes to stderr, as it is.
    ///
    /// # Errors
    /// As of [`Ui::data`].
    pub(crate) fn side(self, text: &str) -> Result<()> {
        Ok(write_all(io::stderr(), text.as_bytes()).map_err(Error::from)?)
    }

    /// Where data goes that is no text.
    pub(crate) fn output(self) -> impl Write + Send + 'static {
        io::stdout()
    }

    /// Where talk goes that is no text.
    pub(crate) fn errors(self) -> impl Write + Send + 'static {
        io::stderr()
    }

    /// One line of data, sanitized.
    pub(crate) fn line(self, text: impl AsRef<str>) {
        self.print(&Text::line(text.as_ref()));
    }

    /// Lines of data, sanitized: logs, differences, answers of tools.
    ///
    /// # Errors
    /// As of [`Ui::data`].
    pub(crate) fn text(self, text: &str) -> Result<()> {
        self.data(Text::lines(text).as_str())
    }

    /// One JSON document to stdout; its strings escape what a terminal obeys.
    pub(crate) fn document(self, value: &impl Serialize) -> Result<()> {
        let document = Text::json(&serde_json::to_string_pretty(value)?);
        self.data(&format!("{}\n", document.as_str()))
    }

    fn print(self, line: &Text) {
        // A few words that nobody reads (`osctl ls | head`) are the reader's choice.
        let _ = self.data(&format!("{}\n", line.as_str()));
    }

    /// Talk that nobody hears is nobody's loss.
    fn talk(self, message: &Text) {
        let _ = self.side(&format!("{}\n", message.as_str()));
    }

    /// Talk.
    pub(crate) fn say(self, text: impl AsRef<str>) {
        if !self.quiet {
            self.talk(&Text::message(text.as_ref()));
        }
    }

    /// A line of a log that explains what follows.
    pub(crate) fn detail(self, line: &str) {
        let line = Text::line(&format!("  {}", line.trim_end()));
        self.talk(&line.styled(&Style::new().for_stderr().dim()));
    }

    pub(crate) fn warn(self, text: impl AsRef<str>) {
        let look = Style::new().for_stderr().yellow().bold();
        self.talk(&Text::labelled("warning", &look, text.as_ref()));
    }

    /// What ended the verb: the sentence, the log that explains it, the hint for the instance.
    pub(crate) fn failure(self, error: &anyhow::Error, instance: &str) {
        let expected = error.downcast_ref::<Error>();
        let sentence = match expected {
            Some(expected) => expected.to_string(),
            None => format!("{error:#}"),
        };
        let hint = match expected {
            Some(expected) => expected.hint(),
            None => Some("this is a bug in osctl; `osctl -vv …` shows more".into()),
        };
        let hint = hint.map(|hint| addressed(&hint, instance));
        if self.json {
            let mut fault = Fault::new(expected.map_or("bug", Error::kind), &sentence);
            fault.hint = hint.clone();
            // The same is said on stderr.
            let _ = self.document(&Failed::from(fault));
        }
        for line in expected.map(Error::log).unwrap_or_default() {
            self.detail(line);
        }
        let look = Style::new().for_stderr();
        self.talk(&Text::labelled(
            "error",
            &look.clone().red().bold(),
            &sentence,
        ));
        if let Some(hint) = hint {
            self.talk(&Text::line(""));
            self.talk(&Text::labelled("hint", &look.cyan(), &hint));
        }
    }

    /// Columns, aligned; the first row is the header.
    pub(crate) fn table(self, rows: &[Vec<String>]) {
        let rows: Vec<Vec<Text>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| Text::line(cell)).collect())
            .collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|c| {
                rows.iter()
                    .filter_map(|r| r.get(c))
                    .map(Text::width)
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
            self.print(&Text::row(row, &widths).styled(&look));
        }
    }

    /// What comes into a text, or goes out of it.
    pub(crate) fn difference(self, is_new: bool, line: &str) {
        let (mark, look) = match is_new {
            true => ("+", Style::new().green()),
            false => ("-", Style::new().red()),
        };
        self.print(&Text::line(&format!("{mark} {line}")).styled(&look));
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
            .with_prompt(Text::message(question))
            .default(false)
            .interact_on(&Term::stderr());
        answer.map_err(|dialoguer::Error::IO(error)| match error.kind() {
            io::ErrorKind::Interrupted => Error::Interrupted.into(),
            _ => error.into(),
        })
    }

    /// Work that takes time: a spinner on a terminal, lines elsewhere.
    pub(crate) fn work(self, what: &str) -> Work {
        let bar = if self.interactive && !self.quiet && self.verbose == 0 {
            let bar = ProgressBar::new_spinner().with_style(spinner());
            bar.enable_steady_tick(Duration::from_millis(100));
            Some(bar)
        } else {
            None
        };
        let work = Work {
            ui: self,
            bar,
            last: Mutex::new(String::new()),
        };
        work.step(what);
        work
    }
}

fn spinner() -> ProgressStyle {
    ProgressStyle::with_template("{spinner:.cyan} {wide_msg} {elapsed:.dim}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn write_all(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// The progress of one piece of work; it disappears from a terminal when it ends.
#[derive(Debug)]
pub(crate) struct Work {
    ui: Ui,
    bar: Option<ProgressBar>,
    last: Mutex<String>,
}

impl Work {
    /// Ends the display, so that something else can be printed or asked.
    pub(crate) fn pause<T>(&self, f: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(f),
            None => f(),
        }
    }
}

impl Progress for Work {
    fn step(&self, what: &str) {
        let what = String::from(Text::line(what));
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
            None => self.ui.say(what),
        }
    }

    fn amount(&self, what: &str, done: u64, total: Option<u64>) {
        let Some(bar) = &self.bar else {
            return self.step(what);
        };
        let (what, done) = (String::from(Text::line(what)), indicatif::HumanBytes(done));
        bar.set_message(match total {
            Some(total) => format!("{what} ({done} of {})", indicatif::HumanBytes(total)),
            None => format!("{what} ({done})"),
        });
    }

    fn log(&self, line: &str) {
        if self.ui.verbose > 0 {
            self.ui.detail(line);
        }
    }

    fn warn(&self, line: &str) {
        self.pause(|| self.ui.warn(line));
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Bytes, as people read them.
pub(crate) fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}
