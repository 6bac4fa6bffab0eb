//! The merged lists of all servers: tools, prompts, resources and templates.
//!
//! A list waits [`MERGED_LIST_TIMEOUT`] for servers that start. A server that needs longer is left out, or listed
//! from the cache, and no list waits for it again until it has answered ([`list_delay`](super::list_delay)). The
//! answer names the missing servers in `_meta`, and `list_changed` follows when one of them answers. A client can
//! request a longer wait in seconds in the `_meta` of its request.

use super::client::ReplySender;
use super::list_delay::PendingList;
use super::merged_servers::MergedServers;
use super::message::{self, RpcMessage, find_elements, find_raw};
use super::message_stream::MessageStream;
use super::server_entry::ServerAccess;
use bytes::Bytes;
use osctl_protocol::mcp::{LIST_MISSING_KEY, LIST_WAIT_KEY};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

/// Clients time out after 5 s or more, and can use a list without one server better than an error.
const MERGED_LIST_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of the search for the server of a resource, which can't be repeated when a server answers late.
const ORIGIN_SEARCH_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest wait that a client can request.
const MAX_MERGED_LIST_TIMEOUT: Duration = Duration::from_secs(120);
/// The most pages of one list.
const MAX_MERGED_LIST_PAGES: usize = 100;

/// How long a list waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListWait {
    timeout: Duration,
    /// Whether to wait also for servers that were late before.
    includes_late_servers: bool,
}

impl ListWait {
    pub(super) const ORIGIN_SEARCH: Self = Self {
        timeout: ORIGIN_SEARCH_TIMEOUT,
        includes_late_servers: true,
    };

    fn from_request(message: &RpcMessage) -> Self {
        let seconds = message.raw_param(&["_meta", LIST_WAIT_KEY]);
        let seconds = seconds.and_then(|seconds| seconds.parse().ok());
        let requested = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self {
            timeout: requested.map_or(MERGED_LIST_TIMEOUT, |requested| {
                requested.min(MAX_MERGED_LIST_TIMEOUT)
            }),
            includes_late_servers: requested.is_some(),
        }
    }
}

/// The lists of the servers.
#[derive(Debug)]
pub(super) struct GatheredLists {
    /// In the order of the servers' names.
    pub(super) lists: Vec<(Arc<ServerAccess>, ServerList)>,
    /// Servers without a list, and a channel that changes when they answer.
    missing: Vec<(Arc<ServerAccess>, watch::Receiver<u64>)>,
}

impl MergedServers {
    /// Answers a list request with the lists of all servers.
    pub(super) async fn answer_list(self: Arc<Self>, message: RpcMessage, reply: ReplySender) {
        let id = message.id().unwrap_or("null").to_owned();
        let GatheredLists { lists, missing } = self
            .gather_lists(&message.method, ListWait::from_request(&message))
            .await;
        let (key, capability) = list_keys(&message.method);
        let mut items = Vec::new();
        for (server, listed) in &lists {
            match listed {
                ServerList::Items(listed) => {
                    let renamed = listed
                        .iter()
                        .map(|item| self.with_prefixed_name(server, item, capability));
                    items.extend(renamed.flatten());
                }
                // The merged list would be incomplete.
                ServerList::Lost => return reply.send_lost(&id),
            }
        }
        let meta = match missing.is_empty() {
            true => String::new(),
            false => {
                let names: Vec<&str> = missing.iter().map(|(server, _)| server.name()).collect();
                format!(
                    ",\"_meta\":{}",
                    serde_json::json!({LIST_MISSING_KEY: names})
                )
            }
        };
        self.notify_on_arrival(missing, capability);
        reply.send_result(&id, &format!("{{\"{key}\":[{}]{meta}}}", items.join(",")));
    }

    pub(super) async fn gather_lists(&self, method: &str, wait: ListWait) -> GatheredLists {
        let (_, capability) = list_keys(method);
        let (answer, mut answers) = mpsc::unbounded_channel();
        let mut open = Vec::new();
        for server in self.servers() {
            let delay = &server.spec().list_delay;
            let arrivals = delay.subscribe_arrivals();
            let is_waited_for = wait.includes_late_servers || !delay.is_late();
            if is_waited_for || !delay.has_pending_request() {
                let answer = is_waited_for.then(|| answer.clone());
                let pending = delay.begin_request();
                tokio::spawn(request_list(
                    server.clone(),
                    method.to_owned(),
                    pending,
                    answer,
                ));
            }
            open.push((server, arrivals, is_waited_for));
        }
        drop(answer);
        let deadline = Instant::now() + wait.timeout;
        let mut answered = Vec::new();
        while let Ok(Some(one)) = timeout_at(deadline, answers.recv()).await {
            answered.push(one);
        }
        let (mut lists, mut missing) = (Vec::new(), Vec::new());
        for (server, arrivals, is_waited_for) in open {
            let number = server.client.number;
            let at = answered
                .iter()
                .position(|(answered, _)| *answered == number);
            let listed = at.and_then(|at| answered.swap_remove(at).1);
            if at.is_none() && is_waited_for {
                server.spec().list_delay.mark_late();
            }
            // The cached list of the server.
            let cached = || server.spec().cache.list_pages(method);
            let listed =
                listed.or_else(|| cached().map(|pages| ServerList::from_pages(&pages, method)));
            match listed {
                Some(listed) => lists.push((server, listed)),
                None => missing.push((server, arrivals)),
            }
        }
        if capability == "resources" {
            for (server, listed) in &lists {
                listed
                    .uris()
                    .for_each(|uri| self.record_origin(uri, server));
            }
        }
        GatheredLists { lists, missing }
    }

    /// Sends `list_changed` when a missing server answers.
    fn notify_on_arrival(
        self: &Arc<Self>,
        missing: Vec<(Arc<ServerAccess>, watch::Receiver<u64>)>,
        kind: &'static str,
    ) {
        let mut awaited = self.lock_awaited();
        for (server, mut arrivals) in missing {
            let key = (server.client.number, kind);
            if !awaited.awaited_keys.insert(key) {
                continue;
            }
            let merged = Arc::downgrade(self);
            awaited.tasks.spawn(async move {
                let is_there = arrivals.changed().await.is_ok();
                let Some(merged) = merged.upgrade() else {
                    return;
                };
                merged.lock_awaited().awaited_keys.remove(&key);
                if is_there {
                    let method = format!("notifications/{kind}/list_changed");
                    merged
                        .notification_sink
                        .deliver(message::notification_message(&method, ""), false);
                }
            });
        }
        while awaited.tasks.try_join_next().is_some() {}
    }
}

/// Requests one server's whole list and sends it to `answer`; `None` when the server fails.
async fn request_list(
    server: Arc<ServerAccess>,
    method: String,
    pending: PendingList,
    answer: Option<mpsc::UnboundedSender<(u64, Option<ServerList>)>>,
) {
    let listed = fetch_list(&server, &method).await;
    pending.finish_request(listed.is_some());
    if let Some(answer) = answer {
        // The receiver is gone after the list's timeout.
        let _ = answer.send((server.client.number, listed));
    }
}

async fn fetch_list(server: &ServerAccess, method: &str) -> Option<ServerList> {
    if server.spec().cache.initialize_result().is_none()
        && server.initialize_result().await.is_err()
    {
        return None;
    }
    let (_, capability) = list_keys(method);
    if server.spec().cache.has_capability(capability) != Some(true) {
        return Some(ServerList::Items(Vec::new()));
    }
    match all_pages(server, method).await {
        Ok(pages) => Some(ServerList::from_pages(&pages, method)),
        Err(why) if message::is_lost_response(&why) => Some(ServerList::Lost),
        Err(_) => None,
    }
}

/// The result of a list request to one server.
#[derive(Debug)]
pub(super) enum ServerList {
    Items(Vec<String>),
    /// The companion stopped during the request.
    Lost,
}

impl ServerList {
    /// The items of all pages of a list.
    fn from_pages(pages: &[String], method: &str) -> Self {
        let (key, _) = list_keys(method);
        let items = pages.iter().flat_map(|page| find_elements(page, key));
        Self::Items(items.map(str::to_owned).collect())
    }

    pub(super) fn items(&self) -> &[String] {
        match self {
            Self::Items(items) => items,
            Self::Lost => &[],
        }
    }

    /// The URIs of resources and templates.
    fn uris(&self) -> impl Iterator<Item = String> {
        self.items().iter().filter_map(|item| {
            let uri = find_raw(item, &["uri"]).or_else(|| find_raw(item, &["uriTemplate"]));
            serde_json::from_str(uri?).ok()
        })
    }
}

/// The key of the items in a list's result, and the capability of a server that has such a list.
fn list_keys(method: &str) -> (&'static str, &'static str) {
    match method {
        "tools/list" => ("tools", "tools"),
        "prompts/list" => ("prompts", "prompts"),
        "resources/list" => ("resources", "resources"),
        _ => ("resourceTemplates", "resources"),
    }
}

/// Requests every page of a server's list.
///
/// # Errors
/// Fails with the server's error message; empty if it does not answer at all.
pub(super) async fn all_pages(server: &ServerAccess, method: &str) -> Result<Vec<String>, Bytes> {
    let mut pages = Vec::new();
    let mut params = "{}".to_owned();
    while pages.len() < MAX_MERGED_LIST_PAGES {
        let stream = Arc::new(MessageStream::of_answers(0, 1));
        let request = message::request_message("0", method, &params);
        server.send_request(request, ReplySender::unshaped(stream.clone()));
        let text = stream.wait_for_answer().await.unwrap_or_default();
        let answer = RpcMessage::parse(text.clone()).map_err(|_| text.clone())?;
        let result = answer.result().ok_or(text)?.to_owned();
        let next = find_raw(&result, &["nextCursor"]).map(str::to_owned);
        pages.push(result);
        match next.filter(|next| next != "null") {
            Some(next) => params = format!("{{\"cursor\":{next}}}"),
            None => break,
        }
    }
    Ok(pages)
}
