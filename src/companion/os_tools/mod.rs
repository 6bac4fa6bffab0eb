//! The built-in server `os`: the computer itself as MCP tools and resources.
//!
//! ```text
//! ServerTask ── bytes ── channel_transport ── rmcp ── server ─┬─ tools: code, sessions, shell, files, search, cryo, desktop, evolve
//!                                                             └─ resources: files, runs, the screen
//! ```
//!
//! [`OsServerFactory`] is the handle. Every connection has its own [`server`], so that each client has its own log
//! level. Tools and their schemas are built once, when they are first needed. Each tool checks its arguments, calls one
//! handle and formats the result. A refusal is a result with an error flag, because a model reads results and never
//! protocol errors. A result is text; a client that requests it gets the fields, too ([`STRUCTURED_RESULT_KEY`]).
//!
//! [`STRUCTURED_RESULT_KEY`]: crate::protocol::mcp::STRUCTURED_RESULT_KEY

mod changes;
mod channel_transport;
mod code;
mod cryo;
mod desktop;
mod evolve;
mod files;
mod input_schema;
mod logging;
mod patch;
mod resources;
mod run_result;
mod run_wait;
mod search;
mod server;
mod sessions;
mod shell;
mod svg_picture;
mod terminal_codes;
mod text_edit;
mod tool_error;
mod tool_result;

use crate::companion::cryo::CryoService;
use crate::companion::desktop::Desktop;
use crate::companion::evolve::EvolveHandle;
use crate::companion::files::FilesHandle;
use crate::companion::kernel::KernelSessions;
use crate::companion::shell::Shells;
use bytes::Bytes;
use osctl_hub::InProcessServer;
use rmcp::handler::server::router::tool::ToolRouter;
use server::OsServer;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// The handles that the tools call.
#[derive(Debug, Clone)]
pub(super) struct ToolContext {
    pub(super) sessions: KernelSessions,
    pub(super) shells: Shells,
    pub(super) files: FilesHandle,
    pub(super) cryo: CryoService,
    pub(super) desktop: Desktop,
}

/// The handle of the server; each connection opens its own server.
#[derive(Debug, Clone)]
pub(super) struct OsServerFactory(Arc<OsServerFactoryInner>);

#[derive(Debug)]
struct OsServerFactoryInner {
    handles: ToolContext,
    /// The root folder of the file resources, and of paths that begin with `~/`.
    resource_root: PathBuf,
    /// The folder of the user's project, to which relative paths belong and in which kernels and shells start.
    project_folder: PathBuf,
    tools: OnceLock<ToolRouter<OsServer>>,
    /// Set later, because the evolve handle needs the hub.
    evolve: OnceLock<EvolveHandle>,
}

impl OsServerFactory {
    pub(super) fn new(
        handles: ToolContext,
        resource_root: PathBuf,
        project_folder: PathBuf,
    ) -> Self {
        Self(Arc::new(OsServerFactoryInner {
            handles,
            resource_root,
            project_folder,
            tools: OnceLock::new(),
            evolve: OnceLock::new(),
        }))
    }

    /// Enables the evolve tools.
    pub(super) fn set_evolve(&self, evolve: EvolveHandle) {
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
