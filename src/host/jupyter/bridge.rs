//! The kernel process from start to exit: routes each request to its handler.
//!
//! One task on one thread. Its parts run concurrently and end together: requests on `shell` and `control`, the cells,
//! the heartbeat. The process ends when a front end asks for it, or when the Jupyter process that started it is gone.

use super::cells::CellRunner;
use super::connection::ConnectionFile;
use super::content::{CommOpen, ShutdownRequest, error_reply, error_to_run_error};
use super::notebook_session::NotebookSession;
use super::shell_requests::answer_shell_request;
use super::sockets::{IopubSocket, JupyterSockets, ReplySocket, RequestSocket, echo_heartbeat};
use super::wire::JupyterRequest;
use crate::error::Result;
use crate::host::client::CompanionClient;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedSender};
use tracing::debug;

/// Time for the sockets' tasks to send the last messages.
const JUPYTER_FLUSH_DELAY: Duration = Duration::from_millis(200);

/// Serves the front ends of one kernel until it is shut down.
///
/// # Errors
/// When a port is in use.
pub(crate) async fn serve_kernel(
    connection: &ConnectionFile,
    attached: &NotebookSession<'_>,
) -> Result<()> {
    let sockets = JupyterSockets::bind(connection).await?;
    let iopub = sockets.iopub;
    let (queue, mut queued) = mpsc::unbounded_channel();
    let cells = CellRunner::new(attached, &iopub, sockets.shell.1.clone());
    let bridge = JupyterBridge {
        session: attached,
        iopub: &iopub,
        cells: &cells,
        queue,
    };
    iopub.publish_starting().await?;
    let _stdin = sockets.stdin;
    let served = tokio::select! {
        ended = bridge.serve_requests(sockets.shell) => ended,
        ended = bridge.serve_requests(sockets.control) => ended,
        ended = cells.run_queued(&mut queued) => ended,
        ended = echo_heartbeat(sockets.heartbeat) => ended,
        () = wait_for_parent_exit() => Ok(()),
    };
    tokio::time::sleep(JUPYTER_FLUSH_DELAY).await;
    served
}

struct JupyterBridge<'a> {
    session: &'a NotebookSession<'a>,
    iopub: &'a IopubSocket,
    cells: &'a CellRunner<'a>,
    queue: UnboundedSender<JupyterRequest>,
}

/// Whether the kernel keeps running after a request.
#[derive(PartialEq, Eq)]
enum AfterRequest {
    Continue,
    ShutDown,
}

impl JupyterBridge<'_> {
    /// Serves requests until one shuts the kernel down. Cells are queued; other requests are answered concurrently.
    async fn serve_requests(
        &self,
        (mut inbox, replies): (RequestSocket, ReplySocket),
    ) -> Result<()> {
        let mut answers = FuturesUnordered::new();
        loop {
            tokio::select! {
                request = inbox.next() => {
                    let request = request?;
                    debug!(kind = request.kind, "the front end sent a request");
                    match request.kind.as_str() {
                        "execute_request" => self.queue.send(request)?,
                        _ => answers.push(self.handle_request(request, &replies)),
                    }
                }
                Some(next) = answers.next() => if next? == AfterRequest::ShutDown {
                    return Ok(());
                },
            }
        }
    }

    async fn handle_request(
        &self,
        request: JupyterRequest,
        replies: &ReplySocket,
    ) -> Result<AfterRequest> {
        self.iopub.publish_busy(&request).await?;
        let mut next = AfterRequest::Continue;
        let reply = match request.kind.as_str() {
            "interrupt_request" => Some(self.cells.interrupt_running().await.map(|()| ok_reply())),
            "shutdown_request" => {
                let reply = self.shut_down(&request).await;
                self.iopub
                    .publish(Some(&request), "shutdown_reply", &reply)
                    .await?;
                next = AfterRequest::ShutDown;
                Some(Ok(reply))
            }
            "comm_open" => {
                self.close_comm(&request).await?;
                None
            }
            _ => answer_shell_request(&request, self.session).await,
        };
        if let Some(reply) = reply {
            let reply = reply.unwrap_or_else(|error| error_reply(&error_to_run_error(&error)));
            replies.send(&request, &reply).await?;
        }
        self.iopub.publish_idle(&request).await?;
        Ok(next)
    }

    /// A restart restarts the session's kernel; otherwise the session stays, and only the running cell is interrupted.
    async fn shut_down(&self, request: &JupyterRequest) -> Value {
        let content: ShutdownRequest = request.parse_content().unwrap_or_default();
        let session = self.session.session_name();
        let ended = match content.restart {
            true => {
                let restart =
                    async |client: &CompanionClient| client.restart_session(&session).await;
                self.session.with_client(restart).await.map(drop)
            }
            false => self.cells.interrupt_running().await,
        };
        let mut reply = match ended {
            Ok(()) => ok_reply(),
            Err(error) => error_reply(&error_to_run_error(&error)),
        };
        reply["restart"] = content.restart.into();
        reply
    }

    /// Closes the comm: the kernel has no comm targets.
    async fn close_comm(&self, request: &JupyterRequest) -> Result<()> {
        let Ok(content) = request.parse_content::<CommOpen>() else {
            return Ok(());
        };
        let closed = json!({"comm_id": content.comm_id, "data": {}});
        self.iopub
            .publish(Some(request), "comm_close", &closed)
            .await
    }
}

fn ok_reply() -> Value {
    json!({"status": "ok"})
}

/// Waits until the Jupyter process that started this one is gone without ending it.
#[cfg(unix)]
async fn wait_for_parent_exit() {
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
async fn wait_for_parent_exit() {
    std::future::pending().await
}
