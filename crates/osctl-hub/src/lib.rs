//! The hub of MCP servers. It forwards the messages of clients of every transport and protocol revision to the
//! servers, and the servers' messages back, byte for byte. A server runs as one shared child or as one child for each
//! client.
//!
//! ```text
//! transport (HTTP) ── session ──┬── ServerAccess ── ServerTask ── process | URL | built in
//!    one call's stream  ◀───────┤      one server
//!    the general stream ◀───────┴── MergedServers ── ServerAccess … : all servers as one
//! ```
//!
//! [`Hub`] is the handle. It owns the servers ([`config`], read again when a file changes) and the sessions. Sessions
//! are stored on disk, so they survive a replacement of the container. At start the hub starts only the eager
//! servers; every other server starts when a client needs it. The hub answers lists and handshakes of stopped servers
//! from a cache ([`server_cache`]).
//!
//! The hub does not interpret what tools do, and never re-serializes a message ([`message`]). It names no part of the
//! companion: the companion passes the built-in server as an [`InProcessServer`], and is the hub's [`HubContext`].

#![cfg(target_os = "linux")]

mod call_record;
mod child;
mod client;
mod client_subscriptions;
mod config;
mod hub;
mod list_delay;
mod merged_lists;
mod merged_servers;
mod message;
mod message_stream;
mod name_filter;
mod notification_relay;
mod param_headers;
mod resource_index;
mod resource_route;
mod server_cache;
mod server_entry;
mod server_log;
mod session;
mod settings;
#[cfg(test)]
mod test_context;
mod transport;
mod uri_template;

pub use child::InProcessServer;
pub use hub::Hub;
pub use message::invalid_request_response;
pub use settings::{HubContext, HubSettings};
pub use transport::{hub_routes, read_called_tool, refuse_request};

use hub::{HubRefusal, HubTarget};
