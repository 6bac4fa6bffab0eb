//! A file that is read while it is written. A reader waits for bytes that were announced and are not written yet.
//!
//! The file is removed when the run, its writer and all readers have released it. When the companion ends, the file
//! stays for the next companion.

use super::store::create_private_folder;
use parking_lot::{Condvar, Mutex};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(super) struct GrowingFile {
    path: PathBuf,
    progress: Mutex<GrowingFileProgress>,
    progress_changed: Condvar,
    is_retained: AtomicBool,
}

#[derive(Debug, Default, Clone, Copy)]
struct GrowingFileProgress {
    /// Bytes written up to now.
    written: u64,
    /// Whether the writer has ended.
    is_complete: bool,
}

impl GrowingFile {
    /// A file that does not exist yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Self::with_progress(path, GrowingFileProgress::default())
    }

    /// A file of an earlier companion, with `written` bytes.
    pub(super) fn from_complete(path: PathBuf, written: u64) -> Self {
        let is_complete = true;
        Self::with_progress(
            path,
            GrowingFileProgress {
                written,
                is_complete,
            },
        )
    }

    fn with_progress(path: PathBuf, progress: GrowingFileProgress) -> Self {
        Self {
            path,
            progress: Mutex::new(progress),
            progress_changed: Condvar::new(),
            is_retained: AtomicBool::new(false),
        }
    }

    /// Leaves the file to the next companion.
    pub(super) fn retain_on_drop(&self) {
        self.is_retained.store(true, Ordering::Relaxed);
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all pieces.
    ///
    /// # Errors
    /// When the disk is full or can't be written; bytes that were written before stay.
    pub(super) fn fill_from(
        &self,
        pieces: impl Iterator<Item = impl AsRef<[u8]>>,
    ) -> io::Result<()> {
        let filled = self.write_pieces(pieces);
        self.progress.lock().is_complete = true;
        self.progress_changed.notify_all();
        filled
    }

    fn write_pieces(&self, pieces: impl Iterator<Item = impl AsRef<[u8]>>) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            create_private_folder(folder)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&self.path)?;
        for piece in pieces {
            let bytes = piece.as_ref();
            file.write_all(bytes)?;
            self.progress.lock().written += bytes.len() as u64;
            self.progress_changed.notify_all();
        }
        // No reply waits for the sync: a power loss may cut the file.
        file.sync_data()
    }

    /// Of `promised` bytes, the number that is written or can still be written.
    pub(super) fn reachable_bytes(&self, promised: u64) -> u64 {
        match *self.progress.lock() {
            GrowingFileProgress {
                written,
                is_complete: true,
            } => promised.min(written),
            _ => promised,
        }
    }

    /// Appends `length` bytes at `offset` to `bytes`, and waits for bytes that are not written yet. Returns fewer bytes
    /// if the writer ended before.
    ///
    /// # Errors
    /// When the file can't be read.
    pub(super) fn read_at(&self, offset: u64, length: u64, bytes: &mut Vec<u8>) -> io::Result<u64> {
        let end = offset + length;
        let is_pending =
            |progress: &mut GrowingFileProgress| progress.written < end && !progress.is_complete;
        let written = {
            let mut progress = self.progress.lock();
            self.progress_changed.wait_while(&mut progress, is_pending);
            progress.written
        };
        let length = end.min(written).saturating_sub(offset);
        if length == 0 {
            return Ok(0);
        }
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(offset))?;
        // Reserve the whole length; otherwise the read grows the buffer in steps.
        let begin = bytes.len();
        bytes.resize(begin + length as usize, 0);
        let read = fill_buffer(&mut file, &mut bytes[begin..])?;
        bytes.truncate(begin + read);
        Ok(read as u64)
    }
}

/// Fills the buffer. Returns the number of bytes read.
fn fill_buffer(file: &mut File, mut buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while !buffer.is_empty() {
        match file.read(buffer) {
            Ok(0) => break,
            Ok(count) => {
                read += count;
                buffer = &mut buffer[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

impl Drop for GrowingFile {
    fn drop(&mut self) {
        if *self.is_retained.get_mut() {
            return;
        }
        let path = std::mem::take(&mut self.path);
        let remove = move || match fs::remove_file(&path) {
            // A file that could not be created does not exist.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "the output of a run can't be removed");
            }
            _ => {}
        };
        // Freeing a large file takes milliseconds.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};
    use std::thread;

    #[test]
    fn a_reader_waits_for_announced_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let file = Arc::new(GrowingFile::new(folder.path().join("made/stdout")));
        let (pieces, coming) = mpsc::channel();
        let reader = Arc::clone(&file);
        let read = thread::spawn(move || {
            let mut bytes = b"0".to_vec();
            let read = reader.read_at(1, 4, &mut bytes).unwrap();
            (read, bytes)
        });
        let writer = Arc::clone(&file);
        let filled = thread::spawn(move || writer.fill_from(coming.into_iter()));
        for piece in ["ab", "cd", "ef"] {
            pieces.send(piece.as_bytes().to_vec()).unwrap();
        }
        assert_eq!(read.join().unwrap(), (4, b"0bcde".to_vec()));
        assert_eq!(file.reachable_bytes(100), 100);
        drop(pieces);
        filled.join().unwrap().unwrap();
        assert_eq!(file.reachable_bytes(100), 6);
        let path = file.path().to_owned();
        assert!(path.exists());
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_reader_does_not_wait_for_bytes_that_never_come() {
        let folder = tempfile::tempdir().unwrap();
        let in_the_way = folder.path().join("file");
        fs::write(&in_the_way, "").unwrap();
        let file = GrowingFile::new(in_the_way.join("stdout"));
        assert!(file.fill_from([b"lost".to_vec()].into_iter()).is_err());
        let mut bytes = Vec::new();
        assert_eq!(file.read_at(0, 4, &mut bytes).unwrap(), 0);
        assert_eq!(file.reachable_bytes(4), 0);
    }
}
