//! The lists of all servers as one: tools, prompts, resources and templates.

use super::member::Reply;
use super::merge::Merge;
use super::message::{self, Message, elements, find};
use super::server::Access;
use super::stream::Stream;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// A server whose list takes longer is left out, and told of when it is there.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pages of one list.
const PAGES: usize = 100;

impl Merge {
    /// The lists of all, as one.
    pub(super) async fn list(self: Arc<Self>, message: Message, reply: Reply) {
        let id = message.id().unwrap_or("null").to_owned();
        let (found, missing) = self.gather(&message.method).await;
        let (key, capability) = keys(&message.method);
        if !missing.is_empty() {
            tokio::spawn(self.clone().tell_later(missing, capability));
        }
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
        reply.result(&id, &format!("{{\"{key}\":[{}]}}", items.join(",")));
    }

    /// What each server has in its list, in the order of their names, and those that need longer to tell.
    pub(super) async fn gather(&self, method: &str) -> (Vec<(Arc<Access>, Listed)>, Slow) {
        let (key, capability) = keys(method);
        let mut asked = JoinSet::new();
        for server in self.servers() {
            let method = method.to_owned();
            asked.spawn(async move {
                if server.known().cache.hello().is_none() && server.hello().await.is_err() {
                    return None;
                }
                let mut items = Vec::new();
                if server.known().cache.can(capability) == Some(true) {
                    match all_pages(&server, &method).await {
                        Ok(pages) => items.extend(pages.iter().flat_map(|page| {
                            let list = find(page, &[key]).map(|span| elements(&page[span]));
                            list.unwrap_or_default().into_iter().map(str::to_owned)
                        })),
                        Err(why) if message::is_lost(&why) => return Some((server, Listed::Lost)),
                        Err(_) => return None,
                    }
                }
                Some((server, Listed::Items(items)))
            });
        }
        let deadline = Instant::now() + PATIENCE;
        let mut found = Vec::new();
        while let Ok(Some(one)) = timeout_at(deadline, asked.join_next()).await {
            found.extend(one.ok().flatten());
        }
        found.sort_by(|(a, _), (b, _)| a.name().cmp(b.name()));
        if capability == "resources" {
            for (server, listed) in &found {
                listed.uris().for_each(|uri| self.note(uri, server));
            }
        }
        (found, asked)
    }

    async fn tell_later(self: Arc<Self>, mut asked: Slow, kind: &str) {
        while let Some(one) = asked.join_next().await {
            if matches!(one, Ok(Some(_))) {
                let method = format!("notifications/{kind}/list_changed");
                self.outlet.hear(message::notification(&method, ""), false);
            }
        }
    }
}

/// Servers that have not told their list yet.
type Slow = JoinSet<Option<(Arc<Access>, Listed)>>;

/// What a server's list has brought.
#[derive(Debug)]
pub(super) enum Listed {
    Items(Vec<String>),
    /// The companion was stopped meanwhile.
    Lost,
}

impl Listed {
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
