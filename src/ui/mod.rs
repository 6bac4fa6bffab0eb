//! The only mouth: data to stdout, talk to stderr, progress on terminals, questions to people.

mod meter;
pub(crate) mod picture;
pub(crate) mod screen;

pub(crate) use meter::Meter;

use crate::engine::Progress;
use crate::error::{Error, Result, addressed};
use crate::protocol::fault::{Failed, Fault};
use crate::protocol::plain::{self, printable};
use console::{Style, Term, style};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

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
        style(text).green().to_string()
    }

    /// Data, as it is, to stdout.
    ///
    /// # Errors
    /// [`Error::Unread`] when nobody reads it, [`Error::Unwritten`] when there is no room for it.
    pub(crate) fn data(self, text: &str) -> Result<()> {
        Ok(write_all(io::stdout(), text.as_bytes()).map_err(Error::from)?)
    }

    /// Talk of the user's code, as it is, to stderr.
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

    /// One line of data.
    pub(crate) fn line(self, text: impl AsRef<str>) {
        // A few words that nobody reads (`osctl ls | head`) are the reader's choice.
        let _ = self.data(&format!("{}\n", text.as_ref()));
    }

    /// One JSON document to stdout.
    pub(crate) fn document(self, value: &impl Serialize) -> Result<()> {
        self.data(&format!("{}\n", serde_json::to_string_pretty(value)?))
    }

    /// Talk that nobody hears is nobody's loss.
    fn talk(self, text: &str) {
        let _ = self.side(text);
    }

    /// Talk.
    pub(crate) fn say(self, text: impl AsRef<str>) {
        if !self.quiet {
            self.talk(&format!("{}\n", text.as_ref()));
        }
    }

    pub(crate) fn warn(self, text: impl AsRef<str>) {
        self.talk(&format!(
            "{}: {}\n",
            style("warning").for_stderr().yellow().bold(),
            text.as_ref()
        ));
    }

    /// What ended the verb: the sentence, the log that explains it, the hint for the instance.
    pub(crate) fn failure(self, error: &anyhow::Error, instance: &str) {
        let expected = error.downcast_ref::<Error>();
        // Words of a companion, a build or an agent are among them.
        let sentence = printable(&match expected {
            Some(expected) => expected.to_string(),
            None => format!("{error:#}"),
        });
        let hint = match expected {
            Some(expected) => expected.hint(),
            None => Some("this is a bug in osctl; `osctl -vv …` shows more".into()),
        };
        let hint = hint.map(|hint| addressed(&hint, instance));
        if self.json {
            let mut fault = Fault::new(expected.map_or("bug", Error::kind), &sentence);
            fault.hint = hint.clone();
            self.line(serde_json::to_string_pretty(&Failed::from(fault)).unwrap_or_default());
        }
        let mut text = String::new();
        for line in expected.map(Error::log).unwrap_or_default() {
            let line = printable(line);
            text.push_str(&format!("  {}\n", style(line).for_stderr().dim()));
        }
        text.push_str(&format!(
            "{}: {sentence}\n",
            style("error").for_stderr().red().bold()
        ));
        if let Some(hint) = hint {
            text.push_str(&format!(
                "\n{}: {hint}\n",
                style("hint").for_stderr().cyan()
            ));
        }
        self.talk(&text);
    }

    /// Columns, aligned; the first row is the header.
    pub(crate) fn table(self, rows: &[Vec<String>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|c| {
                rows.iter()
                    .filter_map(|r| r.get(c))
                    .map(|t| console::measure_text_width(t))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for (number, row) in rows.iter().enumerate() {
            let mut line = String::new();
            for (text, width) in row.iter().zip(&widths) {
                let padded = console::pad_str(text, width + 2, console::Alignment::Left, None);
                line.push_str(&padded);
            }
            let look = if number == 0 {
                Style::new().bold()
            } else {
                Style::new()
            };
            self.line(look.apply_to(line.trim_end()).to_string());
        }
    }

    /// What comes into a text, or goes out of it.
    pub(crate) fn difference(self, is_new: bool, line: &str) {
        let (mark, look) = match is_new {
            true => ("+", Style::new().green()),
            false => ("-", Style::new().red()),
        };
        self.line(look.apply_to(format!("{mark} {line}")).to_string());
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
            .with_prompt(question)
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
        let what = plain::line(what);
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
        let (what, done) = (plain::line(what), indicatif::HumanBytes(done));
        bar.set_message(match total {
            Some(total) => format!("{what} ({done} of {})", indicatif::HumanBytes(total)),
            None => format!("{what} ({done})"),
        });
    }

    fn log(&self, line: &str) {
        if self.ui.verbose > 0 {
            self.ui.say(format!("  {}", printable(line)));
        }
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
