//! *swapping*: the old container is paused with its memory, and the new one takes its place.

use super::RunExecutor;
use crate::engine::{ContainerPhase, EngineProgress};
use crate::error::Result;
use crate::keeper::journal::RunJournalStep;
use crate::keeper::retry_policy::is_away;
use crate::protocol::evolve::Task;
use anyhow::{Context, bail};
use std::time::{Duration, Instant};

/// A quiesced container resumes after a minute. If a slow engine takes too long to pause it, the work that it does
/// after resuming would be lost.
const PAUSE_AFTER_QUIESCE_TIMEOUT: Duration = Duration::from_secs(40);

impl RunExecutor {
    pub(super) async fn run_swapping(&mut self) -> Result<()> {
        let image = self
            .entry
            .image
            .clone()
            .context("there is no image to run")?;
        let spec = self.site.successor_spec(&image, &self.record.run)?;
        if self.record.task == Task::Rescue {
            // The trial container that tested the ports may be left.
            self.site.remove_trial().await?;
        }
        self.write_step(RunJournalStep::Swapping)?;
        self.refusing.get_or_insert_with(Instant::now);
        if let Some(old) = self.entry.old.clone() {
            self.set_aside(&old).await?;
        }
        self.log.step("starting the new container");
        self.site.docker.create_and_start(&spec).await
    }

    async fn set_aside(&mut self, old: &str) -> Result<()> {
        let docker = &self.site.docker;
        let Some(found) = self.site.find_container(old).await? else {
            return Ok(());
        };
        self.log.step("setting the old container aside");
        // The engine must not start the old container beside the new one, on the same data, nor a container that ends
        // while it is paused.
        docker.let_restart(old, false).await?;
        match found.phase {
            // On a rollback the container starts from its stored state.
            ContainerPhase::Running if docker.keeps_ports() => docker.stop(old).await?,
            ContainerPhase::Running => self.pause_old_container(old).await?,
            // The container crashes in a loop.
            ContainerPhase::Restarting => docker.stop(old).await?,
            ContainerPhase::Created
            | ContainerPhase::Paused
            | ContainerPhase::Stopped
            | ContainerPhase::Dead => {}
        }
        let aside = &self.site.charge.aside;
        if let Some(left) = self.site.find_container(aside).await?
            && left.id != old
        {
            self.log
                .step("removing the container that an earlier run set aside");
            docker.remove(&left.id).await?;
        }
        docker.rename(old, aside).await?;
        if let Some(network) = &self.site.charge.spec.network {
            docker.leave_network(old, network).await?;
        }
        Ok(())
    }

    /// Pauses before anything else, because a quiesced container resumes after its lease.
    async fn pause_old_container(&self, old: &str) -> Result<()> {
        let docker = &self.site.docker;
        match docker.pause(old).await {
            Err(error) if self.is_forced() && !is_away(&error) => {
                self.log
                    .log(&format!("{error:#}; the keeper stops the container"));
                return docker.stop(old).await;
            }
            paused => paused?,
        }
        let Some((since, restarts)) = self.at_rest else {
            return Ok(());
        };
        let waited = since.elapsed();
        if waited > PAUSE_AFTER_QUIESCE_TIMEOUT {
            bail!(
                "the engine took {} s to set the old container aside, which may have resumed in that time",
                waited.as_secs()
            );
        }
        // A restarted container accepts requests again, and the work of those requests is not stored.
        let found = self.site.find_container(old).await?;
        if found.is_some_and(|found| found.restarts != restarts) {
            bail!("the old container ended after its state was stored, and was restarted");
        }
        Ok(())
    }
}
