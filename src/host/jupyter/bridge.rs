//! The kernel process from its first word to its last: who answers what.
//!
//! One task on one thread. Its parts run side by side and end together: requests on `shell` and
//! `control`, the cells, the heartbeat. It ends when a front end says so, and when the Jupyter
//! that started it is gone.

use super::answers::answer;
use super::attached::Attached;
use super::cells::Cells;
use super::connection::Connection;
use super::content::{CommOpen, ShutdownRequest, error_reply, failure};
use super::sockets::{Inbox, Iopub, Replies, Sockets, mirror};
use super::wire::Request;
use crate::error::Result;
use crate::host::client::Client;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedSender};
use tracing::debug;

/// How long the sockets' own tasks have to pass on the last words.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Serves the front ends of one kernel until it is shut down.
///
/// # Errors
/// When a port is taken.
pub(crate) async fn serve(connection: &Connection, attached: &Attached<'_>) -> Result<()> {
    let sockets = Sockets::bind(connection).await?;
    let iopub = sockets.iopub;
    let (queue, mut queued) = mpsc::unbounded_channel();
    let cells = Cells::new(attached, &iopub, sockets.shell.1.clone());
    let bridge = Bridge {
        attached,
        iopub: &iopub,
        cells: &cells,
        queue,
    };
    iopub.starting().await?;
    let _stdin = sockets.stdin;
    let served = tokio::select! {
        ended = bridge.requests(sockets.shell) => ended,
        ended = bridge.requests(sockets.control) => ended,
        ended = cells.run(&mut queued) => ended,
        ended = mirror(sockets.heartbeat) => ended,
        () = orphaned() => Ok(()),
    };
    tokio::time::sleep(LAST_WORDS).await;
    served
}

struct Bridge<'a> {
    attached: &'a Attached<'a>,
    iopub: &'a Iopub,
    cells: &'a Cells<'a>,
    queue: UnboundedSender<Request>,
}

/// Whether the kernel goes on after a request.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    End,
}

impl Bridge<'_> {
    /// Takes requests until one ends the kernel. Cells wait for their turn, the rest is answered
    /// beside them.
    async fn requests(&self, (mut inbox, replies): (Inbox, Replies)) -> Result<()> {
        let mut answers = FuturesUnordered::new();
        loop {
            tokio::select! {
                request = inbox.next() => {
                    let request = request?;
                    debug!(kind = request.kind, "asked");
                    match request.kind.as_str() {
                        "execute_request" => self.queue.send(request)?,
                        _ => answers.push(self.request(request, &replies)),
                    }
                }
                Some(next) = answers.next() => if next? == Next::End {
                    return Ok(());
                },
            }
        }
    }

    async fn request(&self, request: Request, replies: &Replies) -> Result<Next> {
        self.iopub.busy(&request).await?;
        let mut next = Next::GoOn;
        let reply = match request.kind.as_str() {
            "interrupt_request" => Some(self.cells.interrupt().await.map(|()| done())),
            "shutdown_request" => {
                let reply = self.shut_down(&request).await;
                self.iopub
                    .say(Some(&request), "shutdown_reply", &reply)
                    .await?;
                next = Next::End;
                Some(Ok(reply))
            }
            "comm_open" => {
                self.refuse(&request).await?;
                None
            }
            _ => answer(&request, self.attached).await,
        };
        if let Some(reply) = reply {
            let reply = reply.unwrap_or_else(|error| error_reply(&failure(&error)));
            replies.send(&request, &reply).await?;
        }
        self.iopub.idle(&request).await?;
        Ok(next)
    }

    /// A restart is the session's; otherwise the session lives on, without the cell that runs.
    async fn shut_down(&self, request: &Request) -> Value {
        let asked: ShutdownRequest = request.content().unwrap_or_default();
        let session = self.attached.session();
        let ended = match asked.restart {
            true => {
                let restart = async |client: &Client| client.restart_session(&session).await;
                self.attached.ask(restart).await.map(drop)
            }
            false => self.cells.interrupt().await,
        };
        let mut reply = match ended {
            Ok(()) => done(),
            Err(error) => error_reply(&failure(&error)),
        };
        reply["restart"] = asked.restart.into();
        reply
    }

    /// There is nobody to whom a comm could be opened.
    async fn refuse(&self, request: &Request) -> Result<()> {
        let Ok(asked) = request.content::<CommOpen>() else {
            return Ok(());
        };
        let closed = json!({"comm_id": asked.comm_id, "data": {}});
        self.iopub.say(Some(request), "comm_close", &closed).await
    }
}

fn done() -> Value {
    json!({"status": "ok"})
}

/// When the Jupyter that started this is gone; it would have ended it otherwise.
#[cfg(unix)]
async fn orphaned() {
    use std::os::unix::process::parent_id;
    let parent = parent_id();
    let named = std::env::var("JPY_PARENT_PID").ok();
    if named.and_then(|pid| pid.parse().ok()) != Some(parent) {
        return std::future::pending().await;
    }
    while parent_id() == parent {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[cfg(not(unix))]
async fn orphaned() {
    std::future::pending().await
}
