//! A keeper that ends what one before has begun whose container is gone.

use super::handover::busy;
use super::instance::{LABEL, Record};
use super::keeper::Keeper;
use crate::engine::{Phase, Progress};
use crate::error::Result;
use crate::image::Companion;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long it may take.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two looks.
const RECOVERY_INTERVAL: Duration = Duration::from_millis(50);

impl Keeper<'_> {
    /// Has a keeper end what one before has begun whose container is gone, while another container of the instance
    /// is there. What it may do is as it was.
    ///
    /// # Errors
    /// As [`Keeper::appoint`], and when what was begun does not end.
    pub(crate) async fn recover(
        &self,
        companion: &Companion,
        record: &Record,
        socket: &Path,
        progress: &dyn Progress,
    ) -> Result<()> {
        let label = format!("{LABEL}={}", self.instance.name);
        let is_alone = self.docker.labelled(&label).await?.is_empty();
        let state = self.instance.keeper_state();
        let keeper = self.find().await?;
        let has_begun = keeper.is_some_and(|keeper| keeper.phase != Phase::Created);
        if is_alone || has_begun || !self.docker.has_volume(&state).await? {
            return Ok(());
        }
        self.employ(companion, record, Some(socket), progress)
            .await?;
        self.until_ready().await?;
        progress.step("waiting for the end of what the keeper has begun");
        let deadline = Instant::now() + RECOVERY_TIMEOUT;
        while let Some(status) = self.status().await? {
            match (status.evolve_in_progress, status.latest_run) {
                (true, Some(run)) if Instant::now() > deadline => {
                    return Err(busy(self, &run, ""));
                }
                (true, _) => tokio::time::sleep(RECOVERY_INTERVAL).await,
                (false, _) => break,
            }
        }
        Ok(())
    }
}
