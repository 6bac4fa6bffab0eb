//! *swapping*: the old container is paused with its memory, and the new one takes its place.

use super::RunExecutor;
use crate::backoff::Backoff;
use crate::engine::{Container, ContainerPhase, EngineProgress};
use crate::error::Result;
use crate::keeper::journal::RunJournalStep;
use crate::keeper::retry_policy::is_engine_away;
use crate::protocol::evolve::RunTask;
use anyhow::{Context, bail};
use std::time::Duration;
use tokio::time::Instant;

/// A quiesced container resumes after a minute. If a slow engine takes too long to pause it, the work that it does
/// after resuming would be lost.
const PAUSE_AFTER_QUIESCE_TIMEOUT: Duration = Duration::from_secs(40);

/// runc gives up the freeze of a busy container after a moment ("unable to freeze"): the delays before the keeper asks
/// again, and how often.
const PAUSE_RETRY_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    max: Duration::from_secs(1),
};
const MAX_PAUSE_RETRIES: u32 = 4;

impl RunExecutor {
    pub(super) async fn run_swapping(&mut self) -> Result<()> {
        let image = self
            .journal_entry
            .image
            .clone()
            .context("there is no image to run")?;
        let spec = self.target.successor_spec(&image, &self.record.run)?;
        if self.record.task == RunTask::Rescue {
            // The trial container that tested the ports may be left.
            self.target.remove_trial().await?;
        }
        self.write_step(RunJournalStep::Swapping)?;
        self.refusing_since.get_or_insert_with(Instant::now);
        if let Some(old) = self.journal_entry.old.clone() {
            self.set_old_container_aside(&old).await?;
        }
        self.log.report_step("starting the new container");
        self.target.docker.create_and_start(&spec).await
    }

    async fn set_old_container_aside(&self, old: &str) -> Result<()> {
        let Some(found) = self.target.find_container(old).await? else {
            return Ok(());
        };
        self.log.report_step("setting the old container aside");
        let places = &self.target.places;
        places.clear_aside().await?;
        let quiet = async || self.quiet_old_container(&found).await;
        places.set_aside(&found, quiet).await
    }

    async fn quiet_old_container(&self, old: &Container) -> Result<()> {
        let docker = &self.target.docker;
        match old.phase {
            // On a rollback the container starts from its stored state.
            ContainerPhase::Running if docker.has_persistent_ports() => docker.stop(&old.id).await,
            ContainerPhase::Running => self.pause_old_container(&old.id).await,
            // The container crashes in a loop.
            ContainerPhase::Restarting => docker.stop(&old.id).await,
            ContainerPhase::Created
            | ContainerPhase::Paused
            | ContainerPhase::Stopped
            | ContainerPhase::Dead => Ok(()),
        }
    }

    /// Checks the time after the pause, because a quiesced container resumes after its lease.
    async fn pause_old_container(&self, old: &str) -> Result<()> {
        let docker = &self.target.docker;
        match self.pause_with_retries(old).await {
            Err(error) if self.is_forced() && !is_engine_away(&error) => {
                self.log
                    .log(&format!("{error:#}; the keeper stops the container"));
                return docker.stop(old).await;
            }
            paused => paused?,
        }
        let Some((since, restarts)) = self.quiesced_since else {
            return Ok(());
        };
        let waited = since.elapsed();
        if waited > PAUSE_AFTER_QUIESCE_TIMEOUT {
            bail!(
                "pausing the old container took {} s; it may have accepted requests in the meantime",
                waited.as_secs()
            );
        }
        // A restarted container accepts requests again, and the work of those requests is not stored.
        let found = self.target.find_container(old).await?;
        if found.is_some_and(|found| found.restart_count != restarts) {
            bail!("the old container ended after its state was stored, and was restarted");
        }
        Ok(())
    }

    async fn pause_with_retries(&self, old: &str) -> Result<()> {
        let mut refused = 0;
        loop {
            match self.target.docker.pause(old).await {
                Err(error) if refused < MAX_PAUSE_RETRIES && !is_engine_away(&error) => {
                    refused += 1;
                    self.log.log(&format!("{error:#}; the keeper repeats it"));
                    tokio::time::sleep(PAUSE_RETRY_BACKOFF.delay_after(refused)).await;
                }
                done => return done,
            }
        }
    }
}
