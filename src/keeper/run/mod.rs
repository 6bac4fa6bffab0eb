//! One run from its beginning to its end.

mod back;
mod building;
mod concluding;
mod freezing;
mod swapping;
mod testing;
mod verifying;

use super::journal::{Entry, Journal, Step};
use super::log::Log;
use super::policy::{self, Event};
use super::shelf::{Shelf, now};
use super::site::Site;
use super::stop::Stop;
use super::{Settings, hearsay, leftovers};
use crate::engine::Progress;
use crate::error::{Error, Result};
use crate::protocol::evolve::{Asker, Passed, Record, Stage, Task};
use std::time::{Duration, Instant};

/// How often the record of an end is tried to be written, and how long after one another.
const TRIES: u32 = 40;
const AGAIN: Duration = Duration::from_millis(500);

/// A run, and everything that its stages work with.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) settings: Settings,
    pub(super) site: Site,
    pub(super) shelf: Shelf,
    pub(super) journal: Journal,
    pub(super) log: Log,
    pub(super) record: Record,
    pub(super) entry: Entry,
    /// Since when requests are refused.
    pub(super) refusing: Option<Instant>,
    /// Since when the old container is at rest for certain, and how often the engine had started it again by then.
    pub(super) at_rest: Option<(Instant, u64)>,
    /// The port that somebody else has.
    pub(super) robbed: Option<u16>,
    /// Whether a container that no run has brought is in the place of the old one.
    pub(super) is_displaced: bool,
    pub(super) stop: Stop,
}

impl Work {
    /// Goes through the stages. The record of the end is written, and there is nothing in the journal
    /// but, after success, the probation.
    ///
    /// # Errors
    /// When the engine or the keeper's own disk leaves it alone with a half of a run; the journal tells
    /// where to go on.
    pub(super) async fn drive(mut self) -> Result<Record> {
        let mut stage = policy::first(self.record.task);
        while !stage.has_ended() {
            self.enter(stage)?;
            let begin = Instant::now();
            let stop = self.stop.clone();
            let passed = match stage {
                Stage::Building => stop.or(self.build()).await,
                // They stop by themselves where nothing is half made.
                Stage::Testing => self.test().await,
                Stage::Freezing => self.freeze().await,
                Stage::Swapping => self.swap().await,
                Stage::Verifying => stop.or(self.verify()).await,
                Stage::Succeeded | Stage::RolledBack | Stage::Failed => Ok(()),
            };
            self.leave(begin);
            let event = match passed.and_then(|()| stop.check()) {
                Ok(()) => Event::Passed,
                Err(error) => {
                    self.blame(stage, &error);
                    Event::Failed
                }
            };
            stage = policy::after(stage, event, self.record.dry_run);
        }
        if let Err(error) = self.end(stage).await {
            // Who goes on from the journal knows then why it failed.
            if let Err(error) = self.shelf.save(&self.record) {
                tracing::warn!("{error:#}");
            }
            return Err(error);
        }
        Ok(self.record)
    }

    /// Does what the end takes, and says that it is reached.
    ///
    /// # Errors
    /// As [`Work::drive`].
    pub(super) async fn end(&mut self, end: Stage) -> Result<()> {
        if end != Stage::Succeeded {
            self.forgo_rescue()?;
        }
        match end {
            Stage::Succeeded if self.record.dry_run => self.undo_nothing().await?,
            Stage::Succeeded => self.conclude().await?,
            Stage::RolledBack => self.back().await?,
            _ => self.undo_nothing().await?,
        }
        if let Some(since) = self.refusing.take() {
            self.record.refused_ms = Some(since.elapsed().as_secs_f64() * 1e3);
        }
        if end != Stage::Succeeded {
            // What was to end with the old container has gone on with it.
            self.record.receipt.clear();
            self.record.besides.clear();
        }
        let end = match self.is_displaced {
            true => Stage::Failed,
            false => end,
        };
        self.record.status = end;
        self.log.step(&format!("{end}{}", self.because()));
        self.keep().await?;
        match end == Stage::Succeeded && !self.record.dry_run {
            true => {
                self.entry.after = None;
                self.note(Step::Probation)?;
            }
            false => self.journal.restore(&self.entry)?,
        }
        let left = self.journal.read()?;
        leftovers::remove(&self.site, &self.shelf, left.as_ref()).await;
        Ok(())
    }

    /// A person who stops the way back from what does not last wants that as it is: the keeper does not
    /// begin anew.
    fn forgo_rescue(&mut self) -> Result<()> {
        if self.record.task != Task::Rescue || !self.stop.is_a_persons() {
            return Ok(());
        }
        self.entry.after = None;
        self.add("it is not tried again");
        self.journal.write(&self.entry)
    }

    /// Whether what runs is to be replaced however it stands: only who sits outside of it may say so.
    pub(super) fn is_forced(&self) -> bool {
        self.record.force && self.record.by != Asker::Agent
    }

    /// Adds to why the run did not succeed what else is true.
    pub(super) fn add(&mut self, what: &str) {
        self.log.log(what);
        let before = self.record.why.iter().map(String::as_str);
        let whole: Vec<&str> = before.chain([what]).collect();
        self.record.why = Some(hearsay::sentence(&whole.join("; ")));
    }

    /// Writes the record of the end. The disk that a build has filled has room again soon, and nobody
    /// but this run knows why it has failed.
    async fn keep(&self) -> Result<()> {
        for _ in 0..TRIES {
            match self.shelf.save(&self.record) {
                Ok(()) => return Ok(()),
                Err(error) => tracing::warn!("{error:#}"),
            }
            tokio::time::sleep(AGAIN).await;
        }
        self.shelf.save(&self.record)
    }

    fn because(&self) -> String {
        let why = self.record.why.iter();
        why.map(|why| format!(": {why}")).collect()
    }

    /// Writes down what is about to be done.
    pub(super) fn note(&mut self, step: Step) -> Result<()> {
        self.entry.step = step;
        self.journal.write(&self.entry)
    }

    fn enter(&mut self, stage: Stage) -> Result<()> {
        self.log.begin(stage.word());
        self.record.status = stage;
        self.record.stages.push(Passed {
            stage,
            began: now(),
            seconds: None,
        });
        self.shelf.save(&self.record)
    }

    fn leave(&mut self, begin: Instant) {
        if let Some(last) = self.record.stages.last_mut() {
            // The clock may have been set meanwhile.
            last.seconds = Some(begin.elapsed().as_secs_f64());
        }
    }

    /// The first gate that was not passed is the one that counts.
    pub(super) fn blame(&mut self, stage: Stage, error: &anyhow::Error) {
        if let Some(Error::PortTaken { port, .. }) = error.downcast_ref() {
            self.robbed = Some(*port);
        }
        let said = hearsay::sentence(&format!("{error:#}"));
        let mut lines = self.log.tail();
        if let (true, Some(named)) = (lines.is_empty(), error.downcast_ref::<Error>()) {
            lines = named.log().to_vec();
        }
        self.log.log(&format!("failed: {said}"));
        if self.record.gate.is_none() {
            self.record.gate = Some(stage);
            self.record.why = Some(said);
            self.record.log_tail = lines;
        }
    }
}
