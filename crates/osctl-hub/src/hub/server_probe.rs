//! The health check of servers: the companion asks them for their tools before and after a replacement of the
//! container.

use super::{Hub, HubTarget};
use crate::child::{HandshakeError, ServerPhase};
use crate::client::NullSink;
use crate::config::ServerTransport;
use crate::merged_lists;
use crate::message::find_elements;
use crate::session::Backend;
use std::sync::Arc;

impl Hub {
    /// The local servers and the refused ones. Remote servers do not depend on this container.
    pub fn local_servers(&self) -> Vec<String> {
        let refused: Vec<String> = self
            .0
            .config_errors
            .lock()
            .invalid_servers
            .keys()
            .cloned()
            .collect();
        let servers = self.0.servers.lock();
        let local = servers.values().filter(|entry| entry.is_local());
        let local = local.map(|entry| entry.name().to_owned());
        local.chain(refused).collect()
    }

    /// The program, arguments and folder of a server; empty if it is not a child process.
    pub fn server_command_line(&self, name: &str) -> Vec<String> {
        let Some(entry) = self.find_server(name) else {
            return Vec::new();
        };
        let ServerTransport::Child {
            command, args, cwd, ..
        } = &entry.spec.config.transport
        else {
            return Vec::new();
        };
        let folder = cwd.iter().map(|cwd| cwd.display().to_string());
        let arguments = std::iter::once(command).chain(args).cloned();
        arguments.chain(folder).collect()
    }

    /// Whether a valid server of this name is configured.
    pub fn is_configured(&self, name: &str) -> bool {
        self.find_server(name).is_some()
    }

    /// The local servers that run.
    pub fn running_servers(&self) -> Vec<String> {
        let servers = self.0.servers.lock();
        let up = servers.values().filter(|entry| entry.is_local());
        let up = up.filter(|entry| entry.has_phase(|phase| *phase == ServerPhase::Up));
        up.map(|entry| entry.name().to_owned()).collect()
    }

    /// The servers with unanswered calls, one name for each call.
    pub fn servers_with_open_calls(&self) -> Vec<String> {
        let status = self.status();
        let servers = status.servers.into_iter();
        let open = servers.flat_map(|server| std::iter::repeat_n(server.name, server.calls));
        open.collect()
    }

    /// Starts a server unless it runs, and returns the number of its tools.
    ///
    /// # Errors
    /// Fails with the reason for the missing answer. There is no time limit.
    pub async fn probe_server(&self, name: &str) -> Result<usize, String> {
        if let Some(why) = self.0.config_errors.lock().invalid_servers.get(name) {
            return Err(format!("its configuration is refused: {why}"));
        }
        let entry = self.find_server(name).ok_or("it is not configured")?;
        // The cached handshake does not count.
        entry.start_shared_child().await.map_err(|why| match why {
            HandshakeError::Refused(error) => format!("it refused the handshake: {error}"),
            HandshakeError::Failed(why) => why,
        })?;
        let target = HubTarget {
            server: Some(name.to_owned()),
            ..HubTarget::default()
        };
        let Ok(Backend::Single(access)) = self.open_backend(&target, None, Arc::new(NullSink))
        else {
            return Err("it is not configured".into());
        };
        let pages = merged_lists::all_pages(&access, "tools/list").await;
        let pages = pages.map_err(|_| "it does not list its tools")?;
        let count = |page: &String| find_elements(page, "tools").len();
        Ok(pages.iter().map(count).sum())
    }
}
