//! Lines typed at the terminal, with history and completion.
//!
//! Reading one blocks, so a thread of the runtime does it, while the runtime goes on and carries
//! what completion asks of the kernel.

use super::Context;
use super::cell::{Cell, STEP};
use crate::error::Result;
use crate::host::client::Client;
use crate::protocol::plain::is_printable;
use crate::protocol::session::{At, Completions};
use crate::ui::Ui;
use anyhow::Context as _;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{ColorMode, CompletionType, Config, Editor, Helper};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;

/// Who waits longer types the name instead.
const PATIENCE: Duration = Duration::from_millis(300);

/// Cells that are remembered.
const KEPT: usize = 10_000;

/// What a person did at the prompt.
#[derive(Debug)]
pub(super) enum Typed {
    Line(String),
    /// Ctrl-C.
    GivenUp,
    /// Ctrl-D, or the terminal is gone.
    End,
}

pub(super) struct Prompt {
    editor: Arc<Mutex<Editor<Names, FileHistory>>>,
    history: PathBuf,
    ui: Ui,
}

impl Prompt {
    pub(super) fn open(cx: &Context, client: &Client, session: &str) -> Result<Self> {
        let colors = match cx.ui.has_colors() {
            true => ColorMode::Enabled,
            false => ColorMode::Disabled,
        };
        let config = Config::builder()
            .max_history_size(KEPT)?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .color_mode(colors)
            .build();
        let mut editor = Editor::with_config(config).context("preparing the terminal")?;
        editor.set_helper(Some(Names {
            client: client.clone(),
            runtime: Handle::current(),
            session: session.into(),
            before: String::new(),
        }));
        let history = cx.instance.typed();
        match editor.load_history(&history) {
            Err(ReadlineError::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => cx.ui.warn(format!(
                "`{}` can't be read: {error}; this console begins without history",
                history.display()
            )),
            Ok(()) => {}
        }
        Ok(Self {
            editor: Arc::new(Mutex::new(editor)),
            history,
            ui: cx.ui,
        })
    }

    /// The next line of the cell with this number.
    pub(super) async fn read(&self, number: u64, cell: &Cell) -> Result<Typed> {
        let first = format!("In [{number}]: ");
        let text = match cell.is_begin() {
            true => first,
            false => format!("{:>width$}", "...: ", width = first.len()),
        };
        let styled = self.ui.prompt(&text);
        let (before, indent) = (cell.before(), cell.indent.clone());
        let editor = Arc::clone(&self.editor);
        let reading = tokio::task::spawn_blocking(move || {
            let mut editor = editor.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(names) = editor.helper_mut() {
                names.before = before;
            }
            editor.readline_with_initial(&(text, styled), (&indent, ""))
        });
        match reading.await? {
            Ok(line) => Ok(Typed::Line(line)),
            Err(ReadlineError::Interrupted) => Ok(Typed::GivenUp),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error).context("reading the terminal"),
        }
    }

    /// Puts a cell into the history, which is kept when the console ends in whatever way.
    pub(super) fn remember(&self, code: &str) {
        let mut editor = self.editor.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = editor
            .add_history_entry(code.trim_end())
            .and_then(|_| editor.append_history(&self.history));
        if let Err(error) = kept {
            let path = self.history.display();
            self.ui.warn(format!("`{path}` can't be written: {error}"));
        }
    }
}

/// Completes names by asking the kernel, which knows what there is.
struct Names {
    client: Client,
    runtime: Handle,
    session: String,
    /// The lines above the one that is typed.
    before: String,
}

impl Completer for Names {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..at];
        if typed
            .rsplit('\n')
            .next()
            .is_none_or(|l| l.trim().is_empty())
        {
            // There is no name to complete, so Tab is what it is elsewhere.
            return Ok((at, vec![pair(STEP.into())]));
        }
        let cursor = self.before.chars().count() + typed.chars().count();
        let question = At {
            code: format!("{}{line}", self.before),
            cursor: Some(cursor as u64),
            detail: None,
            session: self.session.clone(),
        };
        let asked = self.runtime.block_on(async {
            tokio::time::timeout(PATIENCE, self.client.complete(&question)).await
        });
        // Whatever is wrong is told by the next run; a console that talks into a line is worse.
        let found = asked.ok().and_then(Result::ok).unwrap_or_default();
        let found = candidates(&self.before, line, found);
        Ok(found
            .filter(|(begin, _)| *begin <= at)
            .unwrap_or((at, Vec::new())))
    }
}

impl Helper for Names {}
impl Highlighter for Names {}
impl Validator for Names {}
impl Hinter for Names {
    type Hint = String;
}

fn pair(text: String) -> Pair {
    Pair {
        display: text.clone(),
        replacement: text,
    }
}

/// Where in the line the names begin, in bytes; nothing when that is above it.
fn candidates(before: &str, line: &str, found: Completions) -> Option<(usize, Vec<Pair>)> {
    let above = before.chars().count();
    let begin = usize::try_from(found.cursor_start)
        .ok()?
        .checked_sub(above)?;
    let mut ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    let at = ends.nth(begin)?;
    let names = found.matches.into_iter().filter(|name| is_printable(name));
    Some((at, names.map(pair).collect()))
}

#[cfg(test)]
mod tests {
    use super::candidates;
    use crate::protocol::session::Completions;

    fn found(cursor_start: u64) -> Completions {
        Completions {
            matches: vec!["größe".into()],
            cursor_start,
            ..Completions::default()
        }
    }

    #[test]
    fn characters_of_the_cell_become_bytes_of_the_line() {
        let begin = |before, line, at| candidates(before, line, found(at)).map(|(at, _)| at);
        assert_eq!(begin("", "gr", 0), Some(0));
        assert_eq!(begin("", "ä + gr", 4), Some(5));
        assert_eq!(begin("ö = 1\n", "  gr", 8), Some(2));
        assert_eq!(begin("", "gr", 2), Some(2));
    }

    #[test]
    fn names_that_begin_elsewhere_are_not_offered() {
        assert!(candidates("x = 1\n", "gr", found(2)).is_none());
        assert!(candidates("", "gr", found(9)).is_none());
    }
}
