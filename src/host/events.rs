//! A run's event stream over a connection that may be lost: the stream then finds the run by its id and resumes where
//! it stopped. No code is executed twice.

use super::bounded_response::{ResponseLines, reopen_stream};
use super::client::{CLIENT_NDJSON_TYPE, CompanionClient};
use crate::error::{Error, Result};
use crate::protocol::kernel::{ExecReply, Execute, RunEvent, RunEventKind};
use crate::protocol::shell::{ShellReply, ShellRequest};
use reqwest::header::ACCEPT;
use reqwest::{Method, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::time::Duration;

/// How often the client reconnects to a lost run, and the delay between attempts: a container that its engine restarts
/// is back within one or two seconds.
const MAX_RUN_RECONNECT_ATTEMPTS: u32 = 25;
/// How often a run may be found again with a stream that ends without an event.
const MAX_EMPTY_RUN_STREAMS: u32 = 50;
const RUN_RECONNECT_DELAY: Duration = Duration::from_millis(200);

impl CompanionClient {
    /// Starts a run and follows it. The request needs an id, by which the client finds the run again after a lost
    /// connection.
    pub(crate) async fn execute(&self, request: &Execute) -> Result<ClientRunEvents> {
        self.post_run("/exec", request.id.as_deref(), request).await
    }

    /// Starts a shell command and follows it. The request needs an id, too.
    pub(crate) async fn execute_shell(
        &self,
        command: &ShellRequest,
    ) -> Result<ClientRunEvents<ShellReply>> {
        self.post_run("/shell", command.id.as_deref(), command)
            .await
    }

    /// Follows a run from event number `from`.
    pub(crate) async fn follow_run(&self, id: &str, from: u64) -> Result<ClientRunEvents> {
        self.follow_path(format!("/exec/{id}"), from).await
    }

    /// Follows a shell command from event number `from`.
    pub(crate) async fn follow_shell(
        &self,
        id: &str,
        from: u64,
    ) -> Result<ClientRunEvents<ShellReply>> {
        self.follow_path(format!("/shell/{id}"), from).await
    }

    async fn post_run<T: Serialize, R: DeserializeOwned>(
        &self,
        path: &str,
        id: Option<&str>,
        request: &T,
    ) -> Result<ClientRunEvents<R>> {
        let response = self.build_request(Method::POST, path, Some(request));
        let response = self
            .send_request(response.header(ACCEPT, CLIENT_NDJSON_TYPE))
            .await?;
        let path = format!("{path}/{}", id.unwrap_or_default());
        Ok(ClientRunEvents::new(self.clone(), path, 0, response))
    }

    async fn follow_path<R: DeserializeOwned>(
        &self,
        path: String,
        from: u64,
    ) -> Result<ClientRunEvents<R>> {
        let response = self.open_events(&path, from).await?;
        Ok(ClientRunEvents::new(self.clone(), path, from, response))
    }
}

#[derive(Debug)]
pub(crate) struct ClientRunEvents<R = ExecReply> {
    client: CompanionClient,
    /// The path of the run.
    path: String,
    next: u64,
    response: Response,
    lines: ResponseLines,
    /// Consecutive connections without an event.
    empty_streams: u32,
    is_done: bool,
    reply: PhantomData<R>,
}

impl<R: DeserializeOwned> ClientRunEvents<R> {
    pub(super) fn new(
        client: CompanionClient,
        path: String,
        next: u64,
        response: Response,
    ) -> Self {
        Self {
            client,
            path,
            next,
            response,
            lines: ResponseLines::default(),
            empty_streams: 0,
            is_done: false,
            reply: PhantomData,
        }
    }

    /// The next event; `None` after `done`. Cancel-safe.
    ///
    /// # Errors
    /// When the connection is lost and the run cannot be found again.
    pub(crate) async fn next(&mut self) -> Result<Option<RunEvent<R>>> {
        if self.is_done {
            return Ok(None);
        }
        loop {
            if let Some(line) = self.lines.next() {
                self.empty_streams = 0;
                let event: RunEvent<R> = self.client.parse_json(&line)?;
                match event.happened {
                    // A heartbeat repeats the number of the next event.
                    RunEventKind::Heartbeat => {}
                    RunEventKind::Done { .. } => self.is_done = true,
                    _ => self.next = event.seq.saturating_add(1),
                }
                return Ok(Some(event));
            }
            match self.response.chunk().await {
                Ok(Some(bytes)) => {
                    let pushed = self.lines.push(&bytes);
                    pushed.map_err(|failure| self.client.read_error(&failure))?;
                }
                Ok(None) => self.reconnect(None).await?,
                Err(error) => self.reconnect(Some(error)).await?,
            }
        }
    }

    async fn reconnect(&mut self, connection_error: Option<reqwest::Error>) -> Result<()> {
        self.lines.clear();
        self.empty_streams += 1;
        if self.empty_streams > MAX_EMPTY_RUN_STREAMS {
            return Err(connection_error.map_or_else(
                || self.client.ended_early_error(),
                |e| self.client.unreachable_error(&e),
            ));
        }
        if self.empty_streams > 1 {
            tokio::time::sleep(RUN_RECONNECT_DELAY).await;
        }
        let (attempts, delay) = (MAX_RUN_RECONNECT_ATTEMPTS, RUN_RECONNECT_DELAY);
        let open = || self.client.open_events(&self.path, self.next);
        let opened = reopen_stream(attempts, delay, is_unknown_run, open).await;
        self.response = opened.map_err(|error| match connection_error {
            _ if is_unknown_run(&error) => {
                let run = self.path.rsplit('/').next().unwrap_or_default().into();
                Error::RunNotFound { run }.into()
            }
            Some(lost) => self.client.unreachable_error(&lost),
            None => error,
        })?;
        Ok(())
    }
}

/// Whether the companion answers, and does not know the run.
fn is_unknown_run(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref();
    matches!(refused, Some(Error::Refused { status: 404, .. }))
}
