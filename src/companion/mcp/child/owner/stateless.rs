//! A server without a handshake: every request goes in an envelope, what clients want to hear of goes into one
//! request that stays open, and what the server wants to know first goes to the client, for whom the call is
//! then made again.

use super::{Call, Owner, Then, To};
use crate::companion::mcp::child::era::{self, Era};
use crate::companion::mcp::child::policy::Phase;
use crate::companion::mcp::member::{Member, Reply};
use crate::companion::mcp::message::{self, Message, fields, find};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often a server may ask within one call.
const MOST_TURNS: u32 = 32;
/// Before listening that was cut is begun again.
const PAUSE: Duration = Duration::from_secs(5);

/// What a client can be asked.
const QUESTIONS: [&str; 3] = ["sampling/createMessage", "elicitation/create", "roots/list"];

/// A call of a client of the older era, which can be made again with what the server wants to know.
#[derive(Debug)]
pub(super) struct Round {
    message: Message,
    member: Arc<Member>,
    turn: u32,
}

/// A call whose client is being asked.
#[derive(Debug)]
pub(super) struct Asking {
    round: Round,
    reply: Reply,
    /// What the server wants back.
    state: Option<String>,
    /// The ids of our questions, and what the server calls them.
    open: BTreeMap<Box<str>, String>,
    answers: Vec<String>,
}

impl Asking {
    pub(super) fn id(&self) -> &str {
        self.round.message.id().unwrap_or("null")
    }

    pub(super) fn member(&self) -> u64 {
        self.round.member.number
    }

    pub(super) fn stream(&self) -> u64 {
        self.reply.stream.number
    }
}

/// The request that stays open.
#[derive(Debug)]
pub(super) struct Listening {
    id: Box<str>,
    is_heard: bool,
}

impl Owner {
    pub(super) fn begin_stateless(&mut self, message: Message, member: Arc<Member>, reply: Reply) {
        let id = message.id().unwrap_or("null").to_owned();
        match message.method.as_str() {
            "resources/subscribe" | "resources/unsubscribe" => {
                self.listen();
                reply.result(&id, "{}");
            }
            // It is said with each request from now on.
            "logging/setLevel" => reply.result(&id, "{}"),
            _ => {
                let round = Round {
                    message: message.clone(),
                    member,
                    turn: 0,
                };
                self.send_round(message, round, reply);
            }
        }
    }

    fn send_round(&mut self, message: Message, round: Round, reply: Reply) {
        let member = round.member.clone();
        let is_dressed = member.hello.is_none() || era::is_enveloped(&message);
        let level = self.standing.level(member.number);
        let message = era::enveloped(message, &era::envelope(&member, level));
        let then = match is_dressed {
            true => Then::Done,
            false => Then::Asks(Box::new(round)),
        };
        self.call(&message, member.number, reply, then);
    }

    /// What comes of a call: its answer, or questions to the client.
    pub(super) fn may_ask(&mut self, round: Round, reply: Reply, answer: &Message, text: Bytes) {
        let result = answer.result().unwrap_or_default();
        let kind = find(result, &["resultType"]).map(|span| &result[span]);
        if kind != Some("\"input_required\"") {
            return reply.answer(text);
        }
        let id = round.message.id().unwrap_or("null").to_owned();
        let raw = |key: &str| find(result, &[key]).map(|span| &result[span]);
        let wanted = raw("inputRequests").and_then(fields).unwrap_or_default();
        let mut questions = Vec::new();
        for (key, request) in &wanted {
            let method = find(request, &["method"]).map(|span| request[span].trim_matches('"'));
            let method = method.unwrap_or_default();
            let capability = method.split('/').next().unwrap_or_default();
            if !QUESTIONS.contains(&method) || !round.member.can(capability) {
                let why = format!("the server wants `{method}` of the client, which can't do it");
                return reply.fail(&id, -32603, &why);
            }
            let params = find(request, &["params"]).map_or("{}", |span| &request[span]);
            questions.push((key, method, params));
        }
        if round.turn >= MOST_TURNS {
            return reply.fail(&id, -32603, "the server asks and asks, and does not answer");
        }
        let mut asking = Asking {
            round,
            reply,
            state: raw("requestState").map(str::to_owned),
            open: BTreeMap::new(),
            answers: Vec::new(),
        };
        let mut asked = Vec::new();
        for (key, method, params) in questions {
            let id = self.calls.own_id();
            asked.push(message::request(&id, method, params));
            asking.open.insert(id, key.clone());
        }
        let member = asking.round.member.clone();
        if asked.is_empty() {
            return self.once_more(asking);
        }
        self.asking.push(asking);
        for text in asked {
            member.ears.hear(text, true);
        }
    }

    /// Takes a client's answer to one of our questions; `false` when it is to none.
    pub(super) fn is_told(&mut self, answer: &Message, member: u64) -> bool {
        let id = answer.id().unwrap_or("null");
        let is_meant = |asking: &Asking| asking.member() == member && asking.open.contains_key(id);
        let Some(place) = self.asking.iter().position(is_meant) else {
            return false;
        };
        let mut asking = self.asking.swap_remove(place);
        let key = asking.open.remove(id).unwrap_or_default();
        let Some(result) = answer.result() else {
            self.withdraw(&asking);
            let text = std::str::from_utf8(answer.text()).unwrap_or_default();
            let why = find(text, &["error", "message"]).map_or("", |span| &text[span]);
            let why = format!("the client does not tell what the server wants to know: {why}");
            asking.reply.fail(asking.id(), -32603, &why);
            return true;
        };
        let key = serde_json::Value::from(key);
        asking.answers.push(format!("{key}:{result}"));
        match asking.open.is_empty() {
            true => self.once_more(asking),
            false => self.asking.push(asking),
        }
        true
    }

    /// The same call, with what the client has answered.
    fn once_more(&mut self, asking: Asking) {
        let Asking {
            mut round,
            reply,
            state,
            answers,
            ..
        } = asking;
        let mut more = Vec::new();
        if !answers.is_empty() {
            more.push(format!("\"inputResponses\":{{{}}}", answers.join(",")));
        }
        more.extend(state.map(|state| format!("\"requestState\":{state}")));
        let message = era::with_params(round.message.clone(), &more.join(","));
        round.turn += 1;
        self.send_round(message, round, reply);
    }

    /// Takes our questions back, and forgets those calls.
    pub(super) fn drop_asking(
        &mut self,
        is_meant: impl Fn(&Asking) -> bool,
    ) -> Vec<(Reply, String)> {
        let (gone, rest) = std::mem::take(&mut self.asking)
            .into_iter()
            .partition(|asking| is_meant(asking));
        self.asking = rest;
        let gone: Vec<Asking> = gone;
        gone.into_iter()
            .map(|asking| {
                self.withdraw(&asking);
                let id = asking.id().to_owned();
                (asking.reply, id)
            })
            .collect()
    }

    fn withdraw(&mut self, asking: &Asking) {
        for id in asking.open.keys() {
            let params = format!(r#"{{"requestId":{id}}}"#);
            let text = message::notification("notifications/cancelled", &params);
            asking.round.member.ears.hear(text, true);
        }
    }

    /// Says anew what is to be told: a change is a new request, and the end of the one before.
    pub(super) fn listen(&mut self) {
        self.listen_at = None;
        let hello = self.greeting.as_deref().unwrap_or_default();
        let hello = std::str::from_utf8(hello).unwrap_or_default();
        let mut wanted = serde_json::Map::new();
        for kind in ["tools", "prompts", "resources"] {
            let told = find(hello, &["capabilities", kind, "listChanged"]);
            if told.is_some_and(|span| &hello[span] == "true") {
                wanted.insert(format!("{kind}ListChanged"), true.into());
            }
        }
        let uris: Vec<&str> = self.standing.uris().collect();
        if !uris.is_empty() {
            wanted.insert("resourceSubscriptions".into(), uris.into());
        }
        let before = self.listening.take();
        if !wanted.is_empty() {
            let id = self.calls.own_id();
            let params = serde_json::json!({"notifications": wanted}).to_string();
            let text = message::request(&id, "subscriptions/listen", &params);
            self.listening = Some(Listening {
                id,
                is_heard: false,
            });
            self.send_dressed(text);
        }
        if let Some(before) = before {
            let params = format!(r#"{{"requestId":{}}}"#, before.id);
            self.send(message::notification("notifications/cancelled", &params));
        }
    }

    /// Whether that is the end of listening, which is begun again where it had worked.
    pub(super) fn listens_no_more(&mut self, answer: &Message) -> bool {
        let is_meant = |listening: &mut Listening| answer.id() == Some(&*listening.id);
        let Some(gone) = self.listening.take_if(is_meant) else {
            return false;
        };
        self.listen_at = gone.is_heard.then(|| Instant::now() + PAUSE);
        true
    }

    pub(super) fn is_listened_to(&mut self) {
        if let Some(listening) = &mut self.listening {
            listening.is_heard = true;
        }
    }

    /// The one call that is open, to which alone a word without an address can belong.
    pub(super) fn only_call(&self) -> Option<&Reply> {
        if self.era != Era::Stateless || self.life.phase != Phase::Up {
            return None;
        }
        self.calls
            .only()
            .and_then(|call: &Call<To>| call.to.reply())
    }
}
