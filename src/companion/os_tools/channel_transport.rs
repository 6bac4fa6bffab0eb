//! The transport of a client's pipe for rmcp: each message is one piece of bytes, so there is no framing.

use bytes::Bytes;
use rmcp::RoleServer;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

#[derive(Debug)]
pub(super) struct ChannelTransport {
    pub(super) incoming: UnboundedReceiver<Bytes>,
    pub(super) outgoing: UnboundedSender<Bytes>,
    /// Whether the client has disconnected. Its runs continue; only a cancelled call ends its run.
    pub(super) is_disconnected: Arc<AtomicBool>,
}

impl Transport<RoleServer> for ChannelTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let sent = serde_json::to_vec(&item)
            .map_err(io::Error::from)
            .and_then(|text| {
                let sent = self.outgoing.send(text.into());
                sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
            });
        std::future::ready(sent)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let Some(text) = self.incoming.recv().await else {
                self.is_disconnected.store(true, Ordering::Relaxed);
                return None;
            };
            match serde_json::from_slice(&text) {
                Ok(message) => return Some(message),
                Err(error) => self.reject_message(text, &error),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.incoming.close();
        Ok(())
    }
}

impl ChannelTransport {
    /// Answers an invalid request with an error.
    fn reject_message(&self, text: Bytes, why: &serde_json::Error) {
        tracing::debug!(%why, "the server `os` received an invalid message");
        let why = format!("the message is invalid: {why}");
        if let Some(response) = osctl_hub::invalid_request_response(text, &why) {
            // The client may have disconnected.
            let _ = self.outgoing.send(response);
        }
    }
}
