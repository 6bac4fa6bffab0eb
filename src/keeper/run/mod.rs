//! One run from its first stage to its end.

mod building;
mod finalize;
mod quiescing;
mod rollback;
mod swapping;
mod syntax_check;
mod testing;
mod verifying;

pub(super) use self::building::BuildPolicy;
use super::cancellation::RunCancellation;
use super::journal::{RunJournal, RunJournalEntry, RunJournalStep};
use super::run_log::RunLog;
use super::run_store::{KeeperRunStore, unix_seconds};
use super::stage_transitions::{self, StageOutcome};
use super::target::DeployTarget;
use super::{KeeperSettings, gc, sanitize};
use crate::engine::EngineProgress;
use crate::error::{Error, Result};
use crate::protocol::evolve::{EvolveCaller, EvolveRecord, EvolveStage, RunTask, StageRecord};
use std::time::Duration;
use tokio::time::Instant;

/// The number of attempts to write the final record, and the pause between two attempts.
const MAX_RUN_RECORD_WRITES: u32 = 40;
const RUN_RECORD_WRITE_INTERVAL: Duration = Duration::from_millis(500);

/// A run, with the state that its stages share.
#[derive(Debug)]
pub(super) struct RunExecutor {
    pub(super) settings: KeeperSettings,
    pub(super) target: DeployTarget,
    pub(super) run_store: KeeperRunStore,
    pub(super) journal: RunJournal,
    pub(super) log: RunLog,
    pub(super) record: EvolveRecord,
    pub(super) journal_entry: RunJournalEntry,
    /// The build policy of an evolve; a rollback ignores the value.
    pub(super) build_policy: BuildPolicy,
    /// Since when the old container refuses requests.
    pub(super) refusing_since: Option<Instant>,
    /// Since when the old container is certainly quiesced, and how often the engine had restarted it by then.
    pub(super) quiesced_since: Option<(Instant, u64)>,
    /// The port that another program has.
    pub(super) taken_port: Option<u16>,
    /// Whether a container that no run created is in the place of the old one.
    pub(super) is_displaced: bool,
    pub(super) cancellation: RunCancellation,
}

impl RunExecutor {
    /// Executes the stages and the end. Afterwards the final record is written, and the journal is empty or, after
    /// success, contains the watch period.
    ///
    /// # Errors
    /// When the engine or the keeper's disk fails in the middle of a run; the journal says where to continue.
    #[tracing::instrument(name = "run", skip_all, fields(run = %self.record.run))]
    pub(super) async fn run_stages(mut self) -> Result<EvolveRecord> {
        let mut stage = stage_transitions::first_stage(self.record.task);
        while !stage.has_ended() {
            self.enter_stage(stage)?;
            let started_at = Instant::now();
            let stop = self.cancellation.clone();
            let passed = match stage {
                EvolveStage::Building => stop.run_until_cancelled(self.run_building()).await,
                // These stages check for cancellation at points where no step is half done.
                EvolveStage::Testing => self.run_testing().await,
                EvolveStage::Quiescing => self.run_quiescing().await,
                EvolveStage::Swapping => self.run_swapping().await,
                EvolveStage::Verifying => stop.run_until_cancelled(self.run_verifying()).await,
                EvolveStage::Succeeded | EvolveStage::RolledBack | EvolveStage::Failed => Ok(()),
            };
            self.record_stage_duration(started_at);
            let event = match passed.and_then(|()| stop.check_cancelled()) {
                Ok(()) if self.record.unchanged => StageOutcome::Unchanged,
                Ok(()) => StageOutcome::Passed,
                Err(error) => {
                    self.record_failure(stage, &error);
                    StageOutcome::Failed
                }
            };
            stage = stage_transitions::next_stage(stage, event, self.record.dry_run);
        }
        if let Err(error) = self.end_run(stage).await {
            // Save why the run failed for the recovery.
            if let Err(error) = self.run_store.save_record(&self.record) {
                tracing::warn!(error = %format_args!("{error:#}"), "the run's record can't be written");
            }
            return Err(error);
        }
        Ok(self.record)
    }

    /// Performs the steps of the end, and records it.
    ///
    /// # Errors
    /// As [`RunExecutor::run_stages`].
    pub(super) async fn end_run(&mut self, end: EvolveStage) -> Result<()> {
        if end != EvolveStage::Succeeded {
            self.disable_rescue()?;
        }
        match end {
            EvolveStage::Succeeded if self.keeps_container() => self.undo_preparation().await?,
            EvolveStage::Succeeded => self.finalize_run().await?,
            EvolveStage::RolledBack => self.roll_back().await?,
            _ => self.undo_preparation().await?,
        }
        if let Some(since) = self.refusing_since.take() {
            self.record.refused_ms = Some(since.elapsed().as_secs_f64() * 1e3);
        }
        if end != EvolveStage::Succeeded {
            // The old container still runs, so nothing that these fields report was lost.
            self.record.receipt.clear();
            self.record.other_state.clear();
        }
        let end = match self.is_displaced {
            true => EvolveStage::Failed,
            false => end,
        };
        self.record.status = end;
        self.log
            .report_step(&format!("{end}{}", self.reason_suffix()));
        self.save_final_record().await?;
        match end == EvolveStage::Succeeded && !self.keeps_container() {
            true => {
                self.journal_entry.after = None;
                self.write_step(RunJournalStep::Watching)?;
            }
            false => self.journal.restore_previous(&self.journal_entry)?,
        }
        let left = self.journal.read()?;
        gc::collect_garbage(&self.target, &self.run_store, left.as_ref()).await;
        Ok(())
    }

    /// Whether success leaves the old container in its place.
    fn keeps_container(&self) -> bool {
        self.record.dry_run || self.record.unchanged
    }

    /// Whether the new container has the image of the old one, and the image has this version of osctl. A rollback may
    /// have an image of an earlier version.
    fn keeps_image(&self) -> bool {
        let image = self.journal_entry.image.as_ref();
        self.record.task == RunTask::Evolve
            && image.is_some()
            && image == self.journal_entry.previous.as_ref()
    }

    /// A person who cancels a rescue keeps the failing container: the keeper does not start the rescue again.
    fn disable_rescue(&mut self) -> Result<()> {
        if self.record.task != RunTask::Rescue || !self.cancellation.is_by_user() {
            return Ok(());
        }
        self.journal_entry.after = None;
        self.add_reason("the keeper does not repeat the rescue");
        self.journal.write(&self.journal_entry)
    }

    /// Whether the container is replaced whatever its state is. The agent may not force this.
    pub(super) fn is_forced(&self) -> bool {
        self.record.force && self.record.requested_by != EvolveCaller::Agent
    }

    /// Adds a reason to the record.
    pub(super) fn add_reason(&mut self, what: &str) {
        self.log.log(what);
        let before = self.record.why.iter().map(String::as_str);
        let whole: Vec<&str> = before.chain([what]).collect();
        self.record.why = Some(sanitize::sanitize_sentence(&whole.join("; ")));
    }

    /// Writes the final record, with retries: a disk that a build has filled has space again soon, and only this run
    /// knows why it failed.
    async fn save_final_record(&self) -> Result<()> {
        for _ in 0..MAX_RUN_RECORD_WRITES {
            match self.run_store.save_record(&self.record) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::warn!(error = %format_args!("{error:#}"), "the run's record can't be written")
                }
            }
            tokio::time::sleep(RUN_RECORD_WRITE_INTERVAL).await;
        }
        self.run_store.save_record(&self.record)
    }

    fn reason_suffix(&self) -> String {
        let why = self.record.why.iter();
        why.map(|why| format!(": {why}")).collect()
    }

    /// Writes the next step to the journal.
    pub(super) fn write_step(&mut self, step: RunJournalStep) -> Result<()> {
        self.journal_entry.step = step;
        self.journal.write(&self.journal_entry)
    }

    fn enter_stage(&mut self, stage: EvolveStage) -> Result<()> {
        self.log.begin_stage(stage.as_str());
        self.record.status = stage;
        self.record.stages.push(StageRecord {
            stage,
            started: unix_seconds(),
            seconds: None,
        });
        self.run_store.save_record(&self.record)
    }

    fn record_stage_duration(&mut self, started_at: Instant) {
        if let Some(last) = self.record.stages.last_mut() {
            // A monotonic clock: the system time may have been set during the stage.
            last.seconds = Some(started_at.elapsed().as_secs_f64());
        }
    }

    /// Records the first failed stage as the run's failed stage; later failures do not change it.
    pub(super) fn record_failure(&mut self, stage: EvolveStage, error: &anyhow::Error) {
        if let Some(Error::PortTaken { port, .. }) = error.downcast_ref() {
            self.taken_port = Some(*port);
        }
        let reason = sanitize::sanitize_sentence(&format!("{error:#}"));
        // The lines of the failed step or script, without those of the steps and services beside it.
        let named = error.downcast_ref().map(Error::log_tail);
        let mut lines = named.unwrap_or_default().to_vec();
        if lines.is_empty() {
            lines = testing::failed_script_lines(&self.record.checks);
        }
        // The reason names the checks that failed.
        let has_failed_check = self.record.checks.iter().any(|check| !check.passed);
        if lines.is_empty() && !has_failed_check {
            lines = self.log.tail_lines();
        }
        self.log.log(&format!("failed: {reason}"));
        if self.record.failed_stage.is_none() {
            self.record.failed_stage = Some(stage);
            self.record.why = Some(reason);
            self.record.log_tail = lines;
        }
    }
}
