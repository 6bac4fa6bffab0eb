//! What the server says: answers go to their calls, its own requests and notifications to those whom they
//! mean.

use super::{DISCOVER, Owner, Then, To};
use crate::companion::mcp::cache::{LISTS, Page};
use crate::companion::mcp::child::era::{self, Era};
use crate::companion::mcp::child::policy::Event;
use crate::companion::mcp::member::Member;
use crate::companion::mcp::message::{self, Kind, Message, find};
use bytes::Bytes;
use serde_json::Value;
use std::sync::Arc;
use tokio::time::Instant;

/// Pages of a list.
const PAGES: usize = 100;

impl Owner {
    pub(super) fn route(&mut self, message: &Message) {
        match message.kind {
            Kind::Answer => self.answered(message),
            Kind::Request => self.asks_client(message),
            Kind::Notification => self.notifies(message),
        }
    }

    fn answered(&mut self, message: &Message) {
        self.used = Instant::now();
        let Some((call, text)) = self.calls.answered(message) else {
            if self.listens_no_more(message) {
                return;
            }
            // Its client has given the call up, or it belongs to none.
            return;
        };
        match call.to {
            To::Client { reply, then } => {
                self.step(Event::Answered);
                match then {
                    Then::Done => {}
                    Then::Subscribed(uri) if message.result().is_none() => {
                        self.standing.refused(&uri);
                    }
                    Then::Subscribed(_) => {}
                    Then::Asks(round) => return self.may_ask(*round, reply, message, text),
                }
                reply.answer(text);
            }
            To::Hello => match message.result() {
                Some(result) => self.greet(Bytes::copy_from_slice(result.as_bytes())),
                None => self.refused(message),
            },
            To::Discovery => self.discovered(message),
            To::List {
                method,
                pages,
                is_first,
            } => self.listed(message, method, pages, is_first),
            To::Nobody => {}
        }
    }

    /// It does not shake hands: it may know the newest revision alone.
    fn refused(&mut self, message: &Message) {
        if self.refusal.is_none() {
            let text = std::str::from_utf8(message.text()).unwrap_or_default();
            let error = find(text, &["error"]).map_or("{}", |span| &text[span]);
            self.refusal = Some(error.into());
            return self.ask(DISCOVER, "{}", To::Discovery, self.handshake_timeout());
        }
        self.leave_off();
    }

    fn discovered(&mut self, message: &Message) {
        match message.result().map(era::greeting) {
            Some(Ok(greeting)) => {
                self.era = Era::Stateless;
                self.refusal = None;
                self.greet(greeting);
            }
            Some(Err(why)) => self.lost(&why),
            // It was another one when it ran last.
            None if self.refusal.is_none() => {
                self.era = Era::Handshake;
                self.shake_hands();
            }
            None => self.leave_off(),
        }
    }

    fn leave_off(&mut self) {
        // Its own words; the whole of it where it has none.
        let error = self.refusal.clone().unwrap_or_default();
        let said: Option<Value> = serde_json::from_str(&error).ok();
        let said = said.as_ref().and_then(|said| said["message"].as_str());
        let why = said.unwrap_or(&error);
        self.lost(&format!("it refuses to speak with us: {why}"));
    }

    fn greet(&mut self, greeting: Bytes) {
        let text = String::from_utf8_lossy(&greeting);
        self.known.cache.keep_hello(&text);
        self.greeting = Some(greeting.clone());
        if self.era == Era::Handshake {
            self.send(message::notification("notifications/initialized", ""));
        }
        self.step(Event::Ready);
        for to in std::mem::take(&mut self.greeted) {
            // Who asked may have gone.
            let _ = to.send(Ok(greeting.clone()));
        }
        match self.era {
            Era::Handshake => {
                for (method, params) in self.standing.again() {
                    self.ask_quietly(method, &params);
                }
            }
            Era::Stateless => self.listen(),
        }
        while let Some((message, member, reply)) = self.queue.pop_front() {
            self.begin(message, member, reply);
        }
        self.refresh(|_| true, true);
    }

    /// Asks for the lists anew.
    fn refresh(&mut self, is_wanted: impl Fn(&str) -> bool, is_first: bool) {
        for (number, (method, capability, changed)) in LISTS.iter().enumerate() {
            if is_wanted(changed) && self.known.cache.can(capability) == Some(true) {
                let to = To::List {
                    method: number,
                    pages: Vec::new(),
                    is_first,
                };
                self.ask(method, "{}", to, self.known.server.timeout);
            }
        }
    }

    fn listed(&mut self, message: &Message, number: usize, mut pages: Vec<Page>, is_first: bool) {
        let (method, _, changed) = LISTS[number];
        // Not every server with resources has templates.
        let Some(result) = message.result() else {
            return;
        };
        let Ok(raw) = serde_json::value::RawValue::from_string(result.into()) else {
            return;
        };
        let next: Option<String> =
            find(result, &["nextCursor"]).and_then(|span| serde_json::from_str(&result[span]).ok());
        let cursor = pages.last().and_then(|page| {
            let before = page.result.get();
            serde_json::from_str(&before[find(before, &["nextCursor"])?]).ok()
        });
        pages.push(Page {
            cursor,
            result: raw,
        });
        match next.filter(|_| pages.len() < PAGES) {
            Some(next) => {
                let params = serde_json::json!({"cursor": next}).to_string();
                let to = To::List {
                    method: number,
                    pages,
                    is_first,
                };
                self.ask(method, &params, to, self.known.server.timeout);
            }
            // Clients may have been told the list of the last time.
            None if self.known.cache.keep_list(method, pages) && is_first => {
                self.tell_all(&message::notification(changed, ""));
            }
            None => {}
        }
    }

    /// A request of the server goes to the one client that it can mean.
    fn asks_client(&mut self, message: &Message) {
        let id = message.id().unwrap_or("null");
        if message.method == "ping" {
            return self.send(message::result(id, "{}"));
        }
        let capability = message.method.split('/').next().unwrap_or_default();
        match self.meant() {
            Some(member) if !self.shared || member.can(capability) => {
                let text = self.questions.begin(message, member.number);
                member.ears.hear(text, true);
            }
            _ => {
                let why = "no client can be asked: several share this server";
                self.send(message::error(id, -32601, why));
            }
        }
    }

    /// The client whose call is open, or the only one there is.
    fn meant(&self) -> Option<Arc<Member>> {
        let number = match self.calls.only_member() {
            Some(number) => number,
            None if !self.shared => *self.members.keys().next()?,
            None => return None,
        };
        self.members.get(&number).cloned()
    }

    fn notifies(&mut self, message: &Message) {
        match message.method.as_str() {
            "notifications/progress" => {
                if let Some((call, text)) = self.calls.progressed(message)
                    && let Some(reply) = call.to.reply()
                {
                    reply.tell(text);
                }
            }
            "notifications/subscriptions/acknowledged" if self.era == Era::Stateless => {
                self.is_listened_to();
            }
            "notifications/resources/updated" if self.shared => {
                let uri = message.text_param(&["uri"]).unwrap_or_default();
                for member in self.standing.listeners(&uri) {
                    if let Some(member) = self.members.get(&member) {
                        member.ears.hear(message.text().clone(), false);
                    }
                }
            }
            "notifications/cancelled" => {
                if let Some((member, text)) = self.questions.withdrawn(message)
                    && let Some(member) = self.members.get(&member)
                {
                    member.ears.hear(text, true);
                }
            }
            method if method.ends_with("/list_changed") => {
                self.tell_all(message.text());
                self.refresh(|changed| changed == method, false);
            }
            _ => match self.meant() {
                None if self.only_call().is_some() => {
                    if let Some(reply) = self.only_call() {
                        reply.tell(message.text().clone());
                    }
                }
                Some(member) => member.ears.hear(message.text().clone(), true),
                // To tell everybody would tell one what another does.
                None => tracing::debug!(
                    "{}: {} is for nobody",
                    self.known.server.name,
                    message.method
                ),
            },
        }
    }

    fn tell_all(&self, text: &Bytes) {
        for member in self.members.values() {
            member.ears.hear(text.clone(), false);
        }
    }
}
