//! The start and end of the server, and the errors for waiting clients.

use super::{
    DISCOVER_METHOD, PendingOrigin, RESTART_WAIT_TIMEOUT, SERVER_GONE_MESSAGE, ServerTask,
    ServerTaskCommand,
};
use crate::companion::mcp::child::HandshakeError;
use crate::companion::mcp::child::pipe::ServerPipe;
use crate::companion::mcp::child::protocol_revision::ProtocolRevision;
use crate::companion::mcp::child::restart_policy::{ServerEvent, ServerPhase};
use crate::companion::mcp::client::ReplySender;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

impl ServerTask {
    /// Starts the server, unless it runs, starts or waits for its restart delay.
    pub(super) async fn ensure_started(&mut self) {
        if let ServerPhase::Resting { until } = self.life.phase
            && until > self.begun.elapsed() + RESTART_WAIT_TIMEOUT
        {
            let rest = (until - self.begun.elapsed()).as_secs() + 1;
            let name = &self.known.server.name;
            let why = format!(
                "{}; the hub restarts the server in {rest} s at the earliest; `osctl logs mcp/{name}` shows its log",
                self.why
            );
            return self.fail_all(&why);
        }
        let before = self.life.phase;
        self.apply_event(ServerEvent::Needed);
        if (before, self.life.phase) == (ServerPhase::Starting, ServerPhase::Starting)
            || self.life.phase != ServerPhase::Starting
        {
            return;
        }
        self.publish_state();
        self.known.log.append_note("the hub starts the server");
        match ServerPipe::open(&self.known).await {
            Ok(pipe) => {
                self.pipe = Some(pipe);
                self.refusal = None;
                match self.era {
                    ProtocolRevision::Handshake => self.send_initialize(),
                    ProtocolRevision::Stateless => self.send_own_request(
                        DISCOVER_METHOD,
                        "{}",
                        PendingOrigin::Discovery,
                        self.handshake_timeout(),
                    ),
                }
            }
            Err(error) => self.handle_server_loss(&format!("{error:#}")),
        }
    }

    pub(super) fn send_initialize(&mut self) {
        let hello = self.hello.clone();
        let params = String::from_utf8_lossy(&hello);
        self.send_own_request(
            "initialize",
            &params,
            PendingOrigin::Hello,
            self.handshake_timeout(),
        );
    }

    /// Handles an unexpected end of the server.
    pub(super) fn handle_server_loss(&mut self, why: &str) {
        self.known.log.append_note(why);
        self.known.crashes.fetch_add(1, Ordering::Relaxed);
        self.why = match self.known.log.last_line() {
            Some(last) => format!(
                "the server `{}` failed: {why} ({last})",
                self.known.server.name
            ),
            None => format!("the server `{}` failed: {why}", self.known.server.name),
        };
        self.apply_event(ServerEvent::Ended);
        self.drop_pipe();
        let why = self.why.clone();
        self.fail_all(&why);
    }

    pub(super) fn drop_pipe(&mut self) {
        self.greeting = None;
        self.questions.clear();
        self.listening = None;
        self.listen_at = None;
        if let Some(pipe) = self.pipe.take() {
            self.leaving.spawn(pipe.shutdown());
        }
    }

    pub(super) fn fail_all(&mut self, why: &str) {
        for (reply, id) in self.drop_open() {
            reply.send_error(&id, -32603, why);
        }
        self.fail_unsent(why);
    }

    /// Ends all calls when the companion stops. The server may have processed what it received.
    pub(super) fn stop_all(&mut self) {
        for (reply, id) in self.drop_open() {
            reply.send_lost(&id);
        }
        for (message, _, reply) in std::mem::take(&mut self.queue) {
            reply.send_lost(message.id().unwrap_or("null"));
        }
        self.fail_unsent("the companion is stopping");
    }

    /// Removes the calls that the server received, and the calls that wait for a client's input.
    fn drop_open(&mut self) -> Vec<(ReplySender, String)> {
        let calls = self.calls.take_all().into_iter();
        let open = calls.filter_map(|call| match call.to {
            PendingOrigin::Client { reply, .. } => Some((reply, call.id.into())),
            _ => None,
        });
        let mut open: Vec<_> = open.collect();
        open.extend(self.drop_input_required(|_| true));
        open
    }

    fn fail_unsent(&mut self, why: &str) {
        for (message, member, reply) in std::mem::take(&mut self.queue) {
            if message.method == "resources/subscribe"
                && let Some(uri) = message.text_param(&["uri"])
            {
                self.standing.unsubscribe(&uri, member.number);
            }
            reply.send_error(message.id().unwrap_or("null"), -32603, why);
        }
        let refusal = self.refusal.take().map(HandshakeError::Refused);
        let no_hello = refusal.unwrap_or_else(|| HandshakeError::Failed(why.into()));
        for to in self.greeted.drain(..) {
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
    while let Some(ask) = mailbox.recv().await {
        if let ServerTaskCommand::Request(message, _, reply) = ask {
            let id = message.id().unwrap_or("null");
            match is_stopping {
                true => reply.send_lost(id),
                false => reply.send_error(id, -32603, SERVER_GONE_MESSAGE),
            }
        }
    }
}
