//! The person's terminal while a program elsewhere has it: keys go there as they are, and what
//! comes from there is shown as it is.
//!
//! Reading and writing a terminal blocks, and its owner may stop it for hours, so each has a
//! thread. However the hand-over ends, the terminal is as it was: its mode, and what programs have
//! switched on ([`modes`]).

mod modes;
mod raw;

use super::Ui;
use crate::error::Result;
use bytes::Bytes;
use console::Term;
use modes::TerminalModes;
use raw::RawMode;
use std::io::{self, Read, Write};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// How long a terminal may take to show the last bytes.
const SCREEN_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// What is typed, piece by piece.
#[derive(Debug)]
pub(crate) struct ScreenKeyboard(mpsc::Receiver<Vec<u8>>);

impl ScreenKeyboard {
    /// The next keys; nothing when the terminal is gone. Loses nothing when dropped.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        self.0.recv().await
    }
}

#[derive(Debug)]
pub(crate) struct TerminalScreen {
    ui: Ui,
    raw: RawMode,
    modes: TerminalModes,
    pen: Option<mpsc::UnboundedSender<ScreenWrite>>,
    writing: JoinHandle<()>,
    /// Bytes of output that were given to the pen, and that it has shown.
    given: u64,
    shown: watch::Receiver<u64>,
    /// Whether what was shown ends within a line.
    within_line: bool,
    note: Option<(NotePlace, String)>,
}

#[derive(Debug)]
enum ScreenWrite {
    Output(Bytes),
    Own(String),
}

/// Where a note stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotePlace {
    /// In the line beneath the cursor.
    Beneath,
    /// In the last line, over what a full-screen program has drawn.
    Over,
}

/// Takes the terminal over.
///
/// # Errors
/// Where there is none.
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
        pen: Some(pen),
        writing,
        given: 0,
        shown,
        within_line: false,
        note: None,
    };
    Ok((ScreenKeyboard(keys), screen))
}

/// Columns and rows of the person's terminal.
pub(crate) fn terminal_size() -> (u16, u16) {
    let (rows, cols) = Term::stdout().size_checked().unwrap_or((24, 80));
    (cols.max(1), rows.max(1))
}

impl TerminalScreen {
    /// Shows what a program wrote.
    pub(crate) fn show_output(&mut self, bytes: Bytes) {
        // What stands in the way of output stands beneath it again afterwards.
        let note = self.note.clone();
        self.remove_note();
        self.modes.track_output(&bytes);
        self.given += bytes.len() as u64;
        self.within_line = bytes.last().is_some_and(|last| *last != b'\n');
        self.queue_write(ScreenWrite::Output(bytes));
        if let Some((_, text)) = note {
            self.show_note(&text);
        }
    }

    /// Bytes that are not shown yet.
    pub(crate) fn unshown_bytes(&self) -> u64 {
        self.given - *self.shown.borrow()
    }

    /// Waits until more was shown; `false` when nothing can be shown any more.
    pub(crate) async fn wait_for_progress(&mut self) -> bool {
        self.shown.changed().await.is_ok()
    }

    /// One line of our own, which [`TerminalScreen::remove_note`] removes.
    pub(crate) fn show_note(&mut self, text: &str) {
        self.remove_note();
        let (cols, rows) = terminal_size();
        let fits: String = text.chars().take(usize::from(cols) - 1).collect();
        let (place, drawn) = match self.modes.is_alternate() {
            true => (
                NotePlace::Over,
                format!("\x1b7\x1b[{rows};1H\x1b[0;7m{fits}\x1b[0m\x1b[K\x1b8"),
            ),
            // A line down and up again: beneath the last line there is one then, too.
            false => (
                NotePlace::Beneath,
                format!("\x1bD\x1b[A\x1b7\x1b[B\r\x1b[0;7m{fits}\x1b[0m\x1b[K\x1b8"),
            ),
        };
        self.note = Some((place, text.into()));
        self.queue_write(ScreenWrite::Own(drawn));
    }

    /// Removes the note; `true` when what it stood on has to be drawn again.
    pub(crate) fn remove_note(&mut self) -> bool {
        let place = self.note.take().map(|(place, _)| place);
        let (_, rows) = terminal_size();
        match place {
            None => {}
            Some(NotePlace::Beneath) => {
                self.queue_write(ScreenWrite::Own("\x1b7\x1b[B\r\x1b[2K\x1b8".into()))
            }
            Some(NotePlace::Over) => {
                self.queue_write(ScreenWrite::Own(format!("\x1b7\x1b[{rows};1H\x1b[2K\x1b8")))
            }
        }
        place == Some(NotePlace::Over)
    }

    /// Takes the terminal over again, after this process was stopped.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn reenter_raw_mode(&self) -> Result<()> {
        self.raw.reenter()
    }

    fn queue_write(&self, stroke: ScreenWrite) {
        if let Some(pen) = &self.pen {
            // A terminal that is gone shows nothing.
            let _ = pen.send(stroke);
        }
    }

    /// Shows what was given, and gives the terminal back.
    pub(crate) async fn close(mut self) {
        self.remove_note();
        self.pen = None;
        let mut late = Instant::now() + SCREEN_FLUSH_TIMEOUT;
        while !self.writing.is_finished() && Instant::now() < late {
            // The pen has no other way to say that it has come to its end.
            let look = Duration::from_millis(5);
            match tokio::time::timeout(look, self.shown.changed()).await {
                Ok(Ok(())) => late = Instant::now() + SCREEN_FLUSH_TIMEOUT,
                Ok(Err(_)) => tokio::time::sleep(look).await,
                Err(_) => {}
            }
        }
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        self.pen = None;
        let late = Instant::now() + SCREEN_FLUSH_TIMEOUT;
        while !self.writing.is_finished() && Instant::now() < late {
            thread::sleep(Duration::from_millis(1));
        }
        // A terminal that is stopped would stop us, too, and its mode matters more.
        if self.writing.is_finished() {
            let line = match self.within_line && !self.modes.is_alternate() {
                true => "\r\n",
                false => "",
            };
            // A terminal that is gone needs no repair.
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
            ScreenWrite::Own(text) => (text.as_bytes(), 0),
        };
        if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
            return;
        }
        progress.send_modify(|shown| *shown += length);
    }
}
