//! The keeper's socket: a question as a line of JSON, answers as lines of JSON.
//!
//! Nothing of an image, a mount, a command or an environment can be asked: no question has a place
//! for one.

use super::Evolve;
use crate::protocol::evolve::{Ask, LONGEST_REASON, Record, Reply, Run};
use crate::protocol::fault::Fault;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::timeout;

/// How long the first answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of an answer at most: a history with its receipts.
const LONGEST: usize = 64 << 20;

/// Why nothing came of a question.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Refusal {
    /// There is no keeper here, and why.
    NoKeeper(String),
    /// It does not answer.
    Silent(String),
    /// Another run is on.
    Busy(Run),
    /// A field that does not fit.
    Invalid(String),
    /// The keeper's own words.
    Keeper(Fault),
}

/// What the keeper answers, one after the other.
#[derive(Debug)]
pub(crate) struct Answer {
    lines: BufReader<OwnedReadHalf>,
    /// Kept open: who hangs up is not told more.
    _asked: tokio::net::unix::OwnedWriteHalf,
}

impl Answer {
    /// The next one; nothing at the end.
    ///
    /// # Errors
    /// When the keeper can't be understood, or is gone.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Reply>> {
        let mut line = Vec::new();
        let mut limited = tokio::io::AsyncReadExt::take(&mut self.lines, LONGEST as u64);
        limited.read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Ok(None);
        }
        let reply = serde_json::from_slice(&line)?;
        Ok(Some(reply))
    }
}

impl Evolve {
    /// Asks the keeper, and hands its answers on.
    ///
    /// # Errors
    /// When there is none, or it does not answer.
    pub(crate) async fn ask(&self, ask: &Ask) -> Result<(Reply, Answer), Refusal> {
        if self.settings.is_embedded {
            let why = "the embedded engine has none: there is no container to replace";
            return Err(Refusal::NoKeeper(why.into()));
        }
        if let Ask::Evolve(evolve) = ask {
            reasonable(evolve.reason.as_deref())?;
        }
        if let Ask::Rollback(rollback) = ask {
            reasonable(rollback.reason.as_deref())?;
        }
        let asked = timeout(PATIENCE, begin(&self.settings.keeper, ask));
        let silent = |why: String| Refusal::Silent(why);
        match asked.await {
            Err(_) => Err(silent(format!("it said nothing for {PATIENCE:?}"))),
            Ok(Err(error)) if is_absent(&error) => Err(Refusal::NoKeeper(error.to_string())),
            Ok(Err(error)) => Err(silent(error.to_string())),
            Ok(Ok(None)) => Err(silent("it hung up".into())),
            Ok(Ok(Some((Reply::Busy { run }, _)))) => Err(Refusal::Busy(run)),
            Ok(Ok(Some((Reply::Refused { error }, _)))) => Err(Refusal::Keeper(error)),
            Ok(Ok(Some((reply, answer)))) => Ok((reply, answer)),
        }
    }

    /// The runs so far, the newest first.
    ///
    /// # Errors
    /// When there is no keeper, or it does not answer.
    pub(crate) async fn history(&self) -> Result<Vec<Record>, Refusal> {
        match self.ask(&Ask::History {}).await? {
            (Reply::History { runs }, _) => Ok(runs),
            (other, _) => Err(unexpected(&other)),
        }
    }
}

/// The keeper speaks another version.
pub(crate) fn unexpected(reply: &Reply) -> Refusal {
    tracing::error!("the keeper answered something else: {reply:?}");
    Refusal::Silent("it answered what this companion does not understand".into())
}

pub(super) async fn begin(socket: &Path, ask: &Ask) -> io::Result<Option<(Reply, Answer)>> {
    let stream = UnixStream::connect(socket).await?;
    let (read, mut write) = stream.into_split();
    let mut line = serde_json::to_vec(ask)?;
    line.push(b'\n');
    write.write_all(&line).await?;
    let mut answer = Answer {
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

fn reasonable(reason: Option<&str>) -> Result<(), Refusal> {
    match reason {
        Some(reason) if reason.chars().count() > LONGEST_REASON => Err(Refusal::Invalid(format!(
            "a reason has {LONGEST_REASON} characters at most"
        ))),
        _ => Ok(()),
    }
}
