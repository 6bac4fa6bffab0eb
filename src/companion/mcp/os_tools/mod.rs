//! The built-in server `os`: the computer itself as MCP tools and resources.
//!
//! ```text
//! ServerTask ── bytes ── channel_transport ── rmcp ── server ─┬─ tools: code, shell, files, cryo, desktop, evolve
//!                                                             └─ resources: files, runs, the screen
//! ```
//!
//! [`OsServerFactory`] is the handle. Every connection has its own [`server`], so that each client has its own log
//! level. Tools and their schemas are built once, when they are first needed. Each tool checks its arguments, calls one
//! handle and formats the result. A refusal is a result with an error flag, because a model reads results and never
//! protocol errors.

mod channel_transport;
mod code;
mod cryo;
mod desktop;
mod evolve;
mod files;
mod logging;
mod resources;
mod run_result;
mod run_wait;
mod server;
mod shell;
mod tool_error;
mod tool_result;

use crate::companion::cryo::CryoService;
use crate::companion::desktop::Desktop;
use crate::companion::evolve::EvolveHandle;
use crate::companion::files::FilesHandle;
use crate::companion::kernel::KernelSessions;
use crate::companion::mcp::child::InProcessServer;
use crate::companion::shell::Shells;
use bytes::Bytes;
use rmcp::handler::server::router::tool::ToolRouter;
use server::OsServer;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// The handles that the tools call.
#[derive(Debug, Clone)]
pub(in crate::companion) struct ToolContext {
    pub(in crate::companion) sessions: KernelSessions,
    pub(in crate::companion) shells: Shells,
    pub(in crate::companion) files: FilesHandle,
    pub(in crate::companion) cryo: CryoService,
    pub(in crate::companion) desktop: Desktop,
}

/// The handle of the server; each connection opens its own server.
#[derive(Debug, Clone)]
pub(in crate::companion) struct OsServerFactory(Arc<OsServerFactoryInner>);

#[derive(Debug)]
struct OsServerFactoryInner {
    handles: ToolContext,
    /// The root folder of the file resources, and of relative paths.
    resource_root: PathBuf,
    tools: OnceLock<ToolRouter<OsServer>>,
    /// Set later, because the evolve handle needs the hub.
    evolve: OnceLock<EvolveHandle>,
}

impl OsServerFactory {
    pub(in crate::companion) fn new(handles: ToolContext, resource_root: PathBuf) -> Self {
        Self(Arc::new(OsServerFactoryInner {
            handles,
            resource_root,
            tools: OnceLock::new(),
            evolve: OnceLock::new(),
        }))
    }

    /// Enables the evolve tools.
    pub(in crate::companion) fn set_evolve(&self, evolve: EvolveHandle) {
        // A second call passes the same handle.
        let _ = self.0.evolve.set(evolve);
    }

    fn tools(&self) -> &ToolRouter<OsServer> {
        self.0.tools.get_or_init(server::all_tools)
    }
}

impl InProcessServer for OsServerFactory {
    fn open_connection(&self, _name: &str) -> (UnboundedSender<Bytes>, UnboundedReceiver<Bytes>) {
        server::serve_client(self)
    }
}
