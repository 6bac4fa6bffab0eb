//! Routes a request for a resource to its server, among all servers.
//!
//! ```text
//! reported to this client ──▶ listed ──▶ a matching template ──▶ unknown
//! ```
//!
//! Two tables hold routes, because their entries have different lifetimes. The origins of a client
//! ([`MergedServers`]) keep the requests for one resource at one connection, and end with that connection. The
//! [`resource_index`](super::resource_index) of a server holds the resources that its answers link to and no list
//! contains, for all clients.

use super::client::ReplySender;
use super::merged_lists::{GatheredLists, ListWait};
use super::merged_servers::{MergedServers, with_resource_index};
use super::message::{RpcMessage, find_elements, find_string};
use super::server_entry::ServerAccess;
use super::uri_template;
use std::sync::Arc;

const ROUTE_INVALID_PARAMS_CODE: i64 = -32602;

impl MergedServers {
    /// Routes a request that names a resource, or the text of a template.
    pub(super) fn route_by_uri(
        self: &Arc<Self>,
        message: RpcMessage,
        path: &[&str],
        mut reply: ReplySender,
    ) {
        let uri = message.text_param(path).unwrap_or_default();
        reply.shape.requested_uri = Some(uri.clone());
        if let Some(server) = self.origin_server(&uri) {
            return server.send_request(message, with_resource_index(&server, reply));
        }
        let merged = self.clone();
        tokio::spawn(async move {
            let id = message.id().unwrap_or("null");
            match merged.find_origin(&uri).await {
                Some(server) => {
                    merged.record_origin(uri, &server);
                    let reply = with_resource_index(&server, reply);
                    server.send_request(message, reply);
                }
                None if message.method == "completion/complete" => {
                    let why = format!("no server has the resource or template `{uri}`");
                    reply.send_error(id, ROUTE_INVALID_PARAMS_CODE, &why);
                }
                None => reply.send_no_resource(id, &uri),
            }
        });
    }

    async fn find_origin(&self, uri: &str) -> Option<Arc<ServerAccess>> {
        let servers = self.servers();
        let mut known = servers.iter();
        if let Some(server) =
            known.find(|s| s.spec().resource_index.contains_uri(uri) || is_listed(s, uri))
        {
            return Some(server.clone());
        }
        self.gather_lists("resources/list", ListWait::ORIGIN_SEARCH)
            .await;
        if let Some(server) = self.origin_server(uri) {
            return Some(server);
        }
        let templates = self.gather_lists("resources/templates/list", ListWait::ORIGIN_SEARCH);
        let GatheredLists { lists, .. } = templates.await;
        if let Some(server) = self.origin_server(uri) {
            return Some(server);
        }
        let fits = lists.iter().filter_map(|(server, templates)| {
            let templates = templates.items().iter();
            let text = templates.filter_map(|item| find_string(item, &["uriTemplate"]));
            let closest = text
                .filter_map(|text| uri_template::match_template(&text, uri))
                .max()?;
            Some((closest, server))
        });
        // Of equally close matches, the first.
        let best = fits.reduce(|best, other| if other.0 > best.0 { other } else { best });
        best.map(|(_, server)| server.clone())
    }
}

/// Whether the server's cached list contains the resource.
fn is_listed(server: &ServerAccess, uri: &str) -> bool {
    let pages = server.spec().cache.list_pages("resources/list");
    pages.unwrap_or_default().iter().any(|page| {
        let mut items = find_elements(page, "resources").into_iter();
        items.any(|item| find_string(item, &["uri"]).as_deref() == Some(uri))
    })
}
