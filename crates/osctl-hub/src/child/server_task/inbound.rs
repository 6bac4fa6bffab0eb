//! Messages from the server: answers are routed to their calls, requests and notifications to the clients that they
//! concern.

use super::{OnReply, PendingOrigin, ServerTask};
use crate::child::protocol_revision::{self, ProtocolRevision};
use crate::child::restart_policy::ServerEvent;
use crate::client::McpClient;
use crate::message::{self, RpcMessage, RpcMessageKind, find_string};
use crate::server_cache::{CACHED_LIST_METHODS, McpListPage};
use bytes::Bytes;
use serde_json::Value;
use std::sync::Arc;
use tokio::time::Instant;

/// The most pages of one list.
const MAX_CACHED_LIST_PAGES: usize = 100;

impl ServerTask {
    pub(super) fn route_message(&mut self, message: &RpcMessage) {
        match message.kind {
            RpcMessageKind::Answer => self.handle_response(message),
            RpcMessageKind::Request => self.forward_to_client(message),
            RpcMessageKind::Notification => self.handle_notification(message),
        }
    }

    fn handle_response(&mut self, message: &RpcMessage) {
        self.last_used = Instant::now();
        let Some((call, answer)) = self.calls.pending.take_answered(message) else {
            // Otherwise the client gave the call up, or the answer belongs to no call.
            return self.handle_listen_end(message);
        };
        match call.origin {
            PendingOrigin::Client { reply, on_reply } => {
                self.apply_event(ServerEvent::Answered);
                match on_reply {
                    OnReply::Forward | OnReply::RepeatOnLoss(_) => {}
                    OnReply::UndoSubscription(uri) if message.result().is_none() => {
                        self.subscriptions.remove_resource(&uri);
                    }
                    OnReply::UndoSubscription(_) => {}
                    OnReply::HandleInputRequired(round) => {
                        return self.handle_call_result(*round, reply, answer);
                    }
                }
                reply.send_answer(answer);
            }
            PendingOrigin::Initialize => match message.result() {
                Some(result) => self.complete_handshake(Bytes::copy_from_slice(result.as_bytes())),
                None => self.handle_initialize_error(message),
            },
            PendingOrigin::Discovery => self.handle_discovery(message),
            PendingOrigin::List {
                method,
                pages,
                is_first,
            } => self.handle_list_page(message, method, pages, is_first),
            PendingOrigin::Ignored => {}
        }
    }

    /// Handles a refused handshake: the server may support only the newest revision.
    fn handle_initialize_error(&mut self, message: &RpcMessage) {
        let error = message.raw_error(&[]).unwrap_or("{}");
        self.handshake.refusal = Some(error.into());
        self.send_discover();
    }

    fn handle_discovery(&mut self, message: &RpcMessage) {
        match message
            .result()
            .map(protocol_revision::initialize_result_from_discovery)
        {
            Some(Ok(result)) => {
                self.handshake.revision = ProtocolRevision::Stateless;
                self.handshake.refusal = None;
                self.complete_handshake(result);
            }
            Some(Err(why)) => self.handle_server_loss(&why),
            // The server supported the handshake at its last start.
            None if self.handshake.refusal.is_none() => {
                self.handshake.revision = ProtocolRevision::Handshake;
                self.send_initialize();
            }
            None => self.fail_handshake(),
        }
    }

    fn fail_handshake(&mut self) {
        // The `message` of the server's error, or the whole error if it has none.
        let error = self.handshake.refusal.clone().unwrap_or_default();
        let parsed_error: Option<Value> = serde_json::from_str(&error).ok();
        let parsed_error = parsed_error
            .as_ref()
            .and_then(|error| error["message"].as_str());
        let why = parsed_error.unwrap_or(&error);
        self.handle_server_loss(&format!("it refused the handshake: {why}"));
    }

    fn complete_handshake(&mut self, result: Bytes) {
        let text = String::from_utf8_lossy(&result);
        self.spec.cache.store_initialize_result(&text);
        self.connection.initialize_result = Some(result.clone());
        if self.handshake.revision == ProtocolRevision::Handshake {
            self.send_to_server(message::notification_message(
                "notifications/initialized",
                "",
            ));
        }
        self.apply_event(ServerEvent::Ready);
        *self.spec.last_failure.lock() = None;
        for to in std::mem::take(&mut self.handshake.waiters) {
            // The requester may be gone.
            let _ = to.send(Ok(result.clone()));
        }
        match self.handshake.revision {
            ProtocolRevision::Handshake => {
                for (method, params) in self.subscriptions.replay_requests() {
                    self.send_unawaited_request(method, &params);
                }
            }
            ProtocolRevision::Stateless => self.renew_listen_request(),
        }
        while let Some((message, client, reply)) = self.calls.queued.pop_front() {
            self.start_call(message, client, reply);
        }
        self.refresh_lists(|_| true, true);
    }

    /// Requests the server's lists again.
    fn refresh_lists(&mut self, is_wanted: impl Fn(&str) -> bool, is_first: bool) {
        for (number, (method, capability, changed)) in CACHED_LIST_METHODS.iter().enumerate() {
            if is_wanted(changed) && self.spec.cache.has_capability(capability) == Some(true) {
                let to = PendingOrigin::List {
                    method: number,
                    pages: Vec::new(),
                    is_first,
                };
                self.send_hub_request(method, "{}", to, self.spec.config.call_timeout);
            }
        }
    }

    fn handle_list_page(
        &mut self,
        message: &RpcMessage,
        number: usize,
        mut pages: Vec<McpListPage>,
        is_first: bool,
    ) {
        let (method, _, changed) = CACHED_LIST_METHODS[number];
        // Not every server with resources has templates.
        let Some(result) = message.result() else {
            return;
        };
        let Ok(raw) = serde_json::value::RawValue::from_string(result.into()) else {
            return;
        };
        let next_cursor = |page: &str| find_string(page, &["nextCursor"]);
        let next = next_cursor(result);
        let cursor = pages.last().and_then(|page| next_cursor(page.result.get()));
        pages.push(McpListPage {
            cursor,
            result: raw,
        });
        match next.filter(|_| pages.len() < MAX_CACHED_LIST_PAGES) {
            Some(next) => {
                let params = serde_json::json!({"cursor": next}).to_string();
                let to = PendingOrigin::List {
                    method: number,
                    pages,
                    is_first,
                };
                self.send_hub_request(method, &params, to, self.spec.config.call_timeout);
            }
            // Clients may have received the list of the previous run.
            None if self.spec.cache.store_list(method, pages) && is_first => {
                self.notify_all_clients(&message::notification_message(changed, ""));
            }
            None => {}
        }
    }

    /// Forwards a request of the server to the only client that it can concern.
    fn forward_to_client(&mut self, message: &RpcMessage) {
        let id = message.id().unwrap_or("null");
        if message.method == "ping" {
            return self.send_to_server(message::result_response(id, "{}"));
        }
        let capability = message.method.split('/').next().unwrap_or_default();
        match self.only_possible_client() {
            Some(client) if !self.is_shared || client.has_capability(capability) => {
                let request = self
                    .server_requests
                    .register_request(message, client.number);
                client.notification_sink.deliver(request, true);
            }
            _ => {
                let why = match self.is_shared {
                    true => {
                        "several clients can share this server, so it can't send requests to a client"
                    }
                    false => "no client is connected that can answer the request",
                };
                self.send_to_server(message::error_response(id, -32601, why));
            }
        }
    }

    /// The client of the only open call, or the only client.
    fn only_possible_client(&self) -> Option<Arc<McpClient>> {
        let number = match self.calls.pending.only_client() {
            Some(number) => number,
            None if !self.is_shared => *self.clients.keys().next()?,
            None => return None,
        };
        self.clients.get(&number).cloned()
    }

    fn handle_notification(&mut self, message: &RpcMessage) {
        match message.method.as_str() {
            "notifications/progress" => {
                if let Some((call, progress)) = self.calls.pending.match_progress(message)
                    && let Some(reply) = call.origin.reply()
                {
                    reply.send_event(progress);
                }
            }
            "notifications/subscriptions/acknowledged"
                if self.handshake.revision == ProtocolRevision::Stateless =>
            {
                self.confirm_listen_request();
            }
            "notifications/resources/updated" if self.is_shared => {
                let uri = message.text_param(&["uri"]).unwrap_or_default();
                for number in self.subscriptions.subscribers(&uri) {
                    if let Some(client) = self.clients.get(&number) {
                        client.notification_sink.deliver(message.clone(), false);
                    }
                }
            }
            "notifications/cancelled" => {
                if let Some((number, cancellation)) = self.server_requests.take_cancelled(message)
                    && let Some(client) = self.clients.get(&number)
                {
                    client.notification_sink.deliver(cancellation, true);
                }
            }
            method if method.ends_with("/list_changed") => {
                self.notify_all_clients(message);
                self.refresh_lists(|changed| changed == method, false);
            }
            _ => match self.only_possible_client() {
                None if self.only_call().is_some() => {
                    if let Some(reply) = self.only_call() {
                        reply.send_event(message.clone());
                    }
                }
                Some(client) => client.notification_sink.deliver(message.clone(), true),
                // Sent to all clients, the message would reveal the activity of one client to the others.
                None => tracing::debug!(
                    method = message.method,
                    "no client receives a message of the server"
                ),
            },
        }
    }

    fn notify_all_clients(&self, message: &RpcMessage) {
        for client in self.clients.values() {
            client.notification_sink.deliver(message.clone(), false);
        }
    }
}
