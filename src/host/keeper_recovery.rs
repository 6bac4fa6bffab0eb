//! Recovery of an evolve run whose keeper container is gone: a new keeper finishes the run.

use super::instance::{INSTANCE_LABEL, InstanceRecord};
use super::keeper::KeeperContainer;
use super::replace_via_keeper::run_in_progress_error;
use crate::engine::{ContainerPhase, EngineProgress};
use crate::error::Result;
use crate::image::CompanionBinary;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Time limit of the recovery.
const KEEPER_RECOVERY_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval of the status requests.
const KEEPER_RECOVERY_INTERVAL: Duration = Duration::from_millis(50);

impl KeeperContainer<'_> {
    /// Starts a keeper that finishes a run whose keeper container is gone, if another container of the instance exists.
    /// The keeper's permissions do not change.
    ///
    /// # Errors
    /// As [`KeeperContainer::deploy`], and when the run does not end in time.
    pub(crate) async fn finish_interrupted_run(
        &self,
        companion: &CompanionBinary,
        record: &InstanceRecord,
        socket: &Path,
        progress: &dyn EngineProgress,
    ) -> Result<()> {
        let label = format!("{INSTANCE_LABEL}={}", self.instance.name);
        let is_alone = self
            .docker
            .list_labelled_containers(&label)
            .await?
            .is_empty();
        let state = self.instance.keeper_state_volume();
        let keeper = self.find_container().await?;
        let has_begun = keeper.is_some_and(|keeper| keeper.phase != ContainerPhase::Created);
        if is_alone || has_begun || !self.docker.has_volume(&state).await? {
            return Ok(());
        }
        // The next deploy sets the format of the log.
        self.ensure_running(companion, record, Some(socket), None, progress)
            .await?;
        self.wait_until_ready().await?;
        progress.report_step("waiting for the keeper to finish the interrupted evolve");
        let deadline = Instant::now() + KEEPER_RECOVERY_TIMEOUT;
        while let Some(status) = self.fetch_status().await? {
            match (status.evolve_in_progress, status.latest_run) {
                (true, Some(run)) if Instant::now() > deadline => {
                    return Err(run_in_progress_error(self, &run, ""));
                }
                (true, _) => tokio::time::sleep(KEEPER_RECOVERY_INTERVAL).await,
                (false, _) => break,
            }
        }
        Ok(())
    }
}
