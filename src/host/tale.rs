//! Work that takes long, as the companion tells it: progress, then the reply.

use super::answer::Lines;
use super::client::Client;
use crate::error::{Error, Result};
use crate::protocol::tale::Told;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;

/// What is told, line by line.
#[derive(Debug)]
pub(crate) struct Tale<R> {
    client: Client,
    response: reqwest::Response,
    lines: Lines,
    reply: PhantomData<R>,
}

impl<R: DeserializeOwned> Tale<R> {
    pub(super) fn new(client: Client, response: reqwest::Response) -> Self {
        Self {
            client,
            response,
            lines: Lines::default(),
            reply: PhantomData,
        }
    }

    /// The reply, or how far it is: bytes that were moved, and of how many.
    ///
    /// # Errors
    /// What the companion refused, or that it went away.
    pub(crate) async fn next(&mut self) -> Result<std::result::Result<R, (u64, Option<u64>)>> {
        loop {
            if let Some(line) = self.lines.next() {
                return match self.client.parsed(&line)? {
                    Told::Progress { bytes, total } => Ok(Err((bytes, total))),
                    Told::Done { reply } => Ok(Ok(*reply)),
                    Told::Failed { status, error } => Err(Error::Refused {
                        status,
                        kind: error.kind,
                        message: error.message,
                        hint: error.hint,
                    }
                    .into()),
                };
            }
            let piece = self.response.chunk().await;
            match piece.map_err(|error| self.client.unreachable(&error))? {
                Some(piece) => {
                    let pushed = self.lines.push(&piece);
                    pushed.map_err(|failure| self.client.unread(&failure))?;
                }
                None => return Err(self.client.silent()),
            }
        }
    }
}
