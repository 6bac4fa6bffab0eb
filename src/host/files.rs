//! Transfer of files over the companion's API. An interrupted transfer resumes where it stopped.
//!
//! Paths are percent-encoded and absolute, and follow `/files` in the URL.

use super::client::CompanionClient;
use crate::archive::{ARCHIVE_CHUNK_BYTES, ChunkReceiver, ChunkSender, EntryStat, random_id};
use crate::error::{Error, Result};
use crate::protocol::files::{
    FileChangeReply, FileEntry, FileListing, Mtime, UPLOAD_OFFSET_HEADER,
};
use futures_util::stream::poll_fn;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, RANGE};
use reqwest::{Body, Method, Response, StatusCode};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Limit of consecutive attempts without progress to resume an interrupted transfer, and the delay between them.
pub(super) const MAX_TRANSFER_ATTEMPTS: u32 = 5;
pub(super) const TRANSFER_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Time limit for the companion to notice that a connection is gone.
const UPLOAD_RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes transferred up to now, for a progress display.
pub(crate) type TransferredBytes = Arc<AtomicU64>;

/// A file to upload.
#[derive(Debug)]
pub(crate) struct FileUpload<'a> {
    pub(crate) path: &'a str,
    pub(crate) file: &'a File,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) mtime: Mtime,
}

impl CompanionClient {
    /// The entry at a path, following links; `None` if the path does not exist.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<FileEntry>> {
        match self.get(&format!("/files{path}?stat=true")).await {
            Ok(entry) => Ok(Some(entry)),
            Err(error) => match error.downcast_ref() {
                Some(Error::Refused { status: 404, .. }) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// The entries of a folder, up to the limit of one response.
    pub(crate) async fn list_folder(&self, path: &str) -> Result<FileListing> {
        self.get(&format!("/files{path}")).await
    }

    /// Writes a file from a stream that cannot be read twice.
    pub(crate) async fn upload_stream(
        &self,
        path: &str,
        chunks: ChunkReceiver,
    ) -> Result<FileChangeReply> {
        let request = self.build_request(Method::PUT, &format!("/files{path}"), None::<&()>);
        let response = self
            .send_request(request.body(chunks_to_body(chunks)))
            .await?;
        self.read_json(response).await
    }

    /// Writes a file; after a lost connection, sends only the part that has not arrived.
    ///
    /// # Errors
    /// Also when the file becomes shorter during the upload.
    pub(crate) async fn upload_file(
        &self,
        upload: &FileUpload<'_>,
        moved: &TransferredBytes,
    ) -> Result<FileChangeReply> {
        let id = random_id()?;
        let mut offset = 0;
        let mut attempts_left = MAX_TRANSFER_ATTEMPTS;
        loop {
            let error = match self.upload_from(upload, &id, offset, moved).await {
                Ok(changed) => return Ok(changed),
                // The missing bytes no longer exist here, so a retry cannot succeed.
                Err(_) if is_truncated(upload.file, upload.size) => {
                    return Err(changed_file_error());
                }
                Err(error) if !is_retryable(&error) || attempts_left == 0 => return Err(error),
                // The rest of the changed file does not match the part that has arrived.
                Err(_) if has_changed(upload) => return Err(changed_file_error()),
                Err(error) => error,
            };
            tokio::time::sleep(TRANSFER_RETRY_DELAY).await;
            match retry_while_in_progress(|| self.count_uploaded_bytes(upload.path, &id)).await {
                // The companion cannot have received more bytes than the file has.
                Ok(arrived) if arrived > upload.size => return Err(error),
                Ok(arrived) if arrived > offset => {
                    (offset, attempts_left) = (arrived, MAX_TRANSFER_ATTEMPTS)
                }
                Ok(arrived) => (offset, attempts_left) = (arrived, attempts_left - 1),
                Err(retry_error) if is_retryable(&retry_error) => attempts_left -= 1,
                Err(_) => return Err(error),
            }
        }
    }

    async fn upload_from(
        &self,
        upload: &FileUpload<'_>,
        id: &str,
        offset: u64,
        moved: &TransferredBytes,
    ) -> Result<FileChangeReply> {
        let (size, mode) = (upload.size, upload.mode);
        let query = format!("upload={id}&mode={mode:o}&mtime={}", upload.mtime);
        let path = format!("/files{}?{query}", upload.path);
        let mut request = self.build_request(Method::PUT, &path, None::<&()>);
        if offset < size {
            let range = format!("bytes {offset}-{}/{size}", size - 1);
            request = request.header(CONTENT_RANGE, range);
        }
        moved.store(offset, Ordering::Relaxed);
        let file = upload.file.try_clone()?;
        let chunks = read_range(file, offset, size - offset, Arc::clone(moved));
        let request = request.header(CONTENT_LENGTH, size - offset);
        let response = self
            .send_request(request.body(chunks_to_body(chunks)))
            .await?;
        self.read_json(response).await
    }

    /// The number of bytes of an upload that have arrived.
    async fn count_uploaded_bytes(&self, path: &str, id: &str) -> Result<u64> {
        let path = format!("/files{path}?upload={id}");
        let request = self.send_request(self.build_request(Method::HEAD, &path, None::<&()>));
        let response = match request.await {
            Ok(response) => response,
            // Nothing has arrived.
            Err(error) if is_not_found(&error) => return Ok(0),
            Err(error) => return Err(error),
        };
        header_number(response.headers(), UPLOAD_OFFSET_HEADER).ok_or_else(|| {
            anyhow::anyhow!("the companion's response lacks `{UPLOAD_OFFSET_HEADER}`")
        })
    }

    /// Downloads a file; after a lost connection, continues after the bytes that have arrived.
    ///
    /// # Errors
    /// When the connection cannot be restored, or the file was replaced by another one.
    pub(crate) async fn download_file(
        &self,
        path: &str,
        chunk_sender: &ChunkSender,
        moved: &TransferredBytes,
    ) -> Result<()> {
        let mut offset = 0;
        let mut tag: Option<String> = None;
        let mut attempts_left = MAX_TRANSFER_ATTEMPTS;
        loop {
            let mut request =
                self.build_request(Method::GET, &format!("/files{path}"), None::<&()>);
            if let Some(tag) = tag.as_ref().filter(|_| offset > 0) {
                request = request
                    .header(RANGE, format!("bytes={offset}-"))
                    .header(IF_RANGE, tag);
            }
            let response = match self.send_request(request).await {
                Ok(response) => response,
                Err(error) if !is_retryable(&error) || tag.is_none() || attempts_left == 0 => {
                    return Err(error);
                }
                Err(_) => {
                    attempts_left -= 1;
                    tokio::time::sleep(TRANSFER_RETRY_DELAY).await;
                    continue;
                }
            };
            if offset > 0 && response.status() != StatusCode::PARTIAL_CONTENT {
                return Err(changed_file_error());
            }
            let headers = response.headers();
            let has_end = headers.contains_key(CONTENT_LENGTH);
            if tag.is_none() {
                let etag = headers.get(ETAG).and_then(|tag| tag.to_str().ok());
                tag = etag.map(str::to_owned);
            }
            let (received, connection_error) =
                self.copy_response(response, chunk_sender, moved).await;
            offset += received;
            let Some(connection_error) = connection_error else {
                return Ok(());
            };
            attempts_left = if received > 0 {
                MAX_TRANSFER_ATTEMPTS
            } else {
                attempts_left
            };
            if attempts_left == 0 || !has_end {
                return Err(self.unreachable_error(&connection_error));
            }
            attempts_left -= 1;
            tokio::time::sleep(TRANSFER_RETRY_DELAY).await;
        }
    }

    /// Copies the response to `chunk_sender`; returns the number of bytes, and the error that interrupted the copy.
    pub(super) async fn copy_response(
        &self,
        mut response: Response,
        chunk_sender: &ChunkSender,
        moved: &TransferredBytes,
    ) -> (u64, Option<reqwest::Error>) {
        let mut received = 0;
        loop {
            match response.chunk().await {
                Ok(Some(piece)) => {
                    let length = piece.len() as u64;
                    // The receiver has stopped, and reports the reason.
                    if !chunk_sender.send_chunk(piece).await {
                        return (received, None);
                    }
                    received += length;
                    moved.fetch_add(length, Ordering::Relaxed);
                }
                Ok(None) => return (received, None),
                Err(error) => return (received, Some(error)),
            }
        }
    }
}

/// Reads a range of a file on a thread.
fn read_range(mut file: File, offset: u64, length: u64, moved: TransferredBytes) -> ChunkReceiver {
    let (mut writer, chunks) = crate::archive::chunk_writer();
    tokio::task::spawn_blocking(move || {
        let mut remaining = length;
        let sent = (|| -> io::Result<()> {
            file.seek(SeekFrom::Start(offset))?;
            while remaining > 0 {
                let mut piece = Vec::with_capacity(ARCHIVE_CHUNK_BYTES);
                let most = remaining.min(ARCHIVE_CHUNK_BYTES as u64);
                let read = (&mut file).take(most).read_to_end(&mut piece)? as u64;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                writer.write_chunk(piece.into())?;
                remaining -= read;
                moved.fetch_add(read, Ordering::Relaxed);
            }
            Ok(())
        })();
        // The receiver is gone after a lost connection.
        let _ = writer.finish(sent.err());
    });
    chunks
}

pub(super) fn chunks_to_body(mut chunks: ChunkReceiver) -> Body {
    Body::wrap_stream(poll_fn(move |cx| chunks.poll_recv(cx)))
}

pub(super) fn header_number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Whether a file has become shorter.
fn is_truncated(file: &File, size: u64) -> bool {
    file.metadata().is_ok_and(|now| now.len() < size)
}

/// Whether a file has changed since its copy started.
fn has_changed(upload: &FileUpload<'_>) -> bool {
    let now = EntryStat::stat_file(upload.file);
    now.is_ok_and(|now| (now.size, now.mtime) != (upload.size, upload.mtime))
}

/// Repeats a request until the companion has noticed that the previous connection is gone, which can take long on slow
/// disks.
pub(super) async fn retry_while_in_progress<T>(ask: impl AsyncFn() -> Result<T>) -> Result<T> {
    let until = tokio::time::Instant::now() + UPLOAD_RELEASE_TIMEOUT;
    loop {
        match ask().await {
            Err(error) if is_in_progress(&error) && tokio::time::Instant::now() < until => {
                tokio::time::sleep(TRANSFER_RETRY_DELAY).await;
            }
            answer => return answer,
        }
    }
}

fn is_in_progress(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Refused { kind, .. }) if kind == "upload_in_progress")
}

/// Whether a retry may help.
pub(super) fn is_retryable(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Error>() {
        Some(Error::Unreachable { .. } | Error::NotRunning { .. }) => true,
        // The companion has not noticed yet that the previous connection is gone.
        Some(Error::Refused { kind, .. }) => {
            matches!(kind.as_str(), "upload_in_progress" | "other_offset" | "cut")
        }
        _ => false,
    }
}

pub(super) fn is_not_found(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(Error::Refused { status: 404, .. })
    )
}

fn changed_file_error() -> anyhow::Error {
    Error::precondition(
        "the file changed during the copy",
        "run the command again; the destination was not changed",
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::{EntryStat, FileUpload, has_changed, is_truncated};
    use crate::protocol::files::Mtime;
    use std::io::Write;

    #[test]
    fn a_file_that_becomes_shorter_is_cut() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(9).unwrap();
        assert!(is_truncated(&file, 10) && !is_truncated(&file, 9) && !is_truncated(&file, 8));
    }

    #[test]
    fn a_file_that_is_written_again_is_another() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before").unwrap();
        let EntryStat { size, mtime, .. } = EntryStat::stat_file(&file).unwrap();
        let of = |mtime| FileUpload {
            path: "/file",
            file: &file,
            size,
            mode: 0o644,
            mtime,
        };
        assert!(!has_changed(&of(mtime)));
        let earlier = Mtime {
            seconds: mtime.seconds - 1,
            ..mtime
        };
        assert!(has_changed(&of(earlier)));
        file.set_len(size + 1).unwrap();
        assert!(has_changed(&of(mtime)));
    }
}
