//! The history of the console: a file of the instance with one cell per line.
//!
//! A cell is appended when it is entered, so that it is kept however the console ends. The first line of the file is
//! [`HISTORY_HEADER`]; in the others, `\n` is a line feed and `\\` a backslash.

use reedline::{
    FileBackedHistory, History, HistoryItem, HistoryItemId, HistorySessionId, SearchQuery,
};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

/// Cells in the history.
const MAX_HISTORY_CELLS: usize = 10_000;
/// Cells in the file, until the console drops the oldest.
const MAX_HISTORY_FILE_CELLS: usize = 2 * MAX_HISTORY_CELLS;
const HISTORY_HEADER: &str = "#V2";

#[derive(Debug)]
pub(super) struct ConsoleHistory {
    cells: FileBackedHistory,
    file: PathBuf,
    /// Reports why a cell was not written.
    failures: Sender<io::Error>,
    /// Whether the input is a command of the debugger, which is not kept.
    is_command: Arc<AtomicBool>,
}

impl ConsoleHistory {
    /// Reads the file. A failure is sent to `failures`, and the history is then empty.
    pub(super) fn open(
        file: PathBuf,
        failures: Sender<io::Error>,
        is_command: Arc<AtomicBool>,
    ) -> reedline::Result<Self> {
        let mut cells = FileBackedHistory::new(MAX_HISTORY_CELLS)?;
        match read_cells(&file) {
            Ok(all) => {
                for cell in all {
                    cells.save(HistoryItem::from_command_line(cell))?;
                }
            }
            Err(error) => drop(failures.send(error)),
        }
        Ok(Self {
            cells,
            file,
            failures,
            is_command,
        })
    }
}

/// The cells of the file; shortens a file that has become long.
fn read_cells(file: &Path) -> io::Result<Vec<String>> {
    let text = match std::fs::read(file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let lines = text.lines().filter(|line| *line != HISTORY_HEADER);
    let mut lines: Vec<&str> = lines.collect();
    if lines.len() > MAX_HISTORY_FILE_CELLS {
        lines.drain(..lines.len() - MAX_HISTORY_CELLS);
        let shorter = format!("{HISTORY_HEADER}\n{}\n", lines.join("\n"));
        std::fs::write(file, shorter)?;
    }
    Ok(lines.into_iter().map(unescape_cell).collect())
}

fn append_cell(file: &Path, cell: &str) -> io::Result<()> {
    let mut options = File::options();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(file)?;
    let header = match file.metadata()?.len() {
        0 => format!("{HISTORY_HEADER}\n"),
        _ => String::new(),
    };
    // One write, so that the lines of two consoles do not mix.
    file.write_all(format!("{header}{}\n", escape_cell(cell)).as_bytes())
}

fn escape_cell(cell: &str) -> String {
    cell.replace('\\', "\\\\").replace('\n', "\\n")
}

fn unescape_cell(line: &str) -> String {
    let mut cell = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some('n') => cell.push('\n'),
                Some(other) => cell.push(other),
                None => cell.push('\\'),
            },
            _ => cell.push(c),
        }
    }
    cell
}

impl History for ConsoleHistory {
    /// A cell that begins with a space is not kept.
    fn save(&mut self, item: HistoryItem) -> reedline::Result<HistoryItem> {
        let cell = item.command_line.trim_end().to_owned();
        if cell.starts_with(' ') || self.is_command.load(Ordering::Relaxed) {
            return Ok(item);
        }
        let saved = self.cells.save(HistoryItem::from_command_line(&cell))?;
        // An empty cell and a repetition of the last one have no ID.
        if saved.id.is_some()
            && let Err(error) = append_cell(&self.file, &cell)
        {
            // A console that no longer reads failures has ended.
            let _ = self.failures.send(error);
        }
        Ok(saved)
    }

    fn load(&self, id: HistoryItemId) -> reedline::Result<HistoryItem> {
        self.cells.load(id)
    }

    fn count(&self, query: SearchQuery) -> reedline::Result<i64> {
        self.cells.count(query)
    }

    fn search(&self, query: SearchQuery) -> reedline::Result<Vec<HistoryItem>> {
        self.cells.search(query)
    }

    fn update(
        &mut self,
        id: HistoryItemId,
        updater: &dyn Fn(HistoryItem) -> HistoryItem,
    ) -> reedline::Result<()> {
        self.cells.update(id, updater)
    }

    fn clear(&mut self) -> reedline::Result<()> {
        self.cells.clear()
    }

    fn delete(&mut self, id: HistoryItemId) -> reedline::Result<()> {
        self.cells.delete(id)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn session(&self) -> Option<HistorySessionId> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ConsoleHistory, HISTORY_HEADER, MAX_HISTORY_CELLS, MAX_HISTORY_FILE_CELLS, escape_cell,
        read_cells, unescape_cell,
    };
    use proptest::prelude::*;
    use reedline::{History, HistoryItem};
    use std::fs;
    use std::sync::{Arc, mpsc};

    proptest! {
        #[test]
        fn a_cell_is_read_as_it_was_written(cell in "[ -~\\n\u{e4}]{0,40}") {
            let line = escape_cell(&cell);
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(unescape_cell(&line), cell);
        }
    }

    #[test]
    fn cells_are_appended_once_and_found_by_the_next_console() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("history");
        let (failures, failed) = mpsc::channel();
        let open = || ConsoleHistory::open(file.clone(), failures.clone(), Arc::default()).unwrap();
        let mut history = open();
        for cell in ["def f():\n    return '\\n'\n    ", "1", "1", " 2", "  "] {
            history.save(HistoryItem::from_command_line(cell)).unwrap();
        }
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text, "#V2\ndef f():\\n    return '\\\\n'\n1\n");
        assert_eq!(open().count_all().unwrap(), 2);
        assert!(failed.try_recv().is_err());
        // The console works without its file.
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        open().save(HistoryItem::from_command_line("3")).unwrap();
        assert_eq!(failed.try_iter().count(), 2);
    }

    #[test]
    fn a_long_file_keeps_its_newest_cells() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("history");
        let cells: Vec<String> = (0..=MAX_HISTORY_FILE_CELLS)
            .map(|n| n.to_string())
            .collect();
        fs::write(&file, format!("{HISTORY_HEADER}\n{}\n", cells.join("\n"))).unwrap();
        let kept = read_cells(&file).unwrap();
        assert_eq!(kept.len(), MAX_HISTORY_CELLS);
        assert_eq!(kept.last(), cells.last());
        assert_eq!(read_cells(&file).unwrap(), kept);
    }
}
