//! The ends that are none of success: what ran before goes on.
//!
//! Every step asks the engine how things stand, so that it can be gone through again from any point.

use super::Work;
use crate::engine::{Container, Phase, Progress};
use crate::error::Result;
use crate::keeper::journal::Step;
use crate::keeper::patience::is_away;
use crate::keeper::reach::{Mark, Unreached};
use crate::protocol::evolve::Stage;
use anyhow::bail;
use std::time::{Duration, Instant};

/// What a container that was started again may take.
const HEALTHY: Duration = Duration::from_secs(120);
/// How long the old companion is asked to go on, and the first pause between two times.
const PATIENCE: Duration = Duration::from_secs(15);
const AGAIN: Duration = Duration::from_millis(200);
/// How long ports are tried to be had again that somebody has taken meanwhile.
const PORTS: Duration = Duration::from_secs(10);

impl Work {
    /// The old container in its place, alone, and answering.
    pub(super) async fn back(&mut self) -> Result<()> {
        self.log.begin("going back");
        self.site.remove_trial().await?;
        let name = self.site.name().to_owned();
        let old = match &self.entry.old {
            Some(id) => self.site.find(id).await?,
            None => None,
        };
        if let Some(found) = self.site.find(&name).await?
            && Some(&found.id) != old.as_ref().map(|old| &old.id)
        {
            if !self.site.is_of(&found, &self.entry.run) {
                // The host has made another one meanwhile, which is as good an end.
                self.log.step("another container is in its place");
                return Ok(());
            }
            self.log.step("removing the new container");
            self.site.docker.remove(&found.id).await?;
        }
        match old {
            Some(old) => self.restore(&name, &old).await,
            None => self.make_anew(&name).await,
        }
    }

    async fn restore(&mut self, name: &str, old: &Container) -> Result<()> {
        self.log.step("the old container goes on");
        let docker = self.site.docker.clone();
        let is_robbed = old.ports.iter().any(|port| Some(port.host) == self.robbed);
        let joined = match is_robbed {
            true => Err(anyhow::anyhow!("somebody has a port of it")),
            false => self.site.reach(old).await,
        };
        let refusing = self.refusing;
        if old.phase == Phase::Paused {
            docker.unpause(&old.id).await?;
        }
        let ended = matches!(old.phase, Phase::Created | Phase::Stopped);
        if !ended {
            self.go_on(&old.id).await;
        }
        let named = self.site.find(name).await?;
        if named.map(|found| found.id).as_ref() != Some(&old.id) {
            docker.rename(&old.id, name).await?;
        }
        docker.let_restart(&old.id, true).await?;
        // Without its network it works, too, and is not to be reached: that holds nothing else up.
        if let Err(error) = joined {
            self.until_reached(&old.id, error).await?;
            let since = refusing.map(|since| since.elapsed().as_secs_f64() * 1e3);
            self.record.refused_ms = since.or(self.record.refused_ms);
        }
        self.revive(&old.id).await
    }

    /// Somebody has its ports meanwhile: they are tried for a while, and then whenever nothing is on.
    async fn until_reached(&mut self, old: &str, mut error: anyhow::Error) -> Result<()> {
        self.log.step("its ports can't be had: trying it again");
        let (begin, mut pause) = (Instant::now(), AGAIN);
        loop {
            if is_away(&error) {
                return Err(error);
            }
            if begin.elapsed() > PORTS {
                return self.unreached(old, false, &error);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            // One that is gone is looked after by whoever comes next.
            let Some(found) = self.site.find(old).await? else {
                return Ok(());
            };
            let mark = Mark::new(&self.settings.state);
            let ended = Unreached {
                run: self.record.run.clone(),
                container: old.into(),
                has_ended: true,
            };
            let run = &self.record.run;
            let again = self.site.reach_again(&found, run, || mark.write(&ended));
            match again.await {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    mark.clear();
                    self.add("the old container was started again to have its ports");
                    return Ok(());
                }
                Err(again) => error = again,
            }
        }
    }

    /// Says so, and leaves it to the time after the run.
    fn unreached(&mut self, old: &str, has_ended: bool, error: &anyhow::Error) -> Result<()> {
        self.add(&format!(
            "{error:#}; the old container is not to be reached until that is over, and it is tried on"
        ));
        Mark::new(&self.settings.state).write(&Unreached {
            run: self.record.run.clone(),
            container: old.into(),
            has_ended,
        })
    }

    /// What ran runs again. One that the engine has started gives all that is left of the old one: that
    /// it does not become healthy is told, and no reason to try it again.
    async fn revive(&mut self, old: &str) -> Result<()> {
        if !self.entry.running {
            return Ok(());
        }
        let begin = Instant::now();
        loop {
            match self.site.start(old, &self.log).await {
                Ok(false) => return Ok(()),
                Ok(true) => break,
                Err(error) if is_away(&error) => return Err(error),
                Err(error) if begin.elapsed() > PORTS => return self.unreached(old, true, &error),
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
        let again = "the old container had ended, and was started again";
        match self.site.until_healthy(old, HEALTHY, &self.log).await {
            Ok(()) => {
                self.add(again);
                self.let_in(old).await;
            }
            Err(error) if is_away(&error) => return Err(error),
            Err(error) => self.add(&format!("{again}: {error:#}")),
        }
        Ok(())
    }

    /// One that was just started lets nobody in until it is told so, or hears that the run has ended.
    async fn let_in(&self, container: &str) {
        if let Err(error) = self.site.resume(container).await {
            self.log.log(&format!("{error:#}"));
        }
    }

    /// Requests are answered again. A companion that does not say so is asked again, and in the end told
    /// of: it goes on by itself after a while, if it still can.
    async fn go_on(&mut self, old: &str) {
        let begin = Instant::now();
        let mut pause = AGAIN;
        loop {
            let Err(error) = self.site.resume(old).await else {
                if let Some(since) = self.refusing.take() {
                    self.record.refused_ms = Some(since.elapsed().as_secs_f64() * 1e3);
                }
                return;
            };
            let runs = self.site.find(old).await;
            let runs = runs.is_ok_and(|found| found.is_some_and(|c| c.phase == Phase::Running));
            if !runs || begin.elapsed() > PATIENCE {
                self.log.log(&format!("{error:#}"));
                // One that has ended is looked after next.
                if runs {
                    self.add("the old container does not say that it answers again");
                }
                return;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// There is no old container: one of its image, which finds its state in what was stored.
    async fn make_anew(&mut self, name: &str) -> Result<()> {
        let Some(previous) = self.entry.previous.clone() else {
            return Ok(());
        };
        if self.site.docker.image(&previous).await?.is_none() {
            bail!("the old container is gone, and so is its image");
        }
        self.log
            .step("the old container is gone: making it anew from its image");
        let spec = self.site.successor(&previous, &self.record.run)?;
        self.site.docker.create(&spec).await?;
        self.add("the old container was gone, and was made anew from its image");
        match self.site.until_healthy(name, HEALTHY, &self.log).await {
            Ok(()) => self.let_in(name).await,
            Err(error) if is_away(&error) => return Err(error),
            Err(error) => self.add(&format!("{error:#}")),
        }
        Ok(())
    }

    fn has_tested(&self) -> bool {
        let mut stages = self.record.stages.iter();
        stages.any(|passed| passed.stage == Stage::Testing)
    }

    /// Nothing was changed that could not be taken back at once.
    pub(super) async fn undo_nothing(&mut self) -> Result<()> {
        self.site.remove_trial().await?;
        let Some(old) = self.entry.old.clone() else {
            return Ok(());
        };
        match (self.entry.step, self.entry.running) {
            (Step::Freezing, true) => self.go_on(&old).await,
            // What a trial has looked at need not be kept any more.
            (_, true) if self.has_tested() => drop(self.site.resume(&old).await),
            _ => {}
        }
        self.revive(&old).await
    }
}
