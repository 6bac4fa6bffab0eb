//! Rollback, and the other unsuccessful ends: the container that ran before keeps running.
//!
//! Every step asks the engine for the current state, so that the rollback can be repeated from any point.

use super::RunExecutor;
use crate::backoff::Backoff;
use crate::engine::{Container, ContainerPhase, EngineProgress};
use crate::error::Result;
use crate::keeper::container_start::{ContainerStartOutcome, start_ended_container};
use crate::keeper::journal::RunJournalStep;
use crate::keeper::retry_policy::is_engine_away;
use crate::keeper::unreachable_file::{UnreachableContainer, UnreachableFile};
use crate::protocol::evolve::EvolveStage;
use anyhow::bail;
use std::time::Duration;
use tokio::time::Instant;

/// How long a restarted container may take to become healthy.
const ROLLBACK_HEALTH_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the keeper asks the old companion to resume.
const ROLLBACK_RESUME_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the keeper retries ports that another program uses.
const ROLLBACK_PORTS_TIMEOUT: Duration = Duration::from_secs(10);
/// The delays between two attempts; the timeouts are over before the maximum.
const ROLLBACK_RETRY_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    max: ROLLBACK_RESUME_TIMEOUT,
};

impl RunExecutor {
    /// Restores the old container: in its place, alone, and answering requests.
    pub(super) async fn roll_back(&mut self) -> Result<()> {
        self.log.begin_stage("rolling back");
        self.target.remove_trial().await?;
        let name = self.target.container_name().to_owned();
        let old = match &self.journal_entry.old {
            Some(id) => self.target.find_container(id).await?,
            None => None,
        };
        if let Some(found) = self.target.find_container(&name).await?
            && Some(&found.id) != old.as_ref().map(|old| &old.id)
        {
            if !self.target.is_created_by(&found, &self.journal_entry.run) {
                // The host has created another container, which has the stored state.
                self.add_reason(
                    "another container, which no evolve created, is in the place of the old one",
                );
                self.is_displaced = true;
                if let Some(old) = old {
                    self.target.docker.remove(&old.id).await?;
                }
                return Ok(());
            }
            self.log.report_step("removing the new container");
            self.target.docker.remove(&found.id).await?;
        }
        match old {
            Some(old) => self.restore_old_container(&old).await,
            None => self.recreate_missing_container(&name).await,
        }
    }

    async fn restore_old_container(&mut self, old: &Container) -> Result<()> {
        self.log.report_step("resuming the old container");
        let places = self.target.places.clone();
        let has_lost_port = old
            .ports
            .iter()
            .any(|port| Some(port.host) == self.taken_port);
        let reconnected = match has_lost_port {
            true => Err(anyhow::anyhow!("a port of the old container is in use")),
            false => places.restore_network(old).await,
        };
        let refusing = self.refusing_since;
        places.put_back(old, false).await?;
        let ended = matches!(old.phase, ContainerPhase::Created | ContainerPhase::Stopped);
        if !ended {
            self.resume_old_container(&old.id).await;
        }
        // A container without its network works, but can't be reached. This must not block the rollback.
        if let Err(error) = reconnected {
            self.wait_for_old_ports(&old.id, error).await?;
            let since = refusing.map(|since| since.elapsed().as_secs_f64() * 1e3);
            self.record.refused_ms = since.or(self.record.refused_ms);
        }
        self.restart_old_container(&old.id).await
    }

    /// Retries while another program uses a port. After a while the idle keeper continues the retries.
    async fn wait_for_old_ports(&mut self, old: &str, mut error: anyhow::Error) -> Result<()> {
        self.log
            .report_step("waiting until the ports of the old container are free");
        let (started_at, mut failures) = (Instant::now(), 0);
        loop {
            if is_engine_away(&error) {
                return Err(error);
            }
            if started_at.elapsed() > ROLLBACK_PORTS_TIMEOUT {
                return self.mark_unreachable(old, &error);
            }
            failures += 1;
            tokio::time::sleep(ROLLBACK_RETRY_BACKOFF.delay_after(failures)).await;
            // A container that is gone is handled by a later recovery.
            let Some(found) = self.target.find_container(old).await? else {
                return Ok(());
            };
            let unreachable_file = UnreachableFile::new(&self.settings.state_folder);
            let ended = UnreachableContainer {
                run: Some(self.record.run.clone()),
                container: old.into(),
                has_ended: true,
            };
            let again = self
                .target
                .restore_ports(&found, || unreachable_file.write(&ended));
            match again.await {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    unreachable_file.clear();
                    self.add_reason("the old container was restarted to get its ports");
                    return Ok(());
                }
                Err(again) => error = again,
            }
        }
    }

    /// Records that the container is unreachable, and leaves its ports to the idle keeper.
    fn mark_unreachable(&mut self, old: &str, error: &anyhow::Error) -> Result<()> {
        self.add_unreachable_reason(error);
        UnreachableFile::new(&self.settings.state_folder).write(&UnreachableContainer {
            run: Some(self.record.run.clone()),
            container: old.into(),
            has_ended: false,
        })
    }

    fn add_unreachable_reason(&mut self, error: &anyhow::Error) {
        self.add_reason(&format!(
            "{error:#}; the old container can't be reached until its ports are free; the keeper keeps trying"
        ));
    }

    /// Restarts the old container if it ran before. The engine has then restored everything that is left of the old
    /// container: if it does not become healthy, the record says so and the rollback is not repeated.
    async fn restart_old_container(&mut self, old: &str) -> Result<()> {
        if !self.journal_entry.running {
            return Ok(());
        }
        let unreachable_file = UnreachableFile::new(&self.settings.state_folder);
        let run = self.record.run.clone();
        match start_ended_container(&self.target, &unreachable_file, old, Some(&run)).await? {
            ContainerStartOutcome::Untouched => return Ok(()),
            ContainerStartOutcome::Started => {}
            ContainerStartOutcome::WithoutPorts(error) => self.add_unreachable_reason(&error),
            ContainerStartOutcome::WaitsForPort(error) => {
                self.add_unreachable_reason(&error);
                return Ok(());
            }
            ContainerStartOutcome::Unstartable(error) => {
                return self.replace_unstartable(old, &error).await;
            }
        }
        let again = "the old container had ended and was restarted";
        self.resume_and_await_health(old, again).await
    }

    /// Accepts requests immediately, because no further rollback can replace this container, and waits until it is
    /// healthy.
    async fn resume_and_await_health(&mut self, container: &str, what: &str) -> Result<()> {
        self.add_reason(what);
        self.resume_old_container(container).await;
        match self
            .target
            .wait_until_healthy(container, ROLLBACK_HEALTH_TIMEOUT, &self.log)
            .await
        {
            Err(error) if is_engine_away(&error) => Err(error),
            Err(error) => {
                self.add_reason(&format!("{error:#}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Replaces an old container that the engine can't start, for example after its processes were killed while they
    /// were paused, by a container of the same image. If that one does not start, the old container stays.
    async fn replace_unstartable(&mut self, old: &str, error: &anyhow::Error) -> Result<()> {
        self.add_reason(&format!("{error:#}"));
        let Some(found) = self.target.find_container(old).await? else {
            return Ok(());
        };
        let name = self.target.container_name().to_owned();
        let places = self.target.places.clone();
        places.set_aside(&found, async || Ok(())).await?;
        match self.create_from_previous_image(&name).await {
            Ok(true) => self.target.docker.remove(old).await,
            Err(error) if is_engine_away(&error) => Err(error),
            made => {
                if let Err(error) = made {
                    self.add_reason(&format!("{error:#}"));
                }
                places
                    .choose_over_aside(&found, async |_| Ok(false))
                    .await?;
                places.put_back(&found, false).await?;
                UnreachableFile::new(&self.settings.state_folder).write(&UnreachableContainer {
                    run: Some(self.record.run.clone()),
                    container: old.into(),
                    has_ended: true,
                })
            }
        }
    }

    /// Makes the old companion answer requests again. If it does not confirm, the keeper repeats the call and finally
    /// adds a reason to the record: a companion that works resumes after a while without the call.
    async fn resume_old_container(&mut self, old: &str) {
        let started_at = Instant::now();
        let mut failures = 0;
        loop {
            let Err(error) = self.target.places.resume_requests(old).await else {
                if let Some(since) = self.refusing_since.take() {
                    self.record.refused_ms = Some(since.elapsed().as_secs_f64() * 1e3);
                }
                return;
            };
            let runs = self.target.find_container(old).await;
            let runs =
                runs.is_ok_and(|found| found.is_some_and(|c| c.phase == ContainerPhase::Running));
            if !runs || started_at.elapsed() > ROLLBACK_RESUME_TIMEOUT {
                self.log.log(&format!("{error:#}"));
                // A container that has ended is restarted next.
                if runs {
                    self.add_reason(
                        "the old container did not confirm that it answers requests again",
                    );
                }
                return;
            }
            failures += 1;
            tokio::time::sleep(ROLLBACK_RETRY_BACKOFF.delay_after(failures)).await;
        }
    }

    /// The old container is gone: creates a container of its image, which starts from the stored state.
    async fn recreate_missing_container(&mut self, name: &str) -> Result<()> {
        if self.journal_entry.previous.is_none() {
            return Ok(());
        }
        self.add_reason("the old container no longer existed");
        match self.create_from_previous_image(name).await? {
            true => Ok(()),
            false => bail!("the engine does not start a container of the previous image"),
        }
    }

    /// Creates a container of the previous image under this name. Returns whether the engine has started it, or will
    /// start it when a port is free.
    async fn create_from_previous_image(&mut self, name: &str) -> Result<bool> {
        let Some(previous) = self.journal_entry.previous.clone() else {
            return Ok(false);
        };
        if self.target.docker.find_image(&previous).await?.is_none() {
            bail!("the old container and its image no longer exist");
        }
        self.log
            .report_step("creating a container of the previous image");
        if let Some(left) = self.target.find_container(name).await?
            && self.target.is_created_by(&left, &self.record.run)
        {
            self.target.docker.remove(&left.id).await?;
        }
        let spec = self.target.successor_spec(&previous, &self.record.run)?;
        self.target.docker.create_container(&spec).await?;
        let unreachable_file = UnreachableFile::new(&self.settings.state_folder);
        let run = self.record.run.clone();
        match start_ended_container(&self.target, &unreachable_file, name, Some(&run)).await? {
            ContainerStartOutcome::Untouched | ContainerStartOutcome::Started => {}
            ContainerStartOutcome::WithoutPorts(error) => self.add_unreachable_reason(&error),
            ContainerStartOutcome::WaitsForPort(error) => {
                self.add_unreachable_reason(&error);
                return Ok(true);
            }
            ContainerStartOutcome::Unstartable(error) => {
                self.add_reason(&format!("{error:#}"));
                return Ok(false);
            }
        }
        let made = "the keeper created another container of the old image";
        self.resume_and_await_health(name, made).await?;
        Ok(true)
    }

    fn has_tested(&self) -> bool {
        let mut stages = self.record.stages.iter();
        stages.any(|passed| passed.stage == EvolveStage::Testing)
    }

    /// Ends a run whose changes can all be undone immediately.
    pub(super) async fn undo_preparation(&mut self) -> Result<()> {
        self.target.remove_trial().await?;
        let Some(old) = self.journal_entry.old.clone() else {
            return Ok(());
        };
        match (self.journal_entry.step, self.journal_entry.running) {
            (RunJournalStep::Quiescing, true) => self.resume_old_container(&old).await,
            // The state that the trial has read no longer needs to be kept.
            (_, true) if self.has_tested() || self.record.unchanged => {
                drop(self.target.places.resume_requests(&old).await)
            }
            _ => {}
        }
        self.restart_old_container(&old).await
    }
}
