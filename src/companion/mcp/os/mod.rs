//! The built-in server `os`: the computer itself as tools and resources, for clients of MCP.
//!
//! ```text
//! child's owner ── bytes ── wire ── rmcp ── server ─┬─ tools: code, shell, files, cryo, desktop, evolve
//!                                                   └─ resources: files, runs, the screen
//! ```
//!
//! [`Os`] is the handle. Every pipe to it has a [`server`] of its own, so that a client's log level is
//! its own; tools and their schemas are made when they are first asked for, once for all.
//! It is a face: each tool checks what comes in, calls one handle and words what goes out. A refusal is
//! a result that says so, because a model reads results and never errors of the protocol.

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

/// What its tools call.
#[derive(Debug, Clone)]
pub(in crate::companion) struct ToolContext {
    pub(in crate::companion) sessions: KernelSessions,
    pub(in crate::companion) shells: Shells,
    pub(in crate::companion) files: FilesHandle,
    pub(in crate::companion) cryo: CryoService,
    pub(in crate::companion) desktop: Desktop,
}

/// The server, for everyone who opens a pipe to it.
#[derive(Debug, Clone)]
pub(in crate::companion) struct Os(Arc<OsInner>);

#[derive(Debug)]
struct OsInner {
    handles: ToolContext,
    /// Beneath it files are resources, and relative paths begin there.
    root: PathBuf,
    tools: OnceLock<ToolRouter<OsServer>>,
    /// It needs the hub, and so comes later.
    evolve: OnceLock<EvolveHandle>,
}

impl Os {
    pub(in crate::companion) fn new(handles: ToolContext, root: PathBuf) -> Self {
        Self(Arc::new(OsInner {
            handles,
            root,
            tools: OnceLock::new(),
            evolve: OnceLock::new(),
        }))
    }

    /// Lets clients ask for a new body.
    pub(in crate::companion) fn set_evolve(&self, evolve: EvolveHandle) {
        // A second one is the same.
        let _ = self.0.evolve.set(evolve);
    }

    fn tools(&self) -> &ToolRouter<OsServer> {
        self.0.tools.get_or_init(server::all_tools)
    }
}

impl InProcessServer for Os {
    fn open(&self, _name: &str) -> (UnboundedSender<Bytes>, UnboundedReceiver<Bytes>) {
        server::serve_client(self)
    }
}
