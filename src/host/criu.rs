//! Calls that checkpoint and restore kernels, over the companion's API.

use super::client::CompanionClient;
use super::progress_stream::LongCall;
use crate::error::Result;
use crate::protocol::criu::{
    CheckpointList, CheckpointReply, CheckpointRequest, CriuRemoved, CriuRestored, CriuStatus,
    RestoreRequest,
};

impl CompanionClient {
    /// Checkpoints a kernel.
    pub(crate) async fn checkpoint(
        &self,
        request: &CheckpointRequest,
    ) -> Result<LongCall<CheckpointReply>> {
        let response = self.post_streaming("/criu/checkpoint", request).await?;
        Ok(LongCall::new(self.clone(), response))
    }

    /// Restores a kernel from a checkpoint.
    pub(crate) async fn restore(&self, request: &RestoreRequest) -> Result<LongCall<CriuRestored>> {
        let response = self.post_streaming("/criu/restore", request).await?;
        Ok(LongCall::new(self.clone(), response))
    }

    /// Whether the container can checkpoint kernels.
    pub(crate) async fn criu_status(&self) -> Result<CriuStatus> {
        self.get("/criu/status").await
    }

    /// Removes every generation of a checkpoint.
    pub(crate) async fn remove_checkpoint(&self, name: &str) -> Result<CriuRemoved> {
        self.delete(&format!("/criu/{name}")).await
    }

    pub(crate) async fn list_checkpoints(&self) -> Result<CheckpointList> {
        self.get("/criu").await
    }
}
