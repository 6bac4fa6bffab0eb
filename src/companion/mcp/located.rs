//! Whose a resource is, where all servers are one: its server is asked for it, and nobody else.
//!
//! ```text
//! told of ──▶ listed ──▶ a template that fits ──▶ unknown
//! ```
//!
//! What a list does not name may have come in an answer ([`links`](super::links)), or belong to a template.

use super::member::Reply;
use super::merge::{Merge, pointing};
use super::merged_lists::{Gathered, ListWait};
use super::message::{Message, elements, find};
use super::server::Access;
use super::template;
use std::sync::Arc;

const INVALID_PARAMS: i64 = -32602;

impl Merge {
    /// A call about a resource, or about the template whose text is there.
    pub(super) fn located(self: &Arc<Self>, message: Message, path: &[&str], mut reply: Reply) {
        let uri = message.text_param(path).unwrap_or_default();
        reply.shape.uri = Some(uri.clone());
        if let Some(server) = self.teller(&uri) {
            return server.request(message, pointing(&server, reply));
        }
        let merge = self.clone();
        tokio::spawn(async move {
            let id = message.id().unwrap_or("null");
            match merge.owner(&uri).await {
                Some(server) => {
                    merge.note(uri, &server);
                    let reply = pointing(&server, reply);
                    server.request(message, reply);
                }
                None if message.method == "completion/complete" => {
                    let why = format!("no server has the resource or template `{uri}`");
                    reply.fail(id, INVALID_PARAMS, &why);
                }
                None => reply.no_resource(id, &uri),
            }
        });
    }

    async fn owner(&self, uri: &str) -> Option<Arc<Access>> {
        let servers = self.servers();
        let mut known = servers.iter();
        if let Some(server) = known.find(|s| s.known().links.has(uri) || is_listed(s, uri)) {
            return Some(server.clone());
        }
        self.gather("resources/list", ListWait::LOCATE).await;
        if let Some(server) = self.teller(uri) {
            return Some(server);
        }
        let templates = self.gather("resources/templates/list", ListWait::LOCATE);
        let Gathered { found, .. } = templates.await;
        if let Some(server) = self.teller(uri) {
            return Some(server);
        }
        let fits = found.iter().filter_map(|(server, templates)| {
            let templates = templates.items().iter();
            let text = templates.filter_map(|item| text(item, "uriTemplate"));
            let closest = text.filter_map(|text| template::fits(&text, uri)).max()?;
            Some((closest, server))
        });
        // Of those that fit as closely, the first.
        let best = fits.reduce(|best, other| if other.0 > best.0 { other } else { best });
        best.map(|(_, server)| server.clone())
    }
}

/// Whether it was in the server's list when that was last asked for.
fn is_listed(server: &Access, uri: &str) -> bool {
    let pages = server.known().cache.pages("resources/list");
    pages.unwrap_or_default().iter().any(|page| {
        let list = find(page, &["resources"]).map(|at| elements(&page[at]));
        let mut uris = list.unwrap_or_default().into_iter();
        uris.any(|item| text(item, "uri").as_deref() == Some(uri))
    })
}

fn text(item: &str, key: &str) -> Option<String> {
    serde_json::from_str(&item[find(item, &[key])?]).ok()
}
