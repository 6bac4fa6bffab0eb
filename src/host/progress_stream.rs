//! Calls that take long: the companion reports progress, then the reply.

use super::bounded_response::ResponseLines;
use super::client::CompanionClient;
use crate::error::{Error, Result};
use crate::protocol::progress::ProgressEvent;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;

/// A stream of progress events, one per line.
#[derive(Debug)]
pub(crate) struct LongCall<R> {
    client: CompanionClient,
    response: reqwest::Response,
    lines: ResponseLines,
    reply: PhantomData<R>,
}

impl<R: DeserializeOwned> LongCall<R> {
    pub(super) fn new(client: CompanionClient, response: reqwest::Response) -> Self {
        Self {
            client,
            response,
            lines: ResponseLines::default(),
            reply: PhantomData,
        }
    }

    /// The reply, or the progress: bytes transferred, and the total.
    ///
    /// # Errors
    /// When the companion refuses, or closes the connection.
    pub(crate) async fn next(&mut self) -> Result<std::result::Result<R, (u64, Option<u64>)>> {
        loop {
            if let Some(line) = self.lines.next() {
                return match self.client.parse_json(&line)? {
                    ProgressEvent::Progress { bytes, total } => Ok(Err((bytes, total))),
                    ProgressEvent::Done { reply } => Ok(Ok(*reply)),
                    ProgressEvent::Failed { status, error } => Err(Error::Refused {
                        status,
                        kind: error.kind,
                        message: error.message,
                        hint: error.hint,
                    }
                    .into()),
                };
            }
            let piece = self.response.chunk().await;
            match piece.map_err(|error| self.client.unreachable_error(&error))? {
                Some(piece) => {
                    let pushed = self.lines.push(&piece);
                    pushed.map_err(|failure| self.client.read_error(&failure))?;
                }
                None => return Err(self.client.ended_early_error()),
            }
        }
    }
}
