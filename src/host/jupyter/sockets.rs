//! The five sockets of a kernel, and the direction of each.
//!
//! Requests arrive on `shell` and `control`, and are answered there; `iopub` publishes events to all front ends. The
//! heartbeat echoes. `stdin` is bound so that front ends can connect to it; the kernel sends nothing on it.

use super::connection::ConnectionFile;
use super::wire::{JupyterCodec, JupyterRequest};
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

/// All five sockets, bound.
pub(super) struct JupyterSockets {
    pub(super) shell: (RequestSocket, ReplySocket),
    pub(super) control: (RequestSocket, ReplySocket),
    pub(super) iopub: IopubSocket,
    pub(super) heartbeat: RouterSocket,
    pub(super) stdin: RouterSocket,
}

impl JupyterSockets {
    /// # Errors
    /// When a port is in use.
    pub(super) async fn bind(connection: &ConnectionFile) -> Result<Self> {
        let codec = JupyterCodec::new(&connection.key)?;
        let channel = |socket: RouterSocket| {
            let (replies, requests) = socket.split();
            let inbox = RequestSocket {
                socket: requests,
                codec: codec.clone(),
            };
            let replies = ReplySocket {
                socket: replies,
                codec: codec.clone(),
            };
            (inbox, replies)
        };
        Ok(Self {
            shell: channel(bind_jupyter_socket(connection, connection.shell_port).await?),
            control: channel(bind_jupyter_socket(connection, connection.control_port).await?),
            iopub: IopubSocket {
                socket: Mutex::new(bind_jupyter_socket(connection, connection.iopub_port).await?),
                codec: codec.clone(),
                running_cell: RefCell::default(),
            },
            // A ROUTER socket answers as REP would, and serves several front ends at the same time.
            heartbeat: bind_jupyter_socket(connection, connection.hb_port).await?,
            stdin: bind_jupyter_socket(connection, connection.stdin_port).await?,
        })
    }
}

async fn bind_jupyter_socket<S: Socket>(connection: &ConnectionFile, port: u16) -> Result<S> {
    let mut socket = S::new();
    let endpoint = connection.endpoint(port);
    socket.bind(&endpoint).await.map_err(|e| {
        let hint = "start the kernel again; Jupyter then chooses other ports";
        Error::precondition(format!("can't listen on `{endpoint}`: {e}"), hint)
    })?;
    Ok(socket)
}

fn to_multipart(frames: Vec<Bytes>) -> Result<ZmqMessage> {
    ZmqMessage::try_from(frames).map_err(|_| anyhow::anyhow!("a message without frames"))
}

/// Echoes heartbeats.
pub(super) async fn echo_heartbeat(mut socket: RouterSocket) -> Result<()> {
    loop {
        let beat = socket.recv().await?;
        // The requester may be gone.
        let _ = socket.send(beat).await;
    }
}

/// A socket that receives requests.
pub(super) struct RequestSocket {
    socket: RouterRecvHalf,
    codec: JupyterCodec,
}

impl RequestSocket {
    /// The next request. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<JupyterRequest> {
        loop {
            let frames = self.socket.recv().await?.into_vec();
            match self.codec.decode_request(frames) {
                Some(request) => return Ok(request),
                None => warn!("osctl dropped a malformed or wrongly signed message"),
            }
        }
    }
}

/// A socket that sends replies.
#[derive(Clone)]
pub(super) struct ReplySocket {
    socket: RouterSendHalf,
    codec: JupyterCodec,
}

impl ReplySocket {
    pub(super) async fn send(&self, to: &JupyterRequest, content: &Value) -> Result<()> {
        let kind = to.kind.replace("_request", "_reply");
        let frames = self.codec.encode_reply(to, &kind, content)?;
        if let Err(error) = self.socket.clone().send(to_multipart(frames)?).await {
            warn!(kind, %error, "osctl could not send a reply");
        }
        Ok(())
    }
}

/// The socket that publishes events to all front ends.
pub(super) struct IopubSocket {
    socket: Mutex<PubSocket>,
    codec: JupyterCodec,
    /// The running cell.
    running_cell: RefCell<Option<JupyterRequest>>,
}

impl IopubSocket {
    pub(super) async fn publish(
        &self,
        parent: Option<&JupyterRequest>,
        kind: &str,
        content: &Value,
    ) -> Result<()> {
        let frames = self.codec.encode_iopub(parent, kind, content)?;
        let message = to_multipart(frames)?;
        Ok(self.socket.lock().await.send(message).await?)
    }

    pub(super) async fn publish_starting(&self) -> Result<()> {
        self.publish_status(None, "starting").await
    }

    /// Publishes that the kernel works on a request, until [`IopubSocket::publish_idle`].
    pub(super) async fn publish_busy(&self, request: &JupyterRequest) -> Result<()> {
        self.publish_status(Some(request), "busy").await
    }

    /// Publishes that a request is answered. Front ends show the last status received, so a running cell publishes
    /// `busy` again.
    pub(super) async fn publish_idle(&self, request: &JupyterRequest) -> Result<()> {
        self.publish_status(Some(request), "idle").await?;
        let cell = self.running_cell.borrow().clone();
        match cell {
            Some(cell) => self.publish_status(Some(&cell), "busy").await,
            None => Ok(()),
        }
    }

    /// Publishes the start of a cell, until [`IopubSocket::end_cell`].
    pub(super) async fn begin_cell(&self, cell: &JupyterRequest) -> Result<()> {
        self.running_cell.replace(Some(cell.clone()));
        self.publish_busy(cell).await
    }

    pub(super) async fn end_cell(&self, cell: &JupyterRequest) -> Result<()> {
        self.running_cell.take();
        self.publish_idle(cell).await
    }

    async fn publish_status(&self, parent: Option<&JupyterRequest>, state: &str) -> Result<()> {
        self.publish(parent, "status", &json!({"execution_state": state}))
            .await
    }
}
