//! Calls that store, reload, list and remove the objects of sessions, over the companion's API.

use super::client::CompanionClient;
use super::progress_stream::LongCall;
use crate::error::Result;
use crate::protocol::cryo::{
    CryoListing, CryoRemoved, CryoStore, CryoStored, GenerationDetails, ReloadReply, ReloadRequest,
    SnapshotReply, SnapshotRequest, StoreReason,
};
use crate::protocol::service::CompanionStatus;

impl CompanionClient {
    /// The contents of the sessions, and the sources from which their variables were restored.
    pub(crate) async fn fetch_status(&self) -> Result<CompanionStatus> {
        self.get("/status").await
    }

    pub(crate) async fn cryo_store(&self, request: &CryoStore) -> Result<LongCall<CryoStored>> {
        let response = self.post_streaming("/cryo/store", request).await?;
        Ok(LongCall::new(self.clone(), response))
    }

    pub(crate) async fn cryo_reload(
        &self,
        request: &ReloadRequest,
    ) -> Result<LongCall<ReloadReply>> {
        let response = self.post_streaming("/cryo/reload", request).await?;
        Ok(LongCall::new(self.clone(), response))
    }

    /// Stores every session under its own name, or none; the setting also applies to the stop that follows.
    pub(crate) async fn cryo_snapshot(
        &self,
        reason: StoreReason,
        store: bool,
    ) -> Result<SnapshotReply> {
        let request = SnapshotRequest { reason, store };
        self.post("/cryo/snapshot", &request).await
    }

    pub(crate) async fn cryo_list(&self) -> Result<CryoListing> {
        self.get("/cryo").await
    }

    pub(crate) async fn cryo_show(
        &self,
        name: &str,
        generation: Option<u64>,
    ) -> Result<GenerationDetails> {
        self.get(&cryo_path(name, generation)).await
    }

    pub(crate) async fn cryo_remove(
        &self,
        name: &str,
        generation: Option<u64>,
    ) -> Result<CryoRemoved> {
        self.delete(&cryo_path(name, generation)).await
    }
}

fn cryo_path(name: &str, generation: Option<u64>) -> String {
    let name = crate::protocol::files::percent_encode(name.as_bytes());
    match generation {
        Some(generation) => format!("/cryo/{name}?generation={generation}"),
        None => format!("/cryo/{name}"),
    }
}
