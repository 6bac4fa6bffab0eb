//! Rollback, and the other unsuccessful ends: the container that ran before keeps running.
//!
//! Every step asks the engine for the current state, so that the rollback can be repeated from any point.

use super::RunExecutor;
use crate::engine::{Container, ContainerPhase, EngineProgress};
use crate::error::Result;
use crate::keeper::container_start::{ContainerStartOutcome, start_ended_container};
use crate::keeper::journal::RunJournalStep;
use crate::keeper::port_recovery::{UnreachableContainer, UnreachableFile};
use crate::keeper::retry_policy::is_away;
use crate::protocol::evolve::EvolveStage;
use anyhow::bail;
use std::time::{Duration, Instant};

/// How long a restarted container may take to become healthy.
const ROLLBACK_HEALTH_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the keeper asks the old companion to resume, and the first pause between two calls.
const ROLLBACK_RESUME_TIMEOUT: Duration = Duration::from_secs(15);
const FIRST_ROLLBACK_RETRY_DELAY: Duration = Duration::from_millis(200);
/// How long the keeper retries ports that another program uses.
const ROLLBACK_PORTS_TIMEOUT: Duration = Duration::from_secs(10);

impl RunExecutor {
    /// Restores the old container: in its place, alone, and answering requests.
    pub(super) async fn roll_back(&mut self) -> Result<()> {
        self.log.begin_stage("rolling back");
        self.site.remove_trial().await?;
        let name = self.site.container_name().to_owned();
        let old = match &self.entry.old {
            Some(id) => self.site.find_container(id).await?,
            None => None,
        };
        if let Some(found) = self.site.find_container(&name).await?
            && Some(&found.id) != old.as_ref().map(|old| &old.id)
        {
            if !self.site.is_of(&found, &self.entry.run) {
                // The host has created another container, which has the stored state.
                self.add_reason(
                    "another container, which no run created, is in the place of the old one",
                );
                self.is_displaced = true;
                if let Some(old) = old {
                    self.site.docker.remove(&old.id).await?;
                }
                return Ok(());
            }
            self.log.step("removing the new container");
            self.site.docker.remove(&found.id).await?;
        }
        match old {
            Some(old) => self.restore_old_container(&name, &old).await,
            None => self.make_anew(&name).await,
        }
    }

    async fn restore_old_container(&mut self, name: &str, old: &Container) -> Result<()> {
        self.log.step("resuming the old container");
        let docker = self.site.docker.clone();
        let is_robbed = old.ports.iter().any(|port| Some(port.host) == self.robbed);
        let joined = match is_robbed {
            true => Err(anyhow::anyhow!("a port of the old container is in use")),
            false => self.site.restore_network(old).await,
        };
        let refusing = self.refusing;
        if old.phase == ContainerPhase::Paused {
            docker.unpause(&old.id).await?;
        }
        let ended = matches!(old.phase, ContainerPhase::Created | ContainerPhase::Stopped);
        if !ended {
            self.go_on(&old.id).await;
        }
        let named = self.site.find_container(name).await?;
        if named.map(|found| found.id).as_ref() != Some(&old.id) {
            docker.rename(&old.id, name).await?;
        }
        docker.let_restart(&old.id, true).await?;
        // A container without its network works, but can't be reached. This must not block the rollback.
        if let Err(error) = joined {
            self.until_reached(&old.id, error).await?;
            let since = refusing.map(|since| since.elapsed().as_secs_f64() * 1e3);
            self.record.refused_ms = since.or(self.record.refused_ms);
        }
        self.restart_old_container(&old.id).await
    }

    /// Retries while another program uses a port. After a while the idle keeper continues the retries.
    async fn until_reached(&mut self, old: &str, mut error: anyhow::Error) -> Result<()> {
        self.log
            .step("waiting until the ports of the old container are free");
        let (begin, mut pause) = (Instant::now(), FIRST_ROLLBACK_RETRY_DELAY);
        loop {
            if is_away(&error) {
                return Err(error);
            }
            if begin.elapsed() > ROLLBACK_PORTS_TIMEOUT {
                return self.mark_unreachable(old, &error);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            // A container that is gone is handled by a later recovery.
            let Some(found) = self.site.find_container(old).await? else {
                return Ok(());
            };
            let mark = UnreachableFile::new(&self.settings.state);
            let ended = UnreachableContainer {
                run: Some(self.record.run.clone()),
                container: old.into(),
                has_ended: true,
            };
            let again = self.site.reach_again(&found, || mark.write(&ended));
            match again.await {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    mark.clear();
                    self.add_reason("the old container was restarted to get its ports");
                    return Ok(());
                }
                Err(again) => error = again,
            }
        }
    }

    /// Records that the container is unreachable, and leaves its ports to the idle keeper.
    fn mark_unreachable(&mut self, old: &str, error: &anyhow::Error) -> Result<()> {
        self.add_unreached(error);
        UnreachableFile::new(&self.settings.state).write(&UnreachableContainer {
            run: Some(self.record.run.clone()),
            container: old.into(),
            has_ended: false,
        })
    }

    fn add_unreached(&mut self, error: &anyhow::Error) {
        self.add_reason(&format!(
            "{error:#}; the old container can't be reached until its ports are free; the keeper keeps trying"
        ));
    }

    /// Restarts the old container if it ran before. The engine has then restored everything that is left of the old
    /// container: if it does not become healthy, the record says so and the rollback is not repeated.
    async fn restart_old_container(&mut self, old: &str) -> Result<()> {
        if !self.entry.running {
            return Ok(());
        }
        let mark = UnreachableFile::new(&self.settings.state);
        let run = self.record.run.clone();
        match start_ended_container(&self.site, &mark, old, Some(&run)).await? {
            ContainerStartOutcome::Untouched => return Ok(()),
            ContainerStartOutcome::Started => {}
            ContainerStartOutcome::WithoutPorts(error) => self.add_unreached(&error),
            ContainerStartOutcome::Waits(error) => {
                self.add_unreached(&error);
                return Ok(());
            }
            ContainerStartOutcome::Refused(error) => {
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
        self.go_on(container).await;
        match self
            .site
            .until_healthy(container, ROLLBACK_HEALTH_TIMEOUT, &self.log)
            .await
        {
            Err(error) if is_away(&error) => Err(error),
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
        let (name, aside) = (
            self.site.container_name().to_owned(),
            self.site.charge.aside.clone(),
        );
        let docker = self.site.docker.clone();
        docker.let_restart(old, false).await?;
        docker.rename(old, &aside).await?;
        match self.make_again(&name).await {
            Ok(true) => docker.remove(old).await,
            Err(error) if is_away(&error) => Err(error),
            made => {
                if let Err(error) = made {
                    self.add_reason(&format!("{error:#}"));
                }
                if self.site.find_container(&name).await?.is_some() {
                    docker.remove(&name).await?;
                }
                docker.rename(old, &name).await?;
                docker.let_restart(old, true).await?;
                UnreachableFile::new(&self.settings.state).write(&UnreachableContainer {
                    run: Some(self.record.run.clone()),
                    container: old.into(),
                    has_ended: true,
                })
            }
        }
    }

    /// Makes the old companion answer requests again. If it does not confirm, the keeper repeats the call and finally
    /// adds a reason to the record: a companion that works resumes after a while without the call.
    async fn go_on(&mut self, old: &str) {
        let begin = Instant::now();
        let mut pause = FIRST_ROLLBACK_RETRY_DELAY;
        loop {
            let Err(error) = self.site.resume_requests(old).await else {
                if let Some(since) = self.refusing.take() {
                    self.record.refused_ms = Some(since.elapsed().as_secs_f64() * 1e3);
                }
                return;
            };
            let runs = self.site.find_container(old).await;
            let runs =
                runs.is_ok_and(|found| found.is_some_and(|c| c.phase == ContainerPhase::Running));
            if !runs || begin.elapsed() > ROLLBACK_RESUME_TIMEOUT {
                self.log.log(&format!("{error:#}"));
                // A container that has ended is restarted next.
                if runs {
                    self.add_reason(
                        "the old container did not confirm that it answers requests again",
                    );
                }
                return;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// The old container is gone: creates a container of its image, which starts from the stored state.
    async fn make_anew(&mut self, name: &str) -> Result<()> {
        if self.entry.previous.is_none() {
            return Ok(());
        }
        match self.make_again(name).await? {
            true => Ok(()),
            false => bail!("the engine does not start a container of the previous image"),
        }
    }

    /// Creates a container of the previous image under this name. Returns whether the engine has started it, or will
    /// start it when a port is free.
    async fn make_again(&mut self, name: &str) -> Result<bool> {
        let Some(previous) = self.entry.previous.clone() else {
            return Ok(false);
        };
        if self.site.docker.find_image(&previous).await?.is_none() {
            bail!("the old container and its image no longer exist");
        }
        self.log.step("creating a container of the previous image");
        if let Some(left) = self.site.find_container(name).await?
            && self.site.is_of(&left, &self.record.run)
        {
            self.site.docker.remove(&left.id).await?;
        }
        let spec = self.site.successor_spec(&previous, &self.record.run)?;
        self.site.docker.create_container(&spec).await?;
        let mark = UnreachableFile::new(&self.settings.state);
        let run = self.record.run.clone();
        match start_ended_container(&self.site, &mark, name, Some(&run)).await? {
            ContainerStartOutcome::Untouched | ContainerStartOutcome::Started => {}
            ContainerStartOutcome::WithoutPorts(error) => self.add_unreached(&error),
            ContainerStartOutcome::Waits(error) => {
                self.add_unreached(&error);
                return Ok(true);
            }
            ContainerStartOutcome::Refused(error) => {
                self.add_reason(&format!("{error:#}"));
                return Ok(false);
            }
        }
        let made =
            "the old container no longer existed; the keeper created a container of the same image";
        self.resume_and_await_health(name, made).await?;
        Ok(true)
    }

    fn has_tested(&self) -> bool {
        let mut stages = self.record.stages.iter();
        stages.any(|passed| passed.stage == EvolveStage::Testing)
    }

    /// Ends a run whose changes can all be undone immediately.
    pub(super) async fn undo_nothing(&mut self) -> Result<()> {
        self.site.remove_trial().await?;
        let Some(old) = self.entry.old.clone() else {
            return Ok(());
        };
        match (self.entry.step, self.entry.running) {
            (RunJournalStep::Freezing, true) => self.go_on(&old).await,
            // The state that the trial has read no longer needs to be kept.
            (_, true) if self.has_tested() => drop(self.site.resume_requests(&old).await),
            _ => {}
        }
        self.restart_old_container(&old).await
    }
}
