//! Work that takes long, as the companion tells it: progress, then the reply.

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
    unread: Vec<u8>,
    reply: PhantomData<R>,
}

impl<R: DeserializeOwned> Tale<R> {
    pub(super) fn new(client: Client, response: reqwest::Response) -> Self {
        Self {
            client,
            response,
            unread: Vec::new(),
            reply: PhantomData,
        }
    }

    /// The reply, or how far it is: bytes that were moved, and of how many.
    ///
    /// # Errors
    /// What the companion refused, or that it went away.
    pub(crate) async fn next(&mut self) -> Result<std::result::Result<R, (u64, Option<u64>)>> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return match serde_json::from_slice(&line)? {
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
                Some(piece) => self.unread.extend_from_slice(&piece),
                None => return Err(self.client.silent()),
            }
        }
    }
}
