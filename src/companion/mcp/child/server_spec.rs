//! What a server's children share, and how their handshakes fail.

use super::in_process::InProcessServer;
use crate::companion::environment::EnvironmentHandle;
use crate::companion::mcp::config::McpServerConfig;
use crate::companion::mcp::list_delay::ListDelay;
use crate::companion::mcp::resource_index::ResourceIndex;
use crate::companion::mcp::server_cache::ServerCache;
use crate::companion::mcp::server_log::McpServerLog;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// The state shared by all children of one configured server.
#[derive(Debug)]
pub(in crate::companion::mcp) struct ServerSpec {
    pub(in crate::companion::mcp) config: McpServerConfig,
    pub(in crate::companion::mcp) cache: ServerCache,
    pub(in crate::companion::mcp) log: Arc<McpServerLog>,
    pub(in crate::companion::mcp) resource_index: Arc<ResourceIndex>,
    pub(in crate::companion::mcp) list_delay: Arc<ListDelay>,
    /// The built-in server, used if the configuration selects it.
    pub(in crate::companion::mcp) built_in_server: Arc<dyn InProcessServer>,
    /// The variables of a child at its start.
    pub(in crate::companion::mcp) environment: EnvironmentHandle,
    /// How often a child ended unexpectedly.
    pub(in crate::companion::mcp) crash_count: AtomicUsize,
}

/// A failed handshake: the server's own error, or the reason for the missing answer.
#[derive(Debug, Clone)]
pub(in crate::companion::mcp) enum HandshakeError {
    /// The raw JSON of `error`.
    Refused(String),
    Failed(String),
}
