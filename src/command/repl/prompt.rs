//! The prompt: an editor of whole cells, with history, completion and colors.
//!
//! ```text
//!  console ── PromptKind ──▶ thread of the editor: keys ─▶ Enter: complete? ─┬─ no: a new, indented line
//!     ▲                                                                     │ yes
//!     └───────────────────────────── PromptInput ◀──────────────────────────┘
//! ```
//!
//! The editor reads keys and asks the kernel in its own thread. The runtime remains free for these requests.

use super::cell::{INDENT_STEP, is_above_last_line, looks_whole, next_indent, trim_last_line};
use super::highlight::highlight_code;
use super::history::ConsoleHistory;
use super::{EXIT_WORDS, is_busy};
use crate::command::CommandContext;
use crate::error::Result;
use crate::host::client::CompanionClient;
use crate::protocol::session::{CodeCursor, CompletenessQuery, Completions};
use crate::protocol::text_sanitizer::is_printable;
use anyhow::Context as _;
use nu_ansi_term::{Color as PromptColor, Style};
use parking_lot::Mutex;
use reedline::{
    Color, Completer, DefaultHinter, EditCommand, Emacs, Highlighter, IdeMenu, KeyCode,
    KeyModifiers, MenuBuilder, Prompt, PromptEditMode, PromptHistorySearch, Reedline,
    ReedlineEvent, ReedlineMenu, Signal, Span, StyledText, Suggestion, ValidationResult, Validator,
    default_emacs_keybindings,
};
use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as thread_channel;
use std::thread;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// Time limit for the kernel to check whether a cell is complete.
const COMPLETENESS_TIMEOUT: Duration = Duration::from_secs(1);
/// A longer wait would be slower than typing the name.
const REPL_COMPLETION_TIMEOUT: Duration = Duration::from_millis(500);
/// The editor looks for [`EditedCell::pause`] before each key, so that it need not look in between.
const PAUSE_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
const COMPLETION_MENU: &str = "completions";
/// Lines of the popup.
const MAX_POPUP_LINES: u16 = 12;

/// What the console asks for.
#[derive(Debug, Clone, Copy)]
pub(super) enum PromptKind {
    /// The cell with this number.
    Cell(u64),
    /// A command of the debugger.
    Debugger,
}

/// The user's input at the prompt.
#[derive(Debug)]
pub(super) enum PromptInput {
    /// `is_queued`: the kernel runs other code.
    Code { code: String, is_queued: bool },
    /// Ctrl-C.
    GivenUp,
    /// Ctrl-D, or the terminal was closed.
    End,
}

pub(super) struct ReplPrompt {
    requests: thread_channel::Sender<PromptKind>,
    inputs: mpsc::Receiver<io::Result<PromptInput>>,
    /// Failures of the history's file.
    failures: thread_channel::Receiver<io::Error>,
    history: PathBuf,
}

impl ReplPrompt {
    pub(super) fn open(
        cx: &CommandContext,
        client: &CompanionClient,
        session: &str,
    ) -> Result<Self> {
        let history = cx.instance.console_history_file();
        let kernel = KernelOfPrompt {
            client: client.clone(),
            runtime: Handle::current(),
            session: session.into(),
        };
        let has_colors = cx.ui.has_colors();
        let (failed, failures) = thread_channel::channel();
        let is_command = Arc::default();
        let cells = ConsoleHistory::open(history.clone(), failed, Arc::clone(&is_command))
            .context("reading the history")?;
        let (requests, kinds) = thread_channel::channel();
        let (send, inputs) = mpsc::channel(1);
        let editing = move || {
            let mut editor = CellEditor::new(kernel, cells, is_command, has_colors);
            while let Ok(kind) = kinds.recv() {
                if send.blocking_send(editor.read(kind)).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new()
            .name("repl".into())
            .spawn(editing)
            .context("starting the editor of the console")?;
        Ok(Self {
            requests,
            inputs,
            failures,
            history,
        })
    }

    pub(super) async fn read(&mut self, kind: PromptKind) -> Result<PromptInput> {
        let ended = "the editor of the console has ended";
        self.requests.send(kind).context(ended)?;
        let input = self.inputs.recv().await.context(ended)?;
        input.context("reading the terminal")
    }

    /// Why the file of the history was not read or written since the last call.
    pub(super) fn history_failure(&self) -> Option<String> {
        let error = self.failures.try_iter().last()?;
        let path = self.history.display();
        Some(format!("the history `{path}` is not kept: {error}"))
    }
}

/// What the parts of the editor know of the cell that is edited.
#[derive(Debug, Default)]
struct EditedCell {
    /// The code and the cursor at the last repaint.
    code: String,
    cursor: usize,
    /// The indentation of the line that Enter has added.
    indent: String,
    is_queued: bool,
}

struct CellEditor {
    editor: Reedline,
    cell: Arc<Mutex<EditedCell>>,
    /// Whether the input is a command of the debugger.
    is_command: Arc<AtomicBool>,
}

impl CellEditor {
    fn new(
        kernel: KernelOfPrompt,
        cells: ConsoleHistory,
        is_command: Arc<AtomicBool>,
        has_colors: bool,
    ) -> Self {
        let cell = Arc::new(Mutex::new(EditedCell::default()));
        let pause = Arc::new(AtomicBool::new(false));
        let mut keys = default_emacs_keybindings();
        keys.add_binding(
            KeyModifiers::NONE,
            KeyCode::Tab,
            ReedlineEvent::UntilFound(vec![
                ReedlineEvent::Menu(COMPLETION_MENU.into()),
                ReedlineEvent::MenuNext,
            ]),
        );
        keys.add_binding(
            KeyModifiers::SHIFT,
            KeyCode::BackTab,
            ReedlineEvent::MenuPrevious,
        );
        let popup = IdeMenu::default()
            .with_name(COMPLETION_MENU)
            .with_max_completion_height(MAX_POPUP_LINES)
            .with_correct_cursor_pos(true)
            .with_text_style(Style::new())
            .with_selected_text_style(Style::new().reverse())
            .with_description_text_style(Style::new().dimmed());
        let mut editor = Reedline::create()
            .with_ansi_colors(has_colors)
            .with_edit_mode(Box::new(Emacs::new(keys)))
            .use_bracketed_paste(true)
            .with_history(Box::new(cells))
            .with_validator(Box::new(EnterKey {
                kernel: kernel.clone(),
                cell: Arc::clone(&cell),
                is_command: Arc::clone(&is_command),
                pause: Arc::clone(&pause),
            }))
            .with_break_signal(pause)
            .with_poll_interval(PAUSE_CHECK_INTERVAL)
            .with_completer(Box::new(NameCompleter {
                kernel,
                is_command: Arc::clone(&is_command),
            }))
            .with_quick_completions(true)
            .with_partial_completions(true)
            .with_menu(ReedlineMenu::EngineCompleter(Box::new(popup)))
            .with_highlighter(Box::new(CodeColors {
                cell: Arc::clone(&cell),
                is_command: Arc::clone(&is_command),
                has_colors,
            }));
        // Without colors, a suggestion of the history looks like typed code.
        if has_colors {
            let hints = DefaultHinter::default().with_style(Style::new().dimmed());
            editor = editor.with_hinter(Box::new(hints));
        }
        Self {
            editor,
            cell,
            is_command,
        }
    }

    fn read(&mut self, kind: PromptKind) -> io::Result<PromptInput> {
        *self.cell.lock() = EditedCell::default();
        let is_command = matches!(kind, PromptKind::Debugger);
        self.is_command.store(is_command, Ordering::Relaxed);
        let prompt = PromptText::new(kind);
        loop {
            let code = match self.editor.read_line(&prompt)? {
                Signal::Success(code) => code,
                Signal::CtrlC => return Ok(PromptInput::GivenUp),
                Signal::CtrlD => return Ok(PromptInput::End),
                // Enter has added a line to the cell.
                _ => {
                    let indent = std::mem::take(&mut self.cell.lock().indent);
                    let insert = EditCommand::InsertString(indent);
                    self.editor.run_edit_commands(&[insert]);
                    continue;
                }
            };
            return Ok(PromptInput::Code {
                code: trim_last_line(&code).to_owned(),
                is_queued: self.cell.lock().is_queued,
            });
        }
    }
}

/// The texts before the lines of a cell.
struct PromptText {
    first: String,
    next: String,
}

impl PromptText {
    fn new(kind: PromptKind) -> Self {
        let first = match kind {
            PromptKind::Cell(number) => format!("In [{number}]: "),
            PromptKind::Debugger => "ipdb> ".into(),
        };
        let next = format!("{:>width$}", "...: ", width = first.len());
        Self { first, next }
    }
}

impl Prompt for PromptText {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.first)
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.next)
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        Cow::Owned(format!("(history: `{}`) ", search.term))
    }

    fn get_prompt_color(&self) -> Color {
        Color::Green
    }

    fn get_prompt_multiline_color(&self) -> PromptColor {
        PromptColor::Green
    }
}

/// The kernel, asked from the editor's thread. Errors are ignored, because a message would disturb the input; the next
/// run reports them.
#[derive(Clone)]
struct KernelOfPrompt {
    client: CompanionClient,
    runtime: Handle,
    session: String,
}

impl KernelOfPrompt {
    /// The names that fit at the cursor, which is a place in bytes.
    fn complete(&self, code: &str, cursor: usize) -> Completions {
        let request = CodeCursor {
            code: code.into(),
            cursor: Some(code[..cursor].chars().count() as u64),
            detail: None,
            session: self.session.clone(),
        };
        let reply = self.runtime.block_on(async {
            tokio::time::timeout(REPL_COMPLETION_TIMEOUT, self.client.complete(&request)).await
        });
        reply.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Whether the code can run.
    fn check(&self, code: &str) -> CellVerdict {
        let request = CompletenessQuery {
            code: code.into(),
            session: self.session.clone(),
        };
        let reply = self.runtime.block_on(async {
            tokio::time::timeout(COMPLETENESS_TIMEOUT, self.client.is_complete(&request)).await
        });
        match reply {
            Ok(Ok(answer)) if answer.status == "incomplete" => {
                CellVerdict::Incomplete(answer.indent.unwrap_or_default())
            }
            // For invalid code and for errors of the check, the run reports the reason.
            Ok(Ok(_)) => CellVerdict::Complete,
            Ok(Err(error)) if !is_busy(&error) => CellVerdict::Complete,
            Ok(Err(_)) | Err(_) => match looks_whole(code) {
                true => CellVerdict::Queued,
                false => CellVerdict::Incomplete(next_indent(code)),
            },
        }
    }
}

#[derive(Debug)]
enum CellVerdict {
    Complete,
    /// With the indentation of the next line.
    Incomplete(String),
    /// It looks complete, but the kernel runs other code.
    Queued,
}

/// Enter: runs the cell, or adds a line.
struct EnterKey {
    kernel: KernelOfPrompt,
    cell: Arc<Mutex<EditedCell>>,
    is_command: Arc<AtomicBool>,
    /// Makes the editor return, so that the new line is indented.
    pause: Arc<AtomicBool>,
}

impl EnterKey {
    fn check(&self, code: &str) -> CellVerdict {
        let typed = trim_last_line(code);
        let is_command = self.is_command.load(Ordering::Relaxed);
        let cursor = {
            let cell = self.cell.lock();
            // Keys that arrive together with Enter are not painted before.
            if cell.code == code {
                cell.cursor
            } else {
                code.len()
            }
        };
        if is_command || typed.trim().is_empty() || EXIT_WORDS.contains(&typed.trim()) {
            return CellVerdict::Complete;
        }
        match is_above_last_line(code, cursor) {
            true => CellVerdict::Incomplete(next_indent(&code[..cursor])),
            false => self.kernel.check(typed),
        }
    }
}

impl Validator for EnterKey {
    fn validate(&self, code: &str) -> ValidationResult {
        let found = self.check(code);
        let mut cell = self.cell.lock();
        cell.is_queued = matches!(found, CellVerdict::Queued);
        match found {
            CellVerdict::Complete | CellVerdict::Queued => ValidationResult::Complete,
            CellVerdict::Incomplete(indent) => {
                cell.indent = indent;
                self.pause.store(true, Ordering::Relaxed);
                ValidationResult::Incomplete
            }
        }
    }
}

/// Colors the code, and notes where the cursor is.
struct CodeColors {
    cell: Arc<Mutex<EditedCell>>,
    is_command: Arc<AtomicBool>,
    has_colors: bool,
}

impl Highlighter for CodeColors {
    fn highlight(&self, code: &str, cursor: usize) -> StyledText {
        let mut cell = self.cell.lock();
        code.clone_into(&mut cell.code);
        cell.cursor = cursor;
        let mut styled = StyledText::new();
        match self.has_colors && !self.is_command.load(Ordering::Relaxed) {
            true => highlight_code(code)
                .into_iter()
                .for_each(|piece| styled.push(piece)),
            false => styled.push((Style::new(), code.into())),
        }
        styled
    }
}

/// Completes names by asking the kernel.
struct NameCompleter {
    kernel: KernelOfPrompt,
    is_command: Arc<AtomicBool>,
}

impl Completer for NameCompleter {
    fn complete(&mut self, code: &str, cursor: usize) -> Vec<Suggestion> {
        let Some(typed) = code.get(..cursor) else {
            return Vec::new();
        };
        let line = typed.rsplit('\n').next().unwrap_or_default();
        if self.is_command.load(Ordering::Relaxed) {
            return Vec::new();
        }
        if line.trim().is_empty() {
            // Without a name to complete, Tab indents.
            return vec![Suggestion {
                value: INDENT_STEP.into(),
                span: Span::new(cursor, cursor),
                ..Suggestion::default()
            }];
        }
        suggestions(code, cursor, self.kernel.complete(code, cursor))
    }
}

/// The matches that replace text up to the cursor. The kernel counts characters, the editor bytes.
fn suggestions(code: &str, cursor: usize, found: Completions) -> Vec<Suggestion> {
    let mut starts = code.char_indices().map(|(at, _)| at).chain([code.len()]);
    let begin = usize::try_from(found.cursor_start).ok();
    let Some(begin) = begin
        .and_then(|begin| starts.nth(begin))
        .filter(|at| *at <= cursor)
    else {
        return Vec::new();
    };
    let mut types = found.types.into_iter();
    let matches = found.matches.into_iter().map(|name| (name, types.next()));
    matches
        .filter(|(name, _)| is_printable(name))
        .map(|(value, described)| {
            let word = |key: &str| {
                let text = described.as_ref()?.get(key)?.as_str()?;
                (is_printable(text) && !text.is_empty()).then(|| text.to_owned())
            };
            let description = [word("type"), word("signature")];
            let description = description
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" ");
            Suggestion {
                value,
                description: (!description.is_empty()).then_some(description),
                span: Span::new(begin, cursor),
                ..Suggestion::default()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{PromptKind, PromptText, suggestions};
    use crate::protocol::session::Completions;
    use serde_json::json;

    fn found(cursor_start: u64) -> Completions {
        let types = json!([{"text": "größe", "type": "function", "signature": "(x)"}]);
        Completions {
            matches: vec!["größe".into()],
            cursor_start,
            types: serde_json::from_value(types).unwrap(),
            ..Completions::default()
        }
    }

    #[test]
    fn characters_of_the_cell_become_bytes() {
        let begin = |code: &str, at| {
            let all = suggestions(code, code.len(), found(at));
            all.first().map(|one| (one.span.start, one.span.end))
        };
        assert_eq!(begin("gr", 0), Some((0, 2)));
        assert_eq!(begin("ä + gr", 4), Some((5, 7)));
        assert_eq!(begin("ö = 1\n  gr", 8), Some((9, 11)));
        assert_eq!(begin("gr", 9), None);
        assert!(suggestions("gr xx", 2, found(3)).is_empty());
    }

    #[test]
    fn a_match_has_its_type_and_signature() {
        let all = suggestions("gr", 2, found(0));
        assert_eq!(all[0].description.as_deref(), Some("function (x)"));
        let mut hostile = found(0);
        hostile.matches = vec!["\u{1b}[2J".into()];
        assert!(suggestions("gr", 2, hostile).is_empty());
    }

    #[test]
    fn later_lines_are_under_the_first() {
        let prompt = PromptText::new(PromptKind::Cell(10));
        assert_eq!(
            (prompt.first.as_str(), prompt.next.as_str()),
            ("In [10]: ", "    ...: ")
        );
    }
}
