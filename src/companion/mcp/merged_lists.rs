//! The lists of all servers as one: tools, prompts, resources and templates.
//!
//! A list waits [`LIST_TIMEOUT`] for servers that start. A server that needs longer is left out, or listed from the
//! cache, and no list waits for it again until it has answered ([`list_delay`](super::list_delay)). The answer
//! names the servers that are missing in `_meta`, and `list_changed` follows when one of them answers. A client
//! that prefers to wait names its seconds in the `_meta` of its request.

use super::list_delay::AskedList;
use super::member::Reply;
use super::merge::Merge;
use super::message::{self, Message, elements, find};
use super::server::Access;
use super::stream::Stream;
use crate::protocol::mcp::{LIST_MISSING, LIST_WAIT};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

/// Clients give up after 5 s and more; a list without one server is worth more to them than no list.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);
/// Of a search for the server of a resource, which can't be repeated when a server comes late.
const LOCATE_TIMEOUT: Duration = Duration::from_secs(20);
/// What a client can ask for.
const MAX_LIST_TIMEOUT: Duration = Duration::from_secs(120);
/// Pages of one list.
const PAGES: usize = 100;

/// How long a list waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListWait {
    timeout: Duration,
    /// Whether it waits also for servers that were late before.
    is_for_late: bool,
}

impl ListWait {
    pub(super) const LOCATE: Self = Self {
        timeout: LOCATE_TIMEOUT,
        is_for_late: true,
    };

    fn of(message: &Message) -> Self {
        let seconds = message.raw_param(&["_meta", LIST_WAIT]);
        let seconds = seconds.and_then(|seconds| seconds.parse().ok());
        let asked = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self {
            timeout: asked.map_or(LIST_TIMEOUT, |asked| asked.min(MAX_LIST_TIMEOUT)),
            is_for_late: asked.is_some(),
        }
    }
}

/// The lists of the servers.
#[derive(Debug)]
pub(super) struct Gathered {
    /// In the order of the servers' names.
    pub(super) found: Vec<(Arc<Access>, Listed)>,
    /// Servers without a list, and what tells when they answer.
    missing: Vec<(Arc<Access>, watch::Receiver<u64>)>,
}

impl Merge {
    /// The lists of all, as one.
    pub(super) async fn list(self: Arc<Self>, message: Message, reply: Reply) {
        let id = message.id().unwrap_or("null").to_owned();
        let Gathered { found, missing } =
            self.gather(&message.method, ListWait::of(&message)).await;
        let (key, capability) = keys(&message.method);
        let mut items = Vec::new();
        for (server, listed) in &found {
            match listed {
                Listed::Items(listed) => {
                    let renamed = listed
                        .iter()
                        .map(|item| self.renamed(server, item, capability));
                    items.extend(renamed.flatten());
                }
                // What all have is not known.
                Listed::Lost => return reply.lost(&id),
            }
        }
        let meta = match missing.is_empty() {
            true => String::new(),
            false => {
                let names: Vec<&str> = missing.iter().map(|(server, _)| server.name()).collect();
                format!(",\"_meta\":{}", serde_json::json!({LIST_MISSING: names}))
            }
        };
        self.tell_of_arrivals(missing, capability);
        reply.result(&id, &format!("{{\"{key}\":[{}]{meta}}}", items.join(",")));
    }

    pub(super) async fn gather(&self, method: &str, wait: ListWait) -> Gathered {
        let (_, capability) = keys(method);
        let (answer, mut answers) = mpsc::unbounded_channel();
        let mut open = Vec::new();
        for server in self.servers() {
            let delay = &server.known().list_delay;
            let arrivals = delay.arrivals();
            let is_waited_for = wait.is_for_late || !delay.is_late();
            if is_waited_for || !delay.is_asked() {
                let answer = is_waited_for.then(|| answer.clone());
                let asked = delay.ask();
                tokio::spawn(ask(server.clone(), method.to_owned(), asked, answer));
            }
            open.push((server, arrivals, is_waited_for));
        }
        drop(answer);
        let deadline = Instant::now() + wait.timeout;
        let mut answered = Vec::new();
        while let Ok(Some(one)) = timeout_at(deadline, answers.recv()).await {
            answered.push(one);
        }
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for (server, arrivals, is_waited_for) in open {
            let number = server.member.number;
            let at = answered
                .iter()
                .position(|(answered, _)| *answered == number);
            let listed = at.and_then(|at| answered.swap_remove(at).1);
            if at.is_none() && is_waited_for {
                server.known().list_delay.note_late();
            }
            // What it has listed before.
            let cached = || server.known().cache.pages(method);
            let listed = listed.or_else(|| cached().map(|pages| Listed::of(&pages, method)));
            match listed {
                Some(listed) => found.push((server, listed)),
                None => missing.push((server, arrivals)),
            }
        }
        if capability == "resources" {
            for (server, listed) in &found {
                listed.uris().for_each(|uri| self.note(uri, server));
            }
        }
        Gathered { found, missing }
    }

    /// Sends `list_changed` when a server answers that was missing.
    fn tell_of_arrivals(
        self: &Arc<Self>,
        missing: Vec<(Arc<Access>, watch::Receiver<u64>)>,
        kind: &'static str,
    ) {
        let mut awaited = self.awaited();
        for (server, mut arrivals) in missing {
            let key = (server.member.number, kind);
            if !awaited.keys.insert(key) {
                continue;
            }
            let merge = Arc::downgrade(self);
            awaited.tasks.spawn(async move {
                let is_there = arrivals.changed().await.is_ok();
                let Some(merge) = merge.upgrade() else {
                    return;
                };
                merge.awaited().keys.remove(&key);
                if is_there {
                    let method = format!("notifications/{kind}/list_changed");
                    merge.outlet.hear(message::notification(&method, ""), false);
                }
            });
        }
        while awaited.tasks.try_join_next().is_some() {}
    }
}

/// One server's whole list; nothing, where the server has none to tell.
async fn ask(
    server: Arc<Access>,
    method: String,
    asked: AskedList,
    answer: Option<mpsc::UnboundedSender<(u64, Option<Listed>)>>,
) {
    let listed = listed(&server, &method).await;
    asked.end(listed.is_some());
    if let Some(answer) = answer {
        // A list that has waited long enough does not take it any more.
        let _ = answer.send((server.member.number, listed));
    }
}

async fn listed(server: &Access, method: &str) -> Option<Listed> {
    if server.known().cache.hello().is_none() && server.hello().await.is_err() {
        return None;
    }
    let (_, capability) = keys(method);
    if server.known().cache.can(capability) != Some(true) {
        return Some(Listed::Items(Vec::new()));
    }
    match all_pages(server, method).await {
        Ok(pages) => Some(Listed::of(&pages, method)),
        Err(why) if message::is_lost(&why) => Some(Listed::Lost),
        Err(_) => None,
    }
}

/// What a server's list has brought.
#[derive(Debug)]
pub(super) enum Listed {
    Items(Vec<String>),
    /// The companion was stopped meanwhile.
    Lost,
}

impl Listed {
    /// The items on the pages of a list.
    fn of(pages: &[String], method: &str) -> Self {
        let (key, _) = keys(method);
        let items = pages.iter().flat_map(|page| {
            let list = find(page, &[key]).map(|span| elements(&page[span]));
            list.unwrap_or_default().into_iter().map(str::to_owned)
        });
        Self::Items(items.collect())
    }

    pub(super) fn items(&self) -> &[String] {
        match self {
            Self::Items(items) => items,
            Self::Lost => &[],
        }
    }

    /// Of resources and templates.
    fn uris(&self) -> impl Iterator<Item = String> {
        self.items().iter().filter_map(|item| {
            let uri = find(item, &["uri"]).or_else(|| find(item, &["uriTemplate"]));
            serde_json::from_str(&item[uri?]).ok()
        })
    }
}

/// Where the items of a list are, and which capability a server has who has such a list.
fn keys(method: &str) -> (&'static str, &'static str) {
    match method {
        "tools/list" => ("tools", "tools"),
        "prompts/list" => ("prompts", "prompts"),
        "resources/list" => ("resources", "resources"),
        _ => ("resourceTemplates", "resources"),
    }
}

/// Every page of a server's list.
///
/// # Errors
/// What it answers instead; nothing, where it does not answer at all.
pub(super) async fn all_pages(server: &Access, method: &str) -> Result<Vec<String>, Bytes> {
    let mut pages = Vec::new();
    let mut params = "{}".to_owned();
    while pages.len() < PAGES {
        let stream = Arc::new(Stream::of_answers(0, 1));
        let request = message::request("0", method, &params);
        let request = Message::parse(request).map_err(|_| Bytes::new())?;
        server.request(request, Reply::plain(stream.clone()));
        let text = stream.only().await.unwrap_or_default();
        let answer = Message::parse(text.clone()).map_err(|_| text.clone())?;
        let result = answer.result().ok_or(text)?.to_owned();
        let next = find(&result, &["nextCursor"]).map(|span| result[span].to_owned());
        pages.push(result);
        match next.filter(|next| next != "null") {
            Some(next) => params = format!("{{\"cursor\":{next}}}"),
            None => break,
        }
    }
    Ok(pages)
}
