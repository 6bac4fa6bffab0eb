//! What is stored of a session's objects, and how it comes to be.

use super::client::Client;
use super::tale::Tale;
use crate::error::Result;
use crate::protocol::cryo::{
    Lines, Reason, Reload, Reloaded, Removed, Shown, Snapshot, Snapshots, Store, Stored,
};
use crate::protocol::service::Status;

impl Client {
    /// What the sessions hold, and what their variables were brought back from.
    pub(crate) async fn status(&self) -> Result<Status> {
        self.get("/status").await
    }

    pub(crate) async fn cryo_store(&self, wish: &Store) -> Result<Tale<Stored>> {
        let response = self.tell("/cryo/store", wish).await?;
        Ok(Tale::new(self.clone(), response))
    }

    pub(crate) async fn cryo_reload(&self, wish: &Reload) -> Result<Tale<Reloaded>> {
        let response = self.tell("/cryo/reload", wish).await?;
        Ok(Tale::new(self.clone(), response))
    }

    /// Has every session stored under its own name, or nothing, also by the stop that follows.
    pub(crate) async fn cryo_snapshot(&self, reason: Reason, store: bool) -> Result<Snapshots> {
        let wish = Snapshot { reason, store };
        self.post("/cryo/snapshot", &wish).await
    }

    pub(crate) async fn cryo_list(&self) -> Result<Lines> {
        self.get("/cryo").await
    }

    pub(crate) async fn cryo_show(&self, name: &str, generation: Option<u64>) -> Result<Shown> {
        self.get(&place(name, generation)).await
    }

    pub(crate) async fn cryo_remove(&self, name: &str, generation: Option<u64>) -> Result<Removed> {
        self.remove(&place(name, generation)).await
    }
}

fn place(name: &str, generation: Option<u64>) -> String {
    let name = crate::protocol::files::encode(name.as_bytes());
    match generation {
        Some(generation) => format!("/cryo/{name}?generation={generation}"),
        None => format!("/cryo/{name}"),
    }
}
