//! Whether servers answer, asked by the companion itself: before a container takes the place of
//! another, and after.

use super::child::{HandshakeError, ServerPhase};
use super::config::ServerTransport;
use super::message::{array_elements, find_value};
use super::{Hub, HubTarget, client::NotificationSink};
use crate::companion::mcp::session::Backend;
use bytes::Bytes;
use std::sync::Arc;

/// Nobody hears what belongs to no call.
#[derive(Debug)]
struct ProbeNullSink;

impl NotificationSink for ProbeNullSink {
    fn deliver(&self, _text: Bytes, _is_related: bool) {}
}

impl Hub {
    /// The servers that run here, and those that are refused; those at a URL are others' affair.
    pub(in crate::companion) fn local_servers(&self) -> Vec<String> {
        let refused: Vec<String> = self.lock_config_errors().refused.keys().cloned().collect();
        let servers = self.lock_servers();
        let local = servers.values().filter(|served| served.is_local());
        let local = local.map(|served| served.name().to_owned());
        local.chain(refused).collect()
    }

    /// What a server is started with: its program, its arguments, and its folder; nothing of one that is none.
    pub(in crate::companion) fn command_line(&self, name: &str) -> Vec<String> {
        let Some(served) = self.find_server(name) else {
            return Vec::new();
        };
        let ServerTransport::Child {
            command, args, cwd, ..
        } = &served.known.server.way
        else {
            return Vec::new();
        };
        let folder = cwd.iter().map(|cwd| cwd.display().to_string());
        let words = std::iter::once(command).chain(args).cloned();
        words.chain(folder).collect()
    }

    /// Whether anybody has declared a server of that name.
    pub(in crate::companion) fn is_known(&self, name: &str) -> bool {
        self.find_server(name).is_some()
    }

    /// Those that are up.
    pub(in crate::companion) fn running_servers(&self) -> Vec<String> {
        let servers = self.lock_servers();
        let up = servers.values().filter(|served| served.is_local());
        let up = up.filter(|served| served.has_phase(|phase| *phase == ServerPhase::Up));
        up.map(|served| served.name().to_owned()).collect()
    }

    /// The servers with calls that are not answered yet, one name for each.
    pub(in crate::companion) fn open_calls(&self) -> Vec<String> {
        let status = self.status();
        let servers = status.servers.into_iter();
        let open = servers.flat_map(|server| std::iter::repeat_n(server.name, server.calls));
        open.collect()
    }

    /// Starts a server unless it runs, and asks it for its tools. How many there are.
    ///
    /// # Errors
    /// Why there is no answer, in words. It may take for ever.
    pub(in crate::companion) async fn probe_server(&self, name: &str) -> Result<usize, String> {
        if let Some(why) = self.lock_config_errors().refused.get(name) {
            return Err(format!("it is refused: {why}"));
        }
        let served = self.find_server(name).ok_or("it is not configured")?;
        // What it said the last time does not count.
        served.start_shared_child().await.map_err(|why| match why {
            HandshakeError::Refused(error) => format!("it refuses: {error}"),
            HandshakeError::Failed(why) => why,
        })?;
        let wish = HubTarget {
            server: Some(name.to_owned()),
            ..HubTarget::default()
        };
        let Ok(Backend::One(access)) = self.sessionless_backend(&wish, Arc::new(ProbeNullSink))
        else {
            return Err("it is not configured".into());
        };
        let pages = super::merged_lists::all_pages(&access, "tools/list").await;
        let pages = pages.map_err(|_| "it does not list its tools")?;
        let count = |page: &String| {
            find_value(page, &["tools"]).map(|span| array_elements(&page[span]).len())
        };
        Ok(pages.iter().filter_map(count).sum())
    }
}
