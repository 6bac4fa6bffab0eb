//! The user's terminal while it is connected to a program elsewhere: keys are sent and output is shown unchanged.
//!
//! Reading and writing a terminal blocks, and the terminal may be stopped for hours, so each direction has a thread.
//! The terminal is restored however the connection ends: its mode, and the modes that programs have switched on
//! ([`modes`]).

mod modes;
mod raw;

use super::Ui;
use crate::error::Result;
use bytes::Bytes;
use console::Term;
use modes::TerminalModes;
pub(super) use raw::RawMode;
use std::io::{self, Read, Write};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// How long the terminal may take to show the last bytes.
const SCREEN_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The typed input, in chunks.
#[derive(Debug)]
pub(crate) struct ScreenKeyboard(mpsc::Receiver<Vec<u8>>);

impl ScreenKeyboard {
    /// The next keys; `None` when the terminal is gone. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        self.0.recv().await
    }
}

#[derive(Debug)]
pub(crate) struct TerminalScreen {
    ui: Ui,
    raw: RawMode,
    modes: TerminalModes,
    write_sender: Option<mpsc::UnboundedSender<ScreenWrite>>,
    writer_thread: JoinHandle<()>,
    /// Bytes of output that were passed to the writer thread, and the bytes that it has shown.
    queued_bytes: u64,
    shown_bytes: watch::Receiver<u64>,
    /// Whether the output up to now ends within a line.
    is_within_line: bool,
    note: Option<(NotePosition, String)>,
}

#[derive(Debug)]
enum ScreenWrite {
    Output(Bytes),
    Control(String),
}

/// The position of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotePosition {
    /// In the line below the cursor.
    BelowCursor,
    /// In the last line, over the display of a full-screen program.
    LastLine,
}

/// Takes over the terminal.
///
/// # Errors
/// When there is no terminal.
pub(crate) fn open_screen(ui: Ui) -> Result<(ScreenKeyboard, TerminalScreen)> {
    let raw = RawMode::enter()?;
    let (press, keys) = mpsc::channel(8);
    thread::spawn(move || read_keys(&press));
    let (pen, strokes) = mpsc::unbounded_channel();
    let (progress, shown) = watch::channel(0);
    let writing = thread::spawn(move || write_screen(strokes, &progress));
    let screen = TerminalScreen {
        ui,
        raw,
        modes: TerminalModes::default(),
        write_sender: Some(pen),
        writer_thread: writing,
        queued_bytes: 0,
        shown_bytes: shown,
        is_within_line: false,
        note: None,
    };
    Ok((ScreenKeyboard(keys), screen))
}

/// Columns and rows of the user's terminal.
pub(crate) fn terminal_size() -> (u16, u16) {
    let (rows, cols) = Term::stdout().size_checked().unwrap_or((24, 80));
    (cols.max(1), rows.max(1))
}

impl TerminalScreen {
    /// Shows output of the program.
    pub(crate) fn show_output(&mut self, bytes: Bytes) {
        // The note is removed before the output and shown again below it.
        let note = self.note.clone();
        self.remove_note();
        self.modes.track_output(&bytes);
        self.queued_bytes += bytes.len() as u64;
        self.is_within_line = bytes.last().is_some_and(|last| *last != b'\n');
        self.queue_write(ScreenWrite::Output(bytes));
        if let Some((_, text)) = note {
            self.show_note(&text);
        }
    }

    /// Bytes that are not shown yet.
    pub(crate) fn unshown_bytes(&self) -> u64 {
        self.queued_bytes - *self.shown_bytes.borrow()
    }

    /// Waits until more output was shown; `false` when the writer thread has ended.
    pub(crate) async fn wait_for_progress(&mut self) -> bool {
        self.shown_bytes.changed().await.is_ok()
    }

    /// Shows one line of osctl, which [`TerminalScreen::remove_note`] removes.
    pub(crate) fn show_note(&mut self, text: &str) {
        self.remove_note();
        let (cols, rows) = terminal_size();
        let fits: String = text.chars().take(usize::from(cols) - 1).collect();
        let (place, drawn) = match self.modes.is_alternate() {
            true => (
                NotePosition::LastLine,
                format!("\x1b7\x1b[{rows};1H\x1b[0;7m{fits}\x1b[0m\x1b[K\x1b8"),
            ),
            // The cursor moves one line down and up again, so that there is a line below it even on the last line.
            false => (
                NotePosition::BelowCursor,
                format!("\x1bD\x1b[A\x1b7\x1b[B\r\x1b[0;7m{fits}\x1b[0m\x1b[K\x1b8"),
            ),
        };
        self.note = Some((place, text.into()));
        self.queue_write(ScreenWrite::Control(drawn));
    }

    /// Removes the note; `true` if the program must redraw the screen below it.
    pub(crate) fn remove_note(&mut self) -> bool {
        let place = self.note.take().map(|(place, _)| place);
        let (_, rows) = terminal_size();
        match place {
            None => {}
            Some(NotePosition::BelowCursor) => {
                self.queue_write(ScreenWrite::Control("\x1b7\x1b[B\r\x1b[2K\x1b8".into()))
            }
            Some(NotePosition::LastLine) => self.queue_write(ScreenWrite::Control(format!(
                "\x1b7\x1b[{rows};1H\x1b[2K\x1b8"
            ))),
        }
        place == Some(NotePosition::LastLine)
    }

    /// Takes over the terminal again after this process was stopped.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(crate) fn reenter_raw_mode(&self) -> Result<()> {
        self.raw.reenter()
    }

    fn queue_write(&self, stroke: ScreenWrite) {
        if let Some(pen) = &self.write_sender {
            // If the writer thread has ended, the terminal is gone.
            let _ = pen.send(stroke);
        }
    }

    /// Shows the remaining output and restores the terminal.
    pub(crate) async fn close(mut self) {
        self.remove_note();
        self.write_sender = None;
        let mut late = Instant::now() + SCREEN_FLUSH_TIMEOUT;
        while !self.writer_thread.is_finished() && Instant::now() < late {
            // The writer thread does not signal its end, so its state is polled.
            let check_interval = Duration::from_millis(5);
            match tokio::time::timeout(check_interval, self.shown_bytes.changed()).await {
                Ok(Ok(())) => late = Instant::now() + SCREEN_FLUSH_TIMEOUT,
                Ok(Err(_)) => tokio::time::sleep(check_interval).await,
                Err(_) => {}
            }
        }
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        self.write_sender = None;
        let late = Instant::now() + SCREEN_FLUSH_TIMEOUT;
        while !self.writer_thread.is_finished() && Instant::now() < late {
            thread::sleep(Duration::from_millis(1));
        }
        // A write to a stopped terminal would stop this process, too, and it must still restore the mode.
        if self.writer_thread.is_finished() {
            let line = match self.is_within_line && !self.modes.is_alternate() {
                true => "\r\n",
                false => "",
            };
            // The terminal may be gone.
            let _ = self
                .ui
                .print_data(&format!("{}{line}", self.modes.reset_sequence()));
        }
    }
}

fn read_keys(press: &mpsc::Sender<Vec<u8>>) {
    let mut bytes = [0; 16 << 10];
    loop {
        match io::stdin().read(&mut bytes) {
            Ok(length @ 1..) => {
                if press.blocking_send(bytes[..length].to_vec()).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => return,
        }
    }
}

fn write_screen(mut strokes: mpsc::UnboundedReceiver<ScreenWrite>, progress: &watch::Sender<u64>) {
    let mut out = io::stdout();
    while let Some(stroke) = strokes.blocking_recv() {
        let (bytes, length) = match &stroke {
            ScreenWrite::Output(bytes) => (bytes.as_ref(), bytes.len() as u64),
            ScreenWrite::Control(text) => (text.as_bytes(), 0),
        };
        if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
            return;
        }
        progress.send_modify(|shown| *shown += length);
    }
}
