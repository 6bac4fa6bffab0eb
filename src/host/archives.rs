//! Transfer of folders, and of files with holes, as archives over the companion's API. An interrupted transfer resumes
//! where it stopped, also in the middle of a file, if the part already sent is unchanged.

use super::client::CompanionClient;
use super::download::DownloadWriter;
use super::files::{
    MAX_TRANSFER_ATTEMPTS, TRANSFER_RETRY_DELAY, TransferredBytes, chunks_to_body, header_number,
    is_not_found, is_retryable, retry_while_in_progress,
};
use crate::archive::{
    ArchiveError, ChunkReceiver, ErrorReporting, PackSource, ResumePoint, pack_stream, random_id,
};
use crate::error::{Error, Result};
use crate::protocol::files::{
    FileChangeReply, TAR_MIME, UPLOAD_DIGEST_HEADER, UPLOAD_OFFSET_HEADER,
};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, Response};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl CompanionClient {
    /// Unpacks an archive in a folder of the container, from a stream that cannot be read twice.
    pub(crate) async fn upload_archive(
        &self,
        path: &str,
        pieces: ChunkReceiver,
    ) -> Result<FileChangeReply> {
        let request = self.build_request(Method::PUT, &format!("/files{path}"), None::<&()>);
        let request = request
            .header(CONTENT_TYPE, TAR_MIME)
            .body(chunks_to_body(pieces));
        let response = self.send_request(request).await?;
        self.read_json(response).await
    }

    /// Packs local files, and unpacks them in a folder of the container; after a lost connection, sends only the part
    /// that has not arrived. `pack` opens the archive again for each attempt.
    ///
    /// # Errors
    /// Also when local files that have already been sent have changed.
    pub(crate) async fn upload_packed(
        &self,
        path: &str,
        pack: impl Fn() -> Result<PackSource>,
        moved: &TransferredBytes,
    ) -> Result<FileChangeReply> {
        let id = random_id()?;
        let place = format!("/files{path}?upload={id}");
        let mut resume_point = ResumePoint::default();
        let mut attempts_left = MAX_TRANSFER_ATTEMPTS;
        loop {
            let error = match self
                .upload_remaining(&place, pack()?, &resume_point, moved)
                .await
            {
                Ok(changed) => return Ok(changed),
                Err(error) if has_changed_content(&error) => {
                    self.delete_partial_upload(&place).await;
                    return Err(changed_files_error());
                }
                Err(error) if !is_retryable(&error) => return Err(error),
                Err(error) if attempts_left == 0 => {
                    self.delete_partial_upload(&place).await;
                    return Err(error);
                }
                Err(error) => error,
            };
            tokio::time::sleep(TRANSFER_RETRY_DELAY).await;
            match retry_while_in_progress(|| self.fetch_resume_point(&place)).await {
                Ok(arrived) if arrived.bytes > resume_point.bytes => {
                    (resume_point, attempts_left) = (arrived, MAX_TRANSFER_ATTEMPTS)
                }
                Ok(arrived) => (resume_point, attempts_left) = (arrived, attempts_left - 1),
                Err(retry_error) if is_retryable(&retry_error) => attempts_left -= 1,
                // The companion no longer has the partial upload.
                Err(retry_error) if is_file_gone(&retry_error) => return Err(error),
                Err(retry_error) => return Err(retry_error),
            }
        }
    }

    async fn upload_remaining(
        &self,
        place: &str,
        pack: PackSource,
        resume_point: &ResumePoint,
        moved: &TransferredBytes,
    ) -> Result<FileChangeReply> {
        let moved = Arc::clone(moved);
        let mut sent = 0;
        let count = move |bytes| {
            sent += bytes;
            moved.store(sent, Ordering::Relaxed);
        };
        let pieces =
            pack_stream(pack, resume_point.clone(), ErrorReporting::Archive, count).await?;
        let mut request = self.build_request(Method::PUT, place, None::<&()>);
        if resume_point.bytes > 0 {
            request = request.header(UPLOAD_OFFSET_HEADER, resume_point.bytes);
        }
        let request = request
            .header(CONTENT_TYPE, TAR_MIME)
            .body(chunks_to_body(pieces));
        let response = self.send_request(request).await?;
        self.read_json(response).await
    }

    /// Removes a partial upload, which would otherwise stay for a while.
    async fn delete_partial_upload(&self, place: &str) {
        // The upload or the connection may be gone already.
        let _ = self
            .send_request(self.build_request(Method::DELETE, place, None::<&()>))
            .await;
    }

    /// The point from which an archive can resume.
    async fn fetch_resume_point(&self, place: &str) -> Result<ResumePoint> {
        // Not `HEAD`, whose response cannot state the reason of a refusal.
        let request = self.send_request(self.build_request(Method::GET, place, None::<&()>));
        let response = match request.await {
            Ok(response) => response,
            // Nothing has arrived.
            Err(error) if is_not_found(&error) => return Ok(ResumePoint::default()),
            Err(error) => return Err(error),
        };
        let headers = response.headers();
        let bytes = header_number(headers, UPLOAD_OFFSET_HEADER);
        let form = headers
            .get(UPLOAD_DIGEST_HEADER)
            .and_then(|form| form.to_str().ok());
        match (bytes, form) {
            (Some(bytes), Some(form)) => Ok(ResumePoint {
                bytes,
                metadata_digest: form.into(),
            }),
            _ => anyhow::bail!(
                "the companion's response lacks `{UPLOAD_OFFSET_HEADER}` or `{UPLOAD_DIGEST_HEADER}`"
            ),
        }
    }

    /// Downloads an archive of a folder or a file, without unpacking it.
    pub(crate) async fn download_archive(
        &self,
        path: &str,
        download: &DownloadWriter,
        moved: &TransferredBytes,
    ) -> Result<()> {
        let response = self.request_archive(path, &ResumePoint::default()).await?;
        match self
            .copy_response(response, download.chunk_sender()?, moved)
            .await
        {
            (_, None) => Ok(()),
            (_, Some(error)) => Err(self.unreachable_error(&error)),
        }
    }

    /// Downloads an archive of a folder or a file, and unpacks it; after a lost connection, continues after the part
    /// that has arrived.
    ///
    /// # Errors
    /// Also when files that have already arrived have changed in the container.
    pub(crate) async fn download_packed(
        &self,
        path: &str,
        download: &DownloadWriter,
        moved: &TransferredBytes,
    ) -> Result<()> {
        let chunk_sender = download.chunk_sender()?;
        let mut response = self.request_archive(path, &ResumePoint::default()).await?;
        let mut passed_on = 0;
        let mut attempts_left = MAX_TRANSFER_ATTEMPTS;
        loop {
            let (received, connection_error) =
                self.copy_response(response, chunk_sender, moved).await;
            let Some(connection_error) = connection_error else {
                return Ok(());
            };
            let connection_error = self.unreachable_error(&connection_error);
            passed_on += received;
            attempts_left = if received > 0 {
                MAX_TRANSFER_ATTEMPTS
            } else {
                attempts_left
            };
            let Some(resume_point) = download.resume_point(passed_on).await else {
                // The writer has ended, and reports the reason.
                return Ok(());
            };
            response = loop {
                if attempts_left == 0 {
                    return Err(connection_error);
                }
                attempts_left -= 1;
                tokio::time::sleep(TRANSFER_RETRY_DELAY).await;
                match self.request_archive(path, &resume_point).await {
                    Ok(response) => break response,
                    Err(error) if is_retryable(&error) => {}
                    Err(error) if has_changed_content(&error) => return Err(changed_files_error()),
                    // This companion does not support resuming.
                    Err(error) if is_bad_request(&error) => return Err(connection_error),
                    Err(error) => return Err(error),
                }
            };
        }
    }

    async fn request_archive(&self, path: &str, from: &ResumePoint) -> Result<Response> {
        let ResumePoint {
            bytes,
            metadata_digest: form,
        } = from;
        let path = match bytes {
            0 => format!("/files{path}"),
            _ => format!("/files{path}?from={bytes}&form={form}"),
        };
        let request = self.build_request(Method::GET, &path, None::<&()>);
        self.send_request(request.header(ACCEPT, TAR_MIME)).await
    }
}

fn changed_files_error() -> anyhow::Error {
    Error::precondition(
        "the files changed before the interrupted copy could resume",
        "run the command again; complete files were copied",
    )
    .into()
}

/// Whether the part that was sent before has changed, on either side.
fn has_changed_content(error: &anyhow::Error) -> bool {
    let is_here = matches!(error.downcast_ref(), Some(ArchiveError::SourceChanged));
    is_here
        || matches!(error.downcast_ref(), Some(Error::Refused { kind, .. }) if kind == "changed")
}

fn is_file_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Refused { kind, .. }) if kind == "no_file")
}

fn is_bad_request(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(Error::Refused { status: 400, .. })
    )
}
