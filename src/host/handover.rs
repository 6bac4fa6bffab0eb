//! A container that runs gives way by the keeper's gates, as it does when it evolves: one replaces, and
//! never two.
//!
//! ```text
//! the person's wish, laid down ──▶ keeper: evolve ──▶ succeeded: the wish is what is recorded
//!                                        │
//!                                        └─▶ else: the old container goes on, at the place that was
//!                                            recorded before, with the rights of the wish
//! ```
//!
//! The wish is laid down before anybody is asked. So a right that the person has taken back is no run's
//! any more, whoever begins it and however this one ends; the ports and the project, by which the old
//! container is found, are those of before again when it goes on.

use super::instance::Record;
use super::keeper::{Keeper, unasked};
use super::run::{End, follow};
use crate::engine::Progress;
use crate::error::{Error, Result};
use crate::image::Companion;
use crate::protocol::evolve::{self, Ask, Charge, Evolve, Reply, Rollback, Run, Stage};
use std::path::Path;

/// For the history.
const REASON: &str = "`osctl up`";

/// What the keeper may do, and what the host records of it.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) charge: Charge,
    pub(crate) record: Record,
}

/// Who hands over, and how.
#[derive(Clone, Copy)]
pub(crate) struct Handover<'a> {
    pub(crate) keeper: Keeper<'a>,
    pub(crate) companion: &'a Companion,
    pub(crate) socket: &'a Path,
    /// The image of the container after a rollback, which stays whatever `body/` is.
    pub(crate) kept_image: Option<&'a str>,
    /// Whether code that does not end is interrupted.
    pub(crate) force: bool,
    pub(crate) progress: &'a dyn Progress,
}

impl Handover<'_> {
    /// Replaces the container as wished.
    ///
    /// # Errors
    /// When a gate is not passed: the old container goes on then, as `otherwise` says. When another run
    /// is on.
    pub(crate) async fn to(&self, wish: &Wish, otherwise: &Wish) -> Result<()> {
        let instance = self.keeper.instance;
        instance.keep_record()?;
        instance.save(&wish.record)?;
        let run = match self.begin(wish).await {
            Ok(run) => run,
            Err(error) => {
                self.take_back(wish, otherwise).await?;
                return Err(error);
            }
        };
        // Where nobody knows how it ends, the next `up` looks.
        let record = match follow(&self.keeper, &run, self.progress).await? {
            End::Reached(record) => record,
            End::LetGo => {
                let logs = instance.command(&format!("evolve logs -f {run}"));
                let run = run.to_string();
                return Err(Error::GoesOn { run, logs }.into());
            }
        };
        if record.status == Stage::Succeeded {
            return Ok(());
        }
        self.take_back(wish, otherwise).await?;
        Err(self.not_replaced(&record).into())
    }

    async fn begin(&self, wish: &Wish) -> Result<Run> {
        self.appoint(wish).await?;
        self.keeper.until_ready().await?;
        let (reason, force) = (Some(REASON.into()), self.force);
        let ask = match self.kept_image {
            None => Ask::Evolve(Evolve {
                reason,
                force,
                dry_run: false,
            }),
            Some(image) => Ask::Rollback(Rollback {
                run: Some(self.run_of(image).await?),
                reason,
                force,
            }),
        };
        match self.keeper.answer(&ask).await? {
            Reply::Started { run } => Ok(run),
            Reply::Busy { run } => Err(busy(&self.keeper, &run, "")),
            other => Err(unasked(&other)),
        }
    }

    /// The latest run that has brought the image.
    async fn run_of(&self, image: &str) -> Result<Run> {
        let runs = match self.keeper.answer(&Ask::History {}).await? {
            Reply::History { runs } => runs,
            other => return Err(unasked(&other)),
        };
        let brought = |record: &evolve::Record| {
            let succeeded = record.status == Stage::Succeeded && !record.dry_run;
            succeeded && record.image.as_deref() == Some(image)
        };
        let found = runs.into_iter().find(brought).map(|record| record.run);
        found.ok_or_else(|| {
            let message = "the keeper knows no run of the image that a rollback has brought back";
            let up = self.keeper.instance.command("up --build");
            Error::precondition(message, format!("`{up}` builds the image from body/")).into()
        })
    }

    async fn appoint(&self, wish: &Wish) -> Result<()> {
        let (charge, record) = (&wish.charge, &wish.record);
        let socket = Some(self.socket);
        self.keeper
            .appoint(charge, self.companion, record, socket, self.progress)
            .await
    }

    /// The old container goes on where it was.
    async fn take_back(&self, wish: &Wish, otherwise: &Wish) -> Result<()> {
        self.keeper.instance.restore_record()?;
        if wish.record == otherwise.record {
            return Ok(());
        }
        // Why it is taken back is worth more. The next `up` lays it down again.
        if let Err(error) = self.appoint(otherwise).await {
            self.progress.log(&format!("{error:#}"));
        }
        Ok(())
    }

    fn not_replaced(&self, record: &evolve::Record) -> Error {
        let instance = self.keeper.instance;
        let gate = record.gate.map_or("?", Stage::word);
        let hint = match record.gate {
            Some(Stage::Freezing) => {
                let force = instance.command("up --force");
                format!("wait until it has ended, or `{force}` interrupts it")
            }
            _ => {
                let logs = instance.command(&format!("evolve logs {}", record.run));
                format!("`{logs}` shows the whole log; the old container goes on")
            }
        };
        Error::NotReplaced {
            container: instance.container(),
            gate,
            why: record
                .why
                .clone()
                .unwrap_or_else(|| "no reason is known".into()),
            log: record.log_tail.clone(),
            hint,
        }
    }
}

/// Who wants to replace the container while a run is on is told which.
pub(crate) fn busy(keeper: &Keeper<'_>, run: &Run, stage: &str) -> anyhow::Error {
    let logs = keeper.instance.command(&format!("evolve logs -f {run}"));
    let stop = keeper.instance.command("evolve stop");
    let hint = format!("`{logs}` follows it to its end, `{stop}` ends it");
    Error::precondition(format!("evolve run `{run}` is on{stage}"), hint).into()
}
