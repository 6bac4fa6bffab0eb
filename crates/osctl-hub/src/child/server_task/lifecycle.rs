//! The start and end of the server, and the errors for waiting clients.

use super::{
    DISCOVER_METHOD, OnReply, PendingOrigin, PendingRequest, SERVER_GONE_MESSAGE, ServerTask,
    ServerTaskCommand,
};
use crate::child::HandshakeError;
use crate::child::pipe::ServerPipe;
use crate::child::protocol_revision::ProtocolRevision;
use crate::child::restart_policy::{ServerEvent, StartDecision};
use crate::client::{McpClient, ReplySender};
use crate::message::RpcMessage;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

impl ServerTask {
    /// Starts the server, unless it runs, starts or waits for its restart delay.
    pub(super) async fn ensure_started(&mut self) {
        match self.lifecycle.decide_start(self.started_at.elapsed()) {
            StartDecision::Start => self.apply_event(ServerEvent::Needed),
            StartDecision::Wait => return,
            StartDecision::Refuse(rest) => {
                let rest = rest.as_secs() + 1;
                let name = &self.spec.config.name;
                let why = format!(
                    "{}; the hub will not restart the server for {rest} s; `osctl logs mcp/{name}` shows its log",
                    self.failure_sentence()
                );
                return self.fail_all(&why);
            }
        }
        self.publish_state();
        self.spec.log.append_note("the hub starts the server");
        match ServerPipe::open(&self.spec).await {
            Ok(pipe) => {
                self.connection.pipe = Some(pipe);
                self.handshake.refusal = None;
                match self.handshake.revision {
                    ProtocolRevision::Handshake => self.send_initialize(),
                    ProtocolRevision::Stateless => self.send_discover(),
                }
            }
            Err(error) => self.handle_server_loss(&format!("{error:#}")),
        }
    }

    pub(super) fn send_initialize(&mut self) {
        let initialize_params = self.handshake.initialize_params.clone();
        let params = String::from_utf8_lossy(&initialize_params);
        self.send_hub_request(
            "initialize",
            &params,
            PendingOrigin::Initialize,
            self.handshake_timeout(),
        );
    }

    pub(super) fn send_discover(&mut self) {
        let timeout = self.handshake_timeout();
        self.send_hub_request(DISCOVER_METHOD, "{}", PendingOrigin::Discovery, timeout);
    }

    /// Handles an unexpected end of the server.
    pub(super) fn handle_server_loss(&mut self, why: &str) {
        self.spec.log.append_note(why);
        self.detect_end_at_cancel();
        self.spec.crash_count.fetch_add(1, Ordering::Relaxed);
        let last = self.spec.log.last_line();
        let last = last.map(|last| format!(" ({last})")).unwrap_or_default();
        *self.spec.last_failure.lock() = Some(format!("{why}{last}"));
        self.apply_event(ServerEvent::Ended);
        self.close_pipe();
        // A caller that receives the error finds the state.
        self.publish_state();
        self.fail_all(&self.failure_sentence());
    }

    fn failure_sentence(&self) -> String {
        let why = self.spec.last_failure.lock().clone().unwrap_or_default();
        format!("the server `{}` failed: {why}", self.spec.config.name)
    }

    pub(super) fn close_pipe(&mut self) {
        self.server_requests.clear();
        if let Some(pipe) = std::mem::take(&mut self.connection).pipe {
            self.shutting_down.spawn(pipe.shutdown());
        }
    }

    pub(super) fn fail_all(&mut self, why: &str) {
        for (reply, id) in self.take_open_calls() {
            reply.send_error(&id, -32603, why);
        }
        self.fail_queued_requests(why);
    }

    /// Ends all calls when the companion stops. The server may have processed what it received.
    pub(super) fn fail_all_on_shutdown(&mut self) {
        for (reply, id) in self.take_open_calls() {
            reply.send_lost(&id);
        }
        for (message, _, reply) in std::mem::take(&mut self.calls.queued) {
            reply.send_lost(message.id().unwrap_or("null"));
        }
        self.fail_queued_requests("the companion is stopping");
    }

    /// Removes the calls that the server received, and the calls that wait for a client's input.
    fn take_open_calls(&mut self) -> Vec<(ReplySender, String)> {
        let calls = self.calls.pending.take_all().into_iter();
        let open = calls.filter_map(|call| match call.origin {
            PendingOrigin::Client { reply, .. } => Some((reply, call.client_request_id.into())),
            _ => None,
        });
        let mut open: Vec<_> = open.collect();
        open.extend(self.drop_input_required(|_| true));
        open
    }

    /// Removes the calls that may be sent to the server once more, because they change nothing.
    pub(super) fn take_repeatable_calls(
        &mut self,
    ) -> Vec<(RpcMessage, Arc<McpClient>, ReplySender)> {
        let mut calls = Vec::new();
        let is_meant = |call: &PendingRequest<PendingOrigin>| {
            let PendingOrigin::Client { on_reply, .. } = &call.origin else {
                return false;
            };
            matches!(on_reply, OnReply::RepeatOnLoss(_))
        };
        while let Some((_, call)) = self.calls.pending.take_matching(is_meant) {
            if let PendingOrigin::Client {
                mut reply,
                on_reply: OnReply::RepeatOnLoss(call),
            } = call.origin
            {
                reply.is_repeated = true;
                let (message, client) = *call;
                calls.push((message, client, reply));
            }
        }
        calls
    }

    fn fail_queued_requests(&mut self, why: &str) {
        for (message, client, reply) in std::mem::take(&mut self.calls.queued) {
            if message.method == "resources/subscribe"
                && let Some(uri) = message.text_param(&["uri"])
            {
                self.subscriptions.unsubscribe(&uri, client.number);
            }
            reply.send_error(message.id().unwrap_or("null"), -32603, why);
        }
        let refusal = self.handshake.refusal.take().map(HandshakeError::Refused);
        let no_hello = refusal.unwrap_or_else(|| HandshakeError::Failed(why.into()));
        for to in self.handshake.waiters.drain(..) {
            // The requester may be gone.
            let _ = to.send(Err(no_hello.clone()));
        }
    }
}

/// Rejects the commands that are left in the mailbox of a task that has ended.
pub(super) async fn reject_commands(
    mut mailbox: mpsc::UnboundedReceiver<ServerTaskCommand>,
    is_stopping: bool,
) {
    mailbox.close();
    while let Some(command) = mailbox.recv().await {
        if let ServerTaskCommand::SendRequest(message, _, reply) = command {
            let id = message.id().unwrap_or("null");
            match is_stopping {
                true => reply.send_lost(id),
                false => reply.send_error(id, -32603, SERVER_GONE_MESSAGE),
            }
        }
    }
}
