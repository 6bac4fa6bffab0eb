//! The five sockets of a kernel, and who may speak on which.
//!
//! Requests come in on `shell` and `control`, and are answered there; `iopub` tells everybody
//! what happens. The heartbeat is a mirror. `stdin` listens so that front ends can connect to it,
//! and says nothing.

use super::connection::Connection;
use super::wire::{Request, Speech};
use crate::error::{Error, Result};
use bytes::Bytes;
use serde_json::{Value, json};
use std::cell::RefCell;
use tokio::sync::Mutex;
use tracing::warn;
use zeromq::{
    PubSocket, RouterRecvHalf, RouterSendHalf, RouterSocket, Socket, SocketRecv, SocketSend,
    ZmqMessage,
};

/// All of them, bound.
pub(super) struct Sockets {
    pub(super) shell: (Inbox, Replies),
    pub(super) control: (Inbox, Replies),
    pub(super) iopub: Iopub,
    pub(super) heartbeat: RouterSocket,
    pub(super) stdin: RouterSocket,
}

impl Sockets {
    /// # Errors
    /// When a port is taken.
    pub(super) async fn bind(connection: &Connection) -> Result<Self> {
        let speech = Speech::new(&connection.key)?;
        let channel = |socket: RouterSocket| {
            let (replies, requests) = socket.split();
            let inbox = Inbox {
                socket: requests,
                speech: speech.clone(),
            };
            let replies = Replies {
                socket: replies,
                speech: speech.clone(),
            };
            (inbox, replies)
        };
        Ok(Self {
            shell: channel(bound(connection, connection.shell_port).await?),
            control: channel(bound(connection, connection.control_port).await?),
            iopub: Iopub {
                socket: Mutex::new(bound(connection, connection.iopub_port).await?),
                speech: speech.clone(),
                cell: RefCell::default(),
            },
            // Answers as REP would, and to several at once.
            heartbeat: bound(connection, connection.hb_port).await?,
            stdin: bound(connection, connection.stdin_port).await?,
        })
    }
}

async fn bound<S: Socket>(connection: &Connection, port: u16) -> Result<S> {
    let mut socket = S::new();
    let endpoint = connection.endpoint(port);
    socket.bind(&endpoint).await.map_err(|e| {
        let hint = "start the kernel again: Jupyter then chooses other ports";
        Error::precondition(format!("`{endpoint}` can't be listened on: {e}"), hint)
    })?;
    Ok(socket)
}

fn multipart(frames: Vec<Bytes>) -> Result<ZmqMessage> {
    ZmqMessage::try_from(frames).map_err(|_| anyhow::anyhow!("a message without frames"))
}

/// Sends back what comes in.
pub(super) async fn mirror(mut socket: RouterSocket) -> Result<()> {
    loop {
        let beat = socket.recv().await?;
        // Who asked may be gone.
        let _ = socket.send(beat).await;
    }
}

/// Where requests come in.
pub(super) struct Inbox {
    socket: RouterRecvHalf,
    speech: Speech,
}

impl Inbox {
    /// The next request. Loses nothing when dropped.
    pub(super) async fn next(&mut self) -> Result<Request> {
        loop {
            let frames = self.socket.recv().await?.into_vec();
            match self.speech.read(frames) {
                Some(request) => return Ok(request),
                None => warn!("a message that is malformed or wrongly signed was passed over"),
            }
        }
    }
}

/// Where they are answered.
#[derive(Clone)]
pub(super) struct Replies {
    socket: RouterSendHalf,
    speech: Speech,
}

impl Replies {
    pub(super) async fn send(&self, to: &Request, content: &Value) -> Result<()> {
        let kind = to.kind.replace("_request", "_reply");
        let frames = self.speech.reply(to, &kind, content)?;
        if let Err(error) = self.socket.clone().send(multipart(frames)?).await {
            warn!("a `{kind}` reached nobody: {error}");
        }
        Ok(())
    }
}

/// What everybody hears.
pub(super) struct Iopub {
    socket: Mutex<PubSocket>,
    speech: Speech,
    /// The cell that runs.
    cell: RefCell<Option<Request>>,
}

impl Iopub {
    pub(super) async fn say(
        &self,
        parent: Option<&Request>,
        kind: &str,
        content: &Value,
    ) -> Result<()> {
        let frames = self.speech.announce(parent, kind, content)?;
        let message = multipart(frames)?;
        Ok(self.socket.lock().await.send(message).await?)
    }

    pub(super) async fn starting(&self) -> Result<()> {
        self.status(None, "starting").await
    }

    /// A question is worked on, until [`Iopub::idle`].
    pub(super) async fn busy(&self, request: &Request) -> Result<()> {
        self.status(Some(request), "busy").await
    }

    /// A question is answered. Front ends show the last word that they heard, so a cell that goes
    /// on says so again.
    pub(super) async fn idle(&self, request: &Request) -> Result<()> {
        self.status(Some(request), "idle").await?;
        let cell = self.cell.borrow().clone();
        match cell {
            Some(cell) => self.status(Some(&cell), "busy").await,
            None => Ok(()),
        }
    }

    /// A cell begins, until [`Iopub::end`].
    pub(super) async fn begin(&self, cell: &Request) -> Result<()> {
        self.cell.replace(Some(cell.clone()));
        self.busy(cell).await
    }

    pub(super) async fn end(&self, cell: &Request) -> Result<()> {
        self.cell.take();
        self.idle(cell).await
    }

    async fn status(&self, parent: Option<&Request>, state: &str) -> Result<()> {
        self.say(parent, "status", &json!({"execution_state": state}))
            .await
    }
}
