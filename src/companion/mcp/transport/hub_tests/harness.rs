//! Servers that do as a test says, and remember what they heard.

use super::{HUB_TEST_TIMEOUT, lists};
use crate::companion::mcp::child::InProcessServer;
use crate::companion::mcp::message::{RpcMessage, RpcMessageKind};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep};

#[derive(Debug, Clone, Default)]
pub(super) struct TestServers(Arc<Mutex<TestServersState>>);

#[derive(Debug, Default)]
struct TestServersState {
    /// Who heard what, in that order.
    heard: Vec<(String, String)>,
    /// The ways out of each that was ever started.
    voices: HashMap<String, Vec<UnboundedSender<Bytes>>>,
    /// So many that are started next end at once.
    broken: usize,
    /// What servers that are held have heard and not answered.
    held: HashMap<String, Vec<(Bytes, UnboundedSender<Bytes>)>>,
}

impl InProcessServer for TestServers {
    fn open(&self, name: &str) -> (UnboundedSender<Bytes>, UnboundedReceiver<Bytes>) {
        let (to, mut from) = unbounded_channel::<Bytes>();
        let (voice, heard) = unbounded_channel();
        let mut state = self.state();
        if state.broken > 0 {
            state.broken -= 1;
            return (to, heard);
        }
        state
            .voices
            .entry(name.into())
            .or_default()
            .push(voice.clone());
        let (stage, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move {
            let mut asking = None;
            while let Some(line) = from.recv().await {
                if line.windows(5).any(|word| word == b"\"die\"") {
                    stage.state().voices.remove(&name);
                    return;
                }
                stage.take(&name, line, &voice, &mut asking);
            }
        });
        (to, heard)
    }
}

impl TestServers {
    fn state(&self) -> MutexGuard<'_, TestServersState> {
        self.0.lock().unwrap()
    }

    fn take(
        &self,
        name: &str,
        line: Bytes,
        voice: &UnboundedSender<Bytes>,
        asking: &mut Option<String>,
    ) {
        let message = RpcMessage::parse(line.clone()).unwrap();
        let text = String::from_utf8(line.into()).unwrap();
        let mut state = self.state();
        state.heard.push((name.into(), text.clone()));
        if let Some(held) = state.held.get_mut(name) {
            return held.push((text.into(), voice.clone()));
        }
        drop(state);
        let say = |text: String| drop(voice.send(text.into()));
        let answer = |id: &str, result: &str| {
            say(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
            ));
        };
        match message.kind {
            RpcMessageKind::Notification => return,
            // What it was told is what its call brings.
            RpcMessageKind::Answer => {
                let told = serde_json::Value::from(text).to_string();
                return answer(&asking.take().unwrap(), &told);
            }
            RpcMessageKind::Request => {}
        }
        let id = message.id().unwrap();
        if let Some(result) = lists(name).get(message.method.as_str()) {
            return answer(id, &result.to_string());
        }
        let params = message.params().unwrap_or("null");
        let tool = message.text_param(&["name"]).unwrap_or_default();
        let raw = |key: &str| message.raw_param(&["arguments", key]).unwrap_or("null");
        match (message.method.as_str(), tool.as_str()) {
            // The test answers.
            ("tools/call", "wait") => {}
            ("tools/call", "ask") => {
                *asking = Some(id.to_owned());
                let params = r#"{"n":1.0,"big":1e400}"#;
                let asks = raw("id");
                say(format!(
                    r#"{{"jsonrpc":"2.0","id":{asks},"method":"sampling/createMessage","params":{params}}}"#
                ));
            }
            ("tools/call", "progress") => {
                let token = message.raw_param(&["_meta", "progressToken"]).unwrap();
                let told = format!(r#"{{"progressToken":{token},"progress":1.0,"x":[ ]}}"#);
                say(format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{told}}}"#
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

    /// Lets a server answer nothing until it is released.
    pub(super) fn hold(&self, name: &str) {
        self.state().held.insert(name.into(), Vec::new());
    }

    /// Lets a server answer what it has heard meanwhile.
    pub(super) fn release(&self, name: &str) {
        let held = self.state().held.remove(name).unwrap_or_default();
        for (line, voice) in held {
            self.take(name, line, &voice, &mut None);
        }
    }

    /// Lets so many servers that are started next end at once.
    pub(super) fn break_next(&self, count: usize) {
        self.state().broken = count;
    }

    /// How often a server of that name was started.
    pub(super) fn starts(&self, name: &str) -> usize {
        self.state().voices.get(name).map_or(0, Vec::len)
    }

    /// What the server of that start says by itself.
    pub(super) fn say(&self, name: &str, start: usize, text: &str) {
        let voice = self.state().voices[name][start].clone();
        voice.send(Bytes::copy_from_slice(text.as_bytes())).unwrap();
    }

    /// All that a server heard that has these words in it.
    pub(super) fn heard(&self, name: &str, words: &str) -> Vec<String> {
        let state = self.state();
        let heard = state.heard.iter();
        let heard = heard.filter(|(who, text)| who == name && text.contains(words));
        heard.map(|(_, text)| text.clone()).collect()
    }

    /// Waits for a server to hear these words, as often as that.
    pub(super) async fn hears(&self, name: &str, words: &str, count: usize) -> RpcMessage {
        let begin = Instant::now();
        loop {
            let heard = self.heard(name, words);
            if heard.len() >= count {
                return RpcMessage::parse(heard[count - 1].clone().into()).unwrap();
            }
            assert!(
                begin.elapsed() < HUB_TEST_TIMEOUT,
                "`{name}` does not hear {words}"
            );
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Answers a call of `wait`.
    pub(super) fn answer(&self, name: &str, start: usize, call: &RpcMessage, result: &str) {
        let id = call.id().unwrap();
        self.say(
            name,
            start,
            &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        );
    }
}
