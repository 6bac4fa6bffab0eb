//! In-process test servers that a test controls and that record what they receive.

use super::{HUB_TEST_TIMEOUT, test_server_answers};
use crate::child::InProcessServer;
use crate::message::{RpcMessage, RpcMessageKind};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep};

#[derive(Debug, Clone, Default)]
pub(super) struct TestServers(Arc<Mutex<TestServersState>>);

#[derive(Debug, Default)]
struct TestServersState {
    /// The received messages with the server's name, in order.
    received: Vec<(String, String)>,
    /// The senders of each started server.
    senders: HashMap<String, Vec<UnboundedSender<Bytes>>>,
    /// The number of servers that will end at their start.
    failing_starts: usize,
    /// Whether a server has ended at the word `die-once`, which it survives from then on.
    has_ended_once: bool,
    /// The messages that held servers have received and not answered.
    held_messages: HashMap<String, Vec<(Bytes, UnboundedSender<Bytes>)>>,
}

impl InProcessServer for TestServers {
    fn open_connection(&self, name: &str) -> (UnboundedSender<Bytes>, UnboundedReceiver<Bytes>) {
        let (to, mut from) = unbounded_channel::<Bytes>();
        let (sender, received) = unbounded_channel();
        let mut state = self.state();
        if state.failing_starts > 0 {
            state.failing_starts -= 1;
            return (to, received);
        }
        state
            .senders
            .entry(name.into())
            .or_default()
            .push(sender.clone());
        let (servers, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move {
            let mut pending_call = None;
            while let Some(line) = from.recv().await {
                if servers.is_ended_by(&line) {
                    let mut state = servers.state();
                    state.senders.remove(&name);
                    // The next server of the name answers.
                    state.held_messages.remove(&name);
                    return;
                }
                servers.handle_line(&name, line, &sender, &mut pending_call);
            }
        });
        (to, received)
    }
}

impl TestServers {
    fn state(&self) -> MutexGuard<'_, TestServersState> {
        self.0.lock()
    }

    /// Whether a message ends its server: each one with the word `die`, and the first one with `die-once`.
    fn is_ended_by(&self, line: &[u8]) -> bool {
        let text = String::from_utf8_lossy(line);
        let is_first = text.contains("\"die-once\"")
            && !std::mem::replace(&mut self.state().has_ended_once, true);
        is_first || text.contains("\"die\"")
    }

    fn handle_line(
        &self,
        name: &str,
        line: Bytes,
        sender: &UnboundedSender<Bytes>,
        pending_call: &mut Option<String>,
    ) {
        let message = RpcMessage::parse(line.clone()).unwrap();
        let text = String::from_utf8(line.into()).unwrap();
        let mut state = self.state();
        state.received.push((name.into(), text.clone()));
        if let Some(held) = state.held_messages.get_mut(name) {
            return held.push((text.into(), sender.clone()));
        }
        drop(state);
        let say = |text: String| drop(sender.send(text.into()));
        let answer = |id: &str, result: &str| {
            say(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
            ));
        };
        match message.kind {
            RpcMessageKind::Notification => return,
            // The client's answer becomes the result of the call.
            RpcMessageKind::Answer => {
                let result = serde_json::Value::from(text).to_string();
                return answer(&pending_call.take().unwrap(), &result);
            }
            RpcMessageKind::Request => {}
        }
        let id = message.id().unwrap();
        if let Some(result) = test_server_answers(name).get(message.method.as_str()) {
            return answer(id, &result.to_string());
        }
        let params = message.params().unwrap_or("null");
        let tool = message.text_param(&["name"]).unwrap_or_default();
        let raw = |key: &str| message.raw_param(&["arguments", key]).unwrap_or("null");
        match (message.method.as_str(), tool.as_str()) {
            // The test sends the answer.
            ("tools/call", "wait") => {}
            ("tools/call", "ask") => {
                *pending_call = Some(id.to_owned());
                let params = r#"{"n":1.0,"big":1e400}"#;
                let asks = raw("id");
                say(format!(
                    r#"{{"jsonrpc":"2.0","id":{asks},"method":"sampling/createMessage","params":{params}}}"#
                ));
            }
            ("tools/call", "progress") => {
                let token = message.raw_param(&["_meta", "progressToken"]).unwrap();
                let progress = format!(r#"{{"progressToken":{token},"progress":1.0,"x":[ ]}}"#);
                say(format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{progress}}}"#
                ));
                answer(id, "{}");
            }
            ("tools/call", "link") => {
                let content = format!(r#"[{{"type":"resource_link","uri":{}}}]"#, raw("uri"));
                answer(id, &format!(r#"{{"content":{content}}}"#));
            }
            ("resources/read", _) => answer(id, &format!(r#"{{"of":"{name}","contents":[]}}"#)),
            _ => answer(id, params),
        }
    }

    /// Stops a server from answering until it is released.
    pub(super) fn hold_answers(&self, name: &str) {
        self.state().held_messages.insert(name.into(), Vec::new());
    }

    /// Answers the messages that a held server received.
    pub(super) fn release_answers(&self, name: &str) {
        let held = self.state().held_messages.remove(name).unwrap_or_default();
        for (line, sender) in held {
            self.handle_line(name, line, &sender, &mut None);
        }
    }

    /// Makes the next `count` started servers end immediately.
    pub(super) fn fail_next_starts(&self, count: usize) {
        self.state().failing_starts = count;
    }

    /// The number of starts of a server.
    pub(super) fn start_count(&self, name: &str) -> usize {
        self.state().senders.get(name).map_or(0, Vec::len)
    }

    /// Sends a message from a server's given start.
    pub(super) fn send_message(&self, name: &str, start: usize, text: &str) {
        let sender = self.state().senders[name][start].clone();
        sender
            .send(Bytes::copy_from_slice(text.as_bytes()))
            .unwrap();
    }

    /// All messages that a server received and that contain `part`.
    pub(super) fn received_messages(&self, name: &str, part: &str) -> Vec<String> {
        let state = self.state();
        let received = state.received.iter();
        let received = received.filter(|(who, text)| who == name && text.contains(part));
        received.map(|(_, text)| text.clone()).collect()
    }

    /// Waits until a server has received `part` `count` times; returns the `count`-th message.
    pub(super) async fn wait_for_message(
        &self,
        name: &str,
        part: &str,
        count: usize,
    ) -> RpcMessage {
        let begin = Instant::now();
        loop {
            let received = self.received_messages(name, part);
            if received.len() >= count {
                return RpcMessage::parse(received[count - 1].clone().into()).unwrap();
            }
            assert!(
                begin.elapsed() < HUB_TEST_TIMEOUT,
                "`{name}` does not receive {part}"
            );
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Answers a call of `wait`.
    pub(super) fn answer_call(&self, name: &str, start: usize, call: &RpcMessage, result: &str) {
        let id = call.id().unwrap();
        self.send_message(
            name,
            start,
            &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        );
    }
}
