//! Servers without a handshake. Every request carries an envelope, one open listen request holds all subscriptions of
//! the clients, and a server's request for input is forwarded to the client, whereupon the call is sent again.

use super::{OnReply, PendingOrigin, PendingRequest, ServerTask};
use crate::child::protocol_revision::{self, ProtocolRevision};
use crate::child::restart_policy::ServerPhase;
use crate::client::{McpClient, ReplySender};
use crate::message::{self, RpcMessage, find_raw, object_fields};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often a server may request input within one call.
const MAX_INPUT_ROUNDS: u32 = 32;
/// The pause before an interrupted listen request is sent again.
const RELISTEN_DELAY: Duration = Duration::from_secs(5);

/// Requests that a client can answer.
const CLIENT_REQUEST_METHODS: [&str; 3] =
    ["sampling/createMessage", "elicitation/create", "roots/list"];

/// A call of a client of an older revision; the task can repeat it with the input that the server requests.
#[derive(Debug)]
pub(super) struct RetryableCall {
    message: RpcMessage,
    client: Arc<McpClient>,
    input_rounds: u32,
}

/// A call that waits for its client's input.
#[derive(Debug)]
pub(super) struct InputRequiredCall {
    call: RetryableCall,
    reply: ReplySender,
    /// The server's opaque state, which the hub sends back.
    request_state: Option<String>,
    /// The ids of the hub's requests to the client, and the server's names of the inputs.
    open_inputs: BTreeMap<Box<str>, String>,
    input_responses: Vec<String>,
}

impl InputRequiredCall {
    pub(super) fn request_id(&self) -> &str {
        self.call.message.id().unwrap_or("null")
    }

    pub(super) fn client_number(&self) -> u64 {
        self.call.client.number
    }

    pub(super) fn stream_number(&self) -> u64 {
        self.reply.stream.number
    }
}

/// The listen request that stays open.
#[derive(Debug)]
pub(super) struct ListenRequest {
    id: Box<str>,
    is_confirmed: bool,
}

impl ServerTask {
    pub(super) fn start_stateless_call(
        &mut self,
        message: RpcMessage,
        client: Arc<McpClient>,
        reply: ReplySender,
    ) {
        let id = message.id().unwrap_or("null").to_owned();
        match message.method.as_str() {
            "resources/subscribe" | "resources/unsubscribe" => {
                self.renew_listen_request();
                reply.send_result(&id, "{}");
            }
            // The envelope of each request carries the level from now on.
            "logging/setLevel" => reply.send_result(&id, "{}"),
            _ => {
                let call = RetryableCall {
                    message: message.clone(),
                    client,
                    input_rounds: 0,
                };
                self.send_retryable_call(message, call, reply);
            }
        }
    }

    fn send_retryable_call(
        &mut self,
        message: RpcMessage,
        call: RetryableCall,
        reply: ReplySender,
    ) {
        let client = call.client.clone();
        let is_dressed =
            client.initialize_params.is_none() || protocol_revision::is_enveloped(&message);
        let level = self.subscriptions.log_level(client.number);
        let message = protocol_revision::with_envelope(
            message,
            &protocol_revision::client_envelope(&client, level),
        );
        let then = match is_dressed {
            true => OnReply::Forward,
            false => OnReply::HandleInputRequired(Box::new(call)),
        };
        self.send_call(&message, client.number, reply, then);
    }

    /// Handles the result of a call: an answer, or requests for input from the client.
    pub(super) fn handle_call_result(
        &mut self,
        call: RetryableCall,
        reply: ReplySender,
        answer: RpcMessage,
    ) {
        let result = answer.result().unwrap_or_default();
        if find_raw(result, &["resultType"]) != Some("\"input_required\"") {
            return reply.send_answer(answer);
        }
        let id = call.message.id().unwrap_or("null").to_owned();
        let wanted = find_raw(result, &["inputRequests"])
            .and_then(object_fields)
            .unwrap_or_default();
        let mut questions = Vec::new();
        for (key, request) in &wanted {
            let method = find_raw(request, &["method"]).unwrap_or_default();
            let method = method.trim_matches('"');
            let capability = method.split('/').next().unwrap_or_default();
            if !CLIENT_REQUEST_METHODS.contains(&method) || !call.client.has_capability(capability)
            {
                let why =
                    format!("the server requests `{method}`, which the client does not support");
                return reply.send_error(&id, -32603, &why);
            }
            let params = find_raw(request, &["params"]).unwrap_or("{}");
            questions.push((key, method, params));
        }
        if call.input_rounds >= MAX_INPUT_ROUNDS {
            return reply.send_error(
                &id,
                -32603,
                "the server requested input too often without an answer",
            );
        }
        let mut input_call = InputRequiredCall {
            call,
            reply,
            request_state: find_raw(result, &["requestState"]).map(str::to_owned),
            open_inputs: BTreeMap::new(),
            input_responses: Vec::new(),
        };
        let mut asked = Vec::new();
        for (key, method, params) in questions {
            let id = self.calls.pending.next_hub_id();
            asked.push(message::request_message(&id, method, params));
            input_call.open_inputs.insert(id, key.clone());
        }
        let client = input_call.call.client.clone();
        if asked.is_empty() {
            return self.retry_call(input_call);
        }
        self.calls.input_required.push(input_call);
        for request in asked {
            client.notification_sink.deliver(request, true);
        }
    }

    /// Takes a client's answer to a request of the hub; `false` when it belongs to no such request.
    pub(super) fn handle_client_answer(&mut self, answer: &RpcMessage, client_number: u64) -> bool {
        let id = answer.id().unwrap_or("null");
        let is_meant = |input_call: &InputRequiredCall| {
            input_call.client_number() == client_number && input_call.open_inputs.contains_key(id)
        };
        let Some(index) = self.calls.input_required.iter().position(is_meant) else {
            return false;
        };
        let mut input_call = self.calls.input_required.swap_remove(index);
        let key = input_call.open_inputs.remove(id).unwrap_or_default();
        let Some(result) = answer.result() else {
            self.cancel_client_requests(&input_call);
            let why = answer.raw_error(&["message"]).unwrap_or_default();
            let why = format!("the client refused the input that the server requested: {why}");
            input_call
                .reply
                .send_error(input_call.request_id(), -32603, &why);
            return true;
        };
        let key = serde_json::Value::from(key);
        input_call.input_responses.push(format!("{key}:{result}"));
        match input_call.open_inputs.is_empty() {
            true => self.retry_call(input_call),
            false => self.calls.input_required.push(input_call),
        }
        true
    }

    /// Sends the call again with the client's input.
    fn retry_call(&mut self, input_call: InputRequiredCall) {
        let InputRequiredCall {
            mut call,
            reply,
            request_state,
            input_responses,
            ..
        } = input_call;
        let mut more = Vec::new();
        if !input_responses.is_empty() {
            more.push(format!(
                "\"inputResponses\":{{{}}}",
                input_responses.join(",")
            ));
        }
        more.extend(request_state.map(|request_state| format!("\"requestState\":{request_state}")));
        let message = protocol_revision::with_params(call.message.clone(), &more.join(","));
        call.input_rounds += 1;
        self.send_retryable_call(message, call, reply);
    }

    /// Cancels the hub's requests to clients, and drops their calls.
    pub(super) fn drop_input_required(
        &mut self,
        is_meant: impl Fn(&InputRequiredCall) -> bool,
    ) -> Vec<(ReplySender, String)> {
        let (dropped, rest) = std::mem::take(&mut self.calls.input_required)
            .into_iter()
            .partition(|input_call| is_meant(input_call));
        self.calls.input_required = rest;
        let dropped: Vec<InputRequiredCall> = dropped;
        dropped
            .into_iter()
            .map(|input_call| {
                self.cancel_client_requests(&input_call);
                let id = input_call.request_id().to_owned();
                (input_call.reply, id)
            })
            .collect()
    }

    fn cancel_client_requests(&mut self, input_call: &InputRequiredCall) {
        for id in input_call.open_inputs.keys() {
            let params = format!(r#"{{"requestId":{id}}}"#);
            let message = message::notification_message("notifications/cancelled", &params);
            let sink = &input_call.call.client.notification_sink;
            sink.deliver(message, true);
        }
    }

    /// Sends a new listen request with the current subscriptions, and ends the one before.
    pub(super) fn renew_listen_request(&mut self) {
        self.connection.relisten_at = None;
        let result = self
            .connection
            .initialize_result
            .as_deref()
            .unwrap_or_default();
        let result = std::str::from_utf8(result).unwrap_or_default();
        let mut wanted = serde_json::Map::new();
        for kind in ["tools", "prompts", "resources"] {
            if find_raw(result, &["capabilities", kind, "listChanged"]) == Some("true") {
                wanted.insert(format!("{kind}ListChanged"), true.into());
            }
        }
        let uris: Vec<&str> = self.subscriptions.uris().collect();
        if !uris.is_empty() {
            wanted.insert("resourceSubscriptions".into(), uris.into());
        }
        let before = self.connection.listen_request.take();
        if !wanted.is_empty() {
            let id = self.calls.pending.next_hub_id();
            let params = serde_json::json!({"notifications": wanted}).to_string();
            let request = message::request_message(&id, "subscriptions/listen", &params);
            self.connection.listen_request = Some(ListenRequest {
                id,
                is_confirmed: false,
            });
            self.send_enveloped(request);
        }
        if let Some(before) = before {
            // The message ends the former subscription, which is no call, so `cancel: false` does not apply. Otherwise
            // the server would send each notification twice.
            let params = format!(r#"{{"requestId":{}}}"#, before.id);
            self.send_to_server(message::notification_message(
                "notifications/cancelled",
                &params,
            ));
        }
    }

    /// Handles an answer that ends the listen request. An established one is sent again.
    pub(super) fn handle_listen_end(&mut self, answer: &RpcMessage) {
        let is_meant = |listening: &mut ListenRequest| answer.id() == Some(&*listening.id);
        if let Some(ended) = self.connection.listen_request.take_if(is_meant) {
            let relisten_at = Instant::now() + RELISTEN_DELAY;
            self.connection.relisten_at = ended.is_confirmed.then_some(relisten_at);
        }
    }

    pub(super) fn confirm_listen_request(&mut self) {
        if let Some(listening) = &mut self.connection.listen_request {
            listening.is_confirmed = true;
        }
    }

    /// The only open call: a message without an address can belong to no other.
    pub(super) fn only_call(&self) -> Option<&ReplySender> {
        if self.handshake.revision != ProtocolRevision::Stateless
            || self.lifecycle.phase != ServerPhase::Up
        {
            return None;
        }
        self.calls
            .pending
            .only_request()
            .and_then(|call: &PendingRequest<PendingOrigin>| call.origin.reply())
    }
}
