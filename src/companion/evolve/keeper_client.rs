//! The keeper's socket: a question as a line of JSON, answers as lines of JSON.
//!
//! Nothing of an image, a mount, a command or an environment can be asked: no question has a place
//! for one.

use super::EvolveHandle;
use crate::protocol::error::ApiError;
use crate::protocol::evolve::{
    EvolveRecord, EvolveRunId, KeeperReply, KeeperRequest, MAX_REASON_CHARS,
};
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::timeout;

/// How long the first answer may take.
const EVOLVE_KEEPER_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes of an answer at most: a history with its receipts.
const MAX_EVOLVE_REPLY_BYTES: usize = 64 << 20;

/// Why nothing came of a question.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EvolveRefusal {
    /// There is no keeper here, and why.
    NoKeeper(String),
    /// It does not answer.
    Silent(String),
    /// Another run is on.
    Busy(EvolveRunId),
    /// A field that does not fit.
    Invalid(String),
    /// The keeper's own words.
    Keeper(ApiError),
}

/// What the keeper answers, one after the other.
#[derive(Debug)]
pub(crate) struct EvolveReplies {
    lines: BufReader<OwnedReadHalf>,
    /// Kept open: who hangs up is not told more.
    _asked: tokio::net::unix::OwnedWriteHalf,
}

impl EvolveReplies {
    /// The next one; nothing at the end.
    ///
    /// # Errors
    /// When the keeper can't be understood, or is gone.
    pub(crate) async fn next(&mut self) -> io::Result<Option<KeeperReply>> {
        let mut line = Vec::new();
        let mut limited =
            tokio::io::AsyncReadExt::take(&mut self.lines, MAX_EVOLVE_REPLY_BYTES as u64);
        limited.read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Ok(None);
        }
        let reply = serde_json::from_slice(&line)?;
        Ok(Some(reply))
    }
}

impl EvolveHandle {
    /// Asks the keeper, and hands its answers on.
    ///
    /// # Errors
    /// When there is none, or it does not answer.
    pub(crate) async fn ask_keeper(
        &self,
        ask: &KeeperRequest,
    ) -> Result<(KeeperReply, EvolveReplies), EvolveRefusal> {
        if self.settings.is_embedded {
            let why = "the embedded engine has none: there is no container to replace";
            return Err(EvolveRefusal::NoKeeper(why.into()));
        }
        if let KeeperRequest::Evolve(evolve) = ask {
            check_reason_length(evolve.reason.as_deref())?;
        }
        if let KeeperRequest::Rollback(rollback) = ask {
            check_reason_length(rollback.reason.as_deref())?;
        }
        let asked = timeout(
            EVOLVE_KEEPER_TIMEOUT,
            send_keeper_request(&self.settings.keeper, ask),
        );
        let silent = |why: String| EvolveRefusal::Silent(why);
        match asked.await {
            Err(_) => Err(silent(format!(
                "it said nothing for {EVOLVE_KEEPER_TIMEOUT:?}"
            ))),
            Ok(Err(error)) if is_absent(&error) => Err(EvolveRefusal::NoKeeper(error.to_string())),
            Ok(Err(error)) => Err(silent(error.to_string())),
            Ok(Ok(None)) => Err(silent("it hung up".into())),
            Ok(Ok(Some((KeeperReply::Busy { run }, _)))) => Err(EvolveRefusal::Busy(run)),
            Ok(Ok(Some((KeeperReply::Refused { error }, _)))) => Err(EvolveRefusal::Keeper(error)),
            Ok(Ok(Some((reply, answer)))) => Ok((reply, answer)),
        }
    }

    /// The runs so far, the newest first.
    ///
    /// # Errors
    /// When there is no keeper, or it does not answer.
    pub(crate) async fn fetch_history(&self) -> Result<Vec<EvolveRecord>, EvolveRefusal> {
        match self.ask_keeper(&KeeperRequest::History {}).await? {
            (KeeperReply::History { runs }, _) => Ok(runs),
            (other, _) => Err(unexpected_reply(&other)),
        }
    }
}

/// The keeper speaks another version.
pub(crate) fn unexpected_reply(reply: &KeeperReply) -> EvolveRefusal {
    tracing::error!("the keeper answered something else: {reply:?}");
    EvolveRefusal::Silent("it answered what this companion does not understand".into())
}

pub(super) async fn send_keeper_request(
    socket: &Path,
    ask: &KeeperRequest,
) -> io::Result<Option<(KeeperReply, EvolveReplies)>> {
    let stream = UnixStream::connect(socket).await?;
    let (read, mut write) = stream.into_split();
    let mut line = serde_json::to_vec(ask)?;
    line.push(b'\n');
    write.write_all(&line).await?;
    let mut answer = EvolveReplies {
        lines: BufReader::new(read),
        _asked: write,
    };
    let first = answer.next().await?;
    Ok(first.map(|reply| (reply, answer)))
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound};
    [ConnectionRefused, NotADirectory, NotFound].contains(&error.kind())
}

fn check_reason_length(reason: Option<&str>) -> Result<(), EvolveRefusal> {
    match reason {
        Some(reason) if reason.chars().count() > MAX_REASON_CHARS => Err(EvolveRefusal::Invalid(
            format!("a reason has {MAX_REASON_CHARS} characters at most"),
        )),
        _ => Ok(()),
    }
}
