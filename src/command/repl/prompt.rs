//! The prompt: reads lines from the terminal, with history and completion.
//!
//! Reading blocks, so it runs on a blocking thread. The runtime remains free for the completion requests to the kernel.

use super::CommandContext;
use super::cell::{INDENT_STEP, InputCell};
use crate::error::Result;
use crate::host::client::CompanionClient;
use crate::protocol::session::{CodeCursor, Completions};
use crate::protocol::text_sanitizer::is_printable;
use crate::ui::Ui;
use anyhow::Context as _;
use parking_lot::Mutex;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{ColorMode, CompletionType, Config, Editor, Helper};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// A longer wait would be slower than typing the name.
const REPL_COMPLETION_TIMEOUT: Duration = Duration::from_millis(300);

/// Cells in the history.
const MAX_HISTORY_CELLS: usize = 10_000;

/// The user's input at the prompt.
#[derive(Debug)]
pub(super) enum PromptInput {
    Line(String),
    /// Ctrl-C.
    GivenUp,
    /// Ctrl-D, or the terminal was closed.
    End,
}

pub(super) struct ReplPrompt {
    editor: Arc<Mutex<Editor<NameCompleter, FileHistory>>>,
    history: PathBuf,
    ui: Ui,
}

impl ReplPrompt {
    pub(super) fn open(
        cx: &CommandContext,
        client: &CompanionClient,
        session: &str,
    ) -> Result<Self> {
        let colors = match cx.ui.has_colors() {
            true => ColorMode::Enabled,
            false => ColorMode::Disabled,
        };
        let config = Config::builder()
            .max_history_size(MAX_HISTORY_CELLS)?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .color_mode(colors)
            .build();
        let mut editor = Editor::with_config(config).context("preparing the terminal")?;
        editor.set_helper(Some(NameCompleter {
            client: client.clone(),
            runtime: Handle::current(),
            session: session.into(),
            before: String::new(),
        }));
        let history = cx.instance.console_history_file();
        match editor.load_history(&history) {
            Err(ReadlineError::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => cx.ui.print_warning(format!(
                "cannot read `{}`: {error}; the console starts without history",
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
    pub(super) async fn read_line(&self, number: u64, cell: &InputCell) -> Result<PromptInput> {
        let first = format!("In [{number}]: ");
        let text = match cell.is_begin() {
            true => first,
            false => format!("{:>width$}", "...: ", width = first.len()),
        };
        let styled = self.ui.style_prompt(&text);
        let (before, indent) = (cell.code_before(), cell.indent.clone());
        let editor = Arc::clone(&self.editor);
        let reading = tokio::task::spawn_blocking(move || {
            let mut editor = editor.lock();
            if let Some(names) = editor.helper_mut() {
                names.before = before;
            }
            editor.readline_with_initial(&(text, styled), (&indent, ""))
        });
        match reading.await? {
            Ok(line) => Ok(PromptInput::Line(line)),
            Err(ReadlineError::Interrupted) => Ok(PromptInput::GivenUp),
            Err(ReadlineError::Eof) => Ok(PromptInput::End),
            Err(error) => Err(error).context("reading the terminal"),
        }
    }

    /// Adds a cell to the history file immediately, so that it is kept however the console ends.
    pub(super) fn add_history(&self, code: &str) {
        let mut editor = self.editor.lock();
        let added = editor
            .add_history_entry(code.trim_end())
            .and_then(|_| editor.append_history(&self.history));
        if let Err(error) = added {
            let path = self.history.display();
            self.ui
                .print_warning(format!("cannot write `{path}`: {error}"));
        }
    }
}

/// Completes names by asking the kernel.
struct NameCompleter {
    client: CompanionClient,
    runtime: Handle,
    session: String,
    /// The lines above the current one.
    before: String,
}

impl Completer for NameCompleter {
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
            // Without a name to complete, Tab indents.
            return Ok((at, vec![completion_pair(INDENT_STEP.into())]));
        }
        let cursor = self.before.chars().count() + typed.chars().count();
        let request = CodeCursor {
            code: format!("{}{line}", self.before),
            cursor: Some(cursor as u64),
            detail: None,
            session: self.session.clone(),
        };
        let reply = self.runtime.block_on(async {
            tokio::time::timeout(REPL_COMPLETION_TIMEOUT, self.client.complete(&request)).await
        });
        // Errors are ignored, because a message would disturb the input line; the next run reports them.
        let found = reply.ok().and_then(Result::ok).unwrap_or_default();
        let found = name_candidates(&self.before, line, found);
        Ok(found
            .filter(|(begin, _)| *begin <= at)
            .unwrap_or((at, Vec::new())))
    }
}

impl Helper for NameCompleter {}
impl Highlighter for NameCompleter {}
impl Validator for NameCompleter {}
impl Hinter for NameCompleter {
    type Hint = String;
}

fn completion_pair(text: String) -> Pair {
    Pair {
        display: text.clone(),
        replacement: text,
    }
}

/// The start of the names in the line, in bytes; `None` when they start in an earlier line.
fn name_candidates(before: &str, line: &str, found: Completions) -> Option<(usize, Vec<Pair>)> {
    let above = before.chars().count();
    let begin = usize::try_from(found.cursor_start)
        .ok()?
        .checked_sub(above)?;
    let mut ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    let at = ends.nth(begin)?;
    let names = found.matches.into_iter().filter(|name| is_printable(name));
    Some((at, names.map(completion_pair).collect()))
}

#[cfg(test)]
mod tests {
    use super::name_candidates;
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
        let begin = |before, line, at| name_candidates(before, line, found(at)).map(|(at, _)| at);
        assert_eq!(begin("", "gr", 0), Some(0));
        assert_eq!(begin("", "ä + gr", 4), Some(5));
        assert_eq!(begin("ö = 1\n", "  gr", 8), Some(2));
        assert_eq!(begin("", "gr", 2), Some(2));
    }

    #[test]
    fn candidates_that_start_outside_the_line_are_not_offered() {
        assert!(name_candidates("x = 1\n", "gr", found(2)).is_none());
        assert!(name_candidates("", "gr", found(9)).is_none());
    }
}
