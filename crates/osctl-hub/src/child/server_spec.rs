//! What a server's children share, and how their handshakes fail.

use super::in_process::InProcessServer;
use crate::config::McpServerConfig;
use crate::list_delay::ListDelay;
use crate::name_filter::NameFilter;
use crate::resource_index::ResourceIndex;
use crate::server_cache::ServerCache;
use crate::server_log::McpServerLog;
use crate::settings::HubContext;
use parking_lot::Mutex;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// The state shared by all children of one configured server.
#[derive(Debug)]
pub(crate) struct ServerSpec {
    pub(crate) config: McpServerConfig,
    pub(crate) cache: ServerCache,
    pub(crate) log: Arc<McpServerLog>,
    pub(crate) resource_index: Arc<ResourceIndex>,
    pub(crate) list_delay: Arc<ListDelay>,
    /// The built-in server, used if the configuration selects it.
    pub(crate) built_in_server: Arc<dyn InProcessServer>,
    /// The variables that a child inherits.
    pub(crate) inherited_environment: Vec<(OsString, OsString)>,
    pub(crate) context: Arc<dyn HubContext>,
    /// The number of calls of tools.
    pub(crate) call_count: AtomicUsize,
    /// How often a child ended unexpectedly.
    pub(crate) crash_count: AtomicUsize,
    /// Why a child failed; `None` after a start that succeeded.
    pub(crate) last_failure: Mutex<Option<String>>,
    /// Whether a child ended because of a cancellation. From then on the hub forwards none.
    pub(crate) ends_at_cancel: AtomicBool,
}

impl ServerSpec {
    /// The filter of the tools that are offered.
    pub(crate) fn tool_filter(&self) -> NameFilter {
        NameFilter::new(self.config.tool_patterns.iter().cloned())
    }
}

/// A failed handshake: the server's own error, or the reason for the missing answer.
#[derive(Debug, Clone)]
pub(crate) enum HandshakeError {
    /// The raw JSON of `error`.
    Refused(String),
    Failed(String),
}
