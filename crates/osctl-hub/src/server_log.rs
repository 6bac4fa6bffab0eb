//! The log of a server: its stderr and events such as its start and end, in a file of limited size.

use anyhow::Result;
use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// The size at which the file replaces the previous old file and a new file begins.
const MAX_MCP_LOG_BYTES: u64 = 512 << 10;
/// The most bytes of one line.
const MAX_MCP_LOG_LINE_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct McpServerLog {
    path: PathBuf,
    state: Mutex<McpServerLogState>,
}

#[derive(Debug, Default)]
struct McpServerLogState {
    file: Option<(File, u64)>,
    last_line: Option<String>,
}

/// A part of the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct McpServerLogChunk {
    pub(super) text: Vec<u8>,
    /// The position after this part, from which to read on.
    pub(super) end_offset: u64,
}

impl McpServerLog {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            state: Mutex::default(),
        }
    }

    /// Appends a line of the server's stderr.
    pub(super) fn append_line(&self, line: &str) {
        let mut end = line.len().min(MAX_MCP_LOG_LINE_BYTES);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        let line = line[..end].trim_end();
        let mut state = self.state.lock();
        if !line.is_empty() {
            state.last_line = Some(line.to_owned());
        }
        self.write_or_trace(&mut state, line);
    }

    /// Appends a line of the hub about the server.
    pub(super) fn append_note(&self, line: &str) {
        self.write_or_trace(&mut self.state.lock(), &format!("osctl: {line}"));
    }

    fn write_or_trace(&self, state: &mut McpServerLogState, line: &str) {
        if let Err(error) = self.write_line(state, &format!("{} {line}\n", utc_timestamp())) {
            tracing::debug!(path = %self.path.display(), %error, "the hub can't write the log of a server");
        }
    }

    /// The last non-empty line of the server: often the reason of its end.
    pub(super) fn last_line(&self) -> Option<String> {
        self.state.lock().last_line.clone()
    }

    fn write_line(&self, state: &mut McpServerLogState, line: &str) -> std::io::Result<()> {
        if state
            .file
            .as_ref()
            .is_some_and(|(_, size)| *size > MAX_MCP_LOG_BYTES)
        {
            state.file = None;
            fs::rename(&self.path, self.rotated_path())?;
        }
        if state.file.is_none() {
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder)?;
            }
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&self.path)?;
            let size = file.metadata()?.len();
            state.file = Some((file, size));
        }
        if let Some((file, size)) = &mut state.file {
            file.write_all(line.as_bytes())?;
            *size += line.len() as u64;
        }
        Ok(())
    }

    fn rotated_path(&self) -> PathBuf {
        self.path.with_extension("old")
    }

    /// Reads the whole log, or the part after position `from`.
    ///
    /// # Errors
    /// Fails when the file can't be read.
    pub(super) fn read_from(&self, from: Option<u64>) -> Result<McpServerLogChunk> {
        let mut text = Vec::new();
        let mut end_offset = 0;
        if from.is_none()
            && let Ok(mut old) = File::open(self.rotated_path())
        {
            old.read_to_end(&mut text)?;
        }
        if let Ok(mut file) = File::open(&self.path) {
            let size = file.metadata()?.len();
            // The file was replaced by a new one: read it from its start.
            let start = from.filter(|from| *from <= size).unwrap_or(0);
            file.seek(SeekFrom::Start(start))?;
            let count = file.read_to_end(&mut text)?;
            end_offset = start + count as u64;
        }
        Ok(McpServerLogChunk { text, end_offset })
    }
}

/// The time in UTC, to the second. The date follows Howard Hinnant's `civil_from_days`.
fn utc_timestamp() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::{MAX_MCP_LOG_BYTES, McpServerLog};

    #[test]
    fn a_log_stays_small_and_is_read_from_an_offset() {
        let folder = tempfile::tempdir().unwrap();
        let log = McpServerLog::new(folder.path().join("logs/a.log"));
        log.append_line("first");
        let first = log.read_from(None).unwrap();
        assert!(first.text.ends_with(b"Z first\n"));
        log.append_line("second\n");
        let more = log.read_from(Some(first.end_offset)).unwrap();
        assert!(more.text.ends_with(b"Z second\n"));
        assert!(more.text.len() < 40);
        for _ in 0..2000 {
            log.append_line(&"x".repeat(1000));
        }
        let all = log.read_from(None).unwrap();
        assert!(all.text.len() as u64 <= 2 * MAX_MCP_LOG_BYTES + 4096);
        assert_eq!(log.last_line().unwrap().len(), 1000);
    }
}
