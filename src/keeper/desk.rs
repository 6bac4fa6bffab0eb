//! Where the keeper is asked: two sockets, one line of JSON each way and more.

use super::order::{No, Order};
use super::owner::Handle;
use super::shelf::Shelf;
use super::{AGENT_SOCKET, HOST_SOCKET, Settings, diff};
use crate::error::Result;
use crate::image::Body;
use crate::protocol::evolve::{
    Ask, Asker, LONGEST_ASK, LONGEST_REASON, Record, Reply, Run, Task, refusal,
};
use crate::protocol::fault::Fault;
use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Who connects and says nothing is hung up on.
const SILENCE: Duration = Duration::from_secs(10);
/// Bytes of a question that is refused, which are still taken, and for how long.
const REST: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a file that are said at once.
const PIECE: usize = 1 << 20;
/// Questions of one side at once; more wait.
const AT_ONCE: usize = 32;
/// Questions of one side at once that hold whole bodies in memory.
const MAX_BODY_QUESTIONS: usize = 1;
/// How long such a question waits for the one before it, until it is refused.
const BODY_QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The sockets, and who asks at each.
pub(super) type Sockets = [(UnixListener, Asker); 2];

pub(super) fn listen(settings: &Settings) -> Result<Sockets> {
    Ok([
        // Only who may run commands in this container comes to the host's.
        (bind(&settings.state.join(HOST_SOCKET), 0o600)?, Asker::Host),
        (
            bind(&settings.door.join(AGENT_SOCKET), 0o666)?,
            Asker::Agent,
        ),
    ])
}

fn bind(path: &Path, mode: u32) -> Result<UnixListener> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
        _ => {}
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("listening on `{}`", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

#[derive(Debug, Clone)]
pub(super) struct Desk {
    shelf: Shelf,
    handle: Handle,
    body_questions: BodyQuestions,
}

/// The turns of questions that hold whole bodies in memory. Each side has its own, so that the agent's side
/// can't keep the host waiting.
#[derive(Debug, Clone)]
struct BodyQuestions {
    host: Arc<Semaphore>,
    agent: Arc<Semaphore>,
    timeout: Duration,
}

impl Default for BodyQuestions {
    fn default() -> Self {
        let turns = || Arc::new(Semaphore::new(MAX_BODY_QUESTIONS));
        Self {
            host: turns(),
            agent: turns(),
            timeout: BODY_QUESTION_TIMEOUT,
        }
    }
}

impl BodyQuestions {
    /// Waits for a turn of that side. The turn ends when the permit is dropped.
    async fn take_turn(
        &self,
        by: Asker,
    ) -> Result<std::result::Result<OwnedSemaphorePermit, Fault>> {
        let turns = match by {
            Asker::Agent => &self.agent,
            Asker::Host | Asker::Keeper => &self.host,
        };
        let turn = turns.clone().acquire_owned();
        match tokio::time::timeout(self.timeout, turn).await {
            Ok(turn) => Ok(Ok(turn?)),
            Err(_) => {
                let message = "the keeper is busy with another question about a run's body";
                let fault = Fault::new(refusal::BUSY, message);
                Ok(Err(fault.hint("ask again when that question is answered")))
            }
        }
    }
}

impl Desk {
    pub(super) fn new(shelf: Shelf, handle: Handle) -> Self {
        Self {
            shelf,
            handle,
            body_questions: BodyQuestions::default(),
        }
    }

    /// Until a socket fails.
    pub(super) async fn serve(self, sockets: Sockets) -> Result<()> {
        let [host, agent] = sockets;
        tokio::try_join!(self.answer(host), self.answer(agent))?;
        Ok(())
    }

    async fn answer(&self, (listener, by): (UnixListener, Asker)) -> Result<()> {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        loop {
            let place = places.clone().acquire_owned().await?;
            let (stream, _) = listener.accept().await?;
            let desk = self.clone();
            tokio::spawn(async move {
                // Who hangs up early wanted no more.
                if let Err(error) = desk.talk(stream, by).await {
                    tracing::debug!("a conversation ended: {error:#}");
                }
                drop(place);
            });
        }
    }

    async fn talk(&self, stream: UnixStream, by: Asker) -> Result<()> {
        let (mut read, write) = stream.into_split();
        let mut out = Out(write);
        let question = match tokio::time::timeout(SILENCE, question(&mut read)).await {
            Ok(Ok(question)) => question,
            Ok(Err(fault)) => {
                out.refuse(fault, by).await?;
                // Hanging up on what was not read would take the refusal back.
                let mut rest = read.take(REST);
                let mut nowhere = tokio::io::sink();
                let rest = tokio::io::copy(&mut rest, &mut nowhere);
                let _ = tokio::time::timeout(PATIENCE, rest).await;
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        if let Err(fault) = self.reply(question, by, &mut out).await? {
            return out.refuse(fault, by).await;
        }
        Ok(())
    }

    async fn reply(
        &self,
        question: Ask,
        by: Asker,
        out: &mut Out,
    ) -> Result<std::result::Result<(), Fault>> {
        let order = match question {
            Ask::Evolve(asked) => Order {
                task: Task::Evolve,
                by,
                reason: asked.reason,
                force: asked.force,
                dry_run: asked.dry_run,
                to: None,
            },
            Ask::Rollback(asked) => Order {
                task: Task::Rollback,
                by,
                reason: asked.reason,
                force: asked.force,
                dry_run: false,
                to: asked.run,
            },
            Ask::Stop {} => return self.stop(by, out).await,
            Ask::Status {} => {
                out.say(&Reply::Status(self.shelf.status()?)).await?;
                return Ok(Ok(()));
            }
            Ask::History {} => {
                let runs = self.shelf.records()?.into_iter();
                let runs = runs.map(Record::outline).collect();
                out.say(&Reply::History { runs }).await?;
                return Ok(Ok(()));
            }
            Ask::Show { run } => return self.show(&run, out).await,
            Ask::Log {
                run,
                offset,
                follow,
            } => return self.log(&run, offset, follow, out).await,
            Ask::Body { run } => return self.body(run, by, out).await,
            Ask::Diff { run } => return self.diff(run, by, out).await,
        };
        self.begin(order, out).await
    }

    async fn diff(
        &self,
        run: Run,
        by: Asker,
        out: &mut Out,
    ) -> Result<std::result::Result<(), Fault>> {
        let Some(record) = self.shelf.record(&run)? else {
            return Ok(Err(unknown(&run)));
        };
        let _turn = match self.body_questions.take_turn(by).await? {
            Ok(turn) => turn,
            Err(busy) => return Ok(Err(busy)),
        };
        let shelf = self.shelf.clone();
        let compare = move || diff::changes(&shelf, &record);
        let changes = match tokio::task::spawn_blocking(compare).await?? {
            Ok(changes) => changes,
            Err(why) => {
                let hint = format!("`osctl evolve show {run}` tells what is known of it");
                return Ok(Err(Fault::new(refusal::NO_SUCH_RUN, why).hint(hint)));
            }
        };
        out.say(&Reply::Diff { run, changes }).await?;
        Ok(Ok(()))
    }

    /// The body that a run was made of, or has gone back to.
    async fn body(
        &self,
        run: Run,
        by: Asker,
        out: &mut Out,
    ) -> Result<std::result::Result<(), Fault>> {
        let Some(record) = self.shelf.record(&run)? else {
            return Ok(Err(unknown(&run)));
        };
        let _turn = match self.body_questions.take_turn(by).await? {
            Ok(turn) => turn,
            Err(busy) => return Ok(Err(busy)),
        };
        let shelf = self.shelf.clone();
        let read = move || {
            let archive = shelf.body_of(&record)?;
            archive
                .map(|archive| Body::of_archive(&archive))
                .transpose()
        };
        let Some(body) = tokio::task::spawn_blocking(read).await?? else {
            return Ok(Err(unknown(&run)));
        };
        for (path, content) in &body.files {
            let empty: &[u8] = &[];
            let pieces = content
                .chunks(PIECE)
                .chain(content.is_empty().then_some(empty));
            for piece in pieces {
                let (path, base64) = (path.clone(), BASE64_STANDARD.encode(piece));
                out.say(&Reply::File { path, base64 }).await?;
            }
        }
        Ok(Ok(()))
    }

    async fn begin(&self, order: Order, out: &mut Out) -> Result<std::result::Result<(), Fault>> {
        let length = order.reason.as_ref().map_or(0, |r| r.chars().count());
        if length > LONGEST_REASON {
            let message = format!("the reason is longer than {LONGEST_REASON} characters");
            return Ok(Err(Fault::new(refusal::BAD_REQUEST, message)));
        }
        match self.handle.begin(order).await {
            Ok(run) => out.say(&Reply::Started { run }).await?,
            Err(No::Busy(run)) => out.say(&Reply::Busy { run }).await?,
            Err(No::Refused(fault)) => return Ok(Err(fault)),
        }
        Ok(Ok(()))
    }

    /// Whoever is inside might stop the run that takes back what it has become.
    async fn stop(&self, by: Asker, out: &mut Out) -> Result<std::result::Result<(), Fault>> {
        if by != Asker::Host {
            let message = "a run is stopped from the host alone";
            let fault = Fault::new(refusal::FORBIDDEN, message);
            return Ok(Err(fault.hint("`osctl evolve stop` there does it")));
        }
        match self.handle.stop().await {
            Ok(run) => out.say(&Reply::Stopping { run }).await?,
            Err(No::Busy(run)) => out.say(&Reply::Busy { run }).await?,
            Err(No::Refused(fault)) => return Ok(Err(fault)),
        }
        Ok(Ok(()))
    }

    async fn show(&self, run: &Run, out: &mut Out) -> Result<std::result::Result<(), Fault>> {
        let Some(record) = self.shelf.record(run)? else {
            return Ok(Err(unknown(run)));
        };
        out.say(&Reply::Record(Box::new(record))).await?;
        Ok(Ok(()))
    }

    async fn log(
        &self,
        run: &Run,
        mut offset: u64,
        follow: bool,
        out: &mut Out,
    ) -> Result<std::result::Result<(), Fault>> {
        let mut changes = self.shelf.changes();
        let mut told: Option<Record> = None;
        loop {
            changes.mark_unchanged();
            // The record is read before the log, so that after its last state no line is missing.
            let Some(record) = self.shelf.record(run)? else {
                return Ok(Err(unknown(run)));
            };
            loop {
                let piece = self.shelf.read_log(run, offset)?;
                if piece.is_empty() {
                    break;
                }
                let next = offset + piece.len() as u64;
                let text = String::from_utf8_lossy(&piece).into_owned();
                out.say(&Reply::Log { offset, text, next }).await?;
                offset = next;
            }
            let ended = record.status.has_ended();
            if told.as_ref() != Some(&record) {
                out.say(&Reply::Record(Box::new(record.clone()))).await?;
                told = Some(record);
            }
            if ended || !follow {
                return Ok(Ok(()));
            }
            changes.changed().await?;
        }
    }
}

fn unknown(run: &Run) -> Fault {
    Fault::new(refusal::NO_SUCH_RUN, format!("there is no run `{run}`"))
        .hint("`osctl evolve history` lists the runs")
}

async fn question(read: impl tokio::io::AsyncRead + Unpin) -> std::result::Result<Ask, Fault> {
    let bad = |why: String| Fault::new(refusal::BAD_REQUEST, why);
    let mut line = Vec::new();
    let mut read = BufReader::new(read).take(LONGEST_ASK as u64);
    let length = read.read_until(b'\n', &mut line).await;
    length.map_err(|e| bad(format!("the question can't be read: {e}")))?;
    if line.len() == LONGEST_ASK && line.last() != Some(&b'\n') {
        return Err(bad(format!(
            "the question is longer than {LONGEST_ASK} bytes"
        )));
    }
    serde_json::from_slice(&line).map_err(|e| bad(format!("the question has no meaning: {e}")))
}

/// The way back.
struct Out(tokio::net::unix::OwnedWriteHalf);

impl Out {
    async fn say(&mut self, reply: &Reply) -> Result<()> {
        let mut line = serde_json::to_vec(reply)?;
        line.push(b'\n');
        Ok(self.0.write_all(&line).await?)
    }

    async fn refuse(&mut self, error: Fault, by: Asker) -> Result<()> {
        tracing::warn!(?by, "refused: {}", error.message);
        self.say(&Reply::Refused { error }).await
    }
}

/// Asks at a socket, and hands each line of the answer to `each`.
pub(super) async fn ask(
    socket: &Path,
    question: &str,
    each: &mut (dyn FnMut(&str) -> Result<()> + Send),
) -> Result<()> {
    let mut stream = UnixStream::connect(socket)
        .await
        .with_context(|| format!("connecting to `{}`", socket.display()))?;
    stream.write_all(format!("{question}\n").as_bytes()).await?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = lines.next_line().await? {
        each(&line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
