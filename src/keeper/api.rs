//! The keeper's API: two Unix sockets, one line of JSON per request and one or more per reply.

use super::controller::ControllerHandle;
use super::run::BuildPolicy;
use super::run_request::{RunDenied, RunRequest};
use super::run_store::KeeperRunStore;
use super::{KEEPER_AGENT_SOCKET_NAME, KEEPER_HOST_SOCKET_NAME, KeeperSettings, run_diff};
use crate::error::Result;
use crate::image::Body;
use crate::protocol::error::ApiError;
use crate::protocol::evolve::{
    EvolveCaller, EvolveRecord, EvolveRunId, KeeperReply, KeeperRequest, MAX_KEEPER_REPLY_BYTES,
    MAX_KEEPER_REQUEST_BYTES, MAX_REASON_CHARS, RunTask, refusal,
};
use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::TryStreamExt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::codec::{FramedRead, LinesCodec};

/// A connection that sends no request within this time is closed.
const KEEPER_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a refused request that are still read, and for how long.
const MAX_DISCARDED_REQUEST_BYTES: u64 = 1 << 20;
const DISCARDED_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a body's file per reply line.
const BODY_FILE_CHUNK_BYTES: usize = 1 << 20;
/// Connections per side at a time; more connections wait.
const MAX_KEEPER_CONNECTIONS: usize = 32;
/// Requests per side at a time that hold whole bodies in memory.
const MAX_CONCURRENT_BODY_REQUESTS: usize = 1;
/// How long such a request waits for the previous one before it is refused.
const RUN_BODY_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The sockets, each with the caller that connects to it.
pub(super) type KeeperSockets = [(UnixListener, EvolveCaller); 2];

pub(super) fn bind_sockets(settings: &KeeperSettings) -> Result<KeeperSockets> {
    Ok([
        // The host's socket is reachable only for a caller that may run commands in this container.
        (
            bind_socket(&settings.state_folder.join(KEEPER_HOST_SOCKET_NAME), 0o600)?,
            EvolveCaller::Host,
        ),
        (
            bind_socket(
                &settings.socket_folder.join(KEEPER_AGENT_SOCKET_NAME),
                0o666,
            )?,
            EvolveCaller::Agent,
        ),
    ])
}

fn bind_socket(path: &Path, mode: u32) -> Result<UnixListener> {
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
pub(super) struct KeeperServer {
    run_store: KeeperRunStore,
    controller: ControllerHandle,
    body_limits: RunBodyRequestLimits,
}

/// Permits for requests that hold whole bodies in memory. Each side has its own permits, so that the agent can't
/// delay the host.
#[derive(Debug, Clone)]
struct RunBodyRequestLimits {
    host: Arc<Semaphore>,
    agent: Arc<Semaphore>,
    timeout: Duration,
}

impl Default for RunBodyRequestLimits {
    fn default() -> Self {
        let semaphore = || Arc::new(Semaphore::new(MAX_CONCURRENT_BODY_REQUESTS));
        Self {
            host: semaphore(),
            agent: semaphore(),
            timeout: RUN_BODY_REQUEST_TIMEOUT,
        }
    }
}

impl RunBodyRequestLimits {
    /// Waits for a permit of this side. The request ends when the permit is dropped.
    async fn acquire_permit(
        &self,
        by: EvolveCaller,
    ) -> Result<std::result::Result<OwnedSemaphorePermit, ApiError>> {
        let semaphore = match by {
            EvolveCaller::Agent => &self.agent,
            EvolveCaller::Host | EvolveCaller::Keeper => &self.host,
        };
        let permit = semaphore.clone().acquire_owned();
        match tokio::time::timeout(self.timeout, permit).await {
            Ok(permit) => Ok(Ok(permit?)),
            Err(_) => {
                let message = "the keeper is busy with another request for the body of an evolve";
                let error = ApiError::new(refusal::KEEPER_BUSY, message);
                Ok(Err(error.with_hint("try again when that request has ended")))
            }
        }
    }
}

impl KeeperServer {
    pub(super) fn new(run_store: KeeperRunStore, handle: ControllerHandle) -> Self {
        Self {
            run_store,
            controller: handle,
            body_limits: RunBodyRequestLimits::default(),
        }
    }

    /// Serves until a socket fails.
    pub(super) async fn serve(self, sockets: KeeperSockets) -> Result<()> {
        let [host, agent] = sockets;
        tokio::try_join!(
            self.accept_connections(host),
            self.accept_connections(agent)
        )?;
        Ok(())
    }

    async fn accept_connections(&self, (listener, by): (UnixListener, EvolveCaller)) -> Result<()> {
        let permits = Arc::new(Semaphore::new(MAX_KEEPER_CONNECTIONS));
        loop {
            let permit = permits.clone().acquire_owned().await?;
            let (stream, _) = listener.accept().await?;
            let server = self.clone();
            tokio::spawn(async move {
                // The client closed the connection early and needs no reply.
                if let Err(error) = server.handle_connection(stream, by).await {
                    tracing::debug!(error = %format_args!("{error:#}"), "a connection ended");
                }
                drop(permit);
            });
        }
    }

    async fn handle_connection(&self, stream: UnixStream, by: EvolveCaller) -> Result<()> {
        let (mut read, write) = stream.into_split();
        let mut out = KeeperReplyWriter(write);
        let request =
            match tokio::time::timeout(KEEPER_REQUEST_TIMEOUT, read_request(&mut read)).await {
                Ok(Ok(request)) => request,
                Ok(Err(error)) => {
                    out.write_refusal(error, by).await?;
                    // Read the rest of the request: closing a socket with unread data would discard the refusal.
                    let mut rest = read.take(MAX_DISCARDED_REQUEST_BYTES);
                    let mut nowhere = tokio::io::sink();
                    let rest = tokio::io::copy(&mut rest, &mut nowhere);
                    let _ = tokio::time::timeout(DISCARDED_REQUEST_TIMEOUT, rest).await;
                    return Ok(());
                }
                Err(_) => return Ok(()),
            };
        if let Err(error) = self.handle_request(request, by, &mut out).await? {
            return out.write_refusal(error, by).await;
        }
        Ok(())
    }

    async fn handle_request(
        &self,
        keeper_request: KeeperRequest,
        by: EvolveCaller,
        out: &mut KeeperReplyWriter,
    ) -> Result<std::result::Result<(), ApiError>> {
        let run_request = match keeper_request {
            KeeperRequest::Evolve(request) => RunRequest {
                build_policy: BuildPolicy::from(&request),
                task: RunTask::Evolve,
                by,
                reason: request.reason,
                force: request.force,
                dry_run: request.dry_run,
                rollback_run: None,
            },
            KeeperRequest::Rollback(request) => RunRequest {
                task: RunTask::Rollback,
                by,
                reason: request.reason,
                force: request.force,
                dry_run: false,
                build_policy: BuildPolicy::Always,
                rollback_run: request.run,
            },
            KeeperRequest::Stop {} => return self.cancel_run(by, out).await,
            KeeperRequest::Status {} => {
                out.write_reply(&KeeperReply::Status(self.run_store.read_status()?))
                    .await?;
                return Ok(Ok(()));
            }
            KeeperRequest::History {} => {
                let runs = self.run_store.list_records()?.into_iter();
                let runs = runs.map(EvolveRecord::without_details).collect();
                out.write_reply(&KeeperReply::History { runs }).await?;
                return Ok(Ok(()));
            }
            KeeperRequest::Show { run } => return self.reply_record(&run, out).await,
            KeeperRequest::Log {
                run,
                offset,
                follow,
            } => return self.reply_log(&run, offset, follow, out).await,
            KeeperRequest::Body { run } => return self.reply_body(run, by, out).await,
            KeeperRequest::Diff { run } => return self.reply_diff(run, by, out).await,
        };
        self.begin_run(run_request, out).await
    }

    async fn reply_diff(
        &self,
        run: EvolveRunId,
        by: EvolveCaller,
        out: &mut KeeperReplyWriter,
    ) -> Result<std::result::Result<(), ApiError>> {
        let Some(record) = self.run_store.read_record(&run)? else {
            return Ok(Err(no_such_run_error(&run)));
        };
        let _permit = match self.body_limits.acquire_permit(by).await? {
            Ok(permit) => permit,
            Err(busy) => return Ok(Err(busy)),
        };
        let run_store = self.run_store.clone();
        let compare = move || run_diff::list_run_changes(&run_store, &record);
        let changes = match tokio::task::spawn_blocking(compare).await?? {
            Ok(changes) => changes,
            Err(why) => {
                let hint = format!("`osctl evolve show {run}` shows its record");
                return Ok(Err(
                    ApiError::new(refusal::KEEPER_NO_SUCH_RUN, why).with_hint(hint)
                ));
            }
        };
        out.write_reply(&KeeperReply::Diff { run, changes }).await?;
        Ok(Ok(()))
    }

    /// Replies with the body that the run was made of or rolled back to.
    async fn reply_body(
        &self,
        run: EvolveRunId,
        by: EvolveCaller,
        out: &mut KeeperReplyWriter,
    ) -> Result<std::result::Result<(), ApiError>> {
        let Some(record) = self.run_store.read_record(&run)? else {
            return Ok(Err(no_such_run_error(&run)));
        };
        let _permit = match self.body_limits.acquire_permit(by).await? {
            Ok(permit) => permit,
            Err(busy) => return Ok(Err(busy)),
        };
        let run_store = self.run_store.clone();
        let read = move || {
            let archive = run_store.run_body(&record)?;
            archive
                .map(|archive| Body::from_archive(&archive))
                .transpose()
        };
        let Some(body) = tokio::task::spawn_blocking(read).await?? else {
            return Ok(Err(no_such_run_error(&run)));
        };
        for (path, content) in &body.files {
            let empty: &[u8] = &[];
            let pieces = content
                .chunks(BODY_FILE_CHUNK_BYTES)
                .chain(content.is_empty().then_some(empty));
            for piece in pieces {
                let (path, base64) = (path.clone(), BASE64_STANDARD.encode(piece));
                out.write_reply(&KeeperReply::File { path, base64 }).await?;
            }
        }
        Ok(Ok(()))
    }

    async fn begin_run(
        &self,
        run_request: RunRequest,
        out: &mut KeeperReplyWriter,
    ) -> Result<std::result::Result<(), ApiError>> {
        let length = run_request.reason.as_ref().map_or(0, |r| r.chars().count());
        if length > MAX_REASON_CHARS {
            let message = format!("the reason is longer than {MAX_REASON_CHARS} characters");
            return Ok(Err(ApiError::new(refusal::KEEPER_BAD_REQUEST, message)));
        }
        match self.controller.begin_run(run_request).await {
            Ok(run) => out.write_reply(&KeeperReply::Started { run }).await?,
            Err(RunDenied::Busy(run)) => out.write_reply(&KeeperReply::Busy { run }).await?,
            Err(RunDenied::Refused(error)) => return Ok(Err(error)),
        }
        Ok(Ok(()))
    }

    /// Denied to the agent, which could otherwise stop the rollback of its own change.
    async fn cancel_run(
        &self,
        by: EvolveCaller,
        out: &mut KeeperReplyWriter,
    ) -> Result<std::result::Result<(), ApiError>> {
        if by != EvolveCaller::Host {
            let message = "only the host can stop an evolve";
            let error = ApiError::new(refusal::KEEPER_FORBIDDEN, message);
            return Ok(Err(error.with_hint("run `osctl evolve stop` on the host")));
        }
        match self.controller.cancel_run().await {
            Ok(run) => out.write_reply(&KeeperReply::Stopping { run }).await?,
            Err(RunDenied::Busy(run)) => out.write_reply(&KeeperReply::Busy { run }).await?,
            Err(RunDenied::Refused(error)) => return Ok(Err(error)),
        }
        Ok(Ok(()))
    }

    async fn reply_record(
        &self,
        run: &EvolveRunId,
        out: &mut KeeperReplyWriter,
    ) -> Result<std::result::Result<(), ApiError>> {
        let Some(record) = self.run_store.read_record(run)? else {
            return Ok(Err(no_such_run_error(run)));
        };
        out.write_reply(&KeeperReply::Record(Box::new(record)))
            .await?;
        Ok(Ok(()))
    }

    async fn reply_log(
        &self,
        run: &EvolveRunId,
        mut offset: u64,
        follow: bool,
        out: &mut KeeperReplyWriter,
    ) -> Result<std::result::Result<(), ApiError>> {
        let mut changes = self.run_store.subscribe_changes();
        let mut sent: Option<EvolveRecord> = None;
        loop {
            changes.mark_unchanged();
            // Read the record before the log, so that no line is missing after the final record.
            let Some(record) = self.run_store.read_record(run)? else {
                return Ok(Err(no_such_run_error(run)));
            };
            loop {
                let piece = self.run_store.read_log(run, offset)?;
                if piece.is_empty() {
                    break;
                }
                let next = offset + piece.len() as u64;
                let text = String::from_utf8_lossy(&piece).into_owned();
                out.write_reply(&KeeperReply::Log { offset, text, next })
                    .await?;
                offset = next;
            }
            let ended = record.status.has_ended();
            if sent.as_ref() != Some(&record) {
                out.write_reply(&KeeperReply::Record(Box::new(record.clone())))
                    .await?;
                sent = Some(record);
            }
            if ended || !follow {
                return Ok(Ok(()));
            }
            changes.changed().await?;
        }
    }
}

fn no_such_run_error(run: &EvolveRunId) -> ApiError {
    ApiError::new(
        refusal::KEEPER_NO_SUCH_RUN,
        format!("evolve {run} does not exist"),
    )
    .with_hint("`osctl evolve history` lists the evolves")
}

async fn read_request(
    read: impl tokio::io::AsyncRead + Unpin,
) -> std::result::Result<KeeperRequest, ApiError> {
    let bad = |why: String| ApiError::new(refusal::KEEPER_BAD_REQUEST, why);
    let mut line = Vec::new();
    let mut read = BufReader::new(read).take(MAX_KEEPER_REQUEST_BYTES as u64);
    let length = read.read_until(b'\n', &mut line).await;
    length.map_err(|e| bad(format!("the request can't be read: {e}")))?;
    if line.len() == MAX_KEEPER_REQUEST_BYTES && line.last() != Some(&b'\n') {
        return Err(bad(format!(
            "the request is longer than {MAX_KEEPER_REQUEST_BYTES} bytes"
        )));
    }
    serde_json::from_slice(&line).map_err(|e| bad(format!("the request is malformed: {e}")))
}

/// The write half of a connection.
struct KeeperReplyWriter(tokio::net::unix::OwnedWriteHalf);

impl KeeperReplyWriter {
    async fn write_reply(&mut self, reply: &KeeperReply) -> Result<()> {
        let mut line = serde_json::to_vec(reply)?;
        line.push(b'\n');
        Ok(self.0.write_all(&line).await?)
    }

    async fn write_refusal(&mut self, error: ApiError, by: EvolveCaller) -> Result<()> {
        tracing::warn!(?by, why = error.message, "the keeper refused a request");
        self.write_reply(&KeeperReply::Refused { error }).await
    }
}

/// Sends a request to a socket, and passes each line of the reply to `on_line`.
pub(super) async fn send_keeper_request(
    socket: &Path,
    request: &str,
    on_line: &mut (dyn FnMut(&str) -> Result<()> + Send),
) -> Result<()> {
    let mut stream = UnixStream::connect(socket)
        .await
        .with_context(|| format!("connecting to `{}`", socket.display()))?;
    stream.write_all(format!("{request}\n").as_bytes()).await?;
    let lines = LinesCodec::new_with_max_length(MAX_KEEPER_REPLY_BYTES);
    let mut lines = FramedRead::new(stream, lines);
    while let Some(line) = lines.try_next().await? {
        on_line(&line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
