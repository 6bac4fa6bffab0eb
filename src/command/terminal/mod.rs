//! The connection of the user's terminal to a terminal inside. It sends keys and shows output until the shell ends, the
//! user detaches, or the terminal is lost permanently.

mod keys;
mod signals;

use super::CommandContext;
use crate::error::{EXIT_INTERRUPTED, Error, Result, VerbOutcome};
use crate::host::terminal::{TerminalClient, TerminalEvent};
use crate::protocol::pty::{AttachQuery, TerminalEndReason};
use crate::ui::screen::{self, ScreenKeyboard, TerminalScreen};
use keys::DetachKeys;
use signals::{TerminalSignal, TerminalSignals};
use std::future::pending;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// Maximum number of bytes that wait to be shown; reading stops at this limit.
const MAX_UNSHOWN_BYTES: u64 = 128 << 10;

/// Delay before a note about a lost connection is shown.
const TERMINAL_NOTE_DELAY: Duration = Duration::from_millis(500);

/// How long a note stays visible.
const NOTE_REMOVAL_DELAY: Duration = Duration::from_secs(4);

/// How the connection ended.
#[derive(Debug)]
enum TerminalEnd {
    Exit(u8, TerminalEndReason),
    Detached,
    /// A signal ended this process, or its window was closed.
    Signalled,
}

/// Which terminal to open, and how to detach from it.
#[derive(Debug)]
pub(super) struct TerminalPlan {
    pub(super) attach: AttachQuery,
    pub(super) detach_keys: String,
}

pub(super) async fn run(plan: TerminalPlan, cx: &CommandContext) -> Result<VerbOutcome> {
    let TerminalPlan {
        mut attach,
        detach_keys,
    } = plan;
    let keys = DetachKeys::parse(&detach_keys)?;
    let mut signals = TerminalSignals::listen()?;
    (attach.cols, attach.rows) = screen::terminal_size();
    // Errors before the connection exists are printed on a terminal in normal mode.
    let terminal = open_terminal(attach, &mut signals, cx).await?;
    let (keyboard, screen) = screen::open_screen(cx.ui)?;
    let mut live = AttachedTerminal {
        terminal,
        screen,
        keys,
        note: None,
        is_lost: false,
        is_first: true,
        detach_keys,
    };
    let end = live.run(keyboard, &mut signals).await;
    let AttachedTerminal {
        terminal, screen, ..
    } = live;
    let id = terminal.id().unwrap_or_default().to_owned();
    let attach_command = cx.instance.osctl_command(&format!("shell --attach {id}"));
    tokio::join!(screen.close(), terminal.detach());
    match end? {
        TerminalEnd::Exit(code, why) => {
            match why {
                TerminalEndReason::Exited => {}
                TerminalEndReason::Ended => cx
                    .ui
                    .print_message(format!("another client ended terminal `{id}`")),
                TerminalEndReason::Idle => cx.ui.print_message(format!(
                    "terminal `{id}` ended because it was idle for too long"
                )),
                TerminalEndReason::Stopped => return Err(Error::TerminalNotFound { id }.into()),
            }
            Ok(match code {
                0 => VerbOutcome::Done,
                code => VerbOutcome::Code(code),
            })
        }
        TerminalEnd::Detached => {
            cx.ui.print_message(format!(
                "detached from terminal `{id}`, which keeps running; `{attach_command}` returns to it"
            ));
            Ok(VerbOutcome::Done)
        }
        TerminalEnd::Signalled => {
            cx.ui.print_message(format!(
                "terminal `{id}` keeps running; `{attach_command}` returns to it"
            ));
            Ok(VerbOutcome::Code(EXIT_INTERRUPTED))
        }
    }
}

async fn open_terminal(
    attach: AttachQuery,
    signals: &mut TerminalSignals,
    cx: &CommandContext,
) -> Result<TerminalClient> {
    let mut open = std::pin::pin!(TerminalClient::open(cx.companion_client()?, attach));
    let mut work = None;
    loop {
        tokio::select! {
            opened = &mut open => return opened,
            signal = signals.next() => if signal == TerminalSignal::End {
                return Err(Error::Interrupted.into());
            },
            () = sleep(TERMINAL_NOTE_DELAY), if work.is_none() => {
                work = Some(cx.ui.start_request("opening a terminal"));
            }
        }
    }
}

#[derive(Debug)]
struct AttachedTerminal {
    terminal: TerminalClient,
    screen: TerminalScreen,
    keys: DetachKeys,
    /// The next change of the note: its time, and the text to show, or `None` to remove the note.
    note: Option<(Instant, Option<String>)>,
    is_lost: bool,
    is_first: bool,
    detach_keys: String,
}

impl AttachedTerminal {
    async fn run(
        &mut self,
        mut keyboard: ScreenKeyboard,
        signals: &mut TerminalSignals,
    ) -> Result<TerminalEnd> {
        loop {
            let has_room = self.screen.unshown_bytes() < MAX_UNSHOWN_BYTES;
            let due = self.note.as_ref().map(|(at, _)| *at);
            let note = async {
                match due {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                event = self.terminal.next(), if has_room => {
                    if let Some(end) = self.handle_event(event?) {
                        return Ok(end);
                    }
                }
                keys = keyboard.next(), if self.terminal.has_capacity() => {
                    let Some(keys) = keys else {
                        return Ok(TerminalEnd::Signalled);
                    };
                    let (keys, leaves) = self.keys.filter_typed(&keys);
                    self.terminal.type_keys(&keys);
                    if leaves {
                        return Ok(TerminalEnd::Detached);
                    }
                }
                has_progress = self.screen.wait_for_progress() => {
                    if !has_progress {
                        return Ok(TerminalEnd::Signalled);
                    }
                    self.terminal.acknowledge_shown(self.screen.unshown_bytes());
                }
                signal = signals.next() => match signal {
                    TerminalSignal::Resized => self.send_size(),
                    TerminalSignal::Continued => {
                        self.screen.reenter_raw_mode()?;
                        self.send_size();
                        self.terminal.repaint();
                    }
                    TerminalSignal::End => return Ok(TerminalEnd::Signalled),
                },
                () = note => match self.note.take() {
                    Some((_, Some(text))) => self.show_note(&text),
                    _ => self.remove_note(),
                },
            }
        }
    }

    fn handle_event(&mut self, event: TerminalEvent) -> Option<TerminalEnd> {
        match event {
            TerminalEvent::Open {
                writer,
                dropped_bytes,
            } => {
                self.handle_open(writer);
                if dropped_bytes > 0 {
                    self.show_note("the last keys may be lost");
                }
            }
            TerminalEvent::Lost => {
                self.is_lost = true;
                let leave = self.detach_keys.replace(',', " ");
                let text = format!(" connection lost, trying again; {leave} leaves ");
                // Short interruptions are not reported.
                self.note = Some((Instant::now() + TERMINAL_NOTE_DELAY, Some(text)));
            }
            TerminalEvent::Output(bytes) => self.screen.show_output(bytes),
            TerminalEvent::Skipped(bytes) => {
                let bytes = crate::ui::format_bytes(bytes);
                self.show_note(&format!(" skipped {bytes} of output "));
            }
            TerminalEvent::Writer(true) => {
                self.show_note(" you have the keyboard now ");
                self.send_size();
            }
            TerminalEvent::Writer(false) => self.show_note(" another client has the keyboard now "),
            TerminalEvent::Ignored => {
                self.show_note(" not typed: another client has the keyboard; `--take` takes over ")
            }
            TerminalEvent::Exit(code, why) => return Some(TerminalEnd::Exit(code, why)),
        }
        None
    }

    fn handle_open(&mut self, writer: bool) {
        if std::mem::take(&mut self.is_lost) {
            self.note = None;
            self.remove_note();
        }
        let is_first = std::mem::replace(&mut self.is_first, false);
        if is_first && !writer {
            let leave = self.detach_keys.replace(',', " ");
            self.show_note(&format!(" read-only; {leave} detaches "));
        } else if writer {
            // The window size may have changed during the interruption.
            self.send_size();
        }
    }

    fn send_size(&mut self) {
        let (cols, rows) = screen::terminal_size();
        self.terminal.resize(cols, rows);
    }

    /// Shows a note for a short time, or, without a connection, until the connection is restored.
    fn show_note(&mut self, text: &str) {
        self.screen.show_note(text);
        if !self.is_lost {
            self.note = Some((Instant::now() + NOTE_REMOVAL_DELAY, None));
        }
    }

    fn remove_note(&mut self) {
        if self.screen.remove_note() {
            self.terminal.repaint();
        }
    }
}
