//! The client of the agent socket of the keeper: a request is a line of JSON, replies are lines of JSON.
//!
//! No request has a field for an image, a mount, a command or an environment, so a client can't choose these.

use super::EvolveHandle;
use crate::protocol::error::ApiError;
use crate::protocol::evolve::{
    EvolveRecord, EvolveRunId, KeeperReply, KeeperRequest, MAX_KEEPER_REPLY_BYTES, MAX_REASON_CHARS,
};
use futures_util::StreamExt;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, LinesCodec};

/// How long the first reply may take.
const EVOLVE_KEEPER_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a request failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EvolveRefusal {
    /// There is no keeper here, for this reason.
    NoKeeper(String),
    /// The keeper does not answer.
    NoReply(String),
    /// Another run is in progress.
    Busy(EvolveRunId),
    /// A field is invalid.
    Invalid(String),
    /// The error that the keeper returned.
    Keeper(ApiError),
}

/// The stream of the keeper's replies.
#[derive(Debug)]
pub(crate) struct KeeperReplyStream {
    lines: FramedRead<OwnedReadHalf, LinesCodec>,
    /// Kept open, because the keeper stops sending when the client closes its end.
    _writer: tokio::net::unix::OwnedWriteHalf,
}

impl KeeperReplyStream {
    /// Returns the next reply; nothing at the end.
    ///
    /// # Errors
    /// When a reply is invalid, or the connection to the keeper is lost.
    pub(crate) async fn next_reply(&mut self) -> io::Result<Option<KeeperReply>> {
        let line = self.lines.next().await.transpose();
        let line = line.map_err(io::Error::other)?;
        Ok(line.map(|line| serde_json::from_str(&line)).transpose()?)
    }
}

impl EvolveHandle {
    /// Sends a request to the keeper and returns the first reply and the stream of the others.
    ///
    /// # Errors
    /// When there is no keeper, or the keeper does not answer.
    pub(crate) async fn request_keeper(
        &self,
        ask: &KeeperRequest,
    ) -> Result<(KeeperReply, KeeperReplyStream), EvolveRefusal> {
        if self.settings.is_embedded {
            let why = "the embedded engine has no container to replace";
            return Err(EvolveRefusal::NoKeeper(why.into()));
        }
        if let KeeperRequest::Evolve(evolve) = ask {
            check_reason_length(evolve.reason.as_deref())?;
        }
        if let KeeperRequest::Rollback(rollback) = ask {
            check_reason_length(rollback.reason.as_deref())?;
        }
        let reply = timeout(
            EVOLVE_KEEPER_TIMEOUT,
            send_keeper_request(&self.settings.keeper_socket, ask),
        );
        let silent = |why: String| EvolveRefusal::NoReply(why);
        match reply.await {
            Err(_) => Err(silent(format!("no reply within {EVOLVE_KEEPER_TIMEOUT:?}"))),
            Ok(Err(error)) if is_keeper_absent(&error) => {
                Err(EvolveRefusal::NoKeeper(error.to_string()))
            }
            Ok(Err(error)) => Err(silent(error.to_string())),
            Ok(Ok(None)) => Err(silent("the keeper closed the connection".into())),
            Ok(Ok(Some((KeeperReply::Busy { run }, _)))) => Err(EvolveRefusal::Busy(run)),
            Ok(Ok(Some((KeeperReply::Refused { error }, _)))) => Err(EvolveRefusal::Keeper(error)),
            Ok(Ok(Some((reply, answer)))) => Ok((reply, answer)),
        }
    }

    /// Lists all runs, the newest first.
    ///
    /// # Errors
    /// When there is no keeper, or the keeper does not answer.
    pub(crate) async fn fetch_history(&self) -> Result<Vec<EvolveRecord>, EvolveRefusal> {
        match self.request_keeper(&KeeperRequest::History {}).await? {
            (KeeperReply::History { runs }, _) => Ok(runs),
            (other, _) => Err(unexpected_reply(&other)),
        }
    }
}

/// The refusal for a reply of another protocol version.
pub(crate) fn unexpected_reply(reply: &KeeperReply) -> EvolveRefusal {
    tracing::error!(?reply, "the keeper sent an unexpected reply");
    EvolveRefusal::NoReply("the reply has an unknown format".into())
}

pub(super) async fn send_keeper_request(
    socket: &Path,
    ask: &KeeperRequest,
) -> io::Result<Option<(KeeperReply, KeeperReplyStream)>> {
    let stream = UnixStream::connect(socket).await?;
    let (read, mut write) = stream.into_split();
    let mut line = serde_json::to_vec(ask)?;
    line.push(b'\n');
    write.write_all(&line).await?;
    let mut answer = KeeperReplyStream {
        lines: FramedRead::new(
            read,
            LinesCodec::new_with_max_length(MAX_KEEPER_REPLY_BYTES),
        ),
        _writer: write,
    };
    let first = answer.next_reply().await?;
    Ok(first.map(|reply| (reply, answer)))
}

fn is_keeper_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound};
    [ConnectionRefused, NotADirectory, NotFound].contains(&error.kind())
}

fn check_reason_length(reason: Option<&str>) -> Result<(), EvolveRefusal> {
    match reason {
        Some(reason) if reason.chars().count() > MAX_REASON_CHARS => Err(EvolveRefusal::Invalid(
            format!("`reason` is longer than {MAX_REASON_CHARS} characters"),
        )),
        _ => Ok(()),
    }
}
