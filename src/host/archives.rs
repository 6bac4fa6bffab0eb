//! Folders, and files with holes, as archives over the companion's API. One that was cut is taken up
//! where it was, in the middle of a file too, as long as what was sent before is what it was.

use super::client::Client;
use super::files::{Moved, PAUSE, TRIES, body, is_lost, is_missing, number, when_free};
use super::landing::Landing;
use crate::archive::{Fault, Mark, Pack, Pieces, Telling, fresh, packed};
use crate::error::{Error, Result};
use crate::protocol::files::{Changed, TAR, UPLOAD_FORM, UPLOAD_OFFSET};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, Response};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Client {
    /// Unpacks an archive beneath a folder, from a stream that can't be read twice.
    pub(crate) async fn upload_archive(&self, path: &str, pieces: Pieces) -> Result<Changed> {
        let request = self.request(Method::PUT, &format!("/files{path}"), None::<&()>);
        let request = request.header(CONTENT_TYPE, TAR).body(body(pieces));
        let response = self.open(request).await?;
        self.json(response).await
    }

    /// Packs what is here, and unpacks it beneath a folder; when the connection is lost, goes on with
    /// what has not arrived. `pack` opens it anew each time.
    ///
    /// # Errors
    /// Also when what has arrived is not here any more as it was.
    pub(crate) async fn upload_packed(
        &self,
        path: &str,
        pack: impl Fn() -> Result<Pack>,
        moved: &Moved,
    ) -> Result<Changed> {
        let id = fresh()?;
        let place = format!("/files{path}?upload={id}");
        let mut mark = Mark::default();
        let mut left = TRIES;
        loop {
            let error = match self.upload_rest(&place, pack()?, &mark, moved).await {
                Ok(changed) => return Ok(changed),
                Err(error) if is_changed(&error) => {
                    self.forget(&place).await;
                    return Err(changed_meanwhile());
                }
                Err(error) if !is_lost(&error) => return Err(error),
                Err(error) if left == 0 => {
                    self.forget(&place).await;
                    return Err(error);
                }
                Err(error) => error,
            };
            tokio::time::sleep(PAUSE).await;
            match when_free(|| self.mark(&place)).await {
                Ok(arrived) if arrived.bytes > mark.bytes => (mark, left) = (arrived, TRIES),
                Ok(arrived) => (mark, left) = (arrived, left - 1),
                Err(again) if is_lost(&again) => left -= 1,
                // Nothing is known of it there any more.
                Err(again) if is_gone(&again) => return Err(error),
                Err(again) => return Err(again),
            }
        }
    }

    async fn upload_rest(
        &self,
        place: &str,
        pack: Pack,
        mark: &Mark,
        moved: &Moved,
    ) -> Result<Changed> {
        let moved = Arc::clone(moved);
        let mut sent = 0;
        let count = move |bytes| {
            sent += bytes;
            moved.store(sent, Ordering::Relaxed);
        };
        let pieces = packed(pack, mark.clone(), Telling::Archive, count).await?;
        let mut request = self.request(Method::PUT, place, None::<&()>);
        if mark.bytes > 0 {
            request = request.header(UPLOAD_OFFSET, mark.bytes);
        }
        let request = request.header(CONTENT_TYPE, TAR).body(body(pieces));
        let response = self.open(request).await?;
        self.json(response).await
    }

    /// What is not whole there would stay for a while.
    async fn forget(&self, place: &str) {
        // It may be gone, and so may the connection.
        let _ = self
            .open(self.request(Method::DELETE, place, None::<&()>))
            .await;
    }

    /// How far an archive has come.
    async fn mark(&self, place: &str) -> Result<Mark> {
        // Not `HEAD`, which can't say why it is refused.
        let asked = self.open(self.request(Method::GET, place, None::<&()>));
        let response = match asked.await {
            Ok(response) => response,
            // Nothing of it.
            Err(error) if is_missing(&error) => return Ok(Mark::default()),
            Err(error) => return Err(error),
        };
        let headers = response.headers();
        let bytes = number(headers, UPLOAD_OFFSET);
        let form = headers.get(UPLOAD_FORM).and_then(|form| form.to_str().ok());
        match (bytes, form) {
            (Some(bytes), Some(form)) => Ok(Mark {
                bytes,
                form: form.into(),
            }),
            _ => anyhow::bail!("the companion told no `{UPLOAD_OFFSET}` or no `{UPLOAD_FORM}`"),
        }
    }

    /// Brings an archive of a folder or a file, to somebody who takes it as it is.
    pub(crate) async fn download_archive(
        &self,
        path: &str,
        landing: &Landing,
        moved: &Moved,
    ) -> Result<()> {
        let response = self.archive(path, &Mark::default()).await?;
        match self.pour(response, landing.feed()?, moved).await {
            (_, None) => Ok(()),
            (_, Some(error)) => Err(self.unreachable(&error)),
        }
    }

    /// Brings an archive of a folder or a file, and unpacks it; when the connection is lost, goes on
    /// behind what came.
    ///
    /// # Errors
    /// Also when what came is not there any more as it was.
    pub(crate) async fn download_packed(
        &self,
        path: &str,
        landing: &Landing,
        moved: &Moved,
    ) -> Result<()> {
        let feed = landing.feed()?;
        let mut response = self.archive(path, &Mark::default()).await?;
        let mut given = 0;
        let mut left = TRIES;
        loop {
            let (came, lost) = self.pour(response, feed, moved).await;
            let Some(lost) = lost else { return Ok(()) };
            let lost = self.unreachable(&lost);
            given += came;
            left = if came > 0 { TRIES } else { left };
            let Some(mark) = landing.mark(given).await else {
                // It has ended, and knows why.
                return Ok(());
            };
            response = loop {
                if left == 0 {
                    return Err(lost);
                }
                left -= 1;
                tokio::time::sleep(PAUSE).await;
                match self.archive(path, &mark).await {
                    Ok(response) => break response,
                    Err(error) if is_lost(&error) => {}
                    Err(error) if is_changed(&error) => return Err(changed_meanwhile()),
                    // One that does not know how to go on.
                    Err(error) if is_invalid(&error) => return Err(lost),
                    Err(error) => return Err(error),
                }
            };
        }
    }

    async fn archive(&self, path: &str, from: &Mark) -> Result<Response> {
        let Mark { bytes, form } = from;
        let path = match bytes {
            0 => format!("/files{path}"),
            _ => format!("/files{path}?from={bytes}&form={form}"),
        };
        let request = self.request(Method::GET, &path, None::<&()>);
        self.open(request.header(ACCEPT, TAR)).await
    }
}

fn changed_meanwhile() -> anyhow::Error {
    Error::precondition(
        "what is copied was changed before a lost connection could be taken up",
        "run it again; what is whole was copied",
    )
    .into()
}

/// Whether what was sent before is not what it was: here, or there.
fn is_changed(error: &anyhow::Error) -> bool {
    let is_here = matches!(error.downcast_ref(), Some(Fault::Changed));
    is_here
        || matches!(error.downcast_ref(), Some(Error::Refused { kind, .. }) if kind == "changed")
}

fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Refused { kind, .. }) if kind == "no_file")
}

fn is_invalid(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(Error::Refused { status: 400, .. })
    )
}
