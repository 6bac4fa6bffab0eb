//! Whether servers answer, asked by the companion itself: before a container takes the place of
//! another, and after.

use super::child::{NoHello, Phase};
use super::config::Way;
use super::message::{elements, find};
use super::{Hub, Wish, member::Ears};
use crate::companion::mcp::session::Backend;
use bytes::Bytes;
use std::sync::Arc;

/// Nobody hears what belongs to no call.
#[derive(Debug)]
struct Deaf;

impl Ears for Deaf {
    fn hear(&self, _text: Bytes, _is_related: bool) {}
}

impl Hub {
    /// The servers that run here, and those that are refused; those at a URL are others' affair.
    pub(in crate::companion) fn local(&self) -> Vec<String> {
        let refused: Vec<String> = self.amiss().refused.keys().cloned().collect();
        let servers = self.servers();
        let local = servers.values().filter(|served| served.is_local());
        let local = local.map(|served| served.name().to_owned());
        local.chain(refused).collect()
    }

    /// What a server is started with: its program, its arguments, and its folder; nothing of one that is none.
    pub(in crate::companion) fn words(&self, name: &str) -> Vec<String> {
        let Some(served) = self.server(name) else {
            return Vec::new();
        };
        let Way::Child {
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
        self.server(name).is_some()
    }

    /// Those that are up.
    pub(in crate::companion) fn running(&self) -> Vec<String> {
        let servers = self.servers();
        let up = servers.values().filter(|served| served.is_local());
        let up = up.filter(|served| served.has(|phase| *phase == Phase::Up));
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
    pub(in crate::companion) async fn prove(&self, name: &str) -> Result<usize, String> {
        if let Some(why) = self.amiss().refused.get(name) {
            return Err(format!("it is refused: {why}"));
        }
        let served = self.server(name).ok_or("it is not configured")?;
        // What it said the last time does not count.
        served.wake().await.map_err(|why| match why {
            NoHello::Refused(error) => format!("it refuses: {error}"),
            NoHello::Failed(why) => why,
        })?;
        let wish = Wish {
            server: Some(name.to_owned()),
            ..Wish::default()
        };
        let Ok(Backend::One(access)) = self.passing(&wish, Arc::new(Deaf)) else {
            return Err("it is not configured".into());
        };
        let pages = super::merged_lists::all_pages(&access, "tools/list").await;
        let pages = pages.map_err(|_| "it does not list its tools")?;
        let count = |page: &String| find(page, &["tools"]).map(|span| elements(&page[span]).len());
        Ok(pages.iter().filter_map(count).sum())
    }
}
