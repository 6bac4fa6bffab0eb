//! Writes files from the container to this machine.
//!
//! A dedicated thread writes the chunks as they arrive: to a temporary file beside the destination, which is synced and
//! renamed. The contents are untrusted. The writer writes nothing outside the folder that the person named, follows no
//! link in that folder, and removes the set-user-ID and set-group-ID bits unless asked to keep them. The caller owns
//! the files. A download that is dropped leaves only the files that existed before.

use super::path_resolver::ResolvedName;
use crate::archive::{
    self, ArchiveError, BackgroundWriter, ChunkReader, ChunkSender, Folder, ReadProgress,
    ResumePoint, UnpackPolicy, UnpackTotals, VerifiedReader, chunk_reader, random_id,
    set_mode_and_mtime, temporary_name,
};
use crate::error::{Error, Result};
use crate::protocol::files::Mtime;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::thread::{self, JoinHandle};
use tokio::sync::{oneshot, watch};

/// The destination of a download, written by a thread while data arrives.
#[derive(Debug)]
pub(crate) struct DownloadWriter {
    chunk_sender: Option<ChunkSender>,
    outcome: Option<oneshot::Receiver<Result<UnpackTotals>>>,
    thread: Option<JoinHandle<()>>,
    /// The part of an archive that has been read.
    progress: Option<watch::Receiver<ReadProgress>>,
}

/// The attributes to set on a file.
#[derive(Debug)]
pub(crate) struct DownloadAttributes {
    pub(crate) mode: u32,
    pub(crate) mtime: Mtime,
}

impl DownloadWriter {
    /// Writes one file, from its bytes.
    pub(crate) fn to_file(place: ResolvedName, attributes: DownloadAttributes) -> Result<Self> {
        let ResolvedName {
            folder, name, path, ..
        } = place;
        let temporary = temporary_name(&name, &random_id()?);
        Ok(Self::spawn_with_reader(move |reader| {
            let written = write_download(&folder, &temporary, reader, &attributes)
                .and_then(|bytes| folder.rename(&temporary, &name).map(|()| bytes))
                .and_then(|bytes| folder.sync().map(|()| bytes));
            let bytes = written.map_err(|error| {
                // The temporary file may not exist.
                let _ = folder.remove(&temporary);
                write_error(&path, error)
            })?;
            let files = 1;
            Ok(UnpackTotals {
                files,
                bytes,
                ..UnpackTotals::default()
            })
        }))
    }

    /// Writes one file with holes, from an archive of this file alone.
    pub(crate) fn to_sparse_file(place: ResolvedName, keep_setid: bool) -> Result<Self> {
        let policy = UnpackPolicy {
            keep_setid,
            sets_root_attributes: false,
            single_name: Some(place.name),
            temporary_id: random_id()?,
        };
        Ok(Self::unpack_into(place.folder, policy))
    }

    /// Writes the contents of an archive into a folder. `owns_root`: the folder is new, and gets the permissions and
    /// the time from the archive.
    pub(crate) fn to_folder(folder: Folder, owns_root: bool, keep_setid: bool) -> Result<Self> {
        let policy = UnpackPolicy {
            keep_setid,
            sets_root_attributes: owns_root,
            single_name: None,
            temporary_id: random_id()?,
        };
        Ok(Self::unpack_into(folder, policy))
    }

    /// Passes bytes to a writer unchanged. Dropping the download does not wait for a writer that blocks: there is
    /// nothing to clean up.
    pub(crate) fn to_stream(mut to: impl Write + Send + 'static) -> Self {
        let mut download = Self::spawn_with_reader(move |mut reader| {
            let mut bytes = 0;
            loop {
                let piece = reader.next_chunk().map_err(stream_read_error)?;
                let written = match piece.is_empty() {
                    true => to.flush(),
                    false => to.write_all(&piece),
                };
                match written {
                    // The reader has closed the pipe on purpose.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                    written => written?,
                }
                if piece.is_empty() {
                    break;
                }
                bytes += piece.len() as u64;
            }
            Ok(UnpackTotals {
                bytes,
                ..UnpackTotals::default()
            })
        });
        download.thread = None;
        download
    }

    fn unpack_into(folder: Folder, policy: UnpackPolicy) -> Self {
        let (feed, reader) = chunk_reader();
        let (traced, seen) = VerifiedReader::new(reader);
        let mut download = Self::spawn_writer(feed, move || {
            let unpacked = archive::unpack_archive(traced, folder, policy, &mut |_| Ok(()));
            unpacked.map_err(unpack_error)
        });
        download.progress = Some(seen);
        download
    }

    fn spawn_with_reader(
        write: impl FnOnce(ChunkReader) -> Result<UnpackTotals> + Send + 'static,
    ) -> Self {
        let (feed, reader) = chunk_reader();
        Self::spawn_writer(feed, move || write(reader))
    }

    fn spawn_writer(
        feed: ChunkSender,
        write: impl FnOnce() -> Result<UnpackTotals> + Send + 'static,
    ) -> Self {
        let (sender, outcome) = oneshot::channel();
        let thread = thread::spawn(move || {
            // There is no receiver if the download was dropped.
            let _ = sender.send(write());
        });
        Self {
            chunk_sender: Some(feed),
            outcome: Some(outcome),
            thread: Some(thread),
            progress: None,
        }
    }

    /// The sender for the chunks.
    pub(crate) fn chunk_sender(&self) -> Result<&ChunkSender> {
        self.chunk_sender
            .as_ref()
            .ok_or_else(|| anyhow::anyhow!("the download has ended"))
    }

    /// The point from which to resume an archive of which `given` bytes were passed on; `None` when the writer has
    /// ended.
    pub(crate) async fn resume_point(&self, given: u64) -> Option<ResumePoint> {
        let mut seen = self.progress.clone()?;
        let seen = seen
            .wait_for(|seen| seen.resume_point(given).is_some())
            .await;
        seen.ok()?.resume_point(given)
    }

    /// Waits until everything is in place. `received` is the result of the transfer. An error of the writer takes
    /// precedence, because it is the cause.
    pub(crate) async fn finish(mut self, received: Result<()>) -> Result<UnpackTotals> {
        match (self.chunk_sender.take(), &received) {
            (Some(feed), Ok(())) => feed.finish().await,
            (Some(feed), Err(_)) => feed.fail(io::ErrorKind::UnexpectedEof.into()).await,
            (None, _) => {}
        }
        let outcome = match self.outcome.take() {
            Some(outcome) => outcome.await?,
            None => anyhow::bail!("the download has ended"),
        };
        match (received, outcome) {
            (Err(received), Err(failure)) if failure.downcast_ref::<Error>().is_none() => {
                Err(received)
            }
            (Err(received), Ok(_)) => Err(received),
            (_, outcome) => outcome,
        }
    }
}

impl Drop for DownloadWriter {
    fn drop(&mut self) {
        // Without more chunks, the thread removes the incomplete files and ends.
        self.chunk_sender.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write_download(
    folder: &Folder,
    temporary: &OsString,
    mut reader: ChunkReader,
    attributes: &DownloadAttributes,
) -> io::Result<u64> {
    let mut file = folder.create_file(temporary)?;
    let mut background_writer = BackgroundWriter::default();
    let mut bytes = 0;
    loop {
        let piece = reader.next_chunk()?;
        if piece.is_empty() {
            break;
        }
        file.write_all(&piece)?;
        bytes += piece.len() as u64;
        background_writer.hint_writeback(&file, bytes);
    }
    set_mode_and_mtime(&file, attributes.mode, Some(attributes.mtime))?;
    file.sync_all()?;
    Ok(bytes)
}

/// The error when nothing can be written at a path.
pub(crate) fn write_error(path: &Path, error: io::Error) -> anyhow::Error {
    use io::ErrorKind::{QuotaExceeded, StorageFull, UnexpectedEof};
    let path = path.display();
    match error.kind() {
        StorageFull | QuotaExceeded => Error::DiskFull {
            why: format!("`{path}` can't be written"),
        }
        .into(),
        UnexpectedEof => stream_read_error(error),
        _ => Error::usage(
            format!("`{path}` can't be written: {error}"),
            "choose an existing folder with write permission",
        )
        .into(),
    }
}

/// The error when the chunks end early; the sender reports the reason.
fn stream_read_error(error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error)
}

fn unpack_error(fault: ArchiveError) -> anyhow::Error {
    let why = fault.to_string();
    match fault {
        ArchiveError::Stream(error) => stream_read_error(error),
        full if full.is_full() => Error::DiskFull { why }.into(),
        ArchiveError::Damaged(_) | ArchiveError::SenderFailed(_) => Error::precondition(
            why,
            "check the folder in the container: `osctl shell ls -la FOLDER`; earlier entries were copied",
        )
        .into(),
        _ => Error::usage(
            why,
            "exclude or move that entry; earlier entries were copied",
        )
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::DownloadWriter;
    use std::io::{self, Write};
    use std::sync::mpsc;

    /// A writer that blocks until the test releases it.
    struct SlowWriter {
        started: mpsc::Sender<()>,
        resume: mpsc::Receiver<()>,
    }

    impl Write for SlowWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.started.send(());
            let _ = self.resume.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn dropping_a_download_does_not_wait_for_a_blocked_writer() {
        let (started, start) = mpsc::channel();
        let (release, resume) = mpsc::channel();
        let download = DownloadWriter::to_stream(SlowWriter { started, resume });
        assert!(
            download
                .chunk_sender()
                .unwrap()
                .send_chunk("bytes".into())
                .await
        );
        start.recv().unwrap();
        // If `drop` waits, the test hangs here.
        drop(download);
        release.send(()).unwrap();
    }
}
